//! Storage drivers of the registry: the [`Storage`] trait, the file system driver and the S3
//! driver.

pub(crate) mod fs;
pub(crate) mod note_store;
mod s3;

use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use puna_store::{Digest, Entry, Store};

use crate::blocking::StorageFuture;
use crate::error::MirrorError;
use crate::pull_through::Requester;
use crate::storage::note_store::NoteStore;
use crate::types::manifest::{Descriptor, Manifest};
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{ConditionalRemoval, StoredObject, TagEntry};
use crate::types::upload_id::UploadId;

pub use fs::FileStorage;
pub use s3::{S3Location, S3Storage};

/// Bytes that arrive in pieces.
pub type ByteStream = BoxStream<'static, Result<Bytes, MirrorError>>;

/// Stores manifests by repository, blobs by digest, and open uploads.
pub trait Storage: Send + Sync + 'static {
    /// Returns a manifest; `None` if it does not exist.
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>>;

    /// Like [`Storage::manifest`], for a requester that may or may not cause a fetch from an
    /// upstream.
    fn manifest_for<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        requester: Requester,
    ) -> StorageFuture<'a, Option<Manifest>> {
        let _ = requester;
        self.manifest(name, reference)
    }

    /// Stores a manifest under its digest or a tag. Its blobs, and the children of a list, must
    /// exist. Returns the model of the store that it replaced.
    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> StorageFuture<'a, Option<Entry>>;

    /// Stores a manifest list of an upstream under a tag. Its children and their blobs may be
    /// missing.
    fn put_upstream_list<'a>(
        &'a self,
        name: &'a Repository,
        tag: &'a str,
        manifest: Manifest,
    ) -> StorageFuture<'a, ()>;

    /// Returns the manifest lists of a repository that have a manifest as their child.
    fn lists_containing<'a>(
        &'a self,
        name: &'a Repository,
        child: Digest,
    ) -> StorageFuture<'a, Vec<Digest>>;

    /// Adopts a model that was fetched into `store`. Returns whether it was copied elsewhere, so
    /// that the store no longer needs it.
    fn adopt_model<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
        store: &'a Store,
    ) -> StorageFuture<'a, bool>;

    /// Removes a tag, or a manifest with all its tags. Returns whether it existed.
    fn remove_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, bool>;

    /// Removes the items that are unchanged since they were chosen. Returns for each, in order,
    /// whether it was removed. Items that were written again, and manifests that something needs
    /// now, stay.
    fn remove_unchanged(
        &self,
        removals: Vec<ConditionalRemoval>,
    ) -> StorageFuture<'_, Vec<Result<bool, MirrorError>>>;

    /// Notes with the usage logs of the mirrors that share this storage.
    fn usage_notes(&self) -> &dyn NoteStore;

    /// Notes with the blob sizes of manifests that were served before their blobs were stored. Old
    /// notes expire.
    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore>;

    /// Returns the tags of a repository in any order; `None` if the repository does not exist.
    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>>;

    /// Returns all manifests with their blobs, and recently pushed blobs, in any order.
    fn stored_objects(&self) -> StorageFuture<'_, Vec<StoredObject>>;

    /// The same for one namespace. Case is ignored.
    fn stored_objects_in<'a>(&'a self, namespace: &'a str) -> StorageFuture<'a, Vec<StoredObject>>;

    /// The same for one repository.
    fn stored_objects_of<'a>(
        &'a self,
        name: &'a Repository,
    ) -> StorageFuture<'a, Vec<StoredObject>>;

    /// Whether a manifest of a repository references a blob, or the blob was recently pushed there.
    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool>;

    /// Statistics of fetches from upstreams.
    fn fetch_stats(&self) -> BoxFuture<'_, FetchStats> {
        Box::pin(std::future::ready(FetchStats::default()))
    }

    /// Counts fetches that have started or ended. The stored objects change each time.
    fn fetch_change_count(&self) -> u64 {
        0
    }

    /// Number of blobs that were found damaged and quarantined.
    fn damaged_blob_count(&self) -> u64 {
        0
    }

    /// Returns all repositories in any order.
    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>>;

    /// Returns all tags in any order.
    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>>;

    /// Returns the manifests of a repository that refer to another one, which need not exist.
    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>>;

    /// Returns a blob; `None` if it does not exist.
    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>>;

    /// Like [`Storage::blob`], for a request in a repository. The requester decides whether a
    /// missing blob may be fetched.
    fn blob_for<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
        requester: Requester,
    ) -> StorageFuture<'a, Option<Box<dyn Blob>>> {
        let _ = (name, requester);
        self.blob(digest)
    }

    /// Whether the upstream of a repository confirms that a blob belongs to it.
    fn upstream_confirms_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool> {
        let _ = (name, digest);
        Box::pin(async { Ok(false) })
    }

    /// Whether adopted models lie elsewhere than in the store they were fetched into.
    fn is_remote_storage(&self) -> bool {
        false
    }

    /// Removes a blob that no manifest references. Returns whether it existed.
    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool>;

    /// Makes a stored blob available in a repository as if it had been pushed there. Returns
    /// whether the blob is stored.
    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> StorageFuture<'a, bool> {
        let _ = name;
        Box::pin(async move { Ok(self.blob(digest).await?.is_some()) })
    }

    /// Opens an upload to a repository. Limits apply to each owner; the empty owner is the mirror
    /// itself.
    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> StorageFuture<'a, UploadId>;

    /// Returns the number of bytes that an upload has.
    fn upload_size<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, u64>;

    /// Appends a part to an upload. Returns the number of bytes it has afterwards.
    fn append<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        part: UploadPart,
    ) -> StorageFuture<'a, u64>;

    /// Turns an upload into a blob. Its content must have the digest.
    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> StorageFuture<'a, ()>;

    /// Removes expired uploads and unreferenced blobs. The caller runs it periodically.
    fn collect_garbage(&self) -> StorageFuture<'_, ()>;

    /// Cancels an upload.
    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, ()>;
}

