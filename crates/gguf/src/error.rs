//! Errors of GGUF files, with a stable code for logs, tests and the API.

use std::io;
use std::path::{Path, PathBuf};

use puna_quant::TensorType;

/// Why a GGUF file, a metadata key or a tensor is rejected.
///
/// Messages show names from files escaped and shortened, so that they are safe to print on a
/// terminal. Offsets are bytes from the start of the GGUF data.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of a variant documents it and its fields.
pub enum GgufError {
    #[error("cannot {action} {}: {reason}", path.display())]
    Io { action: &'static str, path: PathBuf, kind: io::ErrorKind, reason: String },
    #[error("{}: the file size changed from {expected} to {found} bytes after opening: retry when no program writes it", path.display())]
    FileChanged { path: PathBuf, expected: u64, found: u64 },

    #[error(
        "the file ends at byte {len}, within the GGUF header (24 bytes: magic, version, two counts)"
    )]
    TruncatedHeader { len: u64 },
    #[error(
        "not a GGUF file: it starts with {}{looks_like}",
        crate::error::escape_for_display(found)
    )]
    BadMagic { found: [u8; 4], looks_like: &'static str },
    #[error("GGUF version 0 is invalid (supported: 2 and 3)")]
    VersionInvalid,
    #[error(
        "GGUF version {version} was retired in 2023 (supported: 2 and 3): convert the model again or download a newer file"
    )]
    VersionUnsupported { version: u32 },
    #[error("GGUF version {version} is too new (supported: 2 and 3): update this program")]
    VersionFuture { version: u32 },
    #[error(
        "big-endian GGUF file: convert it with llama.cpp's gguf-py/gguf/scripts/gguf_convert_endian.py FILE little"
    )]
    BigEndian,
    #[error(
        "tensor_count at byte 8 is {found}, but the {remaining} bytes after it allow 0 to {allowed}"
    )]
    TensorCount { found: i64, allowed: u64, remaining: u64 },
    #[error(
        "kv_count at byte 16 is {found}, but the {remaining} bytes after it allow 0 to {allowed}"
    )]
    KvCount { found: i64, allowed: u64, remaining: u64 },

    #[error("{field} at byte {offset} is {found} bytes long, {allowed} are possible")]
    StringOutOfFile { field: String, offset: u64, found: u64, allowed: u64 },
    #[error("key {index} at byte {offset} is empty")]
    KeyEmpty { index: u64, offset: u64 },
    #[error("key {index} at byte {offset}, {key}, {reason}")]
    KeyInvalid { index: u64, offset: u64, key: String, reason: &'static str },
    #[error("key {key} occurs twice")]
    KeyDuplicate { key: String },
    #[error("key {key}: value type {found} at byte {offset} is unknown (0 to 12)")]
    ValueTypeUnknown { key: String, offset: u64, found: i32 },
    #[error("key {key}: nested array at byte {offset}; elements must be scalars or strings")]
    ArrayNested { key: String, offset: u64 },
    #[error("key {key}: an array of {found} elements at byte {offset}, {allowed} are possible")]
    ArrayOutOfFile { key: String, offset: u64, found: u64, allowed: u64 },
    #[error("the file ends within {field}, which starts at byte {offset}")]
    TruncatedKv { field: String, offset: u64 },
    #[error("the metadata is larger than the limit of {limit} bytes")]
    MetadataTooLarge { limit: u64 },
    #[error("key `general.alignment` must be u32, found {found}")]
    AlignmentType { found: String },
    #[error("key `general.alignment` must be a power of two up to 65536, found {found}")]
    AlignmentInvalid { found: u32 },

    #[error(
        "the file ends within the description of tensor {index}, which starts at byte {offset}"
    )]
    TruncatedTensorInfo { index: u64, offset: u64 },
    #[error(
        "the name of tensor {index} at byte {offset} is {found} bytes long, at most 63 are allowed"
    )]
    TensorNameTooLong { index: u64, offset: u64, found: u64 },
    #[error("the name of tensor {index} at byte {offset}, {name}, {reason}")]
    TensorNameInvalid { index: u64, offset: u64, name: String, reason: &'static str },
    #[error("tensor `{name}` occurs twice")]
    TensorDuplicate { name: String },
    #[error("tensor `{name}` has {found} dimensions, at most 4 are allowed")]
    TensorDims { name: String, found: u32 },
    #[error("tensor `{name}`: dimension {dim} is {found}")]
    TensorDimNegative { name: String, dim: usize, found: i64 },
    #[error("tensor `{name}`: dimension {dim} is 0")]
    TensorDimZero { name: String, dim: usize },
    #[error("tensor `{name}`: shape {shape:?} has more than 2^63 elements")]
    TensorShapeOverflow { name: String, shape: Vec<u64> },
    #[error("tensor `{name}`: type {found} is unknown (0 to 42)")]
    TensorTypeUnknown { name: String, found: i32 },
    #[error(
        "tensor `{name}`: type {found} ({was}) was removed from the format; convert the model again"
    )]
    TensorTypeRemoved { name: String, found: i32, was: &'static str },
    #[error(
        "tensor `{name}`: rows of {row} elements are not a multiple of {block}, the block of {ty}"
    )]
    TensorRowMisaligned { name: String, ty: TensorType, row: u64, block: u64 },
    #[error("tensor `{name}`: the size of {ty} {shape:?} in bytes does not fit in 64 bits")]
    TensorSizeOverflow { name: String, ty: TensorType, shape: Vec<u64> },
    #[error("tensor `{name}`: offset {found} is not a multiple of the alignment {alignment}")]
    TensorOffsetUnaligned { name: String, found: u64, alignment: u64 },
    #[error("tensor `{name}`: offset {found}, but the tensors before it end at {expected}")]
    TensorOffsetUnexpected { name: String, found: u64, expected: u64 },
    #[error(
        "tensor `{name}`: offset {found} lies within the tensors before it, which end at {expected}"
    )]
    TensorOverlap { name: String, found: u64, expected: u64 },
    #[error("the total size of the tensors up to `{name}` does not fit in 64 bits")]
    DataSizeOverflow { name: String },
    #[error("the tensor data starts at byte {start}, but the file has {len} bytes")]
    TruncatedData { start: u64, len: u64 },
    #[error(
        "tensor `{name}` ends at byte {end}, but the file has {len} bytes: the file is truncated or incomplete"
    )]
    TensorOutOfFile { name: String, end: u64, len: u64 },

    #[error("tensor `{name}`: {reason}")]
    TensorDataInvalid { name: String, reason: String },

    #[error("key `general.architecture` is missing")]
    ArchitectureMissing,
    #[error("key `general.architecture` must be a string, found {found}")]
    ArchitectureType { found: String },
    #[error("key `{key}` is missing")]
    KeyMissing { key: String },
    #[error("key `{key}` must be {want}, found {found}")]
    KeyType { key: String, want: &'static str, found: String },
    #[error("key `{key}` must have one element for each of {want} layers, found {found}")]
    KeyArrayLength { key: String, want: usize, found: usize },

    #[error("{}: cannot open a part of the split model: {reason}", path.display())]
    SplitMissing { path: PathBuf, reason: String },
    #[error("{}: `split.no` is {found}, the file name says {want}", path.display())]
    SplitIndex { path: PathBuf, found: String, want: u64 },
    #[error("{}: `split.count` is {found}, the file name says {want}", path.display())]
    SplitCount { path: PathBuf, found: String, want: u64 },
    #[error(
        "`split.tensors.count` is {want}, but the parts of the split model have {found} tensors"
    )]
    SplitTotal { want: String, found: u64 },
    #[error("{}: not the first part of the split model: open {}", path.display(), first.display())]
    SplitEntry { path: PathBuf, first: PathBuf },
    #[error("{}: one of {count} parts of a split model, whose names must end in -00001-of-{count:05}.gguf", path.display())]
    SplitName { path: PathBuf, count: u64 },
    #[error("{}: {error}", path.display())]
    InPart { path: PathBuf, error: Box<GgufError> },

    #[error("cannot write the GGUF file: {reason}")]
    Output { kind: io::ErrorKind, reason: String },
    #[error("tensor `{name}`: got {found} bytes of data, expected {want}")]
    WriteSize { name: String, found: u64, want: u64 },
    #[error("got data, but all {count} tensors are written")]
    WriteNothingLeft { count: usize },
    #[error("tensor `{name}` and those after it were not written")]
    WriteIncomplete { name: String },
}

