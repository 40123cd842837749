//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use puna_convert::ConvertError;

use crate::digest::{Digest, DigestError};
use crate::modelfile::ModelfileError;
use crate::name::NameError;
use crate::quantize_types::{IMATRIX_TYPES, QUANTIZE_TYPES};

/// An error of the store. Messages about requests are Ollama's, so that clients recognize them.
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
        "{name} is built into this program and cannot be removed: a stored model of the same name replaces it"
    )]
    BuiltIn { name: String },
    #[error(
        "{name} is in the read-only folder {}: remove it there, or remove the folder from search_paths (PUNA_SEARCH_PATHS)",
        folder.display()
    )]
    ReadOnly { name: String, folder: PathBuf },
    #[error(
        "{} does not respond, so its models are unavailable: check the folder, or remove it from search_paths (PUNA_SEARCH_PATHS)",
        folder.display()
    )]
    Unresponsive { folder: PathBuf },
    #[error(
        "no space for uploads: the disk has {free} bytes free, and uploads leave {reserved} bytes free; remove models with `puna rm`"
    )]
    NoSpace { free: u64, reserved: u64 },
    /// The text is complete: what failed, why, and what to do.
    #[error("{0}")]
    NotAdmitted(String),
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
    #[error(
        "cannot use {name}: its {what} layer {} is invalid: {reason}; pull or create the model again",
        .digest.short()
    )]
    Layer { name: String, what: &'static str, digest: Digest, reason: String },
    #[error(
        "{} is unknown and may need any blob: move it out of the folder of models, or update this program",
        path.display()
    )]
    UnknownEntry { path: PathBuf },
    #[error("{} has been locked by {holder} for more than 30 seconds: wait for that process, or end it", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error("{name} is reserved by Ollama for converted models: choose another name")]
    ShadowName { name: String },
    #[error("no compatible manifest found for runners: {wanted}: {name} has {known}")]
    NoRunner { name: String, wanted: String, known: String },
    #[error(
        "the manifest of {name} for the runner {runner} ({digest}) is not in the store: pull {name}@{runner}"
    )]
    ChildMissing { name: String, runner: String, digest: Digest },
    #[error(
        "cannot run {name}: its weights are for the runner {runner} ({format}), and Puna runs only GGUF files; \
         pull or create it in GGUF"
    )]
    NotRunnable { name: String, runner: String, format: String },
    #[error("cannot use {0}: its manifest has no model layer; pull or create the model again")]
    NoWeights(String),
    #[error("bad remote: {0}")]
    BadRemote(String),
    #[error("{}: no such file", path.display())]
    FileNotFound { path: PathBuf },
    #[error("{} changed while it was read: retry when no program writes it", path.display())]
    FileChanged { path: PathBuf },
    #[error("{} is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("cannot {action} {}: {reason}{}", shown(path, *kind), hint(*kind))]
    Io { action: &'static str, path: PathBuf, kind: io::ErrorKind, reason: String },

    #[error("{0}")]
    Gguf(#[from] puna_gguf::GgufError),
    #[error("{file}: {error}")]
    GgufFile { file: String, error: puna_gguf::GgufError },
    #[error("{file}: {error}")]
    BadFile { file: String, error: puna_gguf::GgufError },

    #[error("no Modelfile or safetensors files found in {}: name a folder with *.gguf or *.safetensors files with FROM", dir.display())]
    NoModel { dir: PathBuf },
    #[error("{}: pickle weights can run code when they are read; convert them to safetensors first", path.display())]
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
    #[error("unknown type: {} is neither a GGUF nor a safetensors file", files.join(" or "))]
    UnknownFiles { files: Vec<String> },
    #[error("supplied file was not in GGUF format")]
    NotGguf,
    #[error("supplied file was not in GGUF format: {file}: {error}")]
    NotGgufFile { file: String, error: puna_gguf::GgufError },
    #[error("{file} has no tensors: name a file with weights, not a vocabulary or a header")]
    NoTensors { file: String },
    #[error("cannot create the model, because it could not be loaded: {reason}")]
    NotLoadable { reason: String },
    #[error("cannot create the model, because its DRAFT does not fit: {reason}")]
    DraftNotForModel { reason: String },
    #[error("template error: {0}")]
    Template(String),
    #[error("info field \"{field}\" must be {want}")]
    InfoField { field: String, want: &'static str },
    #[error("(line {line}): {error}")]
    Line { line: usize, error: Box<StoreError> },
    #[error(
        "{} is not a model: {error}; name a GGUF file, or a folder with safetensors", path.display()
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
        "the importance matrix {name} has {found} values for the tensor {tensor}, expected {want}: it is for another model"
    )]
    ImatrixSize { name: String, tensor: String, found: usize, want: u64 },
    #[error(
        "the importance matrix {name} has values for no tensor of the model: it is for another one"
    )]
    ImatrixMismatch { name: String },
    #[error("an importance matrix needs a quantization type: set `quantize`, such as Q4_K_M")]
    ImatrixWithoutQuantize,
    #[error("DRAFT must not reference the same local path as FROM: {}", path.display())]
    DraftIsModel { path: PathBuf },
    #[error("DRAFT cannot be used with remote models")]
    DraftRemote,
    #[error(
        "DRAFT names {files} models: name one draft model (the parts of a split model count as one)"
    )]
    SeveralDrafts { files: usize },
    #[error(
        "DRAFT names {kind}: name a smaller model that generates text and has the same vocabulary"
    )]
    NotADraft { kind: String },
    #[error(
        "ADAPTER names {file}, which is not an adapter: name a GGUF file with `general.type` = `adapter`, or a folder with \
         adapter_config.json and adapter_model.safetensors"
    )]
    NotAnAdapter { file: String },
    #[error("FROM names only an adapter: name its model with FROM, and the adapter with ADAPTER")]
    AdapterWithoutModel,
    #[error(
        "FROM names only a projector for images or sound: name the GGUF file of its model with another FROM"
    )]
    ProjectorWithoutModel,
    #[error("the adapter is for the architecture `{adapter}`, but the model has `{model}`")]
    AdapterArchitecture { adapter: String, model: String },
    #[error("FROM names {}, the weights of several models: name one (the parts of a split model count as one)", files.join(" and "))]
    SeveralModels { files: Vec<String> },
    #[error(
        "FROM {name} is a stored model and FROM {} a file: name one source of weights (or the GGUF files of a model and its \
         projector)",
        path.display()
    )]
    FromNameAndFile { name: String, path: PathBuf },
    #[error("unknown {what} \"{name}\"; supported: {known}")]
    UnknownBuiltIn { what: &'static str, name: String, known: String },
    #[error(
        "the model requires version {wanted}, but this program is compatible with {ours}: update it, or leave out REQUIRES"
    )]
    RequiresNewerVersion { wanted: String, ours: &'static str },
    #[error("--draft-quantize requires a DRAFT model")]
    DraftQuantize,
    #[error("split GGUF: {0}")]
    Split(String),
    #[error("{message}")]
    Job { message: String, is_bad_request: bool },
}

impl StoreError {
    /// Whether the caller's request is at fault, rather than the store or the machine.
    pub fn is_bad_request(&self) -> bool {
        use StoreError::*;
        match self {
            Line { error, .. } => return error.is_bad_request(),
            Job { is_bad_request, .. } => return *is_bad_request,
            _ => {}
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
                | Layer { .. }
                | NoWeights(_)
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

    /// An I/O error, with a hint for common causes. The path of a full disk is only logged.
    pub fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        if is_full(error.kind()) {
            tracing::error!(action, path = %path.display(), %error, "the disk is full");
        }
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

/// Whether an error says that a disk is full.
fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The path in a message. Clients of a server get the message of a full disk, and its paths are not
/// theirs.
fn shown(path: &Path, kind: io::ErrorKind) -> String {
    if is_full(kind) { "a file of the store".to_owned() } else { path.display().to_string() }
}

/// Advice for common I/O errors.
fn hint(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            ": let the user of this program read and write the store, or set OLLAMA_MODELS to another folder"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space (`rm` removes models), or set OLLAMA_MODELS to a folder on another disk"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": set OLLAMA_MODELS to a writable folder",
        _ => "",
    }
}
