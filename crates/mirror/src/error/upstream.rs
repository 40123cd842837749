//! Failures of upstream registries.

use puna_registry::RegistryError;
use puna_store::{Digest, ModelName};

use crate::types::manifest_error::ManifestError;
use crate::types::repository::Repository;

/// Why nothing can be fetched from an upstream.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum UpstreamProblem {
    #[error("{model}: {problem}")]
    OfModel { model: Box<ModelName>, problem: Box<UpstreamProblem> },
    #[error("{name}: {problem}")]
    OfRepository { name: Repository, problem: Box<UpstreamProblem> },
    #[error("{0}")]
    Request(Box<RegistryError>),
    #[error("{0}")]
    Manifest(ManifestError),
    #[error("child {digest}: {problem}")]
    Child { digest: Digest, problem: ChildProblem },
    #[error(
        "blob {digest} has {found} bytes at the upstream, but its manifest declares {declared}"
    )]
    BlobSize { digest: Digest, found: u64, declared: u64 },
}

/// What is wrong with a child of an upstream's manifest list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum ChildProblem {
    #[error("{0}")]
    Manifest(ManifestError),
    #[error("its content has the digest {0}")]
    Digest(Digest),
    #[error("it is a list itself")]
    List,
}

/// A loop of registries.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum LoopProblem {
    #[error(
        "request loop: this registry is its own upstream, directly or through others; correct mirror.upstreams, registry.default and registry.mirrors on each of them"
    )]
    Own,
    #[error(
        "more than {max} mirrors in a chain: name one nearer to the source in mirror.upstreams, registry.default or registry.mirrors"
    )]
    TooManyMirrors { max: usize },
    /// An upstream has reported a loop.
    #[error("{0}")]
    Upstream(UpstreamProblem),
}
