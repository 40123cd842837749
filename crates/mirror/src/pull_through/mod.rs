//! Pull-through cache: a storage that fetches missing models from upstream registries and serves
//! them while they arrive.

mod blob_fetch;
mod declared_sizes;
mod file_assembly;
mod in_flight;
mod in_flight_blob;
mod manifest_lists;
mod tag_cache;
mod tag_lookup;
#[cfg(test)]
mod tests;
mod unreferenced;
mod upstreams;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use puna_registry::{Registry, RegistryError};
use puna_store::{Digest, Entry, ModelName, Store};

use crate::blocking::StorageFuture;
use crate::error::MirrorError;
use crate::locks::lock;
use crate::retention::usage_log::UsageLog;
use crate::storage::note_store::NoteStore;
use crate::storage::{Blob, FetchStats, Storage, UploadPart};
use crate::types::manifest::{Descriptor, Manifest};
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{ConditionalRemoval, Owner, StoredObject, TagEntry};
use crate::types::upload_id::UploadId;
use declared_sizes::DeclaredSizes;
use in_flight::InFlightModel;
use manifest_lists::ListChildren;
use tag_cache::{MAX_TAGS, TagCache};
use unreferenced::UnreferencedBlobs;

use upstreams::FetchGate;

pub use manifest_lists::{UpstreamLookup, UpstreamManifest};
pub use upstreams::{Requester, Upstreams};

/// How long a failed or negative lookup is cached.
const NEGATIVE_CACHE_TIME: Duration = Duration::from_secs(20);

/// Storage that fetches what it lacks from upstream registries.
pub struct PullThrough(Arc<Inner>);

