//! Split files: `name-00001-of-00003.gguf` and its siblings. The first part has the metadata. Every
//! part has some of the tensors, with offsets in its own data section.

use std::path::Path;

use crate::error::GgufError;
use crate::file::{Gguf, LoadMode, SplitPart, open_part};
use crate::metadata::Metadata;
use crate::parse::Header;

/// Opens the model at `path`, with its siblings if its metadata declares a split file.
pub(crate) fn open(path: &Path, mode: LoadMode) -> Result<Gguf, GgufError> {
    let first = open_part(path, 0, mode)?;
    let Some(count) = split_key(&first.1.metadata, "count") else {
        return Gguf::from_parts(vec![first]);
    };
    // The key's type holds at most 65535.
    let count = u64::try_from(count).ok().filter(|n| *n <= 65_535);
    match count {
        Some(0 | 1) => Gguf::from_parts(vec![first]),
        _ => open_all(path, mode, first, count.unwrap_or(0)),
    }
}

fn open_all(
    path: &Path,
    mode: LoadMode,
    first: (SplitPart, Header),
    count: u64,
) -> Result<Gguf, GgufError> {
    // A link may have any name. Its target has the siblings.
    let real = if part_name(path).is_none() { path.canonicalize().ok() } else { None };
    let named = real.as_deref().unwrap_or(path);
    let name =
        part_name(named).ok_or_else(|| GgufError::SplitName { path: path.to_owned(), count })?;
    let part_at = |number| named.with_file_name(name.other(number));
    if name.number != 1 {
        return Err(GgufError::SplitEntry { path: path.to_owned(), first: part_at(1) });
    }
    let count = u64::from(name.count);
    check_part(path, &first.1.metadata, 0, count)?;
    let want_total = split_key(&first.1.metadata, "tensors.count");
    let mut parts = vec![first];
    for number in 2..=name.count {
        let (path, index) = (part_at(number), u64::from(number - 1));
        let (part, header) =
            open_part(&path, index as usize, mode).map_err(|error| match error {
                GgufError::Io { path, reason, .. } => GgufError::SplitMissing { path, reason },
                error => GgufError::InPart { path: path.clone(), error: Box::new(error) },
            })?;
        check_part(&path, &header.metadata, index, count)?;
        parts.push((part, header));
    }
    let found: u64 = parts.iter().map(|(_, header)| header.tensors.len() as u64).sum();
    if want_total != Some(found.into()) {
        return Err(GgufError::SplitTotal { want: int_or_missing(want_total), found });
    }
    Gguf::from_parts(parts)
}

/// Checks that `split.no` and `split.count` of a part match its name.
fn check_part(path: &Path, metadata: &Metadata, index: u64, count: u64) -> Result<(), GgufError> {
    let found = split_key(metadata, "no");
    if found != Some(index.into()) {
        return Err(GgufError::SplitIndex {
            path: path.to_owned(),
            found: int_or_missing(found),
            want: index,
        });
    }
    let found = split_key(metadata, "count");
    if found != Some(count.into()) {
        return Err(GgufError::SplitCount {
            path: path.to_owned(),
            found: int_or_missing(found),
            want: count,
        });
    }
    Ok(())
}

/// Reads `split.<name>`, or the same key with the prefix that Ollama's writer adds, as any integer
/// type.
fn split_key(metadata: &Metadata, name: &str) -> Option<i128> {
    let plain = metadata.get(&format!("split.{name}"));
    let prefixed = || metadata.get(&format!("{}.split.{name}", metadata.architecture().ok()?));
    plain.or_else(prefixed)?.as_int()
}

fn int_or_missing(value: Option<i128>) -> String {
    value.map_or_else(|| "missing".to_owned(), |value| value.to_string())
}

/// Parsed name of a part: `prefix-00001-of-00003.gguf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartName<'a> {
    /// Text before `-00001-of-00003.gguf`, including folders.
    pub prefix: &'a str,
    /// Number of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
}

impl<'a> PartName<'a> {
    /// Parses a name, or a path with slashes. `None` if it is not the name of a part.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = number_at_end(name.strip_suffix(".gguf")?)?;
        let (prefix, number) = number_at_end(rest.strip_suffix("-of")?)?;
        (1..=count).contains(&number).then_some(Self { prefix, number, count })
    }

    /// Name of another part.
    pub fn other(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}

/// Splits `-00001` off the end of `text`.
fn number_at_end(text: &str) -> Option<(&str, u32)> {
    let (rest, digits) = text.rsplit_once('-')?;
    let five = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
    five.then(|| Some((rest, digits.parse().ok()?)))?
}

/// Parses the file name of a path.
fn part_name(path: &Path) -> Option<PartName<'_>> {
    PartName::parse(path.file_name()?.to_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_parsed_and_formatted() {
        let name = PartName::parse("m/big-model-q4-00002-of-00012.gguf").unwrap();
        assert_eq!((name.number, name.count, name.prefix), (2, 12, "m/big-model-q4"));
        assert_eq!(name.other(11), "m/big-model-q4-00011-of-00012.gguf");
        assert_eq!(PartName::parse("m-00001-of-99999.gguf").map(|name| name.count), Some(99_999));
        for wrong in [
            "m.gguf",
            "m-1-of-2.gguf",
            "m-00001-of-00002.bin",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "m-00000-of-00000.gguf",
            "m-00001-00002.gguf",
            "00002-of-00003.gguf",
            "m-+0001-of-00002.gguf",
        ] {
            assert_eq!(PartName::parse(wrong), None, "{wrong}");
        }
    }
}
