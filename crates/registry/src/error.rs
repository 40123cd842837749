//! What can go wrong with a registry.

use puna_store::{Digest, StoreError};

use crate::key::KeyError;

/// The status of those who have been asked by themselves.
const LOOP: u16 = 508;

/// An error of a pull or push. Where Ollama has words for it, these are Ollama's.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),

    #[error("pull model manifest: {0}")]
    PullManifest(Box<RegistryError>),
    #[error("{error} (mirrors that were asked first: {mirrors})")]
    AfterMirrors { error: Box<RegistryError>, mirrors: String },
    #[error("max retries exceeded: {0}")]
    Retries(Box<RegistryError>),

    #[error("file does not exist")]
    NotFound,
    #[error("unauthorized: access denied")]
    Unauthorized,
    #[error("unauthorized: access denied: {said}")]
    NoToken { said: String },
    #[error("realm host \"{realm}\" does not match original host \"{host}\"")]
    Realm { realm: String, host: String },
    #[error(
        "the registry wants a token from {url} without encryption, though it is asked with encryption"
    )]
    RealmScheme { url: String },
    #[error(
        "the registry {host} wants proof of who asks, and there is no key: set HOME to a folder where one can be kept"
    )]
    NoKey { host: String },

    #[error(
        "the registry {host} wants a user name and a password: set them in the configuration ([registry.hosts.\"{host}\"]), or by `docker login {host}`"
    )]
    NoPassword { host: String },
    #[error(
        "the registry {host} wants a user name and a password, and what docker keeps cannot be had: {problem}"
    )]
    NoCredentials { host: String, problem: String },
    #[error(
        "the registry {host} asks for credentials and names no way to show them that is known here (Basic or Bearer): set username and password, or token, in the configuration ([registry.hosts.\"{host}\"]), or use `docker login {host}`"
    )]
    NoChallenge { host: String },
    #[error("the secret for the registry {host}: {reason}")]
    Secret { host: String, reason: String },

    #[error("{method} \"{url}\": {cause}")]
    Transport { method: String, url: String, cause: String },
    #[error("{method} \"{url}\": {cause}")]
    Tls { method: String, url: String, cause: String },
    #[error("{method} \"{url}\": no byte for {seconds} s")]
    Stalled { method: String, url: String, seconds: u64 },
    #[error("{url}: only {got} bytes in {seconds} s")]
    Drips { url: String, got: u64, seconds: u64 },
    #[error("{status}: {body}")]
    Status { status: String, code: u16, body: String, retry_after: Option<u64> },
    #[error("{url}: {what}")]
    Answer { url: String, what: String },
    #[error("{url}: the connection ended after {got} of {want} bytes")]
    Short { url: String, got: u64, want: u64 },
    #[error("{url}: the whole blob comes instead of the part at byte {offset}")]
    NoRange { url: String, offset: u64 },
    #[error("{url}: redirected more than {most} times")]
    Redirects { url: String, most: usize },
    #[error("{from} redirects to {to}, which {why}")]
    Redirect { from: String, to: String, why: &'static str },

    #[error("blob {digest} has {found} bytes at the registry, but the manifest says {expected}")]
    Size { digest: Digest, expected: u64, found: u64 },
    #[error("digest mismatch, file must be downloaded again: want {want}, got {got}")]
    DigestMismatch { want: Digest, got: Digest },
    #[error(
        "what was sent of the blob {digest} was wrong, and is being fetched anew: ask for all of it again"
    )]
    Anew { digest: Digest },
    #[error("the registry says that the manifest's digest is {said}, but it is {found}")]
    ManifestDigest { said: Digest, found: Digest },
    #[error("{child} of the manifest list: {error}")]
    Child { child: String, error: Box<RegistryError> },
    #[error(
        "{child} of the manifest list of {name} is not at the registry: pull another runner of it; the list has {known}"
    )]
    ChildAbsent { name: String, child: String, known: String },
    #[error(
        "{name} cannot be run here: its manifest list has {known}, and this program runs GGUF files; to fetch one all the same, pull {name}@RUNNER"
    )]
    NoRunnableChild { name: String, known: String },
    #[error("the model is a manifest list, of which a pull chooses a child")]
    IsAList,
    #[error(
        "cannot push {name}: {child} of its manifest list is neither in the store nor at the registry; fetch it with `puna pull --all-runners {name}`"
    )]
    ChildNotHere { name: String, child: String },
    #[error("the model comes in files, of which a pull makes one")]
    Listed { origin: Digest, files: Vec<(Digest, u64)> },
    #[error("the registry's answer is no model manifest: {0}")]
    NotAManifest(String),
    #[error(
        "this model comes in tensors instead of a GGUF file, which cannot be run here: pull one of its other variants"
    )]
    Tensors,
    #[error(
        "not enough space for {what}: {needed} bytes are missing on the disk, {free} are free: free some (`rm` removes models), or set OLLAMA_MODELS to a folder on another disk"
    )]
    Space { what: String, needed: u64, free: u64 },
    #[error("{0} is built into this program: copy it to a name of yours (`cp`) first")]
    BuiltIn(String),
    #[error("the bundle cannot be read: {0}")]
    Bundle(String),
    #[error("the bundle cannot be written: {0}")]
    BundleWrite(String),
    #[error("{0} is a model of another server: there is nothing of it here to take along")]
    NothingToBundle(String),
    #[error(
        "{proxy:?} is no address of a proxy: {cause}; set {variable} (or ALL_PROXY) to one, such as http://proxy:3128"
    )]
    Proxy { variable: &'static str, proxy: String, cause: String },
    #[error("cannot set up connections: {0}")]
    Setup(String),
    #[error("the download was cancelled")]
    Cancelled,
}

