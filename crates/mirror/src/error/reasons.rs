//! Reasons for which a request is rejected.

use puna_store::{Digest, ModelName};

use crate::types::repository::Repository;

/// Why a request is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum Denial {
    #[error(
        "this registry has no keys, so only its own machine may push: make one there with `puna key add`"
    )]
    PushWithoutKeys,
    #[error("the key {key:?} may not do this{}", with_repository(.repository))]
    KeyPermission { key: String, repository: Option<Repository> },
    #[error(
        "the key {key:?} may not see the figures: that takes the scope admin, without namespaces"
    )]
    KeyMetrics { key: String },
    #[error(
        "{name} is mirrored from {host}, and only what is there is here: push to a namespace of mirror.private"
    )]
    Mirrored { name: Repository, host: String },
    #[error("{0} is not here, and this mirror fetches nothing that mirror.fetch does not name")]
    FetchNotAllowed(Repository),
    #[error(
        "{model} has {bytes} bytes, and without a key nobody has this mirror fetch more than {limit} (mirror.fetch_limit): pull it with a key"
    )]
    FetchTooLarge { model: Box<ModelName>, bytes: u64, limit: u64 },
    #[error("blob {0} is part of something that is kept here")]
    BlobInUse(Digest),
    #[error(
        "blob {0} is not removed: something that is kept here is not understood, which the log of the registry names"
    )]
    BlobUsageUnknown(Digest),
    #[error("manifest {digest} is a child of the list {list} in {name}: remove the list first")]
    ManifestIsChild { name: Repository, digest: Digest, list: Digest },
    #[error("this request has more than one Host header")]
    SeveralHosts,
    #[error(
        "this mirror listens to its own machine alone, and answers to no other name: add the one that clients use to mirror.names, or have the proxy say localhost"
    )]
    ForeignMirrorHost,
    #[error(
        "this server listens to its own machine alone, and answers to no other name: set `host`, or have the proxy say localhost"
    )]
    ForeignServerHost,
    #[error("pages of this origin may not ask here: `origins` names those that may")]
    ForeignOrigin,
}

fn with_repository(repository: &Option<Repository>) -> String {
    repository.as_ref().map(|name| format!(" with {name}")).unwrap_or_default()
}

/// Why a client is not authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum AuthenticationError {
    #[error("this registry wants to know who asks")]
    NoCredentials,
    #[error("these figures are for keys of the scope admin")]
    NoMetricsKey,
    #[error("this key is not known here")]
    UnknownKey,
    #[error("the signature of this request {0}")]
    Signature(#[from] SignatureProblem),
}

/// What is wrong with the signature of a token request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum SignatureProblem {
    #[error("comes with a key that is none")]
    InvalidKey,
    #[error("is none")]
    NotBase64,
    #[error(
        "is for {address}, and that is none of the names in mirror.names: whoever runs this registry can add it there"
    )]
    ForeignAddress { address: String },
    #[error("is not one of {url}: is the address another one outside of a proxy?")]
    Mismatch { url: String },
    #[error("has no time")]
    NoTimestamp,
    #[error("is of another time: the clocks of the two machines are too far apart")]
    ClockSkew,
    #[error("has no nonce")]
    NoNonce,
    #[error("has a nonce of more than {most} bytes")]
    LongNonce { most: usize },
    #[error("was used before")]
    Reused,
}

/// Limit that a request reaches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum LimitReached {
    #[error("you have {most} open uploads already: finish or cancel some, or come back later")]
    OwnUploads { most: usize },
    #[error("{most} uploads are open already: come back later")]
    Uploads { most: usize },
    #[error("other uploads take all the memory that there is for them: come back later")]
    UploadMemory,
    #[error(
        "{most} signed requests came within {minutes} minutes, and no more are told apart: come back later"
    )]
    SignedRequests { most: usize, minutes: u64 },
    #[error(
        "{0} is not here, and as many models are being fetched as may be (mirror.fetch_parallel): ask again in a while"
    )]
    Fetches(Box<ModelName>),
}

/// What is being fetched, so that a request must be repeated later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum PendingFetch {
    #[error(
        "blobs of this manifest are still being fetched from an upstream: ask again in a while"
    )]
    Blobs,
    #[error(
        "{0} comes in several files, which are being fetched and made into one model: ask again in a while"
    )]
    Files(Box<ModelName>),
}

/// Why an upload cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum UploadProblem {
    #[error("Content-Range {0:?} is no place: write FIRST-LAST, such as 0-99")]
    ContentRange(String),
    #[error(
        "the last part broke off at byte {received}: send the rest of it, or all of it from byte {committed} on"
    )]
    Interrupted { received: u64, committed: u64 },
    #[error("this blob is larger than the storage takes: an object has {most} parts at most")]
    TooManyParts { most: usize },
}

/// Why an object store cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum BucketProblem {
    #[error("{key}: {what}")]
    InvalidObject { key: String, what: &'static str },
    #[error(
        "the service refuses these credentials: mend mirror.storage_key and mirror.storage_secret, or what they may do ({cause})"
    )]
    Credentials { cause: String },
    #[error("there is no such bucket, or what was there is gone: make it, or mend mirror.storage")]
    NoBucket,
    #[error("{cause} (is the service there, and mirror.storage_endpoint right?)")]
    Service { cause: String },
    #[error("{name} is no setting")]
    UnknownSetting { name: String },
    #[error("{cause}")]
    Settings { cause: String },
}
