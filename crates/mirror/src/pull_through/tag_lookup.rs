//! Resolves tags: from the storage while the confirmation is fresh, else from the upstream.

use std::sync::Arc;
use std::time::Instant;

use puna_registry::{Options, RegistryError};
use puna_store::{ModelName, ModelRef};
use tokio::sync::MutexGuard;

use super::Inner;
use super::file_assembly::FileListing;
use super::in_flight::InFlightModel;
use super::tag_cache::TagCacheEntry;
use super::tag_request::TagRequest;
use super::tag_state::{Confirmation, MissReason, TagState};
use super::upstream_lookup::{UpstreamManifest, is_not_found};
use crate::error::MirrorError;
use crate::locks::lock;
use crate::loop_detection;
use crate::pull_through::upstreams::{FetchPermit, Requester};
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};

impl Inner {
    /// Returns the manifest that a tag points to.
    pub(super) async fn manifest_of_tag(
        self: &Arc<Self>,
        name: &Repository,
        tag: &str,
        requester: Requester,
    ) -> Result<Option<Manifest>, MirrorError> {
        let reference = Reference::Tag(tag.to_owned());
        let Some(model) = self.upstreams.model(name, tag) else {
            return self.storage.manifests.manifest(name, &reference).await;
        };
        if !self.upstreams.may_fetch(name) {
            let stored = self.storage.manifests.manifest(name, &reference).await?;
            return stored.map(Some).ok_or_else(|| self.gate.not_allowed_error(name));
        }
        let tag = self.tags.entry(&model);
        let lookup_lock = tag.lookup_lock.lock().await;
        // This is checked before the storage is read, because a fetch writes to the storage before
        // it ends.
        let in_flight = self.tags.in_flight(&model);
        if let Some(InFlightModel::Blobs(fetch)) = in_flight {
            // A model has several names, and its sizes may not have been declared for this one.
            self.declared_sizes.declare(&*self.storage.inventory, name, &fetch.manifest).await?;
            return Ok(self.count_hit(Some(fetch.manifest.clone())));
        }
        let state = tag.state();
        let stored = self.storage.manifests.manifest(name, &reference).await?;
        let request = TagRequest { name, model, requester, stored };
        if let Some(InFlightModel::Files(assembly)) = in_flight {
            drop(lookup_lock);
            let assembled = self.await_assembly(request, &assembly).await?;
            return Ok(self.count_hit(assembled));
        }
        match state {
            TagState::Confirmed(confirmation)
                if request.stored.is_some() && self.is_fresh(confirmation) =>
            {
                Ok(self.count_hit(request.stored))
            }
            TagState::NegativeCached(since, reason)
                if since.elapsed() < self.negative_cache_time
                    && self.still_applies(&reason, &request) =>
            {
                let error = if request.stored.is_none() {
                    self.miss_error(&request.model, &reason)
                } else {
                    None
                };
                self.stored_or_error(request.stored, error)
            }
            _ => self.ask_upstream(&tag, request, lookup_lock).await,
        }
    }

    /// Whether the upstream need not be asked again. A blob that was found damaged since then
    /// forces a lookup.
    fn is_fresh(&self, confirmation: Confirmation) -> bool {
        confirmation.at.elapsed() < self.upstreams.fresh
            && confirmation.damaged_blobs == self.storage.inventory.damaged_blob_count()
    }

    /// Confirmation as of now.
    pub(super) fn confirm_now(&self) -> Confirmation {
        Confirmation {
            at: Instant::now(),
            damaged_blobs: self.storage.inventory.damaged_blob_count(),
        }
    }

    /// Whether a cached reason applies to this request, too.
    fn still_applies(&self, reason: &MissReason, request: &TagRequest<'_>) -> bool {
        match reason {
            MissReason::Absent | MissReason::Failed(_) => true,
            MissReason::TooLarge(bytes) => self.gate.is_too_large(*bytes, request.requester),
            MissReason::FetchLimit => self.gate.is_full(),
        }
    }

