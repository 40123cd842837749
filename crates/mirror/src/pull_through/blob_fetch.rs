//! Fetches models of registries. Their blobs go to their final place and are served while they
//! arrive.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use puna_registry::{DownloadReader, RegistryModel};
use puna_store::{Digest, Entry, ModelName};

use super::Inner;
use super::declared_sizes::DeclaredSize;
use super::in_flight::{BlobFetch, FetchTarget, InFlightModel};
use super::tag_cache::TagCacheEntry;
use super::tag_request::TagRequest;
use super::tag_state::{MissReason, TagState};
use crate::blocking::blocking;
use crate::error::{MirrorError, PendingFetch, UpstreamProblem};
use crate::locks::lock;
use crate::pull_through::in_flight_blob::InFlightBlob;
use crate::pull_through::upstreams::FetchPermit;
use crate::retention::usage_log::ChangeSource;
use crate::types::manifest::{Manifest, ManifestKind};
use crate::types::repository::{Reference, Repository};

/// Longest wait of a pushed manifest for blobs that are being fetched.
const BLOB_WAIT: Duration = Duration::from_secs(20);
/// Interval of checks whether they have arrived.
const BLOB_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Inner {
    /// Starts to fetch a model, unless it is stored.
    pub(super) async fn fetch_model(
        self: &Arc<Self>,
        tag: &Arc<TagCacheEntry>,
        request: TagRequest<'_>,
        found: RegistryModel,
    ) -> Result<Option<Manifest>, MirrorError> {
        // Models of Ollama need not state their media type; other formats do.
        let manifest = Manifest::parse(found.bytes().clone(), Some(puna_store::media::MANIFEST))
            .or_else(|_| Manifest::parse(found.bytes().clone(), None))
            .and_then(Manifest::with_checked_sizes);
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(error) => {
                let error = MirrorError::from(UpstreamProblem::Manifest(error));
                let error = error.with_model_name(&request.model);
                return self.cache_miss(tag, request, MissReason::Failed(error));
            }
        };
        let confirmation = self.confirm_now();
        let is_same =
            request.stored.as_ref().is_some_and(|stored| stored.digest == manifest.digest);
        if is_same && self.has_all_blobs(&manifest).await? {
            tag.set(TagState::Confirmed(confirmation));
            return Ok(self.count_hit(Some(manifest)));
        }
        let permit = match self.admit(&request, manifest.size()) {
            Ok(permit) => permit,
            Err(reason) => return self.cache_miss(tag, request, reason),
        };
        let noted = self.declared_sizes.declare(&*self.storage.inventory, request.name, &manifest);
        let (noted, bucket_blobs) = tokio::join!(noted, self.blobs_in_bucket(&manifest));
        if let Err(error) = noted {
            // The manifest is not served, because no note would declare its blob sizes.
            return self.cache_miss(tag, request, MissReason::Failed(error));
        }
        let found = found.skip_blobs(bucket_blobs?);
        tracing::info!(model = %request.model, digest = %manifest.digest, "fetching");
        let target = FetchTarget::new(&request, confirmation, found.completed(&self.store).await);
        let fetch = Arc::new(BlobFetch { target, found, manifest: manifest.clone() });
        self.start(InFlightModel::Blobs(fetch.clone()));
        puna_tasks::spawn(self.clone().run_fetch(tag.clone(), fetch, permit));
        Ok(Some(manifest))
    }

    /// Records that a fetch has started.
    pub(super) fn start(&self, in_flight: InFlightModel) {
        lock(&self.fetch_stats).misses += 1;
        self.tags.begin_fetch(in_flight);
        self.fetch_changes.fetch_add(1, Relaxed);
    }

    /// Records the arrival of a model in the usage log, and the model of the store that it
    /// replaced.
    pub(super) async fn record_arrival(
        &self,
        target: &FetchTarget,
        digest: Digest,
        replaced: Option<Entry>,
    ) {
        let (tag, notes) =
            (Reference::Tag(target.model.tag().to_owned()), self.storage.inventory.usage_notes());
        self.usage_log
            .record_arrival_after_sync(
                notes,
                &target.name,
                &tag,
                digest,
                ChangeSource::Fetch,
                replaced.as_ref(),
            )
            .await;
    }

    /// Records the end of a fetch. A failure is cached, so that it is not retried for a while.
    pub(super) async fn finish(
        &self,
        tag: &TagCacheEntry,
        in_flight: &InFlightModel,
        fetched: Result<(), MirrorError>,
    ) {
        let FetchTarget { model, confirmation, .. } = in_flight.target();
        let state = match fetched {
            Ok(()) => {
                tracing::info!(%model, "fetched");
                in_flight.mark_complete();
                TagState::Confirmed(*confirmation)
            }
            Err(error) => {
                tracing::warn!(%model, %error, "fetch failed");
                TagState::NegativeCached(Instant::now(), MissReason::Failed(error))
            }
        };
        let arrived = in_flight.fetched_bytes(&self.registry, &self.store).await;
        // The lock makes the change visible to readers of the statistics as a whole.
        let mut fetch_stats = lock(&self.fetch_stats);
        fetch_stats.bytes += arrived;
        fetch_stats.failures += u64::from(matches!(state, TagState::NegativeCached(..)));
        tag.set(state);
        self.tags.end_fetch(model);
        self.fetch_changes.fetch_add(1, Relaxed);
    }

    /// Task that runs a fetch.
    async fn run_fetch(
        self: Arc<Self>,
        tag: Arc<TagCacheEntry>,
        fetch: Arc<BlobFetch>,
        _permit: FetchPermit,
    ) {
        let fetched = AssertUnwindSafe(async {
            let replaced = self.fetch_and_store(&fetch).await?;
            self.record_arrival(&fetch.target, fetch.manifest.digest, replaced).await;
            Ok(())
        });
        let fetched = fetched.catch_unwind().await;
        let fetched = fetched.unwrap_or_else(|panic| Err(MirrorError::from_panic(&*panic)));
        let fetched = fetched.map_err(|error| error.with_model_name(&fetch.target.model));
        self.finish(&tag, &InFlightModel::Blobs(fetch), fetched).await;
    }

    /// Fetches a model to its final place. Returns the model of the store that it replaced. A
    /// manifest that is not in Ollama's format is stored as it is, outside of Ollama's directories.
    /// Clients read it as it is; Puna's client makes a model of it.
    async fn fetch_and_store(&self, fetch: &BlobFetch) -> Result<Option<Entry>, MirrorError> {
        let BlobFetch { target: FetchTarget { name, model, .. }, found, manifest } = fetch;
        let tag = Reference::Tag(model.tag().to_owned());
        if manifest.kind == ManifestKind::Model && self.bucket.is_none() {
            let replaced = found.fetch(&self.store).await?;
            let served = self.storage.manifests.manifest(name, &tag).await?;
            if served.is_some_and(|served| served.digest != manifest.digest) {
                // The tag points to a list or an image, which would hide the model.
                self.storage.manifests.put_manifest(name, &tag, manifest.clone()).await?;
            }
            return Ok(replaced);
        }
        let pins = found.fetch_blobs(&self.store).await?;
        self.store_fetched(name, &tag, manifest, pins).await
    }

    /// Stores a manifest whose blobs were fetched into the local store and are pinned there. If the
    /// storage is a bucket, the blobs are copied to it and removed here. Returns the model that it
    /// replaced.
    pub(super) async fn store_fetched(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
        pins: impl Send,
    ) -> Result<Option<Entry>, MirrorError> {
        let Some(bucket) = &self.bucket else {
            return self.storage.manifests.put_manifest(name, reference, manifest.clone()).await;
        };
        bucket.upload_model(name, reference, manifest.clone(), &self.store).await?;
        drop(pins);
        let blobs: Vec<Digest> = manifest.blobs.iter().map(|blob| blob.digest).collect();
        let store = self.store.clone();
        blocking(move || Ok(store.discard_blobs(&blobs)?)).await?;
        Ok(None)
    }

    /// Returns the blobs of a manifest that the bucket already has.
    async fn blobs_in_bucket(&self, manifest: &Manifest) -> Result<HashSet<Digest>, MirrorError> {
        let mut present = HashSet::new();
        if self.bucket.is_some() {
            for blob in &manifest.blobs {
                let kept = self.storage.blobs.blob(blob.digest).await?;
                present.extend(kept.filter(|kept| kept.size() == blob.size).map(|_| blob.digest));
            }
        }
        Ok(present)
    }

    /// Moves a model of the local store to the bucket, if there is one.
    pub(super) async fn move_to_bucket(
        &self,
        model: &ModelName,
        manifest: Manifest,
    ) -> Result<(), MirrorError> {
        let Some(bucket) = &self.bucket else { return Ok(()) };
        let Some(name) = Repository::from_model_name(model) else { return Ok(()) };
        let tag = Reference::Tag(model.tag().to_owned());
        bucket.upload_model(&name, &tag, manifest, &self.store).await?;
        let (store, model) = (self.store.clone(), model.clone());
        blocking(move || Ok(store.delete(&model).map(drop)?)).await
    }

    /// Waits while blobs of a pushed manifest are being fetched. The client was told that they
    /// exist, so it did not push them.
    pub(super) async fn wait_for_blobs(&self, manifest: &Manifest) -> Result<(), MirrorError> {
        let arrived = async {
            for blob in &manifest.blobs {
                let is_fetched = || {
                    self.find_blob_fetch(|fetch| fetch.found.size(&blob.digest).is_some()).is_some()
                };
                while self.storage.blobs.blob(blob.digest).await?.is_none() && is_fetched() {
                    tokio::time::sleep(BLOB_POLL_INTERVAL).await;
                }
            }
            Ok(())
        };
        let arrived = tokio::time::timeout(BLOB_WAIT, arrived).await;
        arrived.unwrap_or_else(|_| Err(PendingFetch::Blobs.into()))
    }

    /// Returns a running fetch that satisfies a condition.
    pub(super) fn find_blob_fetch(
        &self,
        has: impl Fn(&BlobFetch) -> bool,
    ) -> Option<Arc<BlobFetch>> {
        self.tags.all_in_flight().into_iter().find_map(|in_flight| match in_flight {
            InFlightModel::Blobs(fetch) => Some(fetch).filter(|fetch| has(fetch)),
            InFlightModel::Files(_) => None,
        })
    }

    /// Returns the manifest of a running fetch for a request in a repository. Manifests of other
    /// repositories are not visible.
    pub(super) async fn in_flight_manifest(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let is_of = |of: &FetchTarget| {
            self.upstreams.model(name, of.model.tag()).as_ref() == Some(&of.model)
        };
        let fetch =
            self.find_blob_fetch(|fetch| fetch.manifest.digest == digest && is_of(&fetch.target));
        let Some(fetch) = fetch else { return Ok(None) };
        self.declared_sizes.declare(&*self.storage.inventory, name, &fetch.manifest).await?;
        Ok(Some(fetch.manifest.clone()))
    }

    /// Returns a blob that is being fetched, for a request in a repository. Only sizes that this
    /// repository declares count.
    pub(super) async fn in_flight_blob(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Result<Option<InFlightBlob>, MirrorError> {
        let Some((size, running)) = self.running_download(name, digest) else { return Ok(None) };
        let declared = match name {
            Some(name) => self.declared_size(name, digest).await,
            None => None,
        };
        Ok(Some(self.in_flight_blob_of(
            digest,
            size,
            running,
            declared == Some(DeclaredSize::Bytes(size)),
        )))
    }

    /// Returns the size that the manifests of a repository declare for a blob. If they cannot be
    /// read, the size counts as conflicting: the fetch continues, and the blob is served after
    /// verification.
    pub(super) async fn declared_size(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Option<DeclaredSize> {
        let declared = self.declared_sizes.get(&*self.storage.inventory, name, digest).await;
        declared.unwrap_or_else(|error| {
            tracing::warn!(repository = %name, %digest, %error, "cannot read declared blob sizes; serving the blob only after verification");
            Some(DeclaredSize::Conflicting)
        })
    }

    /// Builds a blob that is being fetched.
    pub(super) fn in_flight_blob_of(
        &self,
        digest: Digest,
        size: u64,
        reader: DownloadReader,
        is_size_declared: bool,
    ) -> InFlightBlob {
        let (blobs, has_bucket) = (self.storage.blobs.clone(), self.bucket.is_some());
        InFlightBlob { blobs, has_bucket, digest, size, reader, is_size_declared }
    }

    /// Returns the running download of a blob, and its size.
    fn running_download(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Option<(u64, DownloadReader)> {
        let has = |fetch: &BlobFetch| fetch.found.size(&digest).is_some();
        let own = self.find_blob_fetch(|fetch| name == Some(&fetch.target.name) && has(fetch));
        let fetch = own.or_else(|| self.find_blob_fetch(has))?;
        let size = fetch.found.size(&digest)?;
        Some((size, fetch.found.download_reader(&self.store, digest)?))
    }
}
