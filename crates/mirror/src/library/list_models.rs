//! Manifest lists as models of the store: a list becomes one when a child that can run is complete.

use std::collections::HashSet;

use bytes::Bytes;
use puna_store::{Digest, Entry, ModelName, Place, media, runner_rank};

use super::folder::{self, Folder};
use super::manifests::SOME_TAG;
use crate::error::MirrorError;
use crate::manifest::{Kind, Manifest};
use crate::name::{Reference, Repository};

/// What the store needs of a list: manifests and blobs of its complete children.
struct CompleteChildren {
    /// The texts of the children that are references.
    manifests: Vec<Bytes>,
    blobs: Vec<Digest>,
    /// Whether one of the children can run.
    is_runnable: bool,
}

impl Folder {
    /// Makes a list a model of the store if a child that can run is complete. Returns the model that it replaced; the
    /// outer `None` says that the list must stay in the registry's folder.
    pub(super) fn put_list_model(
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
                folder::remove(&self.tags(name).join(tag))?;
                Ok(Some(replaced))
            }
            // The store would use a child of which a blob is missing.
            Err(MirrorError::ManifestBlobUnknown(blob)) => {
                tracing::info!(repository = %name, %tag, %blob, "the list stays in the registry: a blob is missing");
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
        let mut found =
            CompleteChildren { manifests: Vec::new(), blobs: Vec::new(), is_runnable: false };
        for child in manifest.list.iter().flat_map(|list| &list.children) {
            let text = match &child.inline {
                Some(_) => manifest.inline_child(&child.digest)?,
                None => self.by_digest(name, &child.digest)?,
            };
            let Some(text) = text.filter(|text| !matches!(text.kind, Kind::List | Kind::Index))
            else {
                continue;
            };
            let is_here = |digest: &Digest| self.places(digest).iter().any(|path| path.is_file());
            if !text.blobs.iter().all(|blob| is_here(&blob.digest)) {
                continue;
            }
            let has_model = text.blobs.iter().any(|blob| blob.media_type == media::MODEL);
            let has_tensors = text.blobs.iter().any(|blob| blob.media_type == media::TENSOR);
            found.is_runnable |= runner_rank(child).is_some() && has_model && !has_tensors;
            found.blobs.extend(text.blobs.iter().map(|blob| blob.digest));
            found.manifests.extend(Some(text.bytes).filter(|_| child.inline.is_none()));
        }
        let mut seen = HashSet::new();
        found.blobs.retain(|blob| seen.insert(*blob));
        Ok(found)
    }

    /// Makes the lists of tags that a new manifest completes models of the store. The manifest is kept either way, so an
    /// error is only logged.
    pub(super) fn complete_lists(&self, name: &Repository, child: &Digest) {
        if let Err(error) = self.try_complete_lists(name, child) {
            tracing::warn!(repository = %name, %child, %error, "a manifest list does not become a model of the store");
        }
    }

    fn try_complete_lists(&self, name: &Repository, child: &Digest) -> Result<(), MirrorError> {
        let lists = self.kept_lists_with(name, child)?;
        if !lists.is_empty() {
            for tag in folder::names(&self.tags(name))? {
                let Some(digest) = self.tagged(name, &tag)?.filter(|digest| lists.contains(digest))
                else {
                    continue;
                };
                let Some(list) = self.kept(name, &digest)? else { continue };
                self.put_list_model(name, &tag, &list)?;
            }
            self.remove_untagged(name, &lists)?;
        }
        for entry in
            self.store_lists_with(name, child)?.iter().filter(|entry| entry.place == Place::Own)
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

    /// Removes lists that no tag stands for now that they are models of the store.
    fn remove_untagged(&self, name: &Repository, lists: &[Digest]) -> Result<(), MirrorError> {
        let mut tagged = HashSet::new();
        for tag in folder::names(&self.tags(name))? {
            tagged.extend(self.tagged(name, &tag)?);
        }
        let models: HashSet<Digest> =
            self.tagged_models(name)?.iter().map(|entry| entry.digest).collect();
        for list in lists.iter().filter(|list| !tagged.contains(list) && models.contains(list)) {
            self.remove_kept(name, list)?;
        }
        Ok(())
    }

    /// The models of a repository in the store.
    pub(super) fn tagged_models(&self, name: &Repository) -> Result<Vec<Entry>, MirrorError> {
        let model: Option<ModelName> = name.model(SOME_TAG);
        Ok(model.map(|model| self.store.tagged(&model)).transpose()?.unwrap_or_default())
    }

    /// The lists of a repository in the store that have a manifest as their child.
    pub(super) fn store_lists_with(
        &self,
        name: &Repository,
        child: &Digest,
    ) -> Result<Vec<Entry>, MirrorError> {
        let mut entries = self.tagged_models(name)?;
        entries.retain(|entry| children_of(entry).contains(child));
        Ok(entries)
    }
}

/// The digests of the children of a list in the store; none for a single manifest.
pub(super) fn children_of(entry: &Entry) -> Vec<Digest> {
    entry.list.iter().flat_map(|list| &list.children).map(|stored| stored.child.digest).collect()
}

/// The blobs of a model in the store and their sizes, each once; of a list those of all children that are there.
pub(super) fn blobs_of(entry: &Entry) -> Vec<(Digest, u64)> {
    let mut seen = HashSet::new();
    let blobs = entry.blobs().map(|layer| (layer.digest, layer.size));
    blobs.filter(|(digest, _)| entry.list.is_none() || seen.insert(*digest)).collect()
}
