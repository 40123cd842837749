//! Pull-through cache: a layer in front of a storage that fetches missing models from upstream
//! registries and serves them while they arrive.

mod blob_fetch;
mod declared_sizes;
mod fetch_slots;
mod file_assembly;
mod in_flight;
mod in_flight_blob;
mod list_children;
mod manifest_lists;
mod tag_cache;
mod tag_lookup;
mod tag_request;
mod tag_state;
#[cfg(test)]
mod tests;
mod unreferenced;
mod unreferenced_cache;
mod upstream_lookup;
mod upstreams;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use puna_registry::Registry;
use puna_store::{Digest, Entry, Store};

use crate::blocking::StorageFuture;
use crate::error::{Denial, MirrorError};
use crate::locks::lock;
use crate::retention::usage_log::UsageLog;
use crate::storage::note_store::NoteStore;
use crate::storage::{
    Blob, BlobStore, InventoryScope, ManifestStore, ObjectInventory, S3Storage, Storage,
};
use crate::types::manifest::{Descriptor, Manifest};
use crate::types::repository::{Reference, Repository};
use crate::types::storage_usage::NamespaceUsages;
use crate::types::stored_object::{ConditionalRemoval, Owner, StoredObject, TagEntry};
use declared_sizes::DeclaredSizes;
use in_flight::InFlightModel;
use list_children::ListChildren;
use tag_cache::{MAX_TAGS, TagCache};
use unreferenced_cache::UnreferencedBlobs;
use upstreams::FetchRules;

pub(crate) use declared_sizes::BLOB_SIZES;
pub(crate) use fetch_slots::UPSTREAM_FETCHES;
pub(crate) use list_children::UPSTREAM_CHILDREN;
pub(crate) use tag_cache::UPSTREAM_TAGS;
pub(crate) use unreferenced_cache::UPSTREAM_BLOBS;
pub use upstream_lookup::{UpstreamLookup, UpstreamManifest};
pub(crate) use upstreams::Requester;
pub use upstreams::Upstreams;

/// How long a failed or negative lookup is cached.
const NEGATIVE_CACHE_TIME: Duration = Duration::from_secs(20);

/// Fetches what a storage lacks from upstream registries. Cheap to clone.
#[derive(Clone)]
pub struct PullThrough(Arc<Inner>);

/// Statistics of fetches from upstreams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FetchStats {
    /// Tags answered without a new fetch.
    pub(crate) hits: u64,
    /// Tags that had to be fetched.
    pub(crate) misses: u64,
    /// Models whose fetch failed.
    pub(crate) failures: u64,
    /// Requests that a limit did not allow to fetch a model.
    pub(crate) refused: u64,
    /// Models that are being fetched.
    pub(crate) running: u64,
    /// Fetched bytes.
    pub(crate) bytes: u64,
}

struct Inner {
    storage: Storage,
    /// The bucket behind `storage`. Fetched models are copied to it; without a bucket they stay in
    /// `store`.
    bucket: Option<Arc<S3Storage>>,
    store: Arc<Store>,
    registry: Registry,
    lookup: Arc<dyn UpstreamLookup>,
    upstreams: Upstreams,
    gate: FetchRules,
    usage_log: UsageLog,
    tags: TagCache,
    unreferenced: UnreferencedBlobs,
    declared_sizes: DeclaredSizes,
    list_children: ListChildren,
    negative_cache_time: Duration,
    /// Statistics of ended fetches.
    fetch_stats: Mutex<FetchStats>,
    /// Number of fetches that have started or ended.
    fetch_changes: AtomicU64,
}

impl PullThrough {
    /// Puts the cache in front of the storage of `store`, where fetched models stay.
    pub fn new(
        storage: Storage,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
        usage_log: UsageLog,
    ) -> Self {
        Self::build(storage, None, store, registry, upstreams, usage_log)
    }

    /// Puts the cache in front of a bucket. Fetched models pass through `store`.
    pub fn with_bucket(
        bucket: Arc<S3Storage>,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
        usage_log: UsageLog,
    ) -> Self {
        let storage = Storage::from(bucket.clone());
        Self::build(storage, Some(bucket), store, registry, upstreams, usage_log)
    }

