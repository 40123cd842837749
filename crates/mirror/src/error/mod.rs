//! Errors of the registry, with the status and error codes of the OCI distribution specification.

mod internal;
mod reasons;
#[cfg(test)]
mod tests;
mod upstream;

use std::any::Any;
use std::io::ErrorKind;

use axum::http::Method;
use puna_registry::RegistryError;
use puna_store::{Digest, ModelName, StoreError};

use crate::auth::permissions::RateLimit;
use crate::types::manifest_error::{ManifestError, ManifestProblem};
use crate::types::name_error::NameError;
use crate::types::quota_unit::QuotaUnit;
use crate::types::repository::Repository;

pub use internal::InternalError;
pub use reasons::{
    AuthenticationError, BucketProblem, Denial, LimitReached, PendingFetch, SignatureProblem,
    UploadProblem,
};
pub use upstream::{ChildProblem, LoopProblem, UpstreamProblem};

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum MirrorError {
    #[error("blob {0} not found")]
    BlobUnknown(Digest),
    #[error("upload {0} not found: it was finished, cancelled or expired; start a new upload")]
    UploadUnknown(String),
    #[error(transparent)]
    UploadInvalid(#[from] UploadProblem),
    #[error("part starts at byte {first}, but the upload continues at byte {at}")]
    OutOfOrder { first: u64, at: u64 },
    #[error("digest mismatch: the content has {found}, expected {expected}")]
    DigestMismatch { expected: Digest, found: Digest },
    #[error("{name} has no manifest {reference}")]
    ManifestUnknown { name: Repository, reference: String },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the manifest references blob {0}, which does not exist here: push it first")]
    ManifestBlobUnknown(Digest),
    #[error("the manifest list references {child}, which does not exist in {name}: push it first")]
    ManifestChildUnknown { name: Repository, child: String },
    #[error(
        "the manifest list {tag} of {name} lacks its {child}: push the child, or pull with a client that accepts lists"
    )]
    ChildUnknown { name: Repository, tag: String, child: String },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("invalid page size n={0:?}: expected a number, 0 or more")]
    InvalidPageSize(String),
    #[error("repository {0} not found")]
    NameUnknown(Repository),
    #[error("received {received} bytes, but {announced} were announced")]
    SizeMismatch { received: u64, announced: u64 },
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error(
        "quota of namespace {namespace} exceeded: {used} of {quota} {unit} used, {asked} more needed; remove models, or have the quota raised"
    )]
    Quota { namespace: String, unit: QuotaUnit, quota: u64, used: u64, asked: u64 },
    #[error("If-Match does not match: the current ETag is {}", quoted(.current))]
    PreconditionFailed { current: Option<Digest> },
    #[error(transparent)]
    Unauthorized(#[from] AuthenticationError),
    #[error("method {0} not allowed at this path")]
    MethodNotAllowed(Method),
    #[error("deletion is disabled: set mirror.delete to enable it")]
    DeletionDisabled,
    #[error(transparent)]
    TooManyRequests(#[from] LimitReached),
    #[error("{}", .0.message)]
    RateLimited(RateLimit),
    #[error(
        "not enough disk space for this upload: {free} bytes free, {reserved} of them reserved for other uploads"
    )]
    NoSpace { free: u64, reserved: u64 },
    #[error("{0}")]
    NoSpaceForFetch(Box<RegistryError>),
    #[error(transparent)]
    RetryLater(#[from] PendingFetch),
    #[error("upstream registry: {0}")]
    Upstream(#[from] UpstreamProblem),
    #[error(transparent)]
    Loop(#[from] LoopProblem),
    #[error("storage {location}: {problem}")]
    StorageFailed { location: String, problem: BucketProblem },
    #[error("path not found")]
    NoRoute,
    #[error("request body interrupted: {reason}")]
    BodyInterrupted { reason: String },
    #[error("request body interrupted: no data for {seconds} seconds")]
    BodyStalled { seconds: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("internal error: {0}")]
    Internal(#[from] InternalError),
}

/// A digest as an `ETag` has it.
fn quoted(digest: &Option<Digest>) -> String {
    digest.map_or("none".to_owned(), |digest| format!("\"{digest}\""))
}

impl From<ManifestProblem> for MirrorError {
    fn from(problem: ManifestProblem) -> Self {
        ManifestError::from(problem).into()
    }
}

impl From<RegistryError> for MirrorError {
    /// Converts an error of a fetch. A local failure is not reported as one of the upstream.
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Store(error) => error.into(),
            RegistryError::NoSpace { .. } => Self::NoSpaceForFetch(error.into()),
            error if error.concerns_local_configuration() => {
                InternalError::FetchConfiguration(error.into()).into()
            }
            error if error.is_loop() => {
                LoopProblem::Upstream(UpstreamProblem::Request(error.into())).into()
            }
            error => UpstreamProblem::Request(error.into()).into(),
        }
    }
}

impl MirrorError {
    /// Converts the panic of a task.
    pub(crate) fn from_panic(panic: &(dyn Any + Send)) -> Self {
        InternalError::from_panic(panic).into()
    }

    /// Adds the name of the model to an error of the upstream, which clients see.
    pub(crate) fn with_model_name(self, model: &ModelName) -> Self {
        let of_model = |problem: UpstreamProblem| UpstreamProblem::OfModel {
            model: Box::new(model.clone()),
            problem: Box::new(problem),
        };
        match self {
            Self::Upstream(problem) => of_model(problem).into(),
            Self::Loop(LoopProblem::Upstream(problem)) => {
                LoopProblem::Upstream(of_model(problem)).into()
            }
            error => error,
        }
    }

    /// Message for the client. It omits local paths and internal details, which only the log shows.
    pub(crate) fn public_message(&self) -> String {
        match self {
            Self::Store(StoreError::ReadOnly { name, .. }) => {
                format!("{name} is in a read-only folder of models: remove it there")
            }
            Self::Store(_) | Self::Internal(_) => match self.code().0 {
                405 => "the disk of this registry is read-only".to_owned(),
                507 => "the disk of this registry is full: ask its administrator to free space"
                    .to_owned(),
                _ => "internal error of this registry: its log has the reason".to_owned(),
            },
            Self::StorageFailed { .. } => {
                "the storage of this registry failed: its log has the reason".to_owned()
            }
            error => error.to_string(),
        }
    }

    /// HTTP status and error code of the distribution specification.
    pub fn code(&self) -> (u16, &'static str) {
        match self {
            Self::BlobUnknown(_) => (404, "BLOB_UNKNOWN"),
            Self::UploadUnknown(_) | Self::Name(NameError::UploadId(_)) => {
                (404, "BLOB_UPLOAD_UNKNOWN")
            }
            Self::UploadInvalid(_) | Self::BodyInterrupted { .. } | Self::BodyStalled { .. } => {
                (400, "BLOB_UPLOAD_INVALID")
            }
            Self::OutOfOrder { .. } => (416, "BLOB_UPLOAD_INVALID"),
            Self::Name(NameError::Digest(_)) | Self::DigestMismatch { .. } => {
                (400, "DIGEST_INVALID")
            }
            Self::Name(_) => (400, "NAME_INVALID"),
            Self::ManifestUnknown { .. } | Self::ChildUnknown { .. } => (404, "MANIFEST_UNKNOWN"),
            Self::Manifest(ManifestError::Invalid(_)) => (400, "MANIFEST_INVALID"),
            Self::Manifest(ManifestError::TooLarge { .. }) => (413, "SIZE_INVALID"),
            Self::ManifestChildUnknown { .. } | Self::ManifestBlobUnknown(_) => {
                (400, "MANIFEST_BLOB_UNKNOWN")
            }
            Self::InvalidPageSize(_) => (400, "PAGINATION_NUMBER_INVALID"),
            Self::NameUnknown(_) => (404, "NAME_UNKNOWN"),
            Self::SizeMismatch { .. } => (400, "SIZE_INVALID"),
            Self::Denied(_) => (403, "DENIED"),
            Self::PreconditionFailed { .. } => (412, "DENIED"),
            Self::Quota { .. } => (413, "DENIED"),
            Self::Unauthorized(_) => (401, "UNAUTHORIZED"),
            Self::MethodNotAllowed(_) | Self::DeletionDisabled => (405, "UNSUPPORTED"),
            Self::NoRoute => (404, "UNSUPPORTED"),
            Self::TooManyRequests(_) | Self::RateLimited(_) => (429, "TOOMANYREQUESTS"),
            Self::NoSpace { .. } | Self::NoSpaceForFetch(_) => (507, "DENIED"),
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
