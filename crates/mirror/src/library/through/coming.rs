//! What is being fetched, and how much of it is here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use puna_registry::{Found, Registry};
use puna_store::{Digest, ModelName, Store};
use tokio::sync::watch;

use super::asking::Wish;
use super::tags::Said;
use crate::error::MirrorError;
use crate::manifest::Manifest;
use crate::name::Repository;

/// A model that is on its way.
#[derive(Clone)]
pub(super) enum Coming {
    /// In blobs, which are handed on while they arrive.
    Blobs(Arc<Pending>),
    /// In files, of which one model is made before anybody gets it.
    Files(Arc<Making>),
}

/// A model whose blobs are being fetched.
pub(super) struct Pending {
    pub(super) of: Of,
    pub(super) found: Found,
    pub(super) manifest: Manifest,
}

/// A model that is being made of files.
pub(super) struct Making {
    pub(super) of: Of,
    /// What it is made of is known by.
    pub(super) origin: Digest,
    pub(super) files: Vec<(Digest, u64)>,
    /// The end of it: why it failed, if it did.
    pub(super) end: watch::Receiver<Option<Result<(), MirrorError>>>,
}

/// What is fetched, and what has come of it.
pub(super) struct Of {
    pub(super) name: Repository,
    pub(super) model: ModelName,
    pub(super) said: Said,
    /// Bytes of it that were here before.
    first: u64,
    /// The most bytes of it that have been seen here: at its end they go where it stays, and nothing that is counted goes back.
    most: AtomicU64,
}

impl Of {
    /// What somebody wishes for, of which so many bytes are here.
    pub(super) fn new(wish: &Wish<'_>, said: Said, here: u64) -> Self {
        Self {
            name: wish.name.clone(),
            model: wish.model.clone(),
            said,
            first: here,
            most: AtomicU64::new(here),
        }
    }

    fn seen(&self, here: u64) -> u64 {
        self.most.fetch_max(here, Relaxed).max(here)
    }
}

impl Coming {
    pub(super) fn of(&self) -> &Of {
        match self {
            Self::Blobs(pending) => &pending.of,
            Self::Files(making) => &making.of,
        }
    }

    /// What it is known by as long as it is on its way.
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Blobs(pending) => pending.manifest.digest,
            Self::Files(making) => making.origin,
        }
    }

    /// Bytes of all of it.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Blobs(pending) => pending.manifest.size(),
            Self::Files(making) => sum(&making.files),
        }
    }

    /// Those that are here.
    pub(super) async fn completed(&self, registry: &Registry, store: &Arc<Store>) -> u64 {
        self.of().seen(match self {
            Self::Blobs(pending) => pending.found.completed(store).await,
            Self::Files(making) => registry.completed(store, &making.files).await,
        })
    }

    /// Those that have been brought.
    pub(super) async fn arrived(&self, registry: &Registry, store: &Arc<Store>) -> u64 {
        self.completed(registry, store).await.saturating_sub(self.of().first)
    }

    /// All of it has come, and may have gone on to where it stays.
    pub(super) fn all_came(&self) {
        self.of().seen(self.size());
    }
}

/// Bytes of files.
pub(super) fn sum(files: &[(Digest, u64)]) -> u64 {
    files.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}
