//! Errors of the conversion.

use std::io;
use std::path::{Path, PathBuf};

use puna_gguf::GgufError;

/// Reason why a model folder or an adapter cannot be converted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant documents it and prints its fields
pub enum ConvertError {
    #[error("{0} is missing among the files")]
    FileMissing(String),
    #[error("{file}: {reason}")]
    Json { file: String, reason: String },
    #[error("{file}: `{key}` must be {want}")]
    Key { file: String, key: String, want: &'static str },
    #[error("{file}: `{key}` is {found}")]
    KeyValue { file: String, key: String, found: String },
    #[error("{file}: architecture {found} cannot be imported; those that can: {known}")]
    Architecture { file: String, found: String, known: String },
    #[error("{file} names {missing}, which is not there: the folder is not whole")]
    Shard { file: String, missing: String },
    #[error("{file}: not a safetensors file: {reason}")]
    Safetensors { file: String, reason: String },
    #[error("tensor {name} is missing")]
    TensorMissing { name: String },
    #[error("tensor {name} has shape {found:?}, but {want:?} is expected")]
    TensorShape { name: String, found: Vec<u64>, want: Vec<u64> },
    #[error("tensor {name} has type {found}, which cannot be imported")]
    TensorType { name: String, found: String },
    #[error("tensor {name} is not known to this architecture")]
    TensorUnknown { name: String },
    #[error("{file}: pooling {found} is not supported (mean, cls and last token are)")]
    Pooling { file: String, found: String },
    #[error("{file}: {reason}")]
    Tokenizer { file: String, reason: String },
    #[error("the files are those of an adapter alone, which needs the metadata of its model")]
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
