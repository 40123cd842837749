//! Manifest lists as models of the store: a list becomes a model when a runnable child is complete.

use std::collections::HashSet;

use bytes::Bytes;
use puna_store::{Digest, Entry, ModelName, StoreLocation, media, runner_rank};

use super::registry_dir::{self, RegistryDir};
use crate::error::MirrorError;
use crate::types::manifest::{Manifest, ManifestKind};
use crate::types::repository::{Reference, Repository};

/// Any tag, to build a model name from a repository.
pub(crate) const SOME_TAG: &str = "latest";

/// Manifests and blobs of the complete children of a list.
struct CompleteChildren {
    /// Texts of the children that are references.
    manifests: Vec<Bytes>,
    blobs: Vec<Digest>,
    /// Whether one of the children is runnable.
    is_runnable: bool,
}

impl RegistryDir {
    /// Makes a list a model of the store if a runnable child is complete. Returns the model that it
    /// replaced. The outer `None` means that the list stays in the registry directory.
    pub(crate) fn put_list_model(
        &self,
        name: &Repository,
        tag: &str,
        list: &Manifest,
    ) -> Result<Option<Option<Entry>>, MirrorError> {
        let Some(model) = name.model(tag) else { return Ok(None) };
        let children = self.complete_children(name, list)?;
        if !children.is_runnable {
            return Ok(None);
        }
        let manifests = children.manifests.iter().chain([&list.bytes]);
        match self.put_model(&model, &list.bytes, manifests, &children.blobs) {
            Ok(replaced) => {
                registry_dir::remove_file(&self.tags(name).join(tag))?;
                Ok(Some(replaced))
            }
            // The store would use a child that lacks a blob.
            Err(MirrorError::ManifestBlobUnknown(blob)) => {
                tracing::info!(repository = %name, %tag, %blob, "manifest list not added to the model store: a blob is missing");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn complete_children(
        &self,
        name: &Repository,
        manifest: &Manifest,
    ) -> Result<CompleteChildren, MirrorError> {
        let mut complete =
            CompleteChildren { manifests: Vec::new(), blobs: Vec::new(), is_runnable: false };
        for child in manifest.list.iter().flat_map(|list| &list.children) {
            let manifest = match &child.inline {
                Some(_) => manifest.inline_child(&child.digest)?,
                None => self.by_digest(name, &child.digest)?,
            };
            let Some(manifest) = manifest.filter(|manifest| {
                !matches!(manifest.kind, ManifestKind::List | ManifestKind::Index)
            }) else {
                continue;
            };
            let is_here =
                |digest: &Digest| self.blob_paths(digest).iter().any(|path| path.is_file());
            if !manifest.blobs.iter().all(|blob| is_here(&blob.digest)) {
                continue;
            }
            let has_model = manifest.blobs.iter().any(|blob| blob.media_type == media::MODEL);
            let has_tensors = manifest.blobs.iter().any(|blob| blob.media_type == media::TENSOR);
            complete.is_runnable |= runner_rank(child).is_some() && has_model && !has_tensors;
            complete.blobs.extend(manifest.blobs.iter().map(|blob| blob.digest));
            complete.manifests.extend(Some(manifest.bytes).filter(|_| child.inline.is_none()));
        }
        let mut seen = HashSet::new();
        complete.blobs.retain(|blob| seen.insert(*blob));
        Ok(complete)
    }

    /// Makes lists models of the store if a new manifest completes them. The manifest is stored in
    /// any case, so errors are only logged.
    pub(crate) fn complete_lists(&self, name: &Repository, child: &Digest) {
        if let Err(error) = self.try_complete_lists(name, child) {
            tracing::warn!(repository = %name, %child, %error, "cannot add a manifest list to the model store");
        }
    }

    fn try_complete_lists(&self, name: &Repository, child: &Digest) -> Result<(), MirrorError> {
        let lists = self.dir_lists_containing(name, child)?;
        if !lists.is_empty() {
            for tag in registry_dir::file_names(&self.tags(name))? {
                let Some(digest) =
                    self.tag_digest(name, &tag)?.filter(|digest| lists.contains(digest))
                else {
                    continue;
                };
                let Some(list) = self.stored_manifest(name, &digest)? else { continue };
                self.put_list_model(name, &tag, &list)?;
            }
            self.remove_untagged(name, &lists)?;
        }
        for entry in self
            .model_lists_containing(name, child)?
            .iter()
            .filter(|entry| entry.location == StoreLocation::Own)
        {
            let children = entry.list.iter().flat_map(|list| &list.children);
            let is_new =
                children.into_iter().any(|s| s.child.digest == *child && s.manifest.is_none());
            if is_new
                && let Some(list) =
                    self.manifest(name, &Reference::Tag(entry.name.tag().to_owned()))?
                && list.digest == entry.digest
            {
                self.put_list_model(name, entry.name.tag(), &list)?;
            }
        }
        Ok(())
    }

    /// Removes untagged lists that are now models of the store.
    fn remove_untagged(&self, name: &Repository, lists: &[Digest]) -> Result<(), MirrorError> {
        let mut tag_digest = HashSet::new();
        for tag in registry_dir::file_names(&self.tags(name))? {
            tag_digest.extend(self.tag_digest(name, &tag)?);
        }
        let models: HashSet<Digest> =
            self.tagged_models(name)?.iter().map(|entry| entry.digest).collect();
        for list in lists.iter().filter(|list| !tag_digest.contains(list) && models.contains(list))
        {
            self.remove_stored(name, list)?;
        }
        Ok(())
    }

    /// Returns the models of a repository in the store.
    pub(crate) fn tagged_models(&self, name: &Repository) -> Result<Vec<Entry>, MirrorError> {
        let model: Option<ModelName> = name.model(SOME_TAG);
        Ok(model.map(|model| self.store.models_of_any_tag(&model)).transpose()?.unwrap_or_default())
    }

    /// Returns the lists of a repository in the store that have a manifest as their child.
    pub(crate) fn model_lists_containing(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Entry>, MirrorError> {
        let mut entries = self.tagged_models(name)?;
        entries.retain(|entry| children_of(entry).contains(child));
        Ok(entries)
    }
}

/// Returns the digests of a list's children; none for a single manifest.
pub(crate) fn children_of(entry: &Entry) -> Vec<Digest> {
    entry.list.iter().flat_map(|list| &list.children).map(|stored| stored.child.digest).collect()
}

/// Returns the blobs of a model in the store with their sizes. For a list, the distinct blobs of
/// all its stored children.
pub(crate) fn blobs_of(entry: &Entry) -> Vec<(Digest, u64)> {
    let mut seen = HashSet::new();
    let blobs = entry.blobs().map(|layer| (layer.digest, layer.size));
    blobs.filter(|(digest, _)| entry.list.is_none() || seen.insert(*digest)).collect()
}
