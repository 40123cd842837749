//! Manifest lists in a bucket. An empty object `lists/<child>/<list>` records that a list has a
//! child.

use object_store::path::Path;
use puna_store::{Child, Digest};

use super::{S3Storage, map_concurrently};
use crate::error::{Denial, MirrorError};
use crate::storage::check_child;
use crate::types::manifest::Manifest;
use crate::types::manifest_list::{describe, distinct_size};
use crate::types::repository::Repository;

impl S3Storage {
    fn lists(&self, name: &Repository, child: &Digest) -> Path {
        self.repository_key(name).join("lists").join(child.hex())
    }

    /// Keys that record the children of a list; none for a single manifest.
    fn child_notes(&self, name: &Repository, manifest: &Manifest) -> Vec<Path> {
        let children = manifest.list.iter().flat_map(|list| &list.children);
        children.map(|child| self.lists(name, &child.digest).join(manifest.digest.hex())).collect()
    }

    /// Rejects a list if one of its references is not a plain manifest of the repository.
    pub(super) async fn check_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let Some(list) = &manifest.list else { return Ok(()) };
        let references: Vec<Child> =
            list.children.iter().filter(|child| child.inline.is_none()).cloned().collect();
        let check = |child: Child| async move {
            let found = self.stored_manifest(name, &child.digest).await?;
            check_child(name, found.as_ref(), || describe(list, &child)).map(Some)
        };
        map_concurrently(references, check).await.map(drop)
    }

    /// Records the children of a list. The caller writes the list afterwards.
    pub(super) async fn note_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let write = |note: Path| async move { self.bucket.write(&note, "").await.map(Some) };
        map_concurrently(self.child_notes(name, manifest), write).await.map(drop)
    }

    /// Removes the records of a list's children. The caller has removed the list.
    pub(super) async fn forget_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let remove = |note: Path| async move { self.bucket.remove(&note).await.map(Some) };
        map_concurrently(self.child_notes(name, manifest), remove).await.map(drop)
    }

    /// Returns the lists of a repository that have a manifest as their child.
    pub(super) async fn lists_with_child(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Manifest>, MirrorError> {
        self.manifests_in(name, &self.lists(name, child)).await
    }

    /// Returns an inline child of a list in the repository.
    pub(super) async fn inline_child(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        for list in self.lists_with_child(name, digest).await? {
            if let Some(child) = list.inline_child(digest)? {
                return Ok(Some(child));
            }
        }
        Ok(None)
    }

    /// Fails if a list of the repository has the manifest as its child.
    pub(super) async fn check_no_list_needs(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<(), MirrorError> {
        match self.lists_with_child(name, digest).await?.first() {
            Some(list) => {
                let (name, digest, list) = (name.clone(), *digest, list.digest);
                Err(Denial::ManifestIsChild { name, digest, list }.into())
            }
            None => Ok(()),
        }
    }

    /// Sum of the blob sizes of a manifest in bytes; for a list, of its children's distinct blobs.
    pub(super) async fn size_of(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<u64, MirrorError> {
        if manifest.list.is_none() {
            return Ok(manifest.size());
        }
        let read = |child: Digest| async move { self.stored_manifest(name, &child).await };
        let mut all = map_concurrently(manifest.children.iter().copied(), read).await?;
        all.push(manifest.clone());
        Ok(distinct_size(&all))
    }
}