    fn build(
        storage: Storage,
        bucket: Option<Arc<S3Storage>>,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
        usage_log: UsageLog,
    ) -> Self {
        Self(Arc::new(Inner {
            storage,
            bucket,
            store,
            lookup: Arc::new(registry.clone()),
            registry,
            gate: FetchRules::new(&upstreams),
            upstreams,
            usage_log,
            tags: TagCache::new(MAX_TAGS),
            unreferenced: UnreferencedBlobs::default(),
            declared_sizes: DeclaredSizes::default(),
            list_children: ListChildren::default(),
            negative_cache_time: NEGATIVE_CACHE_TIME,
            fetch_stats: Mutex::default(),
            fetch_changes: AtomicU64::default(),
        }))
    }

    /// Replaces the lookup of upstream manifests. It must be called before the value is shared.
    #[must_use]
    pub fn with_lookup(mut self, lookup: Arc<dyn UpstreamLookup>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.lookup = lookup;
        }
        self
    }

    /// Storage with the cache in front. Uploads go to the wrapped storage.
    pub(crate) fn storage(&self) -> Storage {
        let layer = Arc::new(self.clone());
        Storage {
            manifests: layer.clone(),
            blobs: layer.clone(),
            uploads: self.0.storage.uploads.clone(),
            inventory: layer,
        }
    }

    /// Returns a manifest. The requester decides whether a missing one may be fetched.
    pub(crate) async fn manifest_for(
        &self,
        name: &Repository,
        reference: &Reference,
        requester: Requester,
    ) -> Result<Option<Manifest>, MirrorError> {
        match reference {
            Reference::Tag(tag) => self.0.manifest_of_tag(name, tag, requester).await,
            Reference::Digest(digest) => {
                let local = match self.0.storage.manifests.manifest(name, reference).await? {
                    Some(manifest) => Some(manifest),
                    None => self.0.in_flight_manifest(name, *digest).await?,
                };
                self.0.fetch_missing_child(name, *digest, local, requester).await
            }
        }
    }

    /// Returns a blob for a request in a repository. The requester decides whether a missing one
    /// may be fetched.
    pub(crate) async fn blob_for(
        &self,
        name: &Repository,
        digest: Digest,
        requester: Requester,
    ) -> Result<Option<Box<dyn Blob>>, MirrorError> {
        if let Some(blob) = self.0.blob(Some(name), digest).await? {
            return Ok(Some(blob));
        }
        let blob = self.0.unreferenced_blob(name, digest, requester).await?;
        Ok(blob.map(|blob| Box::new(blob) as Box<dyn Blob>))
    }

    /// Whether the upstream of a repository confirms that a blob belongs to it.
    pub(crate) async fn upstream_confirms_blob(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        self.0.upstream_confirms_blob(name, digest).await
    }

    /// Statistics of all fetches.
    pub(crate) async fn fetch_stats(&self) -> FetchStats {
        let (mut fetch_stats, in_flight) = {
            let fetch_stats = lock(&self.0.fetch_stats);
            (*fetch_stats, self.0.tags.all_in_flight())
        };
        fetch_stats.refused = self.0.gate.refused();
        fetch_stats.running = in_flight.len() as u64 + self.0.list_children.running();
        for one in &in_flight {
            fetch_stats.bytes += one.fetched_bytes(&self.0.registry, &self.0.store).await;
        }
        fetch_stats
    }

    /// Counts fetches that have started or ended. The stored objects change each time.
    pub(crate) fn fetch_change_count(&self) -> u64 {
        self.0.fetch_changes.load(Relaxed)
    }

    /// Fails for repositories that mirror an upstream: only the upstream decides what they contain.
    pub(crate) fn check_not_mirrored(&self, name: &Repository) -> Result<(), MirrorError> {
        match self.0.upstreams.model(name, "latest") {
            None => Ok(()),
            Some(model) => {
                let (name, host) = (name.clone(), model.host().to_owned());
                Err(Denial::Mirrored { name, host }.into())
            }
        }
    }
}

impl Inner {
    /// Returns the models that are being fetched. Models in several files are invisible until they
    /// are complete.
    fn in_flight_objects(&self) -> Vec<StoredObject> {
        let object = |in_flight| {
            let InFlightModel::Blobs(fetch) = in_flight else { return None };
            let name = Repository::from_model_name(&fetch.target.model)?;
            Some(StoredObject::from_manifest(name, &fetch.manifest, None))
        };
        self.tags.all_in_flight().into_iter().filter_map(object).collect()
    }

