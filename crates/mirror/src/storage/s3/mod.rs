//! S3 driver: stores everything in a bucket that any number of mirrors may share.
//!
//! ```text
//! blobs/sha256-<hex>              location and size of a blob's data
//! data/<id>                       data of a blob
//! repositories/<name>/            (`/` in names is `+`)
//!     manifests/<hex>             a manifest, byte for byte
//!     tags/<tag>                  the digest that a tag points to
//!     referrers/<hex>/<hex>       manifests whose subject is another manifest
//!     lists/<hex>/<hex>           manifest lists that have a manifest as their child
//! brought/<name>/<hex>-<size>     push mark: the blob was recently pushed there
//! retiring/<name>/<id>            a mirror is removing items of the repository
//! uploads/<id>.json               record of an open upload
//! uploads/<id>.<length>           its last bytes, fewer than a part
//! history/<id>-<n>.json           usage log of one mirror
//! trash/sha256-<hex>              location of a blob that was removed less than a day ago
//! trash/manifest-<hex>            a manifest that was removed less than a day ago
//! sizes/<name>/<hex>              blob sizes that a served upstream manifest declares
//! ```
//!
//! The digest of a blob is known only after its last byte, and a bucket cannot rename. So the data
//! is written to its final place, and the name is written once the digest is verified. Data without
//! a name is invisible. Only immutable values are cached in memory, so mirrors need not know of
//! each other.

mod blob_location;
mod bounded_cache;
mod bucket;
mod connection;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
pub(crate) mod faulty_service;
mod garbage_collection;
mod inventory;
mod manifest_lists;
mod manifests;
mod metadata_usage;
mod notes;
mod removal;
#[cfg(test)]
mod tests;
mod uploads;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use puna_registry::Registry;
use puna_store::{Digest, Store};

use super::fs::blobs::FileBlob;
use super::{
    Blob, BlobStore, InventoryScope, ManifestStore, ObjectInventory, Storage, UploadPart,
    UploadStore,
};
use crate::blocking::{StorageFuture, blocking};
use crate::error::{Denial, MirrorError};
use crate::storage::collection_rules::GcRefusalLog;
use crate::storage::note_store::NoteStore;
use crate::types::manifest::{Descriptor, Manifest};
use crate::types::repository::{Reference, Repository};
use crate::types::storage_usage::NamespaceUsages;
use crate::types::stored_object::{ConditionalRemoval, StoredObject, TagEntry, is_push_mark_of};
use blob_location::{BlobLocation, S3Blob, blob_key, read_blob_location};
use bounded_cache::BoundedCache;
use bucket::Bucket;
use notes::S3Notes;
use uploads::UploadSessions;

pub(crate) use bounded_cache::BUCKET_CACHES;
pub use connection::S3Location;
pub(crate) use uploads::UPLOAD_MEMORY;

/// Largest number of concurrent requests of an operation on many objects.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Folder of the size notes.
const SIZES: &str = "sizes";
/// Folder of the push marks.
const PUSH_MARKS: &str = "brought";

/// Storage in a bucket.
pub struct S3Storage {
    bucket: Bucket,
    usage_log: S3Notes,
    uploads: Arc<UploadSessions>,
    /// Manifests by digest.
    manifests: BoundedCache<Digest, Manifest>,
    /// Digests of tags, by key and version of the tag object.
    tags: BoundedCache<(String, String), Digest>,
    /// Blob locations, by name and version of their objects.
    locations: BoundedCache<(String, String), BlobLocation>,
    /// Data that had no name at the last garbage collection.
    unnamed: Mutex<HashSet<String>>,
    refusal_log: GcRefusalLog,
}

impl S3Storage {
    /// Opens the bucket.
    ///
    /// # Errors
    /// The service cannot be reached, rejects the credentials, or has no such bucket.
    pub async fn open(location: &S3Location, client: &Registry) -> Result<Self, MirrorError> {
        let service = Arc::new(location.open(client)?);
        let storage = Self::of(Bucket::new(service, &location.prefix, location.to_string()));
        // This request reports wrong settings at the start.
        storage.bucket.has_any(&storage.bucket.key(["repositories"])).await?;
        Ok(storage)
    }