    /// Error for a request that gets nothing; `None` if the upstream does not have the tag.
    fn miss_error(&self, model: &ModelName, reason: &MissReason) -> Option<MirrorError> {
        match reason {
            MissReason::Absent => None,
            // A failed lookup does not mean that the tag does not exist.
            MissReason::Failed(error) => Some(error.clone()),
            MissReason::TooLarge(bytes) => Some(self.gate.too_large_error(model, *bytes)),
            MissReason::FetchLimit => Some(self.gate.limit_error(model)),
        }
    }

    /// Returns the stored manifest, even if it is outdated, else the error.
    fn stored_or_error(
        &self,
        stored: Option<Manifest>,
        error: Option<MirrorError>,
    ) -> Result<Option<Manifest>, MirrorError> {
        match (stored, error) {
            (None, Some(error)) => Err(error),
            (stored, _) => Ok(self.count_hit(stored)),
        }
    }

    /// Counts a tag that is answered without a new fetch.
    pub(super) fn count_hit(&self, stored: Option<Manifest>) -> Option<Manifest> {
        lock(&self.fetch_stats).hits += u64::from(stored.is_some());
        stored
    }

    /// Caches that nothing could be fetched, and returns the stored manifest or the error.
    pub(super) fn cache_miss(
        &self,
        tag: &TagCacheEntry,
        request: TagRequest<'_>,
        reason: MissReason,
    ) -> Result<Option<Manifest>, MirrorError> {
        let error = self.miss_error(&request.model, &reason);
        if request.stored.is_some() && matches!(reason, MissReason::Absent | MissReason::Failed(_))
        {
            let (model, error) = (&request.model, error.as_ref().map(ToString::to_string));
            tracing::warn!(%model, error, "tag not available from the upstream; serving the stored version");
        }
        tag.set(TagState::NegativeCached(Instant::now(), reason));
        self.stored_or_error(request.stored, error)
    }

    /// Asks the upstream for a tag and starts to fetch the result.
    async fn ask_upstream(
        self: &Arc<Self>,
        tag: &Arc<TagCacheEntry>,
        request: TagRequest<'_>,
        lookup_lock: MutexGuard<'_, ()>,
    ) -> Result<Option<Manifest>, MirrorError> {
        // Without a free place the result would be rejected, so the upstream is not asked.
        if request.stored.is_none() && self.gate.is_full() {
            return Err(self.gate.limit_error(&request.model));
        }
        let reference = ModelRef::of(request.model.clone());
        let options = Options { via: loop_detection::via_header(), ..Options::default() };
        match self.lookup.look_up_tag(&reference, &options).await {
            Ok(UpstreamManifest::Model(found)) => self.fetch_model(tag, request, *found).await,
            Ok(UpstreamManifest::List(bytes)) => self.store_list(tag, request, bytes).await,
            Err(RegistryError::FileListing { origin, files }) => {
                let listed = FileListing { reference, options, origin, files };
                self.assemble_files(tag, request, listed, lookup_lock).await
            }
            Err(error) if is_not_found(&error) => self.cache_miss(tag, request, MissReason::Absent),
            Err(error) => {
                let error = MirrorError::from(error).with_model_name(&request.model);
                self.cache_miss(tag, request, MissReason::Failed(error))
            }
        }
    }

    /// Checks the limits for fetching `bytes` bytes for this requester.
    pub(super) fn admit(
        &self,
        request: &TagRequest<'_>,
        bytes: u64,
    ) -> Result<FetchPermit, MissReason> {
        if self.gate.is_too_large(bytes, request.requester) {
            return Err(MissReason::TooLarge(bytes));
        }
        self.gate.try_begin().ok_or(MissReason::FetchLimit)
    }

    /// Whether all blobs of a model are stored and intact.
    pub(super) async fn has_all_blobs(&self, manifest: &Manifest) -> Result<bool, MirrorError> {
        for blob in &manifest.blobs {
            if self.storage.blobs.blob(blob.digest).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
