//! Reasons for which a request is rejected.

use puna_store::{Digest, ModelName};

use crate::types::repository::Repository;

/// Why a request is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum Denial {
    #[error(
        "push not allowed: without API keys only the registry's own machine can push; create a key there with `puna key add`"
    )]
    PushWithoutKeys,
    #[error("the API key {key:?} does not permit this request{}", with_repository(.repository))]
    KeyPermission { key: String, repository: Option<Repository> },
    #[error(
        "the API key {key:?} does not permit reading metrics: use a key with the scope admin and without namespaces"
    )]
    KeyMetrics { key: String },
    #[error(
        "cannot push {name}: it is mirrored from {host}; push to a namespace of mirror.private"
    )]
    Mirrored { name: Repository, host: String },
    #[error("{0} is not stored here, and mirror.fetch does not permit fetching it")]
    FetchNotAllowed(Repository),
    #[error(
        "{model} has {bytes} bytes, more than the {limit} that are fetched without an API key (mirror.fetch_limit): pull it with a key"
    )]
    FetchTooLarge { model: Box<ModelName>, bytes: u64, limit: u64 },
    #[error("cannot remove blob {0}: a manifest references it")]
    BlobInUse(Digest),
    #[error(
        "cannot remove blob {0}: an unknown entry of the storage may need it; the registry's log names the entry"
    )]
    BlobUsageUnknown(Digest),
    #[error("manifest {digest} is a child of the list {list} in {name}: remove the list first")]
    ManifestIsChild { name: Repository, digest: Digest, list: Digest },
    #[error("this request has more than one Host header")]
    SeveralHosts,
    #[error(
        "host name not allowed, because this mirror listens on a loopback address: add the name to mirror.names, or let the proxy send localhost"
    )]
    ForeignMirrorHost,
    #[error(
        "host name not allowed, because this server listens on a loopback address: set `host`, or let the proxy send localhost"
    )]
    ForeignServerHost,
    #[error("origin not allowed: add it to the setting `origins` (OLLAMA_ORIGINS)")]
    ForeignOrigin,
}

fn with_repository(repository: &Option<Repository>) -> String {
    repository.as_ref().map(|name| format!(" for {name}")).unwrap_or_default()
}

/// Why a client is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum AuthenticationError {
    #[error("authentication required")]
    NoCredentials,
    #[error("authentication required: metrics need an API key with the scope admin")]
    NoMetricsKey,
    #[error("unknown API key")]
    UnknownKey,
    #[error("invalid request signature: {0}")]
    Signature(#[from] SignatureProblem),
}

/// What is wrong with the signature of a token request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum SignatureProblem {
    #[error("the public key is malformed")]
    InvalidKey,
    #[error("it is not base64")]
    NotBase64,
    #[error("it is for {address}, which is not in mirror.names: ask the administrator to add it")]
    ForeignAddress { address: String },
    #[error(
        "it does not match {url}: if a proxy changes the address, let it send the original one"
    )]
    Mismatch { url: String },
    #[error("it has no timestamp")]
    NoTimestamp,
    #[error("its timestamp is too far from this registry's time: set the clocks of both machines")]
    ClockSkew,
    #[error("it has no nonce")]
    NoNonce,
    #[error("its nonce is longer than {max} bytes")]
    LongNonce { max: usize },
    #[error("it was used before")]
    Reused,
}

/// Limit that a request reaches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum LimitReached {
    #[error(
        "too many open uploads of this client (limit {max}): finish or cancel some, or retry later"
    )]
    OwnUploads { max: usize },
    #[error("too many open uploads (limit {max}): retry later")]
    Uploads { max: usize },
    #[error("other uploads use all memory for uploads: retry later")]
    UploadMemory,
    #[error("too many signed requests (limit {max} in {minutes} minutes): retry later")]
    SignedRequests { max: usize, minutes: u64 },
    #[error(
        "cannot fetch {0} now: the limit of parallel fetches (mirror.fetch_parallel) is reached; retry later"
    )]
    Fetches(Box<ModelName>),
}

/// What is being fetched, so that a request must be repeated later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum PendingFetch {
    #[error("blobs of this manifest are still being fetched from an upstream: retry later")]
    Blobs,
    #[error("{0} is being fetched and merged from several files: retry later")]
    Files(Box<ModelName>),
}

/// Why an upload cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum UploadProblem {
    #[error("invalid Content-Range {0:?}: expected FIRST-LAST, such as 0-99")]
    ContentRange(String),
    #[error(
        "the last part was interrupted at byte {received}: send the rest, or restart the part at byte {committed}"
    )]
    Interrupted { received: u64, committed: u64 },
    #[error("blob too large for this storage: an object has at most {max} parts")]
    TooManyParts { max: usize },
}

/// Why an object store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum BucketProblem {
    #[error("{key}: {what}")]
    InvalidObject { key: String, what: &'static str },
    #[error(
        "the service rejects the credentials: check mirror.storage_key, mirror.storage_secret and their permissions ({cause})"
    )]
    Credentials { cause: String },
    #[error("bucket or object not found: create the bucket, or correct mirror.storage")]
    NoBucket,
    #[error("{cause}: check that the service runs and that mirror.storage_endpoint is correct")]
    Service { cause: String },
    #[error("unknown setting {name}")]
    UnknownSetting { name: String },
    #[error("{cause}")]
    Settings { cause: String },
}
