//! Manifest lists of upstreams. The list is stored as it is; a child is fetched when a client asks
//! for it.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::FutureExt;
use puna_registry::Options;
use puna_store::{Digest, ModelName, ModelRef, media};

use super::Inner;
use super::list_children::ChildKey;
use super::tag_cache::TagCacheEntry;
use super::tag_request::TagRequest;
use super::tag_state::{MissReason, TagState};
use super::upstream_lookup::is_not_found;
use crate::error::{ChildProblem, MirrorError, UpstreamProblem};
use crate::locks::lock;
use crate::loop_detection;
use crate::pull_through::upstreams::{FetchPermit, Requester};
use crate::retention::usage_log::ChangeSource;
use crate::types::manifest::{Manifest, ManifestKind};
use crate::types::repository::{Reference, Repository};

/// Any tag, to find the upstream of a repository.
const UPSTREAM_LOOKUP_TAG: &str = "latest";
impl Inner {
    /// Stores a list that an upstream has under a tag.
    pub(super) async fn store_list(
        &self,
        tag: &Arc<TagCacheEntry>,
        request: TagRequest<'_>,
        bytes: Bytes,
    ) -> Result<Option<Manifest>, MirrorError> {
        let confirmation = self.confirm_now();
        let list = match Manifest::parse(bytes, None) {
            Ok(list) => list,
            Err(error) => {
                let error = MirrorError::from(UpstreamProblem::Manifest(error));
                let error = error.with_model_name(&request.model);
                return self.cache_miss(tag, request, MissReason::Failed(error));
            }
        };
        if request.stored.as_ref().is_some_and(|stored| stored.digest == list.digest) {
            tag.set(TagState::Confirmed(confirmation));
            return Ok(self.count_hit(request.stored));
        }
        // The sizes are declared before the list is served.
        let noted =
            self.declared_sizes.declare(&*self.storage.inventory, request.name, &list).await;
        let kept = match noted {
            Ok(()) => {
                self.storage
                    .manifests
                    .put_upstream_list(request.name, request.model.tag(), list.clone())
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            return self.cache_miss(tag, request, MissReason::Failed(error));
        }
        tracing::info!(model = %request.model, digest = %list.digest, "stored a manifest list");
        let (notes, of) =
            (self.storage.inventory.usage_notes(), Reference::Tag(request.model.tag().to_owned()));
        self.usage_log
            .record_arrival_after_sync(
                notes,
                request.name,
                &of,
                list.digest,
                ChangeSource::Fetch,
                None,
            )
            .await;
        lock(&self.fetch_stats).misses += 1;
        self.fetch_changes.fetch_add(1, Relaxed);
        tag.set(TagState::Confirmed(confirmation));
        Ok(Some(list))
    }

    /// Returns a manifest by digest. For a child of an upstream's list, starts to fetch what is
    /// missing.
    pub(super) async fn fetch_missing_child(
        self: &Arc<Self>,
        name: &Repository,
        digest: Digest,
        stored_child: Option<Manifest>,
        requester: Requester,
    ) -> Result<Option<Manifest>, MirrorError> {
        let upstream = self
            .upstreams
            .model(name, UPSTREAM_LOOKUP_TAG)
            .filter(|_| self.upstreams.may_fetch(name));
        let Some(model) = upstream else { return Ok(stored_child) };
        if self.storage.manifests.lists_containing(name, digest).await?.is_empty() {
            return Ok(stored_child);
        }
        let key = (model, digest);
        let _guard = self.list_children.locks.lock(key.clone()).await;
        if let Some(running) = self.list_children.manifest(&key) {
            return Ok(Some(running));
        }
        if let Some(stored_child) = &stored_child
            && self.has_all_blobs(stored_child).await?
        {
            self.store_child(key, name, stored_child).await;
            return Ok(Some(stored_child.clone()));
        }
        let failed = self.list_children.failure(&key);
        if let Some((_, error)) =
            failed.filter(|(since, _)| since.elapsed() < self.negative_cache_time)
        {
            return error.filter(|_| stored_child.is_none()).map_or(Ok(stored_child), Err);
        }
        let fetched = match stored_child {
            Some(stored_child) => Ok(Some(stored_child)),
            None => self.fetch_child(&key).await,
        };
        let Some(child) = fetched.inspect_err(|error| {
            self.list_children.record_failure(key.clone(), Some(error.clone()))
        })?
        else {
            self.list_children.record_failure(key, None);
            return Ok(None);
        };
        if self.gate.is_too_large(child.size(), requester) {
            return Err(self.gate.too_large_error(&key.0, child.size()));
        }
        let permit = self.gate.try_begin().ok_or_else(|| self.gate.limit_error(&key.0))?;
        self.declared_sizes.declare(&*self.storage.inventory, name, &child).await?;
        tracing::info!(model = %key.0, %digest, "fetching a child of a manifest list");
        self.list_children.begin_fetch(key.clone(), child.clone());
        lock(&self.fetch_stats).misses += 1;
        self.fetch_changes.fetch_add(1, Relaxed);
        let options = Options { via: loop_detection::via_header(), ..Options::default() };
        puna_tasks::spawn(self.clone().run_child_fetch(
            key,
            name.clone(),
            child.clone(),
            options,
            permit,
        ));
        Ok(Some(child))
    }

    /// Fetches the manifest of a child; `None` if the upstream does not have it.
    async fn fetch_child(
        &self,
        (model, digest): &ChildKey,
    ) -> Result<Option<Manifest>, MirrorError> {
        let reference = ModelRef::of(model.clone());
        let options = Options { via: loop_detection::via_header(), ..Options::default() };
        let wrong = |problem: ChildProblem| {
            MirrorError::from(UpstreamProblem::Child { digest: *digest, problem })
                .with_model_name(model)
        };
        let bytes = match self.lookup.fetch_manifest(&reference, *digest, &options).await {
            Ok(bytes) => bytes,
            Err(error) if is_not_found(&error) => return Ok(None),
            Err(error) => return Err(MirrorError::from(error).with_model_name(model)),
        };
        let child = Manifest::parse(bytes.clone(), Some(media::MANIFEST))
            .or_else(|_| Manifest::parse(bytes, None))
            .and_then(Manifest::with_checked_sizes)
            .map_err(|error| wrong(ChildProblem::Manifest(error)))?;
        if child.digest != *digest {
            return Err(wrong(ChildProblem::Digest(child.digest)));
        }
        match child.kind {
            ManifestKind::List | ManifestKind::Index => Err(wrong(ChildProblem::List)),
            _ => Ok(Some(child)),
        }
    }

    /// Stores a complete child on its own, so that its blobs stay.
    async fn store_child(&self, key: ChildKey, name: &Repository, child: &Manifest) {
        if self.list_children.is_stored(&key) {
            return;
        }
        let of = Reference::Digest(child.digest);
        match self.storage.manifests.put_manifest(name, &of, child.clone()).await {
            Ok(_) => self.list_children.mark_stored(key),
            Err(error) => {
                tracing::warn!(repository = %name, digest = %child.digest, %error, "cannot store a child of a manifest list")
            }
        }
    }

    async fn run_child_fetch(
        self: Arc<Self>,
        key: ChildKey,
        name: Repository,
        child: Manifest,
        options: Options,
        permit: FetchPermit,
    ) {
        let (model, digest) = (&key.0, key.1);
        let fetched =
            AssertUnwindSafe(self.fetch_blobs(model, &name, &child, &options)).catch_unwind().await;
        let fetched = fetched.unwrap_or_else(|panic| Err(MirrorError::from_panic(&*panic)));
        drop(permit);
        match &fetched {
            Ok(()) => tracing::info!(%model, %digest, "fetched"),
            Err(error) => tracing::warn!(%model, %digest, %error, "fetch failed"),
        }
        lock(&self.fetch_stats).failures += u64::from(fetched.is_err());
        self.list_children.end_fetch(&key);
        if let Err(error) = fetched {
            let error = error.with_model_name(&key.0);
            self.list_children.record_failure(key, Some(error));
        }
        self.fetch_changes.fetch_add(1, Relaxed);
    }

    /// Fetches the blobs of a child, smallest first, and stores the child.
    async fn fetch_blobs(
        &self,
        model: &ModelName,
        name: &Repository,
        child: &Manifest,
        options: &Options,
    ) -> Result<(), MirrorError> {
        let reference = ModelRef::of(model.clone());
        let mut blobs: Vec<(u64, Digest)> = child
            .blobs
            .iter()
            .map(|blob| (blob.size, blob.digest))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        blobs.sort_unstable();
        let mut held = Vec::new();
        for (size, digest) in blobs {
            if self.storage.blobs.blob(digest).await?.is_some_and(|blob| blob.size() == size) {
                continue;
            }
            let found = self.registry.look_up_blob(&reference, digest, options).await?;
            if found.size() != size {
                let found = found.size();
                return Err(UpstreamProblem::BlobSize { digest, found, declared: size }.into());
            }
            let before = found.completed(&self.store).await;
            held.push(found.fetch(&self.store).await?);
            lock(&self.fetch_stats).bytes += size.saturating_sub(before);
        }
        let of = Reference::Digest(child.digest);
        self.store_fetched(name, &of, child, held).await.map(drop)
    }
}
