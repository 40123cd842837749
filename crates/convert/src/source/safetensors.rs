//! Reader of safetensors files: a JSON header, then the data of all tensors without gaps.
//!
//! ```text
//! u64     length of the header, little-endian, at most 100 MB
//! header  {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …,
//!          "__metadata__": {…}}
//! data    offsets count from here
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use puna_gguf::escape_for_message;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::error::ConvertError;

/// Size limit of a header, as in other readers of the format.
const HEADER_LIMIT: u64 = 100_000_000;

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, non_camel_case_types)] // the format's own names
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

impl Dtype {
    /// Size of an element in bytes.
    pub fn size(self) -> u64 {
        use Dtype::*;
        match self {
            BOOL | U8 | I8 | F8_E4M3 | F8_E5M2 | F8_E8M0 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
        }
    }
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Offset in bytes from the start of the data section.
    pub start: u64,
    /// Size of the data in bytes.
    pub size: u64,
}

impl TensorEntry {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.size / self.dtype.size()
    }
}

/// An open file with a validated header.
#[derive(Debug)]
pub struct SafeTensors {
    name: String,
    path: PathBuf,
    data_start: u64,
    tensors: BTreeMap<String, TensorEntry>,
}

/// A tensor's entry in the header.
#[derive(Deserialize)]
struct RawEntry {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Entries in the order of the header, to detect duplicate names.
struct Entries(Vec<(String, RawEntry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(All)
    }
}

impl SafeTensors {
    /// Opens a file; error messages show `name`.
    ///
    /// # Errors
    /// The file cannot be read, or its header is invalid or does not match the file's size.
    pub fn open(name: &str, path: &Path) -> Result<Self, ConvertError> {
        let bad = |reason: String| ConvertError::Safetensors { file: name.to_owned(), reason };
        let mut file = File::open(path).map_err(|e| bad(e.to_string()))?;
        let len = file.metadata().map_err(|e| bad(e.to_string()))?.len();
        let mut word = [0; 8];
        file.read_exact(&mut word)
            .map_err(|_| bad(format!("{len} bytes are too few for a header")))?;
        let header_len = u64::from_le_bytes(word);
        if header_len > HEADER_LIMIT || header_len > len - 8 {
            let max = HEADER_LIMIT.min(len - 8);
            return Err(bad(format!(
                "its header length is {header_len} bytes, at most {max} are possible"
            )));
        }
        let mut header = Vec::with_capacity(header_len as usize);
        file.take(header_len).read_to_end(&mut header).map_err(|e| bad(e.to_string()))?;
        let entries: Entries =
            serde_json::from_slice(&header).map_err(|e| bad(format!("its header: {e}")))?;
        let tensors = check(entries.0, len - 8 - header_len).map_err(bad)?;
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            data_start: 8 + header_len,
            tensors,
        })
    }

    /// The name that error messages show.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.tensors.values()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    /// Fills a buffer with a tensor's bytes, beginning at `from`.
    ///
    /// # Errors
    /// The tensor is too small, or the file cannot be read.
    pub fn read_at(
        &self,
        tensor: &TensorEntry,
        from: u64,
        out: &mut [u8],
    ) -> Result<(), ConvertError> {
        let bad = |reason: String| ConvertError::Safetensors {
            file: self.path.display().to_string(),
            reason: format!("tensor {}: {reason}", tensor.name),
        };
        if from.checked_add(out.len() as u64).is_none_or(|end| end > tensor.size) {
            return Err(bad(format!("it has {} bytes, more are expected", tensor.size)));
        }
        let mut file = File::open(&self.path).map_err(|e| bad(e.to_string()))?;
        file.seek(SeekFrom::Start(self.data_start + tensor.start + from))
            .map_err(|e| bad(e.to_string()))?;
        file.read_exact(out).map_err(|e| bad(e.to_string()))
    }
}

