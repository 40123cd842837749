//! Errors of the conversion.

use std::io;
use std::path::{Path, PathBuf};

use puna_gguf::GgufError;

/// Reason why a model folder or an adapter cannot be converted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant documents it and prints its fields
pub enum ConvertError {
    #[error("{0} is missing in the folder")]
    FileMissing(String),
    #[error("{file}: {reason}")]
    Json { file: String, reason: String },
    #[error("{file}: `{key}` must be {want}")]
    Key { file: String, key: String, want: &'static str },
    #[error("{file}: `{key}` is {found}")]
    KeyValue { file: String, key: String, found: String },
    #[error("{file}: architecture {found} is not supported; supported: {known}")]
    Architecture { file: String, found: String, known: String },
    #[error("{file} names {missing}, which is missing: the folder is incomplete")]
    Shard { file: String, missing: String },
    #[error("{file}: not a safetensors file: {reason}")]
    Safetensors { file: String, reason: String },
    #[error("tensor {name} is missing")]
    TensorMissing { name: String },
    #[error("tensor {name} has shape {found:?}, expected {want:?}")]
    TensorShape { name: String, found: Vec<u64>, want: Vec<u64> },
    #[error("tensor {name} has type {found}, which is not supported")]
    TensorType { name: String, found: String },
    #[error("tensor {name} is unknown in this architecture")]
    TensorUnknown { name: String },
    #[error("{file}: pooling {found} is not supported; supported: mean, cls, last token")]
    Pooling { file: String, found: String },
    #[error("{file}: {reason}")]
    Tokenizer { file: String, reason: String },
    #[error("the files are only an adapter: it needs the metadata of its model")]
    AdapterWithoutModel,
    #[error("cannot read {}: {reason}", path.display())]
    Read { path: PathBuf, kind: io::ErrorKind, reason: String },
    #[error("tensor {tensor}: {reason}")]
    Quantize { tensor: String, reason: String },
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ConvertError {
    pub(crate) fn read(path: &Path, error: &io::Error) -> Self {
        let (path, reason) = (path.to_owned(), error.to_string());
        ConvertError::Read { path, kind: error.kind(), reason }
    }
}
