//! Storage of the registry: four traits, one for each concern, and their drivers.
//!
//! | trait | concern |
//! |---|---|
//! | [`ManifestStore`] | manifests, tags, manifest lists, referrers |
//! | [`BlobStore`] | blobs, and which repository references them |
//! | [`UploadStore`] | open uploads |
//! | [`ObjectInventory`] | listings, garbage collection, notes |
//!
//! The drivers are [`FileStorage`] and [`S3Storage`]. `collection_rules.rs` has rules that both
//! follow, and `conformance.rs` tests the behaviour that all
//! drivers share.

pub(crate) mod collection_rules;
#[cfg(test)]
mod conformance;
pub(crate) mod fs;
pub(crate) mod note_store;
pub(crate) mod s3;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use puna_store::{Digest, Entry};

use crate::blocking::StorageFuture;
use crate::error::MirrorError;
use crate::storage::note_store::NoteStore;
use crate::types::manifest::{Descriptor, Manifest, ManifestKind};
use crate::types::manifest_error::ManifestProblem;
use crate::types::repository::{Reference, Repository};
use crate::types::storage_usage::{NamespaceUsages, StoredUpload};
use crate::types::stored_object::{ConditionalRemoval, StoredObject, TagEntry};
use crate::types::upload_id::UploadId;

pub use fs::FileStorage;
pub use s3::{S3Location, S3Storage};

/// Bytes that arrive in pieces.
pub type ByteStream = BoxStream<'static, Result<Bytes, MirrorError>>;

/// Storage of a mirror, one part for each concern. Cheap to clone.
///
/// A layer in front of a driver replaces only the parts that it changes.
#[derive(Clone)]
pub struct Storage {
    /// Manifests, tags, manifest lists, referrers.
    pub manifests: Arc<dyn ManifestStore>,
    /// Blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// Open uploads.
    pub uploads: Arc<dyn UploadStore>,
    /// Listings, garbage collection, notes.
    pub inventory: Arc<dyn ObjectInventory>,
}

/// Stores manifests by repository.
pub trait ManifestStore: Send + Sync + 'static {
    /// Returns a manifest; `None` if it does not exist.
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> StorageFuture<'a, Option<Manifest>>;

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

    /// Returns the manifests of a repository that refer to another one, which need not exist.
    fn referrers<'a>(
        &'a self,
        name: &'a Repository,
        subject: Digest,
    ) -> StorageFuture<'a, Vec<Descriptor>>;

    /// Returns the tags of a repository in any order; `None` if the repository does not exist.
    fn tags<'a>(&'a self, name: &'a Repository) -> StorageFuture<'a, Option<Vec<String>>>;

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
}

/// Stores blobs by digest.
pub trait BlobStore: Send + Sync + 'static {
    /// Returns a blob; `None` if it does not exist.
    fn blob(&self, digest: Digest) -> StorageFuture<'_, Option<Box<dyn Blob>>>;

    /// Makes a stored blob available in a repository. Returns whether the blob is stored.
    fn mount<'a>(&'a self, name: &'a Repository, digest: Digest) -> StorageFuture<'a, bool>;

    /// Removes a blob that no manifest references. Returns whether it existed.
    fn remove_blob(&self, digest: Digest) -> StorageFuture<'_, bool>;

    /// Whether a manifest of a repository references a blob, or the blob was recently pushed there.
    fn references_blob<'a>(
        &'a self,
        name: &'a Repository,
        digest: Digest,
    ) -> StorageFuture<'a, bool>;
}

/// Receives blobs in parts.
pub trait UploadStore: Send + Sync + 'static {
    /// Opens an upload to a repository. Limits apply to each owner; the empty owner is the mirror
    /// itself.
    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> StorageFuture<'a, UploadId>;

    /// Appends a part to an upload. Returns the number of bytes it has afterwards.
    fn append<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        part: UploadPart,
    ) -> StorageFuture<'a, u64>;

    /// Returns the number of bytes that an upload has.
    fn size<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, u64>;

    /// Turns an upload into a blob. Its content must have the digest.
    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> StorageFuture<'a, ()>;

    /// Cancels an upload.
    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, ()>;

    /// Returns the open uploads of all processes, in any order. Uploads that cannot be resumed are
    /// left out.
    fn stored_uploads(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredUpload>>;
}

/// Lists what is stored, and removes what nothing needs.
pub trait ObjectInventory: Send + Sync + 'static {
    /// Returns all repositories in any order.
    fn repositories(&self) -> StorageFuture<'_, Vec<Repository>>;

    /// Returns all tags in any order.
    fn tag_entries(&self) -> StorageFuture<'_, Vec<TagEntry>>;

    /// Returns the manifests with their blobs, and recently pushed blobs, in any order.
    fn stored_objects(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredObject>>;

    /// Returns the usage of namespaces by everything except blobs and open uploads: manifests,
    /// tags, referrers, records of manifest lists, push marks and size notes.
    fn metadata_usage(&self, scope: InventoryScope) -> StorageFuture<'_, NamespaceUsages>;

    /// Returns the blobs of unfinished pulls in a scope, with their sizes in bytes. They count
    /// against quotas before they arrive.
    fn pulled_blobs(&self, _scope: InventoryScope) -> StorageFuture<'_, Vec<(Digest, u64)>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Removes expired uploads and unreferenced blobs. The caller runs it periodically.
    fn collect_garbage(&self) -> StorageFuture<'_, ()>;

    /// Number of blobs that were found damaged and quarantined.
    fn damaged_blob_count(&self) -> u64;

    /// Notes with the usage logs of the mirrors that share this storage.
    fn usage_notes(&self) -> &dyn NoteStore;

    /// Notes with the blob sizes of manifests that were served before their blobs were stored. Old
    /// notes expire.
    fn size_notes(&self, name: &Repository) -> Box<dyn NoteStore>;
}

/// Repositories that a listing covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InventoryScope {
    /// All repositories.
    All,
    /// Repositories of one namespace. Case is ignored.
    Namespace(String),
    /// One repository.
    Repository(Repository),
}

impl InventoryScope {
    /// Whether the listing covers a repository.
    pub(crate) fn contains(&self, name: &Repository) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => name.is_in(namespace),
            Self::Repository(repository) => name == repository,
        }
    }
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

/// Checks the manifest that a list refers to.
pub(crate) fn check_child(
    name: &Repository,
    found: Option<&Manifest>,
    child: impl Fn() -> String,
) -> Result<(), MirrorError> {
    match found {
        None => Err(MirrorError::ManifestChildUnknown { name: name.clone(), child: child() }),
        Some(found) if matches!(found.kind, ManifestKind::List | ManifestKind::Index) => {
            Err(ManifestProblem::NestedList { child: child() }.into())
        }
        Some(_) => Ok(()),
    }
}

/// Builds the removal of an item with its current state.
#[cfg(test)]
pub(crate) async fn conditional_removal(
    inventory: &dyn ObjectInventory,
    name: &Repository,
    tag: Option<&str>,
    digest: Digest,
) -> ConditionalRemoval {
    let entries = inventory.tag_entries().await.unwrap();
    let entry =
        entries.into_iter().find(|entry| entry.name == *name && Some(entry.tag.as_str()) == tag);
    let is_model = entry
        .as_ref()
        .is_some_and(|entry| entry.owner == crate::types::stored_object::Owner::Store);
    let stored_objects = inventory.stored_objects(InventoryScope::All).await.unwrap();
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
