//! Errors of the registry, with the status and error codes of the OCI distribution specification.

use std::any::Any;
use std::io::ErrorKind;

use puna_store::{Digest, StoreError};

use crate::auth::RateLimit;
use crate::types::repository::Repository;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
pub enum MirrorError {
    #[error("blob {0} is not here")]
    BlobUnknown(Digest),
    #[error(
        "upload {0} is not open: it was finished, cancelled, or left alone for too long; begin a new one"
    )]
    UploadUnknown(String),
    #[error("{0}")]
    UploadInvalid(String),
    #[error("this part begins at byte {first}, but the upload is at byte {at}")]
    OutOfOrder { first: u64, at: u64 },
    #[error("{0:?} is no digest: sha256: and 64 hexadecimal digits")]
    Digest(String),
    #[error("the content has the digest {found}, and not {expected}")]
    DigestMismatch { expected: Digest, found: Digest },
    #[error("{name} has no manifest {reference}")]
    ManifestUnknown { name: Repository, reference: String },
    #[error("not a manifest: {0}")]
    ManifestInvalid(String),
    #[error("the manifest names blob {0}, which is not here: push it first")]
    ManifestBlobUnknown(Digest),
    #[error("the list names {child}, which is not in {name}: push it first")]
    ManifestChildUnknown { name: Repository, child: String },
    #[error(
        "{name} has a manifest list under {tag}, but its {child} is not here: push the child, or pull with a client that accepts lists"
    )]
    ChildUnknown { name: Repository, tag: String, child: String },
    #[error("a manifest may have {most} bytes at most")]
    ManifestTooLarge { most: usize },
    #[error(
        "{0:?} is no repository: words of letters, digits, and . _ - between them, with / between the words"
    )]
    Name(String),
    #[error(
        "{0:?} is no namespace: it is words of letters, digits, and . _ - with / between them, such as team-a, and a * at its end stands for all that begin so"
    )]
    Namespace(String),
    #[error("{0:?} is no tag: 1 to 128 letters, digits, and . _ - after the first")]
    Tag(String),
    #[error("n is {0:?}: it is the number of entries that are wanted, 0 or more")]
    InvalidPageSize(String),
    #[error("repository {0} is not here")]
    NameUnknown(Repository),
    #[error("{0} bytes came, but {1} were announced")]
    SizeMismatch(u64, u64),
    #[error("{0}")]
    Denied(String),
    #[error(
        "the namespace {namespace} may have {quota} bytes and has {used}: there is no room for {asked} more; remove something, or have its quota raised"
    )]
    Quota { namespace: String, quota: u64, used: u64, asked: u64 },
    #[error("this is {0} here, and not what If-Match names")]
    PreconditionFailed(String),
    #[error("{0}")]
    Unauthorized(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    TooManyRequests(String),
    #[error("{}", .0.message)]
    RateLimited(RateLimit),
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    RetryLater(String),
    #[error("the upstream registry: {0}")]
    Upstream(String),
    #[error("{0}")]
    Loop(String),
    #[error("the storage {location}: {reason}")]
    StorageFailed { location: String, reason: String },
    #[error("there is nothing at this address")]
    NoRoute,
    #[error("the request broke off: {0}")]
    BodyInterrupted(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("internal error: {0}")]
    Internal(String),
}

