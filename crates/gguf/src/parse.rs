//! Parses the header of one file: counts, keys, values and tensor descriptions. Compares every
//! number in the file with the remaining bytes before it allocates memory, and checks every sum for
//! overflow.

use puna_quant::TensorType;

use crate::bytes::SharedBytes;
use crate::error::{GgufError, escape_for_display};
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, byte_size, pad};
use crate::value::{Array, GgufString, Value, ValueType, scalar};

/// Limits far above the values of real files.
mod limits {
    /// Number of keys.
    pub(super) const KEYS: u64 = 65_536;
    /// Number of tensors.
    pub(super) const TENSORS: u64 = 1_048_576;
    pub(super) const KEY_BYTES: u64 = 65_535;
    pub(super) const STRING_BYTES: u64 = 16 << 20;
    pub(super) const DOCUMENT_BYTES: u64 = 64 << 20;
    pub(super) const ARRAY_LEN: u64 = 64 << 20;
    pub(super) const METADATA_BYTES: u64 = 2 << 30;
    /// Alignment of tensor data, in bytes.
    pub(super) const ALIGNMENT: u32 = 65_536;
    pub(super) const TENSOR_NAME_BYTES: u64 = 63;
    /// Number of dimensions of a tensor.
    pub(super) const DIMS: u32 = 4;
}

/// Smallest key and value: length, one byte, type, one byte. (The specification's bound is one byte
/// less.)
const MIN_KV_BYTES: u64 = 13;
/// Smallest tensor description: length, number of dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 24;

/// Header of one file.
#[derive(Debug)]
pub(crate) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// Offset of the data section.
    pub data_start: u64,
}

/// Parses and validates the header at the start of `file`, which is part number `part`.
pub(crate) fn parse(file: &SharedBytes, part: usize) -> Result<Header, GgufError> {
    let (header, data_size) = header(file, part)?;
    check_bounds(&header.tensors, header.data_start, data_size, file.len() as u64)?;
    Ok(header)
}

/// Validates a header without data behind it.
pub(crate) fn check_header(header: &SharedBytes) -> Result<(), GgufError> {
    self::header(header, 0).map(drop)
}

/// Parses the header, and returns the size of the data section that it describes.
fn header(file: &SharedBytes, part: usize) -> Result<(Header, u64), GgufError> {
    let mut reader = Reader { file, pos: 0 };
    let (version, tensor_count, kv_count) = reader.counts()?;
    let entries =
        (0..kv_count).map(|index| reader.key_value(index)).collect::<Result<Vec<_>, _>>()?;
    let metadata = Metadata::from_entries(entries)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    for index in 0..tensor_count {
        tensors.push(reader.tensor(index, part)?);
        reader.check_metadata_limit()?;
    }
    let data_size = check_offsets(&tensors, alignment)?;
    // A file without tensors may end right after its keys.
    let end = reader.pos as u64;
    let data_start = match tensors.is_empty() {
        true => end,
        false => pad(end, alignment).expect("a position in a file and a small alignment"),
    };
    Ok((Header { version, alignment, metadata, tensors, data_start }, data_size))
}

struct Reader<'a> {
    file: &'a SharedBytes,
    pos: usize,
}