    /// Returns a blob that is stored or being fetched, for a request in a repository.
    async fn blob(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Result<Option<Box<dyn Blob>>, MirrorError> {
        if let Some(blob) = self.storage.blobs.blob(digest).await? {
            return Ok(Some(blob));
        }
        match self.in_flight_blob(name, digest).await? {
            Some(blob) => Ok(Some(Box::new(blob) as Box<dyn Blob>)),
            // The fetch may have ended between the two checks.
            None => self.storage.blobs.blob(digest).await,
        }
    }
}

impl ManifestStore for PullThrough {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>> {
        Box::pin(self.manifest_for(name, reference, Requester::Trusted))
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> StorageFuture<'a, Option<Entry>> {
        Box::pin(async move {
            self.check_not_mirrored(name)?;
            self.0.wait_for_blobs(&manifest).await?;
            self.0.storage.manifests.put_manifest(name, reference, manifest).await
        })
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> StorageFuture<'a, ()> {
        self.0.storage.manifests.put_upstream_list(name, tag, manifest)
    }

    fn lists_containing<'a>(
        &'a self,
        name: &'a Repository,
        child: Digest,
    ) -> StorageFuture<'a, Vec<Digest>> {
        self.0.storage.manifests.lists_containing(name, child)
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>> {
        self.0.storage.manifests.referrers(name, subject)
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>> {
        self.0.storage.manifests.tags(name)
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, bool> {
        self.0.storage.manifests.remove_manifest(name, reference)
    }

    fn remove_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> StorageFuture<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(async move {
            let is_in_flight = |one: &ConditionalRemoval| {
                let model = self.0.upstreams.model(&one.name, one.tag.as_deref()?)?;
                Some(self.0.tags.in_flight(&model).is_some())
            };
            let in_flight: Vec<bool> =
                removals.iter().map(|one| is_in_flight(one).unwrap_or(false)).collect();
            let removable = removals
                .into_iter()
                .zip(&in_flight)
                .filter(|(_, in_flight)| !**in_flight)
                .map(|(one, _)| one);
            let removed = self.0.storage.manifests.remove_unchanged(removable.collect()).await?;
            let mut removed = removed.into_iter();
            let result = |in_flight| if in_flight { None } else { removed.next() };
            Ok(in_flight
                .into_iter()
                .map(result)
                .map(|result| result.unwrap_or(Ok(false)))
                .collect())
        })
    }
}

impl BlobStore for PullThrough {
    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>> {
        Box::pin(self.0.blob(None, digest))
    }

    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            self.check_not_mirrored(name)?;
            // A blob in flight is not stored yet, so the client must push it.
            self.0.storage.blobs.mount(name, digest).await
        })
    }

    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool> {
        self.0.storage.blobs.remove_blob(digest)
    }

    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            let is_in_flight = || {
                self.0
                    .in_flight_objects()
                    .iter()
                    .any(|object| object.name == *name && object.has_blob(&digest))
            };
            Ok(self.0.storage.blobs.references_blob(name, digest).await? || is_in_flight())
        })
    }
}

impl ObjectInventory for PullThrough {
    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>> {
        self.0.storage.inventory.repositories()
    }

    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>> {
        Box::pin(async move {
            let mut entries = self.0.storage.inventory.tag_entries().await?;
            for in_flight in self.0.tags.all_in_flight() {
                let model = &in_flight.target().model;
                let Some(name) = Repository::from_model_name(model) else { continue };
                let (tag, owner) = (model.tag().to_owned(), Owner::Registry);
                let (digest, size) = (in_flight.digest(), in_flight.size());
                let completed =
                    Some(in_flight.present_bytes(&self.0.registry, &self.0.store).await);
                entries.push(TagEntry { name, tag, digest, size, completed, owner, written: None });
            }
            Ok(entries)
        })
    }

    fn stored_objects(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredObject>> {
        Box::pin(async move {
            let mut objects = self.0.storage.inventory.stored_objects(scope.clone()).await?;
            let in_flight = self.0.in_flight_objects().into_iter();
            objects.extend(in_flight.filter(|object| scope.contains(&object.name)));
            Ok(objects)
        })
    }

    fn metadata_usage(&self, scope: InventoryScope) -> StorageFuture<'_, NamespaceUsages> {
        self.0.storage.inventory.metadata_usage(scope)
    }

    fn pulled_blobs(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<(Digest, u64)>> {
        self.0.storage.inventory.pulled_blobs(scope)
    }

    fn collect_garbage(&self) -> StorageFuture<'_, ()> {
        self.0.storage.inventory.collect_garbage()
    }

    fn damaged_blob_count(&self) -> u64 {
        self.0.storage.inventory.damaged_blob_count()
    }

    fn usage_notes(&self) -> &dyn NoteStore {
        self.0.storage.inventory.usage_notes()
    }

    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore> {
        self.0.storage.inventory.size_notes(name)
    }
}
