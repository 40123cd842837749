//! Errors of manifests, of packaged layers, and of a hub's file listing.

use puna_store::Digest;

/// Why what a registry returned is no manifest of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum ManifestProblem {
    #[error("{reason}")]
    Invalid { reason: String },
    #[error("it is a web page ({reason})")]
    WebPage { reason: String },
    #[error("it has no layers")]
    NoLayers,
    #[error("it is {what}, not a model: it has layers of {kinds}")]
    NoModel { what: &'static str, kinds: String },
    #[error("it is an index without a model")]
    EmptyIndex,
    #[error(
        "it is an index of several models, none of them for this machine: {names}; pull the tag of one of them"
    )]
    AmbiguousIndex { names: String },
    #[error("it is a list itself")]
    NestedList,
    #[error("it declares two sizes for blob {digest}: {first} and {second}")]
    BlobSizes { digest: Digest, first: u64, second: u64 },

    #[error("it is a package without weights in GGUF or safetensors; it has {kinds}")]
    NoWeights { kinds: String },
    #[error("it has two files named {name:?}")]
    DuplicateFile { name: String },
    #[error("its {what} are not JSON")]
    NotJson { what: &'static str },
    #[error("its text layer {} has {size} bytes, more than {max}", .layer.short())]
    LongText { layer: Digest, size: u64, max: u64 },
    #[error("its layer {} is not UTF-8 text", .layer.short())]
    NotText { layer: Digest },
    #[error("cannot unpack a layer: {0}")]
    Unpack(UnpackProblem),
    #[error("{problem} (layer {})", .layer.short())]
    InLayer { problem: Box<ManifestProblem>, layer: Digest },

    #[error("invalid file listing of the hub: {0}")]
    Listing(ListingProblem),
    #[error("the repository has no GGUF files: create a model from its safetensors with `create`")]
    NoGgufFiles,
    #[error("the repository has no file for the tag {tag:?}: it has {names}")]
    NoFileForTag { tag: String, names: String },
}

/// Why a packed layer cannot be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum UnpackProblem {
    #[error("{reason}")]
    Input { reason: String },
    #[error("invalid file name {name:?}")]
    FileName { name: String },
    #[error("it has more than {max} files")]
    TooManyFiles { max: usize },
    #[error("it has the link {link:?} instead of a file")]
    Link { link: String },
}

/// Why the file listing of a hub cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum ListingProblem {
    #[error("it has no commit")]
    NoCommit,
    #[error("it has more than {max} files of weights")]
    TooManyFiles { max: usize },
    #[error("its next page is at another host")]
    OtherHost,
    #[error("it has too many pages")]
    TooManyPages,
    #[error("it is not as documented: {reason}")]
    Json { reason: String },
    #[error("{path} is one of {count} files, which are too many")]
    FileCount { path: String, count: u32 },
    #[error("{path} is missing")]
    MissingPart { path: String },
}
