//! Errors of bundles.

use puna_store::{Digest, ModelName, NameError};

use super::manifest::ManifestProblem;

/// Why a bundle cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum BundleProblem {
    #[error("{reason}")]
    Input { reason: String },
    #[error("{reason}")]
    Json { reason: String },
    #[error("its layout version is {version:?}, but only 1 is supported")]
    LayoutVersion { version: String },
    #[error("its blob {} is damaged: copy the file again", .0.short())]
    DamagedBlob(Digest),
    #[error("it lacks {layout} and {index}: create bundles with `puna export`")]
    NoIndex { layout: &'static str, index: &'static str },
    #[error("it has no models")]
    NoModels,
    #[error("it has {models} models: a new name is possible for a single model only")]
    OneName { models: usize },
    #[error("it lists {models} models, more than {max}")]
    TooManyModels { models: usize, max: usize },
    #[error("it has two models named {name}: {} and {}", .first.short(), .second.short())]
    SameName { name: Box<ModelName>, first: Digest, second: Digest },
    #[error("its manifest list {name} contains another list")]
    NestedLists { name: Box<ModelName> },
    #[error("{name}: {problem}")]
    Manifest { name: Box<ModelName>, problem: Box<ManifestProblem> },
    #[error("it lacks the blob {} of {name}", .digest.short())]
    MissingBlob { digest: Digest, name: Box<ModelName> },
    #[error("it lacks the manifest {}", .0.short())]
    MissingManifest(Digest),
    #[error("its manifest {} has more than {max} bytes", .digest.short())]
    LargeManifest { digest: Digest, max: usize },
    #[error("its model {} has no name: set one with --name", .0.short())]
    Unnamed(Digest),
    #[error(
        "its model {} is named {text:?}: {error}; set another name with --name", .manifest.short()
    )]
    InvalidName { manifest: Digest, text: String, error: Box<NameError> },
    #[error("its {name} is too large: {size} bytes")]
    LargeFile { name: String, size: u64 },
    #[error("its {name} is invalid: {reason}")]
    FileJson { name: String, reason: String },
}