/// Statistics of fetches from upstreams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Tags served from the storage.
    pub hits: u64,
    /// Tags that had to be fetched.
    pub misses: u64,
    /// Models whose fetch failed.
    pub failures: u64,
    /// Requests that a limit did not allow to fetch a model.
    pub refused: u64,
    /// Models that are being fetched.
    pub running: u64,
    /// Fetched bytes.
    pub bytes: u64,
}

/// A stored blob.
pub trait Blob: Send {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Reads a range of bytes.
    fn read(self: Box<Self>, range: Range<u64>) -> ByteStream;
}

/// A part of an upload.
pub struct UploadPart {
    /// Offset of the part, if the client states it.
    pub at: Option<u64>,
    /// Length of the part in bytes, if the client states it.
    pub len: Option<u64>,
    /// Content of the part.
    pub body: ByteStream,
}

/// Builds the removal of an item with its current state.
#[cfg(test)]
pub(crate) async fn conditional_removal(
    storage: &dyn Storage,
    name: &Repository,
    tag: Option<&str>,
    digest: Digest,
) -> ConditionalRemoval {
    let entries = storage.tag_entries().await.unwrap();
    let entry =
        entries.into_iter().find(|entry| entry.name == *name && Some(entry.tag.as_str()) == tag);
    let is_model = entry
        .as_ref()
        .is_some_and(|entry| entry.owner == crate::types::stored_object::Owner::Store);
    let stored_objects = storage.stored_objects().await.unwrap();
    let is_it = |object: &&StoredObject| {
        object.name == *name && (object.manifest, object.is_model) == (Some(digest), is_model)
    };
    ConditionalRemoval {
        name: name.clone(),
        tag: tag.map(str::to_owned),
        digest,
        is_model,
        tag_written: entry.and_then(|entry| entry.written),
        with_manifest: true,
        manifest_written: stored_objects.iter().find(is_it).and_then(|object| object.written),
    }
}
