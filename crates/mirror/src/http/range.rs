//! Parsing of `Range` headers.

use std::ops::Range;

/// Result of parsing a `Range` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// No range, several ranges, or an invalid header, which is ignored (RFC 9110, 14.2).
    Whole,
    /// A range of at least one byte.
    Part(Range<u64>),
    /// The range starts behind the end.
    Unsatisfiable,
}

/// Parses the header for content of `size` bytes.
pub(crate) fn parse_range(header: Option<&str>, size: u64) -> ByteRange {
    let read = || {
        let (unit, range) = header?.split_once('=')?;
        let (first, last) =
            range.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
        let number = |text: &str| match text.bytes().all(|c| c.is_ascii_digit()) {
            // A number too large for the type lies behind every end.
            true if !text.is_empty() => Some(Some(text.parse().unwrap_or(u64::MAX))),
            true => Some(None),
            false => None,
        };
        Some((number(first.trim())?, number(last.trim())?))
    };
    match read() {
        None | Some((None, None)) => ByteRange::Whole,
        Some((Some(first), Some(last))) if last < first => ByteRange::Whole,
        Some((None, Some(0))) => ByteRange::Unsatisfiable,
        Some((None, Some(_))) if size == 0 => ByteRange::Unsatisfiable,
        Some((None, Some(last))) => ByteRange::Part(size.saturating_sub(last)..size),
        Some((Some(first), _)) if first >= size => ByteRange::Unsatisfiable,
        Some((Some(first), last)) => {
            ByteRange::Part(first..last.map_or(size, |last| last.saturating_add(1).min(size)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_parsed() {
        for (header, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=0-9", 0..10),
            ("bytes=5-", 5..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
            ("bytes=8-300", 8..10),
            ("BYTES = 1 - 2", 1..3),
            ("bytes=0-99999999999999999999999", 0..10),
        ] {
            assert_eq!(parse_range(Some(header), 10), ByteRange::Part(part), "{header}");
        }
    }

    #[test]
    fn ranges_behind_the_end_differ_from_invalid_ones() {
        for beyond in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(parse_range(Some(beyond), 10), ByteRange::Unsatisfiable, "{beyond}");
        }
        assert_eq!(parse_range(Some("bytes=0-0"), 0), ByteRange::Unsatisfiable);
        assert_eq!(parse_range(Some("bytes=-1"), 0), ByteRange::Unsatisfiable);
        for none in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-3",
            "bytes=0-1,4-5",
            "pages=0-1",
            "bytes=a-b",
            "bytes=+1-2",
        ] {
            assert_eq!(parse_range(Some(none), 10), ByteRange::Whole, "{none}");
        }
        assert_eq!(parse_range(None, 10), ByteRange::Whole);
    }
}