/// Checks that sizes match shapes, and that the tensors fill the data section exactly.
fn check(
    entries: Vec<(String, RawEntry)>,
    data_len: u64,
) -> Result<BTreeMap<String, TensorEntry>, String> {
    let mut tensors = BTreeMap::new();
    for (name, RawEntry { dtype, shape, data_offsets: (start, end) }) in entries {
        let size = shape.iter().try_fold(dtype.size(), |size, &dim| size.checked_mul(dim));
        let label = escape_for_message(&name);
        let size = size.ok_or_else(|| {
            format!("tensor {label}: the size of {shape:?} does not fit in 64 bits")
        })?;
        if end.checked_sub(start) != Some(size) {
            return Err(format!(
                "tensor {label}: bytes {start} to {end}, but {dtype:?} {shape:?} needs {size}"
            ));
        }
        if end > data_len {
            return Err(format!(
                "tensor {label} ends at byte {end} of the data, which has {data_len}"
            ));
        }
        let entry = TensorEntry { name: name.clone(), dtype, shape, start, size };
        if tensors.insert(name, entry).is_some() {
            return Err(format!("tensor {label} occurs twice"));
        }
    }
    let mut order: Vec<&TensorEntry> = tensors.values().collect();
    order.sort_by_key(|tensor| (tensor.start, tensor.size));
    let mut at = 0;
    for tensor in order {
        let label = escape_for_message(&tensor.name);
        match tensor.start {
            start if start > at => {
                return Err(format!(
                    "{} bytes before tensor {label} belong to no tensor",
                    start - at
                ));
            }
            start if start < at => {
                return Err(format!("tensor {label} overlaps the one before it"));
            }
            _ => at += tensor.size,
        }
    }
    if at != data_len {
        return Err(format!("{} bytes at its end belong to no tensor", data_len - at));
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(header: &str, data: &[u8]) -> Result<SafeTensors, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        std::fs::write(file.path(), bytes).unwrap();
        SafeTensors::open("f", file.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn tensors_are_read_in_place() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}"#;
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes =
            [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[1, 2, 3, 4, 5, 6, 7]]
                .concat();
        std::fs::write(file.path(), bytes).unwrap();
        let tensors = SafeTensors::open("f", file.path()).unwrap();
        let mut read = [0; 3];
        let entry = tensors.tensor("b").unwrap();
        tensors.read_at(entry, 0, &mut read).unwrap();
        assert_eq!(read, [5, 6, 7]);
        assert_eq!((entry.elements(), tensors.tensors().count()), (3, 2));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let two = |a: &str, b: &str| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[2],"data_offsets":{a}}},"b":{{"dtype":"U8","shape":[2],"data_offsets":{b}}}}}"#
            )
        };
        let twice = two("[0,2]", "[2,4]").replace("\"b\"", "\"a\"");
        for (header, data, want) in [
            (one("F32", "[1]", "[0,3]"), 3, "needs 4"),
            (one("F32", "[1]", "[4,0]"), 4, "needs 4"),
            (one("F32", "[2]", "[0,8]"), 4, "which has 4"),
            (one("F32", "[4294967296,4294967296]", "[0,0]"), 0, "64 bits"),
            (one("Q9", "[1]", "[0,1]"), 1, "unknown variant"),
            (one("U8", "[1]", "[1,2]"), 2, "belong to no tensor"),
            (one("U8", "[1]", "[0,1]"), 2, "belong to no tensor"),
            (one("U8", "[-1]", "[0,1]"), 1, "its header"),
            (two("[0,2]", "[1,3]"), 3, "overlaps"),
            (two("[0,2]", "[0,2]"), 2, "overlaps"),
            (twice, 4, "occurs twice"),
            ("[]".into(), 0, "its header"),
            ("".into(), 0, "its header"),
        ] {
            let error = open(&header, &vec![0; data]).unwrap_err();
            assert!(error.contains(want), "{header}: {error}");
        }
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, want) in [
            (u64::MAX.to_le_bytes().to_vec(), "at most 0 are possible"),
            (9u64.to_le_bytes().iter().copied().chain([0; 8]).collect(), "at most 8 are possible"),
            (vec![1, 2, 3], "too few for a header"),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            let error = SafeTensors::open("f", file.path()).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(header in "[{}\\[\\]\":,a-zA-Z0-9_ -]{0,80}", data in 0usize..9) {
            let _ = open(&header, &vec![0; data]);
        }
    }
}
