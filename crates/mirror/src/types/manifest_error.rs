//! Errors of manifests.

use puna_store::{Digest, media};

/// Why a manifest is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum ManifestError {
    #[error("the manifest is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("not a manifest: {0}")]
    Invalid(#[from] ManifestProblem),
}

/// What is wrong with the text of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum ManifestProblem {
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("{reason}")]
    Json { reason: String },
    #[error("{stated:?} is not a media type of manifests, such as {example}")]
    MediaType { stated: String, example: &'static str },
    #[error("its mediaType is {stated:?}, but its Content-Type is {content_type:?}")]
    ContentType { stated: String, content_type: String },
    #[error("it has neither layers nor manifests")]
    Empty,
    #[error("config: {reason}")]
    Config { reason: String },
    #[error("a manifest list must state its mediaType: {}", media::MANIFEST_LIST)]
    UntypedList,
    #[error("{reason}")]
    List { reason: String },
    #[error("child {number} of the list: {error}")]
    Child { number: usize, error: Box<ManifestError> },
    #[error(
        "child {number} of the list declares {size} bytes for blob {digest}, but another child declares {other}"
    )]
    ChildBlobSize { number: usize, digest: Digest, size: u64, other: u64 },
    #[error("it declares {size} bytes for {digest}, and elsewhere {other}")]
    TwoSizes { digest: Digest, size: u64, other: u64 },
    #[error("{child} of the list is a list itself")]
    NestedList { child: String },
    #[error("it declares {stated} bytes for blob {digest}, which has {actual}")]
    BlobSize { digest: Digest, stated: u64, actual: u64 },
}