    /// Creates a storage in memory.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        faulty_service::FaultyService::default().storage()
    }

    fn of(bucket: Bucket) -> Self {
        Self {
            usage_log: S3Notes::new(bucket.clone(), bucket.key(["history"])),
            uploads: Arc::new(UploadSessions::new(bucket.clone())),
            bucket,
            manifests: BoundedCache::default(),
            tags: BoundedCache::default(),
            locations: BoundedCache::default(),
            unnamed: Mutex::default(),
            refusal_log: GcRefusalLog::default(),
        }
    }

    /// Returns the location of a blob; `None` if it is not stored. It is not cached, because
    /// another mirror may have removed the blob.
    async fn blob_location(&self, digest: &Digest) -> Result<Option<BlobLocation>, MirrorError> {
        read_blob_location(&self.bucket, &blob_key(&self.bucket, digest)).await
    }

    /// Copies a model from a store to the bucket: its missing blobs, then the manifest.
    pub(crate) async fn upload_model(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: Manifest,
        store: &Store,
    ) -> Result<(), MirrorError> {
        let mut done = HashSet::new();
        for blob in &manifest.blobs {
            if !done.insert(blob.digest) || self.blob_location(&blob.digest).await?.is_some() {
                continue;
            }
            let path = store.blob_path(&blob.digest);
            let file = blocking(move || FileBlob::open(&path)).await?;
            let file = file.ok_or(MirrorError::ManifestBlobUnknown(blob.digest))?;
            let id = self.uploads.begin(name, "").await?;
            let size = file.size();
            let part = UploadPart { at: None, len: Some(size), body: Box::new(file).read(0..size) };
            let kept = match self.uploads.append(name, &id, part).await {
                Ok(_) => self.uploads.finish(name, &id, blob.digest).await,
                Err(error) => Err(error),
            };
            if let Err(error) = kept {
                let _ = self.uploads.cancel(name, &id).await;
                return Err(error);
            }
        }
        self.store_manifest(name, reference, manifest).await
    }

    /// Returns the manifests and recently pushed blobs in a scope.
    async fn stored_objects_in(
        &self,
        scope: InventoryScope,
    ) -> Result<Vec<StoredObject>, MirrorError> {
        let is_wanted = |name: &Repository| scope.contains(name);
        let stored_object =
            |name, kept: Manifest, written| StoredObject::from_manifest(name, &kept, Some(written));
        let mut stored_objects = self.map_manifests(&is_wanted, stored_object).await?;
        for (folder, mark, _) in self.bucket.list_nested(&self.bucket.key([PUSH_MARKS])).await? {
            let name = Repository::from_dir_name(&folder).filter(&is_wanted);
            stored_objects.extend(name.and_then(|name| StoredObject::from_push_mark(name, &mark)));
        }
        Ok(stored_objects)
    }
}

impl S3Storage {
    /// Removes the push marks of a blob, so that quotas no longer count it.
    async fn remove_push_marks(&self, digest: &Digest) -> Result<(), MirrorError> {
        for (folder, mark, _) in self.bucket.list_nested(&self.bucket.key([PUSH_MARKS])).await? {
            if is_push_mark_of(&mark, digest) {
                self.bucket.remove(&self.bucket.key([PUSH_MARKS, &folder, &mark])).await?;
            }
        }
        Ok(())
    }
}

/// Runs work for many items, some concurrently. Results that are `None` are skipped.
async fn map_concurrently<I, T, F>(
    items: impl IntoIterator<Item = I>,
    work: impl FnMut(I) -> F,
) -> Result<Vec<T>, MirrorError>
where
    F: Future<Output = Result<Option<T>, MirrorError>> + Send,
{
    map_with_limit(items, MAX_CONCURRENT_REQUESTS, work).await
}

/// The same with a limit on concurrency.
async fn map_with_limit<I, T, F>(
    items: impl IntoIterator<Item = I>,
    at_once: usize,
    mut work: impl FnMut(I) -> F,
) -> Result<Vec<T>, MirrorError>
where
    F: Future<Output = Result<Option<T>, MirrorError>> + Send,
{
    // Boxed futures let the queue's code be compiled once for each result type.
    let done = stream::iter(items).map(|item| work(item).boxed()).buffer_unordered(at_once);
    done.try_filter_map(|found| async { Ok(found) }).try_collect().await
}

impl From<Arc<S3Storage>> for Storage {
    fn from(driver: Arc<S3Storage>) -> Self {
        Self {
            manifests: driver.clone(),
            blobs: driver.clone(),
            uploads: driver.uploads.clone(),
            inventory: driver,
        }
    }
}

