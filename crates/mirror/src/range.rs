//! `Range` headers: which bytes of a blob are wanted.

use std::ops::Range;

/// What a `Range` header asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Everything: no range, several, or one that cannot be read (RFC 9110, 14.2).
    Whole,
    /// These bytes, of which there is at least one.
    Part(Range<u64>),
    /// Bytes that are not there.
    Beyond,
}

/// Reads the header for something of a size.
pub(crate) fn wanted(header: Option<&str>, size: u64) -> Wanted {
    let read = || {
        let (unit, range) = header?.split_once('=')?;
        let (first, last) =
            range.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
        let number = |text: &str| match text.bytes().all(|c| c.is_ascii_digit()) {
            // What is too large for a number is behind every end.
            true if !text.is_empty() => Some(Some(text.parse().unwrap_or(u64::MAX))),
            true => Some(None),
            false => None,
        };
        Some((number(first.trim())?, number(last.trim())?))
    };
    match read() {
        None | Some((None, None)) => Wanted::Whole,
        Some((Some(first), Some(last))) if last < first => Wanted::Whole,
        Some((None, Some(0))) => Wanted::Beyond,
        Some((None, Some(_))) if size == 0 => Wanted::Beyond,
        Some((None, Some(last))) => Wanted::Part(size.saturating_sub(last)..size),
        Some((Some(first), _)) if first >= size => Wanted::Beyond,
        Some((Some(first), last)) => {
            Wanted::Part(first..last.map_or(size, |last| last.saturating_add(1).min(size)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_one_range_is_read() {
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
            assert_eq!(wanted(Some(header), 10), Wanted::Part(part), "{header}");
        }
    }

    #[test]
    fn ranges_behind_the_end_are_told_from_those_that_are_none() {
        for beyond in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(wanted(Some(beyond), 10), Wanted::Beyond, "{beyond}");
        }
        assert_eq!(wanted(Some("bytes=0-0"), 0), Wanted::Beyond);
        assert_eq!(wanted(Some("bytes=-1"), 0), Wanted::Beyond);
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
            assert_eq!(wanted(Some(none), 10), Wanted::Whole, "{none}");
        }
        assert_eq!(wanted(None, 10), Wanted::Whole);
    }
}
