//! Manifests of the file system driver: models lie in the store, others in the registry directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use bytes::Bytes;
use puna_store::{Digest, Entry, ModelName, ModelVersion, StoreError, StoreLocation};

use super::list_models::{SOME_TAG, blobs_of, children_of};
use super::registry_dir::{self, RegistryDir};
use crate::error::MirrorError;
use crate::types::manifest::{Descriptor, Manifest, ManifestKind};
use crate::types::manifest_error::ManifestProblem;
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{
    ConditionalRemoval, Owner, StoredObject, TagEntry, removable_manifests,
};

impl RegistryDir {
    /// Returns a manifest of a repository.
    pub(crate) fn manifest(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<Option<Manifest>, MirrorError> {
        match reference {
            Reference::Tag(tag) => match self.tag_digest(name, tag)? {
                Some(digest) => self.stored_manifest(name, &digest),
                None => self.model(name, tag),
            },
            Reference::Digest(digest) => self.by_digest(name, digest),
        }
    }

    /// Returns a manifest of a repository by digest, or an inline child of one of its lists.
    pub(crate) fn by_digest(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        if let Some(manifest) = self.stored_manifest(name, digest)? {
            return Ok(Some(manifest));
        }
        match self.inline_child(name, digest)? {
            Some(child) => Ok(Some(child)),
            None => self.model_by_digest(name, digest),
        }
    }

    /// Returns the digest that a tag in the registry directory points to.
    pub(crate) fn tag_digest(
        &self,
        name: &Repository,
        tag: &str,
    ) -> Result<Option<Digest>, MirrorError> {
        let text = registry_dir::read_small_file(&self.tags(name).join(tag))?;
        Ok(text.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok()))
    }

    /// Returns a manifest in the registry directory.
    pub(crate) fn stored_manifest(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let path = self.manifests(name).join(digest.hex());
        let Some(bytes) = registry_dir::read_small_file(&path)? else { return Ok(None) };
        let manifest = Manifest::parse(bytes.into(), None)?;
        if manifest.digest != *digest {
            tracing::error!(path = %path.display(), "manifest does not match its digest; not serving it");
            return Ok(None);
        }
        Ok(Some(manifest))
    }