impl RegistryError {
    /// Whether trying again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Transport { .. } | Self::Stalled { .. } | Self::Drips { .. } => true,
            Self::Short { .. } | Self::NoRange { .. } => true,
            // What a server cannot do, it cannot do the next time either, and a full disk or a circle takes a person.
            Self::Status { code: 501 | 505 | 507 | LOOP, .. } => false,
            Self::Status { code, .. } => matches!(code, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether the registry answered that it will not, perhaps at the last attempt.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Status { code, .. } => matches!(code, 400..=499) && !self.is_passing(),
            Self::Retries(error) => matches!(**error, Self::Status { code: 416, .. }),
            _ => false,
        }
    }

    /// Whether the registry failed at it as often as it was asked.
    pub(crate) fn is_of_the_server(&self) -> bool {
        match self {
            Self::Retries(error) => matches!(**error, Self::Status { code: 500..=599, .. }),
            _ => false,
        }
    }

    /// Whether registries ask each other in a circle.
    pub fn is_loop(&self) -> bool {
        match self {
            Self::Status { code: LOOP, .. } => true,
            Self::PullManifest(error)
            | Self::Retries(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.is_loop(),
            _ => false,
        }
    }

    /// Whether the reason is here, so that nobody else who is asked could help.
    pub fn is_ours(&self) -> bool {
        match self {
            Self::Store(_)
            | Self::Key(_)
            | Self::Space { .. }
            | Self::Cancelled
            | Self::Secret { .. } => true,
            Self::PullManifest(error)
            | Self::Retries(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.is_ours(),
            _ => false,
        }
    }

    /// Whether its words are of files and settings of this machine, which are nobody else's business.
    pub fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Setup(_) | Self::Proxy { .. } | Self::NoCredentials { .. } => true,
            Self::PullManifest(error)
            | Self::Retries(error)
            | Self::Child { error, .. }
            | Self::AfterMirrors { error, .. } => error.is_of_this_machine(),
            error => error.is_ours(),
        }
    }

    /// Whether what is wanted is not there to be had as it is described, however often it is asked for.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::DigestMismatch { .. }
            | Self::Size { .. }
            | Self::Answer { .. }
            | Self::NotFound => true,
            Self::Child { error, .. } | Self::AfterMirrors { error, .. } => error.is_final(),
            error => error.is_refusal(),
        }
    }

    /// Whether nobody has what was asked for.
    pub(crate) fn is_absence(&self) -> bool {
        match self {
            Self::NotFound | Self::Status { code: 404, .. } => true,
            Self::AfterMirrors { error, .. } => error.is_absence(),
            _ => false,
        }
    }

    /// Whether a hub says so of models that its registry does not serve, though they may be there.
    pub(crate) fn is_refusal_of_hub(&self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::Status { code: 400 | 404 | 405 | 410 | 422 | 501, .. }
        )
    }

    /// With what the mirrors said.
    pub(crate) fn after_mirrors(self, missed: &[String]) -> Self {
        match missed {
            [] => self,
            missed => Self::AfterMirrors { error: Box::new(self), mirrors: missed.join("; ") },
        }
    }

    /// Seconds that the registry asks to wait.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Of the manifest of a pull.
    pub(crate) fn of_manifest(self) -> Self {
        Self::PullManifest(Box::new(self))
    }
}
