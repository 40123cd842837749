//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use puna_convert::ConvertError;

use crate::digest::{Digest, DigestError};
use crate::modelfile::ModelfileError;
use crate::name::NameError;
use crate::quantize_types::{IMATRIX_TYPES, QUANTIZE_TYPES};

/// An error of the store. Messages about requests are Ollama's, so that clients recognise them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum StoreError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Modelfile(#[from] ModelfileError),
    #[error(transparent)]
    Convert(ConvertError),

    #[error("model '{0}' not found")]
    NotFound(String),
    #[error(
        "{name} is built into this program and cannot be removed; a model of this name in the store takes its place"
    )]
    BuiltIn { name: String },
    #[error(
        "{name} is in {}, a folder of models that is only read: remove it there, or leave the folder out of the setting search_paths (PUNA_SEARCH_PATHS)",
        folder.display()
    )]
    ReadOnly { name: String, folder: PathBuf },
    #[error(
        "{} does not answer: its models are neither listed nor found until it does, unless it is left out of the setting search_paths (PUNA_SEARCH_PATHS)",
        folder.display()
    )]
    Unresponsive { folder: PathBuf },
    #[error("blob {0} is not in the store: upload it first")]
    BlobMissing(Digest),
    #[error(
        "the model {name} is incomplete: its blob {digest} is not in the store; create it again, or remove it with `rm`"
    )]
    Incomplete { name: String, digest: Digest },
    #[error("digest mismatch, expected \"{expected}\", got \"{found}\"")]
    DigestMismatch { expected: Digest, found: Digest },
    #[error(
        "blob {digest} should have {expected} bytes, but its file has {found}: pull or create the model again"
    )]
    BlobSize { digest: Digest, expected: u64, found: u64 },
    #[error("{}: bad manifest: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    #[error("{what} of {name}: {reason}")]
    Layer { name: String, what: &'static str, reason: String },
    #[error(
        "{} is not known to this program, so any blob may be needed by it: move it out of the folder of models, or update this program",
        path.display()
    )]
    UnknownEntry { path: PathBuf },
    #[error("{} is locked by {holder} for more than two minutes: wait until it ends, or end it", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error(
        "{name} is a name that Ollama keeps for converted models, which are in no list: choose another name"
    )]
    ShadowName { name: String },
    #[error("no compatible manifest found for runners: {wanted}: {name} has {known}")]
    NoRunner { name: String, wanted: String, known: String },
    #[error(
        "the manifest of {name} for the runner {runner} ({digest}) is not in the store: pull {name}@{runner}"
    )]
    ChildMissing { name: String, runner: String, digest: Digest },
    #[error(
        "{name} cannot be run here: its weights are for the runner {runner} ({format}), and this program runs GGUF files; \
         pull or create it in that format"
    )]
    NotRunnable { name: String, runner: String, format: String },
    #[error("the model {0} has no weights")]
    NoWeights(String),
    #[error("bad remote: {0}")]
    BadRemote(String),
    #[error("{}: no such file", path.display())]
    FileNotFound { path: PathBuf },
    #[error("{} has changed while it was read: try again when nobody writes it", path.display())]
    FileChanged { path: PathBuf },
    #[error("{} is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("cannot {action} {}: {reason}{}", path.display(), hint(*kind))]
    Io { action: &'static str, path: PathBuf, kind: io::ErrorKind, reason: String },

    #[error("{0}")]
    Gguf(#[from] puna_gguf::GgufError),
    #[error("{file}: {error}")]
    GgufFile { file: String, error: puna_gguf::GgufError },
    #[error("{file}: {error}")]
    BadFile { file: String, error: puna_gguf::GgufError },

    #[error("no Modelfile or safetensors files found in {}: the folder of a model has *.gguf or *.safetensors; name it with FROM", dir.display())]
    NoModel { dir: PathBuf },
    #[error("{}: weights of this form may run programs when they are read; convert them to safetensors first", path.display())]
    Pickle { path: PathBuf },
    #[error("insecure path: {}{}", path.display(), if *cached { " (use --local-dir <dir> when downloading model to disable caching)" } else { "" })]
    InsecurePath { path: PathBuf, cached: bool },
    #[error("failed to find user '{0}'")]
    NoHome(String),
    #[error("neither 'from' or 'files' was specified")]
    NoSource,
    #[error("unknown type")]
    UnknownType,
    #[error("file path must be relative")]
    PathNotRelative,
    #[error("no files provided to convert")]
    NothingToConvert,
    #[error("unknown type: {} is neither a GGUF file nor one of safetensors", files.join(" or "))]
    UnknownFiles { files: Vec<String> },
    #[error("supplied file was not in GGUF format")]
    NotGguf,
    #[error("supplied file was not in GGUF format: {file}: {error}")]
    NotGgufFile { file: String, error: puna_gguf::GgufError },
    #[error(
        "{file} has no tensors: it is a vocabulary or a header, and no model without its weights"
    )]
    NoTensors { file: String },
    #[error("the model is not made, since it could not be loaded: {reason}")]
    NotLoadable { reason: String },
    #[error("the model is not made, since its DRAFT could not guess for it: {reason}")]
    DraftNotForModel { reason: String },
    #[error("template error: {0}")]
    Template(String),
    #[error("info field \"{field}\" must be {want}")]
    InfoField { field: String, want: &'static str },
    #[error("(line {line}): {error}")]
    Line { line: usize, error: Box<StoreError> },
    #[error(
        "{} is no model: {error}; weights are a GGUF file, or a folder with safetensors", path.display()
    )]
    NotWeights { path: PathBuf, error: puna_gguf::GgufError },
    #[error("requires must be a valid semver (e.g. 0.14.0)")]
    Requires,
    #[error("quantization is only supported for F16, BF16 and F32 models")]
    QuantizeSource,
    #[error(
        "unsupported quantization type {0} - supported types are {types}, and with an importance matrix (imatrix) {more}",
        types = QUANTIZE_TYPES.join(", "),
        more = IMATRIX_TYPES.join(", ")
    )]
    QuantizeType(String),
    #[error("tensor {tensor}: {reason}")]
    Quantize { tensor: String, reason: String },
    #[error("{name}: not an importance matrix: {reason}")]
    Imatrix { name: String, reason: String },
    #[error(
        "the importance matrix {name} has {found} values for the tensor {tensor}, and {want} are needed: it was made for another model"
    )]
    ImatrixSize { name: String, tensor: String, found: usize, want: u64 },
    #[error(
        "the importance matrix {name} says nothing about any tensor of the model: it was made for another one"
    )]
    ImatrixMismatch { name: String },
    #[error(
        "an importance matrix is for quantizing: name a type with it (`quantize`, such as Q4_K_M)"
    )]
    ImatrixWithoutQuantize,
    #[error("DRAFT must not reference the same local path as FROM: {}", path.display())]
    DraftIsModel { path: PathBuf },
    #[error("DRAFT cannot be used with remote models")]
    DraftRemote,
    #[error(
        "DRAFT names {files} models: a model has one draft model (the parts of a split one count as one)"
    )]
    SeveralDrafts { files: usize },
    #[error(
        "DRAFT names {kind}: a draft model is one that generates text, smaller than the model and of the same vocabulary"
    )]
    NotADraft { kind: String },
    #[error(
        "ADAPTER names {file}, which is no adapter: a LoRA adapter is a GGUF file whose `general.type` is `adapter`, or a folder with \
         adapter_config.json and adapter_model.safetensors"
    )]
    NotAnAdapter { file: String },
    #[error(
        "FROM names an adapter alone: name the model that it is made for with FROM, and the adapter with ADAPTER"
    )]
    AdapterWithoutModel,
    #[error(
        "FROM names a projector alone, which reads images or sound for a model: name the GGUF file of its model with a FROM, too"
    )]
    ProjectorWithoutModel,
    #[error("the adapter is made for the architecture `{adapter}`, and the model's is `{model}`")]
    AdapterArchitecture { adapter: String, model: String },
    #[error("FROM names {}, which are weights of several models: a model has one (the parts of a split one count as one)", files.join(" and "))]
    SeveralModels { files: Vec<String> },
    #[error(
        "FROM {name} is a stored model and FROM {} a file: weights come from one of them (the GGUF file of a model and the one of its \
         projector go together)",
        path.display()
    )]
    FromNameAndFile { name: String, path: PathBuf },
    #[error("unknown {what} \"{name}\": known are {known}")]
    UnknownBuiltIn { what: &'static str, name: String, known: String },
    #[error(
        "the model requires version {wanted}, and this program is compatible with {ours}: update it, or leave REQUIRES out"
    )]
    RequiresNewerVersion { wanted: String, ours: &'static str },
    #[error("--draft-quantize requires a DRAFT model")]
    DraftQuantize,
    #[error("split GGUF: {0}")]
    Split(String),
}

