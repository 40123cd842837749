//! Errors of manifests, of packaged layers, and of a hub's file listing.

use puna_store::Digest;

/// Why what a registry returned is no manifest of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum ManifestProblem {
    #[error("{reason}")]
    Invalid { reason: String },
    #[error("it is a page for browsers ({reason})")]
    WebPage { reason: String },
    #[error("it has no layers")]
    NoLayers,
    #[error("it is {what} and no model: it has layers of {kinds}")]
    NoModel { what: &'static str, kinds: String },
    #[error("it is an index without a model")]
    EmptyIndex,
    #[error(
        "it is an index of several, and none is this machine's or the only model: {names}; ask for a tag of one of them"
    )]
    AmbiguousIndex { names: String },
    #[error("it is a list itself")]
    NestedList,
    #[error("the blob {digest} has two sizes, {first} and {second}")]
    BlobSizes { digest: Digest, first: u64, second: u64 },

    #[error("it is a package without weights in GGUF or safetensors; it has {kinds}")]
    NoWeights { kinds: String },
    #[error("it has two files called {name:?}")]
    DuplicateFile { name: String },
    #[error("its {what} are no JSON")]
    NotJson { what: &'static str },
    #[error("its layer {} has {size} bytes, more than a text of {most}", .layer.short())]
    LongText { layer: Digest, size: u64, most: u64 },
    #[error("its layer {} is no text", .layer.short())]
    NotText { layer: Digest },
    #[error("its packed layer cannot be unpacked: {0}")]
    Unpack(UnpackProblem),
    #[error("{problem} (layer {})", .layer.short())]
    InLayer { problem: Box<ManifestProblem>, layer: Digest },

    #[error("the listing of the hub cannot be used: {0}")]
    Listing(ListingProblem),
    #[error("the repository has no GGUF files: `create` makes a model of safetensors")]
    NoGgufFiles,
    #[error("the repository has no file for the tag {tag:?}; it has {names}")]
    NoFileForTag { tag: String, names: String },
}

/// Why a packed layer cannot be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum UnpackProblem {
    #[error("{reason}")]
    Input { reason: String },
    #[error("a file is called {name:?}")]
    FileName { name: String },
    #[error("it has more than {most} files")]
    TooManyFiles { most: usize },
    #[error("it has a link {link:?} in the place of a file")]
    Link { link: String },
}

/// Why the file listing of a hub cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum ListingProblem {
    #[error("it names no commit")]
    NoCommit,
    #[error("it has more than {most} files of weights")]
    TooManyFiles { most: usize },
    #[error("it goes on at another host")]
    OtherHost,
    #[error("it has too many pages")]
    TooManyPages,
    #[error("it is not as documented: {reason}")]
    Json { reason: String },
    #[error("{path} is one of {count} files")]
    FileCount { path: String, count: u32 },
    #[error("there is no {path}")]
    MissingPart { path: String },
}