impl Reader<'_> {
    fn remaining(&self) -> u64 {
        (self.file.len() - self.pos) as u64
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.file[self.pos..].first_chunk::<N>()?;
        self.pos += N;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next `len` bytes, which must exist.
    fn bytes(&mut self, len: u64) -> SharedBytes {
        let start = self.pos;
        self.pos += len as usize;
        self.file.slice(start, self.pos)
    }

    /// Reads magic, version and counts.
    fn counts(&mut self) -> Result<(u32, u64, u64), GgufError> {
        let truncated = GgufError::TruncatedHeader { len: self.file.len() as u64 };
        let magic = self.array::<4>().ok_or(truncated.clone())?;
        if &magic != b"GGUF" {
            return Err(GgufError::BadMagic { found: magic, looks_like: looks_like(self.file) });
        }
        let version = match self.u32().ok_or(truncated.clone())? {
            0 => return Err(GgufError::VersionInvalid),
            1 => return Err(GgufError::VersionUnsupported { version: 1 }),
            version @ 2..=3 => version,
            // A small number in the other byte order.
            version if version & 0xffff == 0 => return Err(GgufError::BigEndian),
            version => return Err(GgufError::VersionFuture { version }),
        };
        let tensors = self.u64().ok_or(truncated.clone())? as i64;
        let keys = self.u64().ok_or(truncated)? as i64;
        let remaining = self.remaining();
        let allowed = limits::TENSORS.min(remaining / MIN_TENSOR_BYTES);
        if u64::try_from(tensors).is_ok_and(|n| n <= allowed) {
            let allowed = limits::KEYS.min(remaining / MIN_KV_BYTES);
            match u64::try_from(keys) {
                Ok(keys) if keys <= allowed => Ok((version, tensors as u64, keys)),
                _ => Err(GgufError::KvCount { found: keys, allowed, remaining }),
            }
        } else {
            Err(GgufError::TensorCount { found: tensors, allowed, remaining })
        }
    }

    /// Reads a key and its value.
    fn key_value(&mut self, index: u64) -> Result<(Box<str>, Value), GgufError> {
        let offset = self.pos as u64;
        let field = || format!("key {index}");
        let bytes = self.string(field, limits::KEY_BYTES)?;
        let invalid = |reason| GgufError::KeyInvalid {
            index,
            offset,
            key: escape_for_display(&bytes),
            reason,
        };
        if bytes.is_empty() {
            return Err(GgufError::KeyEmpty { index, offset });
        }
        if bytes.contains(&0) {
            return Err(invalid("contains a NUL byte"));
        }
        let key: Box<str> =
            std::str::from_utf8(&bytes).map_err(|_| invalid("is not valid UTF-8"))?.into();
        let ty = self.value_type(&key)?;
        let value = match ty {
            ValueType::String => {
                let max = match &*key {
                    "tokenizer.chat_template" | "tokenizer.huggingface.json" => {
                        limits::DOCUMENT_BYTES
                    }
                    _ => limits::STRING_BYTES,
                };
                Value::String(GgufString(self.string(
                    || format!("the value of key {}", escape_for_display(key.as_bytes())),
                    max,
                )?))
            }
            ValueType::Array => Value::Array(self.array_value(&key)?),
            _ => self.scalar(&key, ty)?,
        };
        self.check_metadata_limit()?;
        Ok((key, value))
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let offset = self.pos as u64;
        let id = self.u32().ok_or_else(|| self.truncated_value("the type of key", key, offset))?;
        ValueType::from_id(id).ok_or_else(|| GgufError::ValueTypeUnknown {
            key: escape_for_display(key.as_bytes()),
            offset,
            found: id as i32,
        })
    }

    fn scalar(&mut self, key: &str, ty: ValueType) -> Result<Value, GgufError> {
        let offset = self.pos as u64;
        let size = ty.size().expect("strings and arrays are read elsewhere") as u64;
        if size > self.remaining() {
            return Err(self.truncated_value("the value of key", key, offset));
        }
        Ok(scalar(ty, &self.bytes(size)).expect("a scalar type"))
    }

    fn array_value(&mut self, key: &str) -> Result<Array, GgufError> {
        let offset = self.pos as u64;
        let element = self.value_type(key)?;
        if element == ValueType::Array {
            return Err(GgufError::ArrayNested { key: escape_for_display(key.as_bytes()), offset });
        }
        let found =
            self.u64().ok_or_else(|| self.truncated_value("the length of array", key, offset))?;
        // A string has at least its length field. The loop below checks each string.
        let size = element.size().unwrap_or(8) as u64;
        let allowed = limits::ARRAY_LEN.min(self.remaining() / size);
        if found > allowed {
            return Err(match element {
                ValueType::String => GgufError::StringOutOfFile {
                    field: format!(
                        "the list of strings of key {}",
                        escape_for_display(key.as_bytes())
                    ),
                    offset,
                    found: found.saturating_mul(8),
                    allowed: allowed * 8,
                },
                _ => GgufError::ArrayOutOfFile {
                    key: escape_for_display(key.as_bytes()),
                    offset,
                    found,
                    allowed,
                },
            });
        }
        let start = self.pos;
        if element == ValueType::String {
            for index in 0..found {
                let field =
                    || format!("string {index} of key {}", escape_for_display(key.as_bytes()));
                self.string(field, limits::STRING_BYTES)?;
            }
        } else {
            self.pos += (found * size) as usize;
        }
        Ok(Array { element, len: found as usize, bytes: self.file.slice(start, self.pos) })
    }

    /// Reads a length and as many bytes, at most `max`.
    fn string(&mut self, field: impl Fn() -> String, max: u64) -> Result<SharedBytes, GgufError> {
        let offset = self.pos as u64;
        let truncated =
            || GgufError::TruncatedKv { field: format!("the length of {}", field()), offset };
        let found = self.u64().ok_or_else(truncated)?;
        let allowed = max.min(self.remaining());
        if found > allowed {
            return Err(GgufError::StringOutOfFile { field: field(), offset, found, allowed });
        }
        Ok(self.bytes(found))
    }

    /// Reads a tensor description, and checks everything except its offset.
    fn tensor(&mut self, index: u64, part: usize) -> Result<TensorInfo, GgufError> {
        let start = self.pos as u64;
        let truncated = || GgufError::TruncatedTensorInfo { index, offset: start };
        let found = self.u64().ok_or_else(truncated)?;
        if found > limits::TENSOR_NAME_BYTES {
            return Err(GgufError::TensorNameTooLong { index, offset: start, found });
        }
        if found > self.remaining() {
            return Err(truncated());
        }
        let name: Box<str> = check_name(&self.bytes(found))
            .map_err(|(name, reason)| GgufError::TensorNameInvalid {
                index,
                offset: start,
                name,
                reason,
            })?
            .into();
        let dims = self.u32().ok_or_else(truncated)?;
        if dims > limits::DIMS {
            return Err(GgufError::TensorDims { name: name.into(), found: dims });
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for dim in 0..dims as usize {
            match self.u64().ok_or_else(truncated)? as i64 {
                0 => return Err(GgufError::TensorDimZero { name: name.into(), dim }),
                found @ i64::MIN..0 => {
                    return Err(GgufError::TensorDimNegative { name: name.into(), dim, found });
                }
                size => shape.push(size as u64),
            }
        }
        let id = self.u32().ok_or_else(truncated)?;
        let offset = self.u64().ok_or_else(truncated)?;
        let (ty, size) = type_and_size(&name, &shape, id)?;
        Ok(TensorInfo { name, ty, shape, offset, size, part })
    }

    fn truncated_value(&self, what: &str, key: &str, offset: u64) -> GgufError {
        GgufError::TruncatedKv {
            field: format!("{what} {}", escape_for_display(key.as_bytes())),
            offset,
        }
    }

    fn check_metadata_limit(&self) -> Result<(), GgufError> {
        if self.pos as u64 > limits::METADATA_BYTES {
            return Err(GgufError::MetadataTooLarge { limit: limits::METADATA_BYTES });
        }
        Ok(())
    }
}

/// Checks a tensor name. The error has the name for display and the reason.
fn check_name(bytes: &[u8]) -> Result<&str, (String, &'static str)> {
    let invalid = |reason| (escape_for_display(bytes), reason);
    if bytes.is_empty() {
        return Err(invalid("is empty"));
    }
    let name = std::str::from_utf8(bytes).map_err(|_| invalid("is not valid UTF-8"))?;
    // Includes control characters beyond ASCII, which terminals also interpret.
    match name.contains(char::is_control) {
        true => Err(invalid("contains control characters")),
        false => Ok(name),
    }
}

/// Tensor type of number `id`, and size in bytes of a tensor of this type.
pub(crate) fn type_and_size(
    name: &str,
    shape: &[u64],
    id: u32,
) -> Result<(TensorType, u64), GgufError> {
    let elements = shape.iter().try_fold(1i64, |n, &dim| n.checked_mul(i64::try_from(dim).ok()?));
    if elements.is_none() {
        return Err(GgufError::TensorShapeOverflow {
            name: name.to_owned(),
            shape: shape.to_vec(),
        });
    }
    let ty = TensorType::from_id(id).ok_or_else(|| match removed(id) {
        Some(was) => GgufError::TensorTypeRemoved { name: name.to_owned(), found: id as i32, was },
        None => GgufError::TensorTypeUnknown { name: name.to_owned(), found: id as i32 },
    })?;
    let (row, block) = (shape.first().copied().unwrap_or(1), ty.block_values() as u64);
    if !row.is_multiple_of(block) {
        return Err(GgufError::TensorRowMisaligned { name: name.to_owned(), ty, row, block });
    }
    let size = byte_size(ty, shape).ok_or_else(|| size_overflow(name, ty, shape))?;
    Ok((ty, size))
}

fn size_overflow(name: &str, ty: TensorType, shape: &[u64]) -> GgufError {
    GgufError::TensorSizeOverflow { name: name.to_owned(), ty, shape: shape.to_vec() }
}

/// Name of a type number that was removed from the format.
fn removed(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}

/// `general.alignment`, or its default.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get("general.alignment") {
        None => Ok(32),
        Some(Value::U32(found)) if found.is_power_of_two() && *found <= limits::ALIGNMENT => {
            Ok((*found).into())
        }
        Some(Value::U32(found)) => Err(GgufError::AlignmentInvalid { found: *found }),
        Some(other) => Err(GgufError::AlignmentType { found: other.describe() }),
    }
}