impl StoreError {
    /// Whether the caller's request is at fault, rather than the store or the machine.
    pub fn is_bad_request(&self) -> bool {
        use StoreError::*;
        if let Line { error, .. } = self {
            return error.is_bad_request();
        }
        matches!(
            self,
            Name(_)
                | Digest(_)
                | Modelfile(_)
                | Convert(_)
                | NoModel { .. }
                | Pickle { .. }
                | InsecurePath { .. }
                | NoHome(_)
                | NoSource
                | UnknownType
                | PathNotRelative
                | NothingToConvert
                | UnknownFiles { .. }
                | NotGguf
                | NotGgufFile { .. }
                | NoTensors { .. }
                | NotWeights { .. }
                | NotLoadable { .. }
                | DraftNotForModel { .. }
                | BadFile { .. }
                | Template(_)
                | InfoField { .. }
                | Requires
                | DraftIsModel { .. }
                | DraftRemote
                | BadRemote(_)
                | NoRunner { .. }
                | ShadowName { .. }
                | ChildMissing { .. }
                | NotRunnable { .. }
                | SeveralDrafts { .. }
                | NotADraft { .. }
                | NotAnAdapter { .. }
                | AdapterWithoutModel
                | ProjectorWithoutModel
                | AdapterArchitecture { .. }
                | SeveralModels { .. }
                | FromNameAndFile { .. }
                | UnknownBuiltIn { .. }
                | RequiresNewerVersion { .. }
                | DraftQuantize
                | Imatrix { .. }
                | ImatrixSize { .. }
                | ImatrixMismatch { .. }
                | ImatrixWithoutQuantize
                | Split(_)
                | DigestMismatch { .. }
                | BlobMissing(_)
                | BuiltIn { .. }
                | ReadOnly { .. }
        )
    }

