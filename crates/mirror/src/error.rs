//! What can go wrong, in the words and codes of the distribution rules.

use std::any::Any;
use std::io::ErrorKind;

use puna_store::{Digest, StoreError};

use crate::access::Limit;
use crate::name::Repository;

/// A request that cannot be answered as it wishes.
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
    Page(String),
    #[error("repository {0} is not here")]
    NameUnknown(Repository),
    #[error("{0} bytes came, but {1} were announced")]
    Size(u64, u64),
    #[error("{0}")]
    Denied(String),
    #[error(
        "the namespace {namespace} may have {quota} bytes and has {used}: there is no room for {asked} more; remove something, or have its quota raised"
    )]
    Quota { namespace: String, quota: u64, used: u64, asked: u64 },
    #[error("this is {0} here, and not what If-Match names")]
    Precondition(String),
    #[error("{0}")]
    Unauthorized(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    TooMany(String),
    #[error("{}", .0.said)]
    Limited(Limit),
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Later(String),
    #[error("the upstream registry: {0}")]
    Upstream(String),
    #[error("{0}")]
    Loop(String),
    #[error("the storage {place}: {reason}")]
    Storage { place: String, reason: String },
    #[error("there is nothing at this address")]
    Route,
    #[error("the request broke off: {0}")]
    Broken(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("internal error: {0}")]
    Internal(String),
}

impl MirrorError {
    /// Of work that panicked.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Self::Internal(format!("it panicked: {}", text.unwrap_or("without a message")))
    }

    /// Of a blob that somebody wants to remove.
    pub(crate) fn needed(digest: &Digest) -> Self {
        Self::Denied(format!("blob {digest} is part of something that is kept here"))
    }

    /// Of a manifest that cannot be removed as long as a list has it.
    pub(crate) fn is_child(name: &Repository, digest: &Digest, list: &Digest) -> Self {
        Self::Denied(format!(
            "manifest {digest} is a child of the list {list} in {name}: remove the list first"
        ))
    }

    /// Of a blob that cannot be removed as long as it is unknown what needs it.
    pub(crate) fn uncollectable(digest: &Digest) -> Self {
        Self::Denied(format!(
            "blob {digest} is not removed: something that is kept here is not understood, which the log of the registry names"
        ))
    }

    /// What clients are told: nothing of files and places on this side, which the log has.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Store(StoreError::OnlyRead { name, .. }) => {
                format!("{name} lies in a folder of models that is only read here: remove it there")
            }
            Self::Store(_) | Self::Internal(_) => match self.code().0 {
                405 => "this registry lies on a disk that can only be read".to_owned(),
                507 => "the disk of this registry is full: tell those who run it".to_owned(),
                _ => "this registry failed at it: its log says why".to_owned(),
            },
            Self::Storage { .. } => {
                "the storage of this registry does not do what it should: its log says why"
                    .to_owned()
            }
            error => error.to_string(),
        }
    }

    /// The HTTP status and the code of the distribution rules.
    pub fn code(&self) -> (u16, &'static str) {
        match self {
            Self::BlobUnknown(_) => (404, "BLOB_UNKNOWN"),
            Self::UploadUnknown(_) => (404, "BLOB_UPLOAD_UNKNOWN"),
            Self::UploadInvalid(_) | Self::Broken(_) => (400, "BLOB_UPLOAD_INVALID"),
            Self::OutOfOrder { .. } => (416, "BLOB_UPLOAD_INVALID"),
            Self::Digest(_) | Self::DigestMismatch { .. } => (400, "DIGEST_INVALID"),
            Self::ManifestUnknown { .. } => (404, "MANIFEST_UNKNOWN"),
            Self::ManifestInvalid(_) => (400, "MANIFEST_INVALID"),
            Self::ChildUnknown { .. } => (404, "MANIFEST_UNKNOWN"),
            Self::ManifestChildUnknown { .. } => (400, "MANIFEST_BLOB_UNKNOWN"),
            Self::ManifestBlobUnknown(_) => (400, "MANIFEST_BLOB_UNKNOWN"),
            Self::ManifestTooLarge { .. } => (413, "SIZE_INVALID"),
            Self::Name(_) | Self::Namespace(_) | Self::Tag(_) => (400, "NAME_INVALID"),
            Self::Page(_) => (400, "PAGINATION_NUMBER_INVALID"),
            Self::NameUnknown(_) => (404, "NAME_UNKNOWN"),
            Self::Size(..) => (400, "SIZE_INVALID"),
            Self::Denied(_) => (403, "DENIED"),
            Self::Precondition(_) => (412, "DENIED"),
            Self::Quota { .. } => (413, "DENIED"),
            Self::Unauthorized(_) => (401, "UNAUTHORIZED"),
            Self::Unsupported(_) => (405, "UNSUPPORTED"),
            Self::Route => (404, "UNSUPPORTED"),
            Self::TooMany(_) | Self::Limited(_) => (429, "TOOMANYREQUESTS"),
            Self::Full(_) => (507, "DENIED"),
            Self::Store(StoreError::Io {
                kind: ErrorKind::StorageFull | ErrorKind::QuotaExceeded,
                ..
            }) => (507, "DENIED"),
            Self::Store(StoreError::Io { kind: ErrorKind::ReadOnlyFilesystem, .. }) => {
                (405, "UNSUPPORTED")
            }
            Self::Store(StoreError::OnlyRead { .. }) => (403, "DENIED"),
            Self::Later(_) => (503, "TOOMANYREQUESTS"),
            Self::Upstream(_) => (502, "UNKNOWN"),
            Self::Loop(_) => (508, "UNSUPPORTED"),
            Self::Storage { .. } => (503, "UNKNOWN"),
            Self::Store(_) | Self::Internal(_) => (500, "UNKNOWN"),
        }
    }
}