struct Inner {
    storage: Arc<dyn Storage>,
    store: Arc<Store>,
    registry: Registry,
    lookup: Arc<dyn UpstreamLookup>,
    upstreams: Upstreams,
    gate: FetchGate,
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
    /// Wraps a storage. Downloads go through `store`.
    pub fn new(
        storage: Arc<dyn Storage>,
        store: Arc<Store>,
        registry: Registry,
        upstreams: Upstreams,
        usage_log: UsageLog,
    ) -> Self {
        Self(Arc::new(Inner {
            storage,
            store,
            lookup: Arc::new(registry.clone()),
            registry,
            gate: FetchGate::new(&upstreams),
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

    /// Fails for repositories that mirror an upstream: only the upstream decides what they contain.
    fn check_not_mirrored(&self, name: &Repository) -> Result<(), MirrorError> {
        match self.0.upstreams.model(name, "latest") {
            None => Ok(()),
            Some(model) => Err(MirrorError::Denied(format!(
                "{name} is mirrored from {}, and only what is there is here: push to a namespace of mirror.private",
                model.host()
            ))),
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
}

impl Inner {
    /// Returns a blob that is stored or being fetched, for a request in a repository.
    async fn blob(
        &self,
        name: Option<&Repository>,
        digest: Digest,
    ) -> Result<Option<Box<dyn Blob>>, MirrorError> {
        if let Some(blob) = self.storage.blob(digest).await? {
            return Ok(Some(blob));
        }
        match self.in_flight_blob(name, digest).await? {
            Some(blob) => Ok(Some(Box::new(blob) as Box<dyn Blob>)),
            // The fetch may have ended between the two checks.
            None => self.storage.blob(digest).await,
        }
    }
}

/// Converts an error of a fetch. A local failure is not reported as one of the upstream.
pub(super) fn fetch_error(error: RegistryError) -> MirrorError {
    match error {
        RegistryError::Store(error) => error.into(),
        RegistryError::NoSpace { .. } => MirrorError::NoSpace(error.to_string()),
        error if error.concerns_local_configuration() => MirrorError::Internal(error.to_string()),
        error if error.is_loop() => MirrorError::Loop(error.to_string()),
        error => MirrorError::Upstream(error.to_string()),
    }
}

/// Adds the name of the model to errors of the upstream, which clients see.
fn with_model_name(model: &ModelName, error: MirrorError) -> MirrorError {
    match error {
        MirrorError::Upstream(said) => MirrorError::Upstream(format!("{model}: {said}")),
        MirrorError::Loop(said) => MirrorError::Loop(format!("{model}: {said}")),
        error => error,
    }
}

impl Storage for PullThrough {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>> {
        self.manifest_for(name, reference, Requester::Trusted)
    }

    fn manifest_for<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        requester: Requester,
    ) -> StorageFuture<'a, Option<Manifest>> {
        Box::pin(async move {
            match reference {
                Reference::Tag(tag) => self.0.manifest_of_tag(name, tag, requester).await,
                Reference::Digest(digest) => {
                    let here = match self.0.storage.manifest(name, reference).await? {
                        Some(manifest) => Some(manifest),
                        None => self.0.in_flight_manifest(name, *digest).await?,
                    };
                    self.0.complete_child(name, *digest, here, requester).await
                }
            }
        })
    }

    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>> {
        Box::pin(self.0.blob(None, digest))
    }

    fn blob_for<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
        requester: Requester,
    ) -> StorageFuture<'a, Option<Box<dyn Blob>>> {
        Box::pin(async move {
            if let Some(blob) = self.0.blob(Some(name), digest).await? {
                return Ok(Some(blob));
            }
            let unreferenced_blob = self.0.unreferenced_blob(name, digest, requester).await?;
            Ok(unreferenced_blob
                .map(|unreferenced_blob| Box::new(unreferenced_blob) as Box<dyn Blob>))
        })
    }

    fn upstream_confirms_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        Box::pin(self.0.upstream_confirms(name, digest))
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
            self.0.storage.put_manifest(name, reference, manifest).await
        })
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> StorageFuture<'a, ()> {
        self.0.storage.put_upstream_list(name, tag, manifest)
    }

    fn lists_containing<'a>(
        &'a self,
        name: &'a Repository,
        child: Digest,
    ) -> StorageFuture<'a, Vec<Digest>> {
        self.0.storage.lists_containing(name, child)
    }

    fn adopt_model<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
        store: &'a Store,
    ) -> StorageFuture<'a, bool> {
        self.0.storage.adopt_model(name, reference, manifest, store)
    }

    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            self.check_not_mirrored(name)?;
            // A blob in flight is not stored yet, so the client must push it.
            self.0.storage.mount(name, digest).await
        })
    }

    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> StorageFuture<'a, UploadId> {
        Box::pin(async move {
            self.check_not_mirrored(name)?;
            self.0.storage.begin(name, owner).await
        })
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, bool> {
        self.0.storage.remove_manifest(name, reference)
    }

    fn remove_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> StorageFuture<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(async move {
            let is_coming = |one: &ConditionalRemoval| {
                let model = self.0.upstreams.model(&one.name, one.tag.as_deref()?)?;
                Some(self.0.tags.in_flight(&model).is_some())
            };
            let in_flight: Vec<bool> =
                removals.iter().map(|one| is_coming(one).unwrap_or(false)).collect();
            let still = removals
                .into_iter()
                .zip(&in_flight)
                .filter(|(_, in_flight)| !**in_flight)
                .map(|(one, _)| one);
            let mut done = self.0.storage.remove_unchanged(still.collect()).await?.into_iter();
            let of = |in_flight| if in_flight { None } else { done.next() };
            Ok(in_flight.into_iter().map(of).map(|done| done.unwrap_or(Ok(false))).collect())
        })
    }

    fn usage_notes(&self) -> &dyn NoteStore {
        self.0.storage.usage_notes()
    }

    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore> {
        self.0.storage.size_notes(name)
    }

    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>> {
        Box::pin(async move {
            let mut entries = self.0.storage.tag_entries().await?;
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

    fn collect_garbage(&self) -> StorageFuture<'_, ()> {
        self.0.storage.collect_garbage()
    }

    fn damaged_blob_count(&self) -> u64 {
        self.0.storage.damaged_blob_count()
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>> {
        self.0.storage.tags(name)
    }

    fn fetch_stats(&self) -> BoxFuture<'_, FetchStats> {
        Box::pin(async move {
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
        })
    }

    fn fetch_change_count(&self) -> u64 {
        self.0.fetch_changes.load(Relaxed)
    }

    fn stored_objects(&self) -> StorageFuture<'_, Vec<StoredObject>> {
        Box::pin(async move {
            let mut stored_objects = self.0.storage.stored_objects().await?;
            stored_objects.extend(self.0.in_flight_objects());
            Ok(stored_objects)
        })
    }

    fn stored_objects_in<'a>(&'a self, namespace: &'a str) -> StorageFuture<'a, Vec<StoredObject>> {
        Box::pin(async move {
            let mut stored_objects = self.0.storage.stored_objects_in(namespace).await?;
            stored_objects.extend(
                self.0
                    .in_flight_objects()
                    .into_iter()
                    .filter(|object| object.name.is_in(namespace)),
            );
            Ok(stored_objects)
        })
    }

    fn stored_objects_of<'a>(
        &'a self,
        name: &'a Repository,
    ) -> StorageFuture<'a, Vec<StoredObject>> {
        Box::pin(async move {
            let mut stored_objects = self.0.storage.stored_objects_of(name).await?;
            stored_objects.extend(
                self.0.in_flight_objects().into_iter().filter(|object| object.name == *name),
            );
            Ok(stored_objects)
        })
    }

    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            let comes = || {
                self.0
                    .in_flight_objects()
                    .iter()
                    .any(|object| object.name == *name && object.has_blob(&digest))
            };
            Ok(self.0.storage.references_blob(name, digest).await? || comes())
        })
    }

    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>> {
        self.0.storage.repositories()
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>> {
        self.0.storage.referrers(name, subject)
    }

    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool> {
        self.0.storage.remove_blob(digest)
    }

    fn upload_size<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, u64> {
        self.0.storage.upload_size(name, id)
    }

    fn append<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        part: UploadPart,
    ) -> StorageFuture<'a, u64> {
        self.0.storage.append(name, id, part)
    }

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> StorageFuture<'a, ()> {
        self.0.storage.finish(name, id, digest)
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, ()> {
        self.0.storage.cancel(name, id)
    }
}
