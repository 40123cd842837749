//! Errors of the registry client.

mod bundle;
mod limited;
mod manifest;
mod setup;
mod withheld;

use puna_store::{Digest, StoreError};

use crate::auth::identity::KeyError;

pub use bundle::BundleProblem;
pub use manifest::{ListingProblem, ManifestProblem, UnpackProblem};
pub use setup::SetupProblem;
pub use withheld::WithheldCredentials;

/// HTTP status for a request loop between registries.
const LOOP_DETECTED: u16 = 508;

/// Error of a pull or push. Messages equal Ollama's where Ollama has the same error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),

    #[error("pull model manifest: {0}")]
    PullManifest(Box<RegistryError>),
    #[error("{error} (mirrors tried first: {mirrors})")]
    AfterMirrors { error: Box<RegistryError>, mirrors: String },
    #[error("max retries exceeded: {0}")]
    RetriesExceeded(Box<RegistryError>),

    #[error("file does not exist")]
    NotFound,
    #[error("unauthorized: access denied")]
    Unauthorized,
    #[error("unauthorized: access denied: {message}")]
    TokenRefused { message: String },
    #[error(
        "unauthorized: access denied{}: {} the public key of this machine ({key_file}.pub): {public_key}",
        reason(message),
        who_allows_keys(host)
    )]
    KeyRefused { host: String, message: Option<String>, key_file: String, public_key: String },
    #[error("realm host \"{realm}\" does not match original host \"{host}\"")]
    RealmHost { realm: String, host: String },
    #[error(
        "cannot request a token from {url} without encryption: the registry itself uses encryption"
    )]
    RealmScheme { url: String },
    #[error(
        "registry {host} requires authentication, and there is no key: set HOME to a folder where a key can be created"
    )]
    NoKey { host: String },

    #[error(
        "registry {host} requires a user name and a password: set them in [registry.hosts.\"{host}\"], or run `docker login {host}`"
    )]
    NoPassword { host: String },
    #[error(
        "registry {host} requires a user name and a password, and docker's cannot be read: {problem}"
    )]
    NoCredentials { host: String, problem: String },
    #[error(
        "registry {host} requires credentials, but offers neither Basic nor Bearer: set username and password, or token, in [registry.hosts.\"{host}\"], or run `docker login {host}`"
    )]
    NoChallenge { host: String },
    #[error("registry {host} requires authentication, but {reason}")]
    CredentialsWithheld { host: String, reason: WithheldCredentials },
    #[error(
        "cannot connect to {host}: it, or a host that it redirects to, does not answer or is not allowed for this client; ask an administrator to name the host in outgoing_hosts"
    )]
    Unreachable { host: String },
    #[error("the response of {host} is not a model")]
    UnreadableResponse { host: String },
    #[error("cannot read the secret for registry {host}: {reason}")]
    Secret { host: String, reason: String },

    #[error("{method} \"{url}\": {cause}")]
    Transport { method: String, url: String, cause: String },
    #[error("{method} \"{url}\": {cause}")]
    Tls { method: String, url: String, cause: String },
    #[error("{method} \"{url}\": no data for {seconds} s")]
    Stalled { method: String, url: String, seconds: u64 },
    #[error("{url}: only {got} bytes in {seconds} s")]
    TooSlow { url: String, got: u64, seconds: u64 },
    #[error("{status}: {body}")]
    Status { status: String, code: u16, body: String, retry_after: Option<u64> },
    #[error("{url}: {what}")]
    InvalidResponse { url: String, what: String },
    #[error("{url}: the connection ended after {got} of {want} bytes")]
    Truncated { url: String, got: u64, want: u64 },
    #[error("{url}: the server sent the whole blob instead of the range from byte {offset}")]
    RangeIgnored { url: String, offset: u64 },
    #[error("{url}: redirected more than {max} times")]
    Redirects { url: String, max: usize },
    #[error("{from} redirects to {to}, which {why}")]
    Redirect { from: String, to: String, why: &'static str },

    #[error(
        "blob {digest} has {found} bytes at the registry, but the manifest declares {expected}"
    )]
    SizeMismatch { digest: Digest, expected: u64, found: u64 },
    #[error("digest mismatch, file must be downloaded again: want {want}, got {got}")]
    DigestMismatch { want: Digest, got: Digest },
    #[error(
        "the data of blob {digest} was corrupt and is downloaded again: request the whole blob again"
    )]
    DownloadRestarted { digest: Digest },
    #[error("the registry declares the manifest digest {declared}, but the content has {found}")]
    ManifestDigestMismatch { declared: Digest, found: Digest },
    #[error("{child} of the manifest list: {error}")]
    Child { child: String, error: Box<RegistryError> },
    #[error(
        "the registry lacks {child} of the manifest list {name}: pull another runner; the list has {known}"
    )]
    ChildNotFound { name: String, child: String, known: String },
    #[error(
        "cannot run {name}: its manifest list has {known}, and Puna runs only GGUF files; to download one anyway, pull {name}@RUNNER"
    )]
    NoRunnableChild { name: String, known: String },
    #[error("the model is a manifest list: pull one of its children")]
    IsManifestList,
    #[error(
        "cannot push {name}: {child} of its manifest list is neither in the store nor at the registry; fetch it with `puna pull --all-runners {name}`"
    )]
    ChildMissing { name: String, child: String },
    #[error("the model has several files: pull it to merge them")]
    FileListing { origin: Digest, files: Vec<(Digest, u64)> },
    #[error("the registry's response is not a model manifest: {0}")]
    NotAManifest(#[from] ManifestProblem),
    #[error(
        "cannot run this model: it has tensor layers instead of a GGUF file; pull one of its other variants"
    )]
    TensorLayers,
    #[error(
        "not enough space for {what}: {needed} bytes needed, {free} free; remove models (`rm`), or set OLLAMA_MODELS to a folder on another disk"
    )]
    NoSpace { what: String, needed: u64, free: u64 },
    #[error(
        "cannot fetch {digest}: {holder} has locked its download and made no progress for {seconds} s, and a second copy cannot be made; end that process or free disk space, and pull again"
    )]
    DownloadLocked { digest: String, holder: String, seconds: u64 },
    #[error("{0} is built into this program: copy it to another name (`cp`) first")]
    BuiltIn(String),
    #[error("cannot read the bundle: {0}")]
    Bundle(Box<BundleProblem>),
    #[error("cannot write the bundle: {reason}")]
    BundleWrite { reason: String },
    #[error("{0} is a remote model: it has no files to export")]
    NothingToBundle(String),
    #[error(
        "invalid proxy address {proxy:?}: {cause}; set {variable} or ALL_PROXY to an address such as http://proxy:3128"
    )]
    Proxy { variable: &'static str, proxy: String, cause: String },
    #[error("cannot set up connections: {0}")]
    Setup(#[from] SetupProblem),
    #[error("download cancelled")]
    Cancelled,
}

impl From<BundleProblem> for RegistryError {
    fn from(problem: BundleProblem) -> Self {
        Self::Bundle(Box::new(problem))
    }
}

/// The registry's own message behind an error, if it sent one.
fn reason(message: &Option<String>) -> String {
    message.as_ref().map_or_else(String::new, |message| format!(": {message}"))
}

/// Beginning of the sentence that tells how a registry gets to know a key.
fn who_allows_keys(host: &str) -> String {
    match host {
        "registry.ollama.ai" | "ollama.com" => {
            "add to your account at https://ollama.com/settings/keys".to_owned()
        }
        _ => format!("ask the administrator of {host} to allow"),
    }
}

impl RegistryError {
    /// Whether a retry may help.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Transport { .. } | Self::Stalled { .. } | Self::TooSlow { .. } => true,
            Self::Truncated { .. } | Self::RangeIgnored { .. } => true,
            // A retry does not help if the server lacks a feature, its disk is full, or registries
            // form a loop.
            Self::Status { code: 501 | 505 | 507 | LOOP_DETECTED, .. } => false,
            Self::Status { code, .. } => matches!(code, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether the registry refused the request, possibly after retries.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Status { code, .. } => matches!(code, 400..=499) && !self.is_retryable(),
            Self::RetriesExceeded(error) => matches!(**error, Self::Status { code: 416, .. }),
            _ => false,
        }
    }

    /// Whether all attempts failed with a server error.
    pub(crate) fn is_server_failure(&self) -> bool {
        match self {
            Self::RetriesExceeded(error) => matches!(**error, Self::Status { code: 500..=599, .. }),
            _ => false,
        }
    }

    /// Whether registries request the model from each other in a loop.
    pub fn is_loop(&self) -> bool {
        match self {
            Self::Status { code: LOOP_DETECTED, .. } => true,
            Self::PullManifest(error)
            | Self::RetriesExceeded(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.is_loop(),
            _ => false,
        }
    }

    /// What needs how many bytes, if the disk has no space for it.
    pub fn missing_space(&self) -> Option<(&str, u64)> {
        match self {
            Self::NoSpace { what, needed, .. } => Some((what, *needed)),
            Self::PullManifest(error)
            | Self::RetriesExceeded(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.missing_space(),
            _ => None,
        }
    }

    /// Whether the cause is on this machine, so that other endpoints cannot help.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Store(_)
            | Self::Key(_)
            | Self::NoSpace { .. }
            | Self::DownloadLocked { .. }
            | Self::Cancelled
            | Self::Secret { .. } => true,
            Self::PullManifest(error)
            | Self::RetriesExceeded(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.is_local(),
            _ => false,
        }
    }

    /// Whether the message describes files or settings of this machine. A mirror does not show it
    /// to clients.
    pub fn concerns_local_configuration(&self) -> bool {
        match self {
            Self::Setup(_) | Self::Proxy { .. } | Self::NoCredentials { .. } => true,
            Self::PullManifest(error)
            | Self::RetriesExceeded(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.concerns_local_configuration(),
            error => error.is_local(),
        }
    }

    /// Whether the pull cannot succeed later with the same request.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::DigestMismatch { .. }
            | Self::SizeMismatch { .. }
            | Self::InvalidResponse { .. }
            | Self::NotFound => true,
            Self::Child { error, .. } | Self::AfterMirrors { error, .. } => error.is_permanent(),
            error => error.is_refusal(),
        }
    }

    /// Whether no endpoint has the requested item.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Self::NotFound | Self::Status { code: 404, .. } => true,
            Self::AfterMirrors { error, .. } => error.is_not_found(),
            _ => false,
        }
    }

    /// Whether Hugging Face's registry answers so for a model that it does not serve, although the
    /// file listing may have it.
    pub(crate) fn is_hub_refusal(&self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::Status { code: 400 | 404 | 405 | 410 | 422 | 501, .. }
        )
    }

    /// Adds the errors of the mirrors that were tried first.
    pub(crate) fn with_mirror_errors(self, mirror_errors: &[String]) -> Self {
        match mirror_errors {
            [] => self,
            mirror_errors => {
                Self::AfterMirrors { error: Box::new(self), mirrors: mirror_errors.join("; ") }
            }
        }
    }

    /// `Retry-After` of the response, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Marks the error as one of the manifest's pull.
    pub(crate) fn while_pulling_manifest(self) -> Self {
        Self::PullManifest(Box::new(self))
    }
}