impl MirrorError {
    /// Converts the panic of a task.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Self::Internal(format!("it panicked: {}", text.unwrap_or("without a message")))
    }

    /// Error for removing a blob that a manifest references.
    pub(crate) fn blob_in_use(digest: &Digest) -> Self {
        Self::Denied(format!("blob {digest} is part of something that is kept here"))
    }

    /// Error for removing a manifest that is a child of a manifest list.
    pub(crate) fn manifest_is_child(name: &Repository, digest: &Digest, list: &Digest) -> Self {
        Self::Denied(format!(
            "manifest {digest} is a child of the list {list} in {name}: remove the list first"
        ))
    }

    /// Error for removing a blob while the garbage collector cannot tell which blobs are in use.
    pub(crate) fn blob_usage_unknown(digest: &Digest) -> Self {
        Self::Denied(format!(
            "blob {digest} is not removed: something that is kept here is not understood, which the log of the registry names"
        ))
    }

    /// Message for the client. It omits local paths and internal details, which only the log shows.
    pub(crate) fn public_message(&self) -> String {
        match self {
            Self::Store(StoreError::ReadOnly { name, .. }) => {
                format!("{name} lies in a folder of models that is only read here: remove it there")
            }
            Self::Store(_) | Self::Internal(_) => match self.code().0 {
                405 => "this registry lies on a disk that can only be read".to_owned(),
                507 => "the disk of this registry is full: tell those who run it".to_owned(),
                _ => "this registry failed at it: its log says why".to_owned(),
            },
            Self::StorageFailed { .. } => {
                "the storage of this registry does not do what it should: its log says why"
                    .to_owned()
            }
            error => error.to_string(),
        }
    }

    /// HTTP status and error code of the distribution specification.
    pub fn code(&self) -> (u16, &'static str) {
        match self {
            Self::BlobUnknown(_) => (404, "BLOB_UNKNOWN"),
            Self::UploadUnknown(_) => (404, "BLOB_UPLOAD_UNKNOWN"),
            Self::UploadInvalid(_) | Self::BodyInterrupted(_) => (400, "BLOB_UPLOAD_INVALID"),
            Self::OutOfOrder { .. } => (416, "BLOB_UPLOAD_INVALID"),
            Self::Digest(_) | Self::DigestMismatch { .. } => (400, "DIGEST_INVALID"),
            Self::ManifestUnknown { .. } => (404, "MANIFEST_UNKNOWN"),
            Self::ManifestInvalid(_) => (400, "MANIFEST_INVALID"),
            Self::ChildUnknown { .. } => (404, "MANIFEST_UNKNOWN"),
            Self::ManifestChildUnknown { .. } => (400, "MANIFEST_BLOB_UNKNOWN"),
            Self::ManifestBlobUnknown(_) => (400, "MANIFEST_BLOB_UNKNOWN"),
            Self::ManifestTooLarge { .. } => (413, "SIZE_INVALID"),
            Self::Name(_) | Self::Namespace(_) | Self::Tag(_) => (400, "NAME_INVALID"),
            Self::InvalidPageSize(_) => (400, "PAGINATION_NUMBER_INVALID"),
            Self::NameUnknown(_) => (404, "NAME_UNKNOWN"),
            Self::SizeMismatch(..) => (400, "SIZE_INVALID"),
            Self::Denied(_) => (403, "DENIED"),
            Self::PreconditionFailed(_) => (412, "DENIED"),
            Self::Quota { .. } => (413, "DENIED"),
            Self::Unauthorized(_) => (401, "UNAUTHORIZED"),
            Self::Unsupported(_) => (405, "UNSUPPORTED"),
            Self::NoRoute => (404, "UNSUPPORTED"),
            Self::TooManyRequests(_) | Self::RateLimited(_) => (429, "TOOMANYREQUESTS"),
            Self::NoSpace(_) => (507, "DENIED"),
            Self::Store(StoreError::Io {
                kind: ErrorKind::StorageFull | ErrorKind::QuotaExceeded,
                ..
            }) => (507, "DENIED"),
            Self::Store(StoreError::Io { kind: ErrorKind::ReadOnlyFilesystem, .. }) => {
                (405, "UNSUPPORTED")
            }
            Self::Store(StoreError::ReadOnly { .. }) => (403, "DENIED"),
            Self::RetryLater(_) => (503, "TOOMANYREQUESTS"),
            Self::Upstream(_) => (502, "UNKNOWN"),
            Self::Loop(_) => (508, "UNSUPPORTED"),
            Self::StorageFailed { .. } => (503, "UNKNOWN"),
            Self::Store(_) | Self::Internal(_) => (500, "UNKNOWN"),
        }
    }
}