impl GgufError {
    /// Stable code of the error, such as `gguf_bad_magic`.
    pub fn code(&self) -> &'static str {
        use GgufError::*;
        match self {
            Io { .. } | Output { .. } => "gguf_io",
            FileChanged { .. } => "gguf_file_changed",
            TruncatedHeader { .. } => "gguf_truncated_header",
            BadMagic { .. } => "gguf_bad_magic",
            VersionInvalid => "gguf_version_invalid",
            VersionUnsupported { .. } => "gguf_version_unsupported",
            VersionFuture { .. } => "gguf_version_future",
            BigEndian => "gguf_big_endian",
            TensorCount { .. } => "gguf_tensor_count_invalid",
            KvCount { .. } => "gguf_kv_count_invalid",
            StringOutOfFile { .. } => "gguf_string_out_of_file",
            KeyEmpty { .. } => "gguf_key_empty",
            KeyInvalid { .. } => "gguf_key_invalid",
            KeyDuplicate { .. } => "gguf_key_duplicate",
            ValueTypeUnknown { .. } => "gguf_value_type_unknown",
            ArrayNested { .. } => "gguf_array_nested",
            ArrayOutOfFile { .. } => "gguf_array_out_of_file",
            TruncatedKv { .. } => "gguf_truncated_kv",
            MetadataTooLarge { .. } => "gguf_metadata_too_large",
            AlignmentType { .. } => "gguf_alignment_type",
            AlignmentInvalid { .. } => "gguf_alignment_invalid",
            TruncatedTensorInfo { .. } => "gguf_truncated_tensor_info",
            TensorNameTooLong { .. } => "gguf_tensor_name_too_long",
            TensorNameInvalid { .. } => "gguf_tensor_name_invalid",
            TensorDuplicate { .. } => "gguf_tensor_duplicate",
            TensorDims { .. } => "gguf_tensor_dims_invalid",
            TensorDimNegative { .. } => "gguf_tensor_dim_negative",
            TensorDimZero { .. } => "gguf_tensor_dim_zero",
            TensorShapeOverflow { .. } => "gguf_tensor_shape_overflow",
            TensorTypeUnknown { .. } => "gguf_tensor_type_unknown",
            TensorTypeRemoved { .. } => "gguf_tensor_type_removed",
            TensorRowMisaligned { .. } => "gguf_tensor_row_misaligned",
            TensorSizeOverflow { .. } => "gguf_tensor_size_overflow",
            TensorOffsetUnaligned { .. } => "gguf_tensor_offset_unaligned",
            TensorOffsetUnexpected { .. } => "gguf_tensor_offset_unexpected",
            TensorOverlap { .. } => "gguf_tensor_overlap",
            DataSizeOverflow { .. } => "gguf_data_size_overflow",
            TruncatedData { .. } => "gguf_truncated_data",
            TensorOutOfFile { .. } => "gguf_tensor_out_of_file",
            TensorDataInvalid { .. } => "gguf_tensor_data_invalid",
            ArchitectureMissing => "gguf_architecture_missing",
            ArchitectureType { .. } => "gguf_architecture_type",
            KeyMissing { .. } => "gguf_key_missing",
            KeyType { .. } => "gguf_key_type",
            KeyArrayLength { .. } => "gguf_key_array_length",
            SplitMissing { .. } => "gguf_split_missing",
            SplitIndex { .. } => "gguf_split_index",
            SplitCount { .. } => "gguf_split_count",
            SplitTotal { .. } => "gguf_split_total",
            SplitEntry { .. } => "gguf_split_entry",
            SplitName { .. } => "gguf_split_name",
            InPart { error, .. } => error.code(),
            WriteSize { .. } => "gguf_write_size",
            WriteNothingLeft { .. } => "gguf_write_nothing_left",
            WriteIncomplete { .. } => "gguf_write_incomplete",
        }
    }

    pub(crate) fn output(error: &io::Error) -> Self {
        GgufError::Output { kind: error.kind(), reason: error.to_string() }
    }

    pub(crate) fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        GgufError::Io {
            action,
            path: path.to_owned(),
            kind: error.kind(),
            reason: error.to_string(),
        }
    }
}

