//! Models that are being fetched, and their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use puna_registry::{Registry, RegistryModel};
use puna_store::{Digest, ModelName, Store};
use tokio::sync::watch;

use super::tag_request::TagRequest;
use super::tag_state::Confirmation;
use crate::error::MirrorError;
use crate::types::manifest::Manifest;
use crate::types::repository::Repository;

/// A model that is being fetched.
#[derive(Clone)]
pub(super) enum InFlightModel {
    /// Its blobs are fetched and served while they arrive.
    Blobs(Arc<BlobFetch>),
    /// Its files are fetched; one model is made of them before it is served.
    Files(Arc<FileAssembly>),
}

/// A model whose blobs are being fetched.
pub(super) struct BlobFetch {
    pub(super) target: FetchTarget,
    pub(super) found: RegistryModel,
    pub(super) manifest: Manifest,
}

/// A model that is being made of several files.
pub(super) struct FileAssembly {
    pub(super) target: FetchTarget,
    /// Digest that identifies the set of files.
    pub(super) origin: Digest,
    pub(super) files: Vec<(Digest, u64)>,
    /// Outcome of the assembly; `None` while it runs.
    pub(super) outcome: watch::Receiver<Option<Result<(), MirrorError>>>,
}

/// What is being fetched, and its progress.
pub(super) struct FetchTarget {
    pub(super) name: Repository,
    pub(super) model: ModelName,
    pub(super) confirmation: Confirmation,
    /// Bytes that were present before the fetch.
    initial_bytes: u64,
    /// Largest number of bytes seen so far. Files move away at the end, but counters must not
    /// decrease.
    max_bytes: AtomicU64,
}

impl FetchTarget {
    /// Creates the target of a request with `present_bytes` bytes present.
    pub(super) fn new(
        request: &TagRequest<'_>,
        confirmation: Confirmation,
        present_bytes: u64,
    ) -> Self {
        Self {
            name: request.name.clone(),
            model: request.model.clone(),
            confirmation,
            initial_bytes: present_bytes,
            max_bytes: AtomicU64::new(present_bytes),
        }
    }

    fn record_progress(&self, present_bytes: u64) -> u64 {
        self.max_bytes.fetch_max(present_bytes, Relaxed).max(present_bytes)
    }
}

impl InFlightModel {
    pub(super) fn target(&self) -> &FetchTarget {
        match self {
            Self::Blobs(fetch) => &fetch.target,
            Self::Files(assembly) => &assembly.target,
        }
    }

    /// Digest that identifies the model while it is fetched.
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Blobs(fetch) => fetch.manifest.digest,
            Self::Files(assembly) => assembly.origin,
        }
    }

    /// Total size in bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Blobs(fetch) => fetch.manifest.size(),
            Self::Files(assembly) => total_size(&assembly.files),
        }
    }

    /// Bytes that are present.
    pub(super) async fn present_bytes(&self, registry: &Registry, store: &Arc<Store>) -> u64 {
        self.target().record_progress(match self {
            Self::Blobs(fetch) => fetch.found.completed(store).await,
            Self::Files(assembly) => registry.completed(store, &assembly.files).await,
        })
    }

    /// Bytes that were fetched.
    pub(super) async fn fetched_bytes(&self, registry: &Registry, store: &Arc<Store>) -> u64 {
        self.present_bytes(registry, store).await.saturating_sub(self.target().initial_bytes)
    }

    /// Records that all bytes are present, although they may have moved to their final place.
    pub(super) fn mark_complete(&self) {
        self.target().record_progress(self.size());
    }
}

/// Sum of file sizes in bytes.
pub(super) fn total_size(files: &[(Digest, u64)]) -> u64 {
    files.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}