    /// Returns a model of the store.
    fn model(&self, name: &Repository, tag: &str) -> Result<Option<Manifest>, MirrorError> {
        let Some(model) = name.model(tag) else { return Ok(None) };
        match self.store.manifest_bytes(&model) {
            Ok((entry, _)) if entry.is_embedded() => Ok(None),
            Ok((_, bytes)) => Ok(Some(Manifest::parse_stored(Bytes::from(bytes))?)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a model of the store, or a child of a list there, by digest.
    fn model_by_digest(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        for tag in self.model_tags(name)? {
            let Some(manifest) = self.model(name, &tag)? else { continue };
            if manifest.digest == *digest {
                return Ok(Some(manifest));
            }
            if let Some(child) = self.child_of_model(&manifest, digest)? {
                return Ok(Some(child));
            }
        }
        Ok(None)
    }

    fn model_tags(&self, name: &Repository) -> Result<Vec<String>, MirrorError> {
        let Some(model) = name.model(SOME_TAG) else { return Ok(Vec::new()) };
        Ok(self.store.tags(&model)?)
    }

    /// Stores a manifest. It becomes a model of the store if its name and format allow it. Returns
    /// the model that it replaced.
    pub(crate) fn put_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<Option<Entry>, MirrorError> {
        if let Reference::Tag(tag) = reference
            && manifest.kind == ManifestKind::Model
            && let Some(model) = name.model(tag)
        {
            let _lock = self.lock_writes()?;
            let blobs: Vec<Digest> = manifest.blobs.iter().map(|blob| blob.digest).collect();
            let replaced = self.put_model(&model, &manifest.bytes, [], &blobs)?;
            registry_dir::remove_file(&self.tags(name).join(tag))?;
            return Ok(replaced);
        }
        let _lock = self.lock_writes()?;
        // All blobs are checked before any of them is linked.
        let is_missing =
            |blob: &&Descriptor| !self.blob_paths(&blob.digest).iter().any(|path| path.is_file());
        if let Some(blob) = manifest.blobs.iter().find(is_missing) {
            return Err(MirrorError::ManifestBlobUnknown(blob.digest));
        }
        self.check_children(name, manifest)?;
        if let Reference::Tag(tag) = reference
            && manifest.list.is_some()
            && let Some(replaced) = self.put_list_model(name, tag, manifest)?
        {
            return Ok(replaced);
        }
        for blob in &manifest.blobs {
            self.link_from_store(&blob.digest)?;
        }
        self.write_manifest(name, reference, manifest)?;
        match reference {
            Reference::Tag(tag) => self.remove_hidden_model(name, tag)?,
            Reference::Digest(digest) => self.complete_lists(name, digest),
        }
        Ok(None)
    }

    /// Stores a manifest list of an upstream. Its children and blobs may be missing.
    pub(crate) fn put_upstream_list(
        &self,
        name: &Repository,
        tag: &str,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let _lock = self.lock_writes()?;
        if self.put_list_model(name, tag, manifest)?.is_some() {
            return Ok(());
        }
        for blob in &manifest.blobs {
            match self.link_from_store(&blob.digest) {
                Ok(()) | Err(MirrorError::ManifestBlobUnknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // The tag hides a model of the same name. The model stays in the store until a child of the
        // list replaces it.
        self.write_manifest(name, &Reference::Tag(tag.to_owned()), manifest)
    }

    /// Writes a manifest, its tag, and its entry as a referrer.
    fn write_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        self.note_children(name, manifest)?;
        self.write(&self.manifests(name).join(manifest.digest.hex()), &manifest.bytes)?;
        if let Some(subject) = &manifest.subject {
            self.write(&self.referrers(name, subject).join(manifest.digest.hex()), b"")?;
        }
        if let Reference::Tag(tag) = reference {
            self.write(&self.tags(name).join(tag), manifest.digest.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Makes a pushed manifest a model of the store. Returns the model that it replaced. If the
    /// store rejects it, the blobs given to the store are removed again. `manifests` are a list and
    /// its children, which the store keeps as blobs.
    pub(crate) fn put_model<'a>(
        &self,
        model: &ModelName,
        bytes: &[u8],
        manifests: impl IntoIterator<Item = &'a Bytes>,
        blobs: &[Digest],
    ) -> Result<Option<Entry>, MirrorError> {
        // The lock tells other processes that blobs without a manifest are in use.
        let work = self.store.begin_work();
        let manifests: Vec<&Bytes> = manifests.into_iter().collect();
        let all: Vec<Digest> =
            blobs.iter().copied().chain(manifests.iter().map(|text| Digest::of(text))).collect();
        let given: Vec<Digest> =
            all.iter().filter(|digest| !self.store.has_blob(digest)).copied().collect();
        let stored = blobs
            .iter()
            .try_for_each(|digest| self.link_into_store(digest))
            .and_then(|()| {
                manifests.iter().try_for_each(|text| Ok(self.store.add_manifest(text).map(drop)?))
            })
            .and_then(|()| {
                let model = self.store.stored_spelling(model)?;
                let replaced = self.store.store_manifest(&model, bytes, true, &mut || ());
                replaced.map_err(as_client_error)
            });
        if stored.is_err() {
            self.store.unpin_blobs(all);
            drop(work);
            if let Err(error) = self.store.discard_blobs(&given) {
                tracing::warn!(%error, "cannot remove blobs of a rejected manifest; garbage collection removes them later");
            }
        }
        stored
    }

    fn remove_model(&self, name: &Repository, tag: &str) -> Result<bool, MirrorError> {
        let Some(model) = name.model(tag) else { return Ok(false) };
        match self.store.delete(&model) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound(_) | StoreError::BuiltIn { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the model that a tag hides. A model of a read-only directory stays, and is visible
    /// again without the tag.
    fn remove_hidden_model(&self, name: &Repository, tag: &str) -> Result<(), MirrorError> {
        match self.remove_model(name, tag) {
            Ok(_) | Err(MirrorError::Store(StoreError::ReadOnly { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a tag, or a manifest with its tags.
    pub(crate) fn remove_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<bool, MirrorError> {
        let _lock = self.lock_writes()?;
        let removed = match reference {
            Reference::Tag(tag) => match registry_dir::remove_file(&self.tags(name).join(tag))? {
                true => self.remove_hidden_model(name, tag).map(|()| true)?,
                false => self.remove_model(name, tag)?,
            },
            Reference::Digest(digest) => {
                self.check_no_list_needs(name, digest)?;
                self.remove_stored(name, digest)? | self.remove_models(name, digest)?
            }
        };
        if removed {
            self.remove_empty_dirs(name);
        }
        Ok(removed)
    }

    /// Removes the items that are unchanged. The write lock excludes concurrent changes. All
    /// manifests that may need something are read once for the whole batch.
    pub(crate) fn remove_unchanged(
        &self,
        removals: &[ConditionalRemoval],
    ) -> Result<Vec<Result<bool, MirrorError>>, MirrorError> {
        let _lock = self.lock_writes()?;
        let mut removed: Vec<_> = removals.iter().map(|_| Ok(false)).collect();
        if self.blobs_in_use().is_none() {
            return Ok(removed);
        }
        let (models, others): (Vec<usize>, Vec<usize>) =
            (0..removals.len()).partition(|n| removals[*n].is_model);
        self.remove_unchanged_models(removals, &models, &mut removed)?;
        let mut by_repository: BTreeMap<&Repository, Vec<usize>> = BTreeMap::new();
        for n in others {
            by_repository.entry(&removals[n].name).or_default().push(n);
        }
        let mut freed = Vec::new();
        for (name, indexes) in by_repository {
            match self.remove_unchanged_in(name, removals, &indexes, &mut removed) {
                Ok(blobs) => freed.extend(blobs),
                Err(error) => indexes.iter().for_each(|n| removed[*n] = Err(error.clone())),
            }
            self.remove_empty_dirs(name);
        }
        // Fetched blobs passed through the store and may have another hard link there.
        freed.retain(|blob| self.store.has_blob(blob));
        if !freed.is_empty()
            && let Err(error) = self.store.remove_blobs(&freed)
        {
            tracing::warn!(%error, "cannot remove blobs of removed manifests; garbage collection removes them later");
        }
        Ok(removed)
    }

    fn remove_unchanged_models(
        &self,
        removals: &[ConditionalRemoval],
        indexes: &[usize],
        removed: &mut [Result<bool, MirrorError>],
    ) -> Result<(), MirrorError> {
        let seen = |n: &usize| {
            let ConditionalRemoval { name, tag, digest, tag_written, .. } = &removals[*n];
            let name = name.model(tag.as_deref()?)?;
            Some((*n, ModelVersion { name, digest: *digest, modified: (*tag_written)? }))
        };
        let (indexes, seen): (Vec<usize>, Vec<ModelVersion>) =
            indexes.iter().filter_map(seen).unzip();
        for (n, done) in indexes.into_iter().zip(self.store.delete_unchanged(&seen)?) {
            removed[n] = done.map_err(MirrorError::from);
        }
        Ok(())
    }

    /// Removes unchanged tags of a repository, then the manifests without remaining tags. Returns
    /// the blobs that these referenced.
    fn remove_unchanged_in(
        &self,
        name: &Repository,
        removals: &[ConditionalRemoval],
        indexes: &[usize],
        removed: &mut [Result<bool, MirrorError>],
    ) -> Result<Vec<Digest>, MirrorError> {
        let mut manifests = HashMap::new();
        for n in indexes {
            let removal = &removals[*n];
            if let Some(tag) = &removal.tag {
                let path = self.tags(name).join(tag);
                let is_same = registry_dir::modified_time(&path) == removal.tag_written
                    && self.tag_digest(name, tag)? == Some(removal.digest);
                removed[*n] = if is_same { registry_dir::remove_file(&path) } else { Ok(false) };
            }
            if removal.with_manifest && (removal.tag.is_none() || removed[*n] == Ok(true)) {
                manifests.insert(removal.digest, removal.manifest_written);
            }
        }
        if manifests.is_empty() {
            return Ok(Vec::new());
        }
        let (stored, mut tagged) = (self.stored_manifests_of(name)?, Vec::new());
        for tag in registry_dir::file_names(&self.tags(name))? {
            tagged.extend(self.tag_digest(name, &tag)?);
        }
        // Children of lists that are models of the store stay with them.
        tagged.extend(self.tagged_models(name)?.iter().flat_map(children_of));
        let removable = removable_manifests(&manifests, tagged, &stored);
        let mut freed = Vec::new();
        for object in stored
            .iter()
            .filter(|object| object.manifest.is_some_and(|digest| removable.contains(&digest)))
        {
            self.remove_object(name, object)?;
            freed.extend(object.blobs.iter().map(|(blob, _)| *blob));
        }
        for n in indexes.iter().filter(|n| removals[**n].tag.is_none()) {
            removed[*n] = Ok(removable.contains(&removals[*n].digest));
        }
        Ok(freed)
    }

    fn remove_object(&self, name: &Repository, object: &StoredObject) -> Result<bool, MirrorError> {
        let Some(digest) = object.manifest else { return Ok(false) };
        if let Some(subject) = &object.subject {
            registry_dir::remove_file(&self.referrers(name, subject).join(digest.hex()))?;
        }
        let manifest = self.manifests(name).join(digest.hex());
        let removed = self.move_to_trash(&manifest, &format!("manifest-{}", digest.hex()))?;
        self.forget_children(name, &digest, &object.children)?;
        Ok(removed)
    }

    pub(crate) fn remove_stored(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<bool, MirrorError> {
        let path = self.manifests(name).join(digest.hex());
        let Some(manifest) = registry_dir::read_small_file(&path)? else { return Ok(false) };
        // Tags go first: a tag without a manifest would be an error.
        for tag in registry_dir::file_names(&self.tags(name))? {
            if self.tag_digest(name, &tag)? == Some(*digest) {
                registry_dir::remove_file(&self.tags(name).join(tag))?;
            }
        }
        let manifest = Manifest::parse(manifest.into(), None);
        if let Ok(Manifest { subject: Some(subject), .. }) = &manifest {
            registry_dir::remove_file(&self.referrers(name, subject).join(digest.hex()))?;
        }
        let removed = registry_dir::remove_file(&path)?;
        if let Ok(manifest) = manifest {
            self.forget_children(name, digest, &manifest.children)?;
        }
        Ok(removed)
    }

    fn remove_models(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let mut removed = false;
        for tag in self.model_tags(name)? {
            if self.model(name, &tag)?.is_some_and(|manifest| manifest.digest == *digest) {
                removed |= self.remove_model(name, &tag)?;
            }
        }
        Ok(removed)
    }

    /// Removes the empty directories of a repository.
    fn remove_empty_dirs(&self, name: &Repository) {
        let dir = self.repository(name);
        for inner in [dir.join("tags"), dir.join("manifests")] {
            let _ = fs::remove_dir(inner);
        }
        for outer in [dir.join("referrers"), dir.join("lists")] {
            for inner in registry_dir::file_names(&outer).unwrap_or_default() {
                let _ = fs::remove_dir(outer.join(inner));
            }
            let _ = fs::remove_dir(outer);
        }
        let _ = fs::remove_dir(dir);
    }

    pub(crate) fn tags_of(&self, name: &Repository) -> Result<Option<Vec<String>>, MirrorError> {
        let mut tags: BTreeSet<String> = self.model_tags(name)?.into_iter().collect();
        let stored = self.repository(name).is_dir();
        if tags.is_empty() && !stored {
            return Ok(None);
        }
        tags.extend(registry_dir::file_names(&self.tags(name))?);
        Ok(Some(tags.into_iter().collect()))
    }

    pub(crate) fn all_repositories(&self) -> Result<Vec<Repository>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let mut all: BTreeSet<_> =
            models.filter_map(|entry| Repository::from_model_name(&entry.name)).collect();
        all.extend(
            registry_dir::file_names(&self.repositories())?
                .iter()
                .filter_map(|name| Repository::from_dir_name(name)),
        );
        Ok(all.into_iter().collect())
    }

    pub(crate) fn tag_entries(&self) -> Result<Vec<TagEntry>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let of_model = |entry: Entry| {
            let (name, tag) =
                (Repository::from_model_name(&entry.name)?, entry.name.tag().to_owned());
            let owner =
                if entry.location == StoreLocation::Own { Owner::Store } else { Owner::ReadOnly };
            let size =
                blobs_of(&entry).iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
            let written = Some(entry.modified);
            Some(TagEntry {
                name,
                tag,
                digest: entry.digest,
                size,
                completed: None,
                owner,
                written,
            })
        };
        let is_visible = |entry: &TagEntry| !self.tags(&entry.name).join(&entry.tag).exists();
        let mut entries: Vec<TagEntry> = models.filter_map(of_model).filter(is_visible).collect();
        for dir_name in registry_dir::file_names(&self.repositories())? {
            let Some(name) = Repository::from_dir_name(&dir_name) else { continue };
            for tag in registry_dir::file_names(&self.tags(&name))? {
                let Some(digest) = self.tag_digest(&name, &tag)? else { continue };
                let Some(manifest) = self.stored_manifest(&name, &digest)? else { continue };
                let written = registry_dir::modified_time(&self.tags(&name).join(&tag));
                let size = self.size_of(&name, &manifest)?;
                let (name, owner) = (name.clone(), Owner::Registry);
                entries.push(TagEntry { name, tag, digest, size, completed: None, owner, written });
            }
        }
        Ok(entries)
    }

    pub(crate) fn referrers_of(
        &self,
        name: &Repository,
        subject: &Digest,
    ) -> Result<Vec<Descriptor>, MirrorError> {
        let mut found = Vec::new();
        for hex in registry_dir::file_names(&self.referrers(name, subject))? {
            let Ok(digest) = format!("sha256:{hex}").parse() else { continue };
            found
                .extend(self.stored_manifest(name, &digest)?.map(|manifest| manifest.descriptor()));
        }
        Ok(found)
    }
}

/// The client must push a blob that the store lacks.
fn as_client_error(error: StoreError) -> MirrorError {
    match error {
        StoreError::BlobMissing(digest) => MirrorError::ManifestBlobUnknown(digest),
        StoreError::BlobSize { digest, expected, found } => {
            ManifestProblem::BlobSize { digest, stated: expected, actual: found }.into()
        }
        // Garbage collection could not read it.
        StoreError::Manifest { reason, .. } => ManifestProblem::Json { reason }.into(),
        error => error.into(),
    }
}