/// Checks that every tensor starts at the padded end of the one before it. Returns the unpadded end
/// of the last one.
fn check_offsets(tensors: &[TensorInfo], alignment: u64) -> Result<u64, GgufError> {
    let (mut expected, mut end) = (0u64, 0u64);
    for tensor in tensors {
        let (name, found) = (|| tensor.name.to_string(), tensor.offset);
        if !found.is_multiple_of(alignment) {
            return Err(GgufError::TensorOffsetUnaligned { name: name(), found, alignment });
        }
        if found < expected {
            return Err(GgufError::TensorOverlap { name: name(), found, expected });
        }
        if found > expected {
            return Err(GgufError::TensorOffsetUnexpected { name: name(), found, expected });
        }
        let padded = pad(tensor.size, alignment)
            .ok_or_else(|| size_overflow(&tensor.name, tensor.ty, &tensor.shape))?;
        let overflow = || GgufError::DataSizeOverflow { name: name() };
        end = expected.checked_add(tensor.size).ok_or_else(overflow)?;
        expected = expected.checked_add(padded).ok_or_else(overflow)?;
    }
    Ok(end)
}

/// Checks that the data section, of length `end`, lies within the file.
fn check_bounds(tensors: &[TensorInfo], start: u64, end: u64, len: u64) -> Result<(), GgufError> {
    let Some(last) = tensors.last() else { return Ok(()) };
    if start > len {
        return Err(GgufError::TruncatedData { start, len });
    }
    if start.checked_add(end).is_none() {
        return Err(GgufError::DataSizeOverflow { name: last.name.to_string() });
    }
    // No sum overflows: none is larger than the checked sum of `start` and `end`.
    let ends_outside = |t: &&TensorInfo| start + t.offset + t.size > len;
    match tensors.iter().find(ends_outside) {
        Some(t) => Err(GgufError::TensorOutOfFile {
            name: t.name.to_string(),
            end: start + t.offset + t.size,
            len,
        }),
        None => Ok(()),
    }
}