impl ManifestStore for S3Storage {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>> {
        Box::pin(async move {
            match reference {
                Reference::Digest(digest) => match self.stored_manifest(name, digest).await? {
                    Some(manifest) => Ok(Some(manifest)),
                    None => self.inline_child(name, digest).await,
                },
                Reference::Tag(tag) => match self.tag_digest(name, tag).await? {
                    Some(digest) => self.stored_manifest(name, &digest).await,
                    None => Ok(None),
                },
            }
        })
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> StorageFuture<'a, Option<puna_store::Entry>> {
        Box::pin(async move {
            self.store_manifest(name, reference, manifest).await?;
            // Models of this machine are not in the bucket.
            Ok(None)
        })
    }

    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> StorageFuture<'a, ()> {
        Box::pin(self.store_upstream_list(name, tag, manifest))
    }

    fn lists_containing<'a>(
        &'a self,
        name: &'a Repository,
        child: Digest,
    ) -> StorageFuture<'a, Vec<Digest>> {
        Box::pin(async move {
            let lists = self.lists_with_child(name, &child).await?;
            Ok(lists.iter().map(|list| list.digest).collect())
        })
    }

    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>> {
        Box::pin(async move {
            let folder = self.repository_key(name).join("referrers").join(subject.hex());
            let found = self.manifests_in(name, &folder).await?;
            Ok(found.iter().map(Manifest::descriptor).collect())
        })
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>> {
        Box::pin(async move {
            let folder = self.repository_key(name);
            let tags = self.bucket.list_objects(&folder.clone().join("tags")).await?;
            if tags.is_empty() && !self.bucket.has_any(&folder).await? {
                return Ok(None);
            }
            Ok(Some(tags.into_iter().map(|tag| tag.name).collect()))
        })
    }

    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, bool> {
        Box::pin(self.delete_manifest(name, reference))
    }

    fn remove_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> StorageFuture<'_, Vec<Result<bool, MirrorError>>> {
        Box::pin(self.remove_if_unchanged(removals))
    }
}

impl BlobStore for S3Storage {
    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>> {
        Box::pin(async move {
            let location = self.blob_location(&digest).await?;
            Ok(location.map(|location| {
                Box::new(S3Blob { bucket: self.bucket.clone(), location }) as Box<dyn Blob>
            }))
        })
    }

    /// Writes nothing: every repository can read every blob of the bucket, and the manifest that
    /// follows renews the blob.
    fn mount<'a>(&'a self, _: &'a Repository, digest: Digest) -> StorageFuture<'a, bool> {
        Box::pin(async move { Ok(self.blob_location(&digest).await?.is_some()) })
    }

    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool> {
        Box::pin(async move {
            if self.blob_location(&digest).await?.is_none() {
                return Ok(false);
            }
            let needed = self.blobs_in_use().await?.ok_or(Denial::BlobUsageUnknown(digest))?;
            if needed.contains(&digest) {
                return Err(Denial::BlobInUse(digest).into());
            }
            // The data stays as long as the name is in the trash.
            self.move_to_trash(&blob_key(&self.bucket, &digest), &digest.file_name()).await?;
            self.remove_push_marks(&digest).await?;
            Ok(true)
        })
    }

    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        Box::pin(async move {
            let marks =
                self.bucket.list_objects(&self.bucket.key([PUSH_MARKS, &name.dir_name()])).await?;
            let mut brought = marks
                .iter()
                .filter_map(|mark| StoredObject::from_push_mark(name.clone(), &mark.name));
            if brought.any(|held| held.has_blob(&digest)) {
                return Ok(true);
            }
            let manifests =
                self.manifests_in(name, &self.repository_key(name).join("manifests")).await?;
            Ok(manifests.iter().any(|kept| kept.blobs.iter().any(|blob| blob.digest == digest)))
        })
    }
}

impl ObjectInventory for S3Storage {
    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>> {
        Box::pin(self.all_repositories())
    }

    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>> {
        Box::pin(self.all_tags())
    }

    fn stored_objects(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredObject>> {
        Box::pin(self.stored_objects_in(scope))
    }

    fn metadata_usage(&self, scope: InventoryScope) -> StorageFuture<'_, NamespaceUsages> {
        Box::pin(self.usage_by_metadata(scope))
    }

    fn collect_garbage(&self) -> StorageFuture<'_, ()> {
        Box::pin(async move {
            self.uploads.remove_expired().await?;
            let removed = self.sweep().await?;
            if removed > 0 {
                tracing::info!(removed, "removed unreferenced blobs");
            }
            Ok(())
        })
    }

    /// Always 0: the service checks its data itself.
    fn damaged_blob_count(&self) -> u64 {
        0
    }

    fn usage_notes(&self) -> &dyn NoteStore {
        &self.usage_log
    }

    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore> {
        let folder = self.bucket.key([SIZES, &name.dir_name()]);
        Box::new(S3Notes::new(self.bucket.clone(), folder))
    }
}