/// Formats bytes of a file for a message: quoted, with escaped control characters, and at most 80
/// characters.
pub fn escape_for_display(bytes: &[u8]) -> String {
    // A character has at most four bytes, so this prefix suffices to detect more than 80
    // characters.
    let head = &bytes[..bytes.len().min(4 * 81)];
    let text = String::from_utf8_lossy(head);
    format!("`{}`", escape_and_truncate(&text, 80))
}

/// Escapes control characters of an untrusted text and truncates it to 100 characters, for error
/// messages.
pub fn escape_for_message(text: &str) -> String {
    escape_and_truncate(text, 100)
}

/// Escapes at most `max_chars` characters; an ellipsis stands for the rest.
fn escape_and_truncate(text: &str, max_chars: usize) -> String {
    let mut out: String = text.chars().take(max_chars).flat_map(char::escape_debug).collect();
    if text.chars().nth(max_chars).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_are_escaped_and_cut() {
        assert_eq!(escape_for_display(b"a\x1b[2Jb\0"), "`a\\u{1b}[2Jb\\0`");
        assert_eq!(escape_for_display(b"\xff"), "`\u{fffd}`");
        assert_eq!(escape_for_display(&[b'x'; 100_000]).chars().count(), 83);
        assert_eq!(escape_for_display("é".repeat(80).as_bytes()).chars().count(), 82);
    }
}