    /// Whether the error means that a file does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        let gone = |kind: &io::ErrorKind| {
            matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        match self {
            Self::Io { kind, .. } => gone(kind),
            Self::BlobMissing(_) | Self::Incomplete { .. } => true,
            _ => false,
        }
    }

    /// Turns [`StoreError::BlobMissing`] into [`StoreError::Incomplete`]: the caller cannot upload
    /// a blob that an existing model lacks.
    pub(crate) fn for_model(self, name: &crate::name::ModelName) -> Self {
        match self {
            StoreError::BlobMissing(digest) => {
                StoreError::Incomplete { name: name.to_string(), digest }
            }
            other => other,
        }
    }

    /// An I/O error, with a hint for common causes.
    pub fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        StoreError::Io {
            action,
            path: path.to_owned(),
            kind: error.kind(),
            reason: error.to_string(),
        }
    }
}

/// Failures of files, of the GGUF format and of quantization become the variants that the store
/// has for them, because the request is not at fault for all of them.
impl From<ConvertError> for StoreError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Read { path, kind, reason } => {
                StoreError::Io { action: "read", path, kind, reason }
            }
            ConvertError::Gguf(error) => StoreError::Gguf(error),
            ConvertError::Quantize { tensor, reason } => StoreError::Quantize { tensor, reason },
            ConvertError::AdapterWithoutModel => StoreError::AdapterWithoutModel,
            error => StoreError::Convert(error),
        }
    }
}

/// Advice for common I/O errors.
fn hint(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            ": let the user that runs this program read and write the store, or set OLLAMA_MODELS to another folder"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space (`rm` removes models), or set OLLAMA_MODELS to a folder on another disk"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": set OLLAMA_MODELS to a folder that can be written",
        _ => "",
    }
}