/// Describes the probable format of a file that is not GGUF, as the end of a sentence.
fn looks_like(file: &[u8]) -> &'static str {
    let text = String::from_utf8_lossy(&file[..file.len().min(64)]).to_ascii_lowercase();
    match file {
        [b'l', b'm', b'g', b'g', ..]
        | [b'f', b'm', b'g', b'g', ..]
        | [b't', b'j', b'g', b'g', ..] => ", a GGML file from before GGUF: convert the model again",
        [b'g', b'g', b'm' | b'j', b'l' | b'f' | b't', ..] => {
            ", a GGML file from before GGUF: convert the model again"
        }
        [b'F', b'U', b'G', b'G', ..] => ", a GGUF file with its bytes swapped",
        [b'P', b'K', 3 | 5 | 7, ..] => ", a ZIP archive, such as a PyTorch checkpoint",
        [0x1f, 0x8b, ..] => ", a gzip file: unpack it first",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ", a Zstandard file: unpack it first",
        [_, _, _, _, _, _, _, 0, b'{', ..] => ", a safetensors file: convert it with `puna create`",
        _ if text.starts_with("version https://git-lfs") => {
            ", a Git LFS pointer: fetch the file itself with `git lfs pull`"
        }
        _ if text.trim_start().starts_with("<!doctype")
            || text.trim_start().starts_with("<html") =>
        {
            ", a web page: download the file again"
        }
        _ if text.trim_start().starts_with('{') => ", JSON text",
        _ => "",
    }
}
