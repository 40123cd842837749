//! Manifest lists in a bucket. An empty object `lists/<child>/<list>` says that a list has a child.

use object_store::path::Path;
use puna_store::{Child, Digest};

use super::{ObjectLibrary, each};
use crate::error::MirrorError;
use crate::library::lists::check_child;
use crate::manifest::Manifest;
use crate::manifest_list::{describe, distinct_size};
use crate::name::Repository;

impl ObjectLibrary {
    fn lists(&self, name: &Repository, child: &Digest) -> Path {
        self.folder(name).join("lists").join(child.hex())
    }

    /// The notes of a list, one for each of its children; none for a single manifest.
    fn child_notes(&self, name: &Repository, manifest: &Manifest) -> Vec<Path> {
        let children = manifest.list.iter().flat_map(|list| &list.children);
        children.map(|child| self.lists(name, &child.digest).join(manifest.digest.hex())).collect()
    }

    /// Refuses a list whose references are not all plain manifests of its repository.
    pub(super) async fn check_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let Some(list) = &manifest.list else { return Ok(()) };
        let references: Vec<Child> =
            list.children.iter().filter(|child| child.inline.is_none()).cloned().collect();
        let check = |child: Child| async move {
            let found = self.kept(name, &child.digest).await?;
            check_child(name, found.as_ref(), || describe(list, &child)).map(Some)
        };
        each(references, check).await.map(drop)
    }

    /// Notes the children of a list, before the list itself is written.
    pub(super) async fn note_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let write = |note: Path| async move { self.bucket.write(&note, "").await.map(Some) };
        each(self.child_notes(name, manifest), write).await.map(drop)
    }

    /// Removes the notes of a list's children, after the list itself.
    pub(super) async fn forget_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let remove = |note: Path| async move { self.bucket.remove(&note).await.map(Some) };
        each(self.child_notes(name, manifest), remove).await.map(drop)
    }

    /// The lists of a repository that have a manifest as their child.
    pub(super) async fn lists_with_child(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Manifest>, MirrorError> {
        self.manifests_in(name, &self.lists(name, child)).await
    }

    /// An inline child of a list that the repository keeps.
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

    /// Refuses to remove a manifest that a list of the repository has as its child.
    pub(super) async fn check_no_list_needs(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<(), MirrorError> {
        match self.lists_with_child(name, digest).await?.first() {
            Some(list) => Err(MirrorError::is_child(name, digest, &list.digest)),
            None => Ok(()),
        }
    }

    /// Bytes of all blobs of a manifest; of a list those of its children, each once.
    pub(super) async fn size_of(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<u64, MirrorError> {
        if manifest.list.is_none() {
            return Ok(manifest.size());
        }
        let read = |child: Digest| async move { self.kept(name, &child).await };
        let mut all = each(manifest.children.iter().copied(), read).await?;
        all.push(manifest.clone());
        Ok(distinct_size(&all))
    }
}
