//! Manifests: those of models in the store itself, others in the registry's folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use bytes::Bytes;
use puna_store::{Digest, Entry, ModelName, Place, Seen, StoreError};

use super::folder::{self, Folder};
use super::list_models::{blobs_of, children_of};
use crate::error::MirrorError;
use crate::holding::{Doomed, Holding, Shown, Whose, leaving};
use crate::manifest::{Descriptor, Kind, Manifest};
use crate::name::{Reference, Repository};

/// Any tag: what a repository is asked for to learn the model's other parts.
pub(super) const SOME_TAG: &str = "latest";

impl Folder {
    /// A manifest of a repository.
    pub(crate) fn manifest(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<Option<Manifest>, MirrorError> {
        match reference {
            Reference::Tag(tag) => match self.tagged(name, tag)? {
                Some(digest) => self.kept(name, &digest),
                None => self.model(name, tag),
            },
            Reference::Digest(digest) => self.by_digest(name, digest),
        }
    }

    /// A manifest of a repository by its digest, or an inline child of a list there.
    pub(super) fn by_digest(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        if let Some(manifest) = self.kept(name, digest)? {
            return Ok(Some(manifest));
        }
        match self.inline_child(name, digest)? {
            Some(child) => Ok(Some(child)),
            None => self.model_of(name, digest),
        }
    }

    /// The digest that a tag stands for, of manifests in the registry's folder.
    pub(super) fn tagged(
        &self,
        name: &Repository,
        tag: &str,
    ) -> Result<Option<Digest>, MirrorError> {
        let text = folder::read(&self.tags(name).join(tag))?;
        Ok(text.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok()))
    }

    /// A manifest in the registry's folder.
    pub(super) fn kept(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, MirrorError> {
        let path = self.manifests(name).join(digest.hex());
        let Some(bytes) = folder::read(&path)? else { return Ok(None) };
        let manifest = Manifest::parse(bytes.into(), None)?;
        if manifest.digest != *digest {
            tracing::error!(path = %path.display(), "this manifest has been changed on the disk: it is not served");
            return Ok(None);
        }
        Ok(Some(manifest))
    }

    /// A model of the store.
    fn model(&self, name: &Repository, tag: &str) -> Result<Option<Manifest>, MirrorError> {
        let Some(model) = name.model(tag) else { return Ok(None) };
        match self.store.manifest_bytes(&model) {
            Ok((entry, _)) if entry.is_embedded() => Ok(None),
            Ok((_, bytes)) => Manifest::of_store(Bytes::from(bytes)).map(Some),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A model of the store, or a child of a list there, by its digest.
    fn model_of(
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

    /// Keeps a manifest. A model becomes one of the store if its name and form allow it; says which one it replaced there.
    pub(crate) fn put_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<Option<Entry>, MirrorError> {
        if let Reference::Tag(tag) = reference
            && manifest.kind == Kind::Model
            && let Some(model) = name.model(tag)
        {
            let _changes = self.changes()?;
            let blobs: Vec<Digest> = manifest.blobs.iter().map(|blob| blob.digest).collect();
            let replaced = self.put_model(&model, &manifest.bytes, [], &blobs)?;
            folder::remove(&self.tags(name).join(tag))?;
            return Ok(replaced);
        }
        let _changes = self.changes()?;
        // All of them are looked for before any is kept.
        let is_missing =
            |blob: &&Descriptor| !self.places(&blob.digest).iter().any(|path| path.is_file());
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
            self.take_from_store(&blob.digest)?;
        }
        self.write_manifest(name, reference, manifest)?;
        match reference {
            Reference::Tag(tag) => self.remove_behind(name, tag)?,
            Reference::Digest(digest) => self.complete_lists(name, digest),
        }
        Ok(None)
    }

    /// Keeps a manifest list of an upstream, of which nothing else need be here yet.
    pub(crate) fn put_upstream_list(
        &self,
        name: &Repository,
        tag: &str,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        let _changes = self.changes()?;
        if self.put_list_model(name, tag, manifest)?.is_some() {
            return Ok(());
        }
        for blob in &manifest.blobs {
            match self.take_from_store(&blob.digest) {
                Ok(()) | Err(MirrorError::ManifestBlobUnknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // A model that the tag hides stays in the store until a child of the list takes its place.
        self.write_manifest(name, &Reference::Tag(tag.to_owned()), manifest)
    }

    /// Writes a manifest, and what stands for it.
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

    /// Makes a model of the store's of what was pushed; says which one it replaced. What the store was given for one that it refuses
    /// it does not keep. `manifests` are a list and its children, which the store has as blobs.
    pub(super) fn put_model<'a>(
        &self,
        model: &ModelName,
        bytes: &[u8],
        manifests: impl IntoIterator<Item = &'a Bytes>,
        blobs: &[Digest],
    ) -> Result<Option<Entry>, MirrorError> {
        // Other processes see by it that blobs without a manifest are wanted.
        let work = self.store.work();
        let manifests: Vec<&Bytes> = manifests.into_iter().collect();
        let all: Vec<Digest> =
            blobs.iter().copied().chain(manifests.iter().map(|text| Digest::of(text))).collect();
        let given: Vec<Digest> =
            all.iter().filter(|digest| !self.store.has_blob(digest)).copied().collect();
        let stored = blobs
            .iter()
            .try_for_each(|digest| self.give_to_store(digest))
            .and_then(|()| {
                manifests.iter().try_for_each(|text| Ok(self.store.add_manifest(text).map(drop)?))
            })
            .and_then(|()| {
                let model = self.store.spelled(model)?;
                let replaced = self.store.store_manifest(&model, bytes, true, &mut || ());
                replaced.map_err(missing)
            });
        if stored.is_err() {
            self.store.let_go(all);
            drop(work);
            if let Err(error) = self.store.discard_blobs(&given) {
                tracing::warn!(%error, "blobs of a refused manifest stay in the store until unused ones are cleared away");
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

    /// Removes the model that a tag hides. One of a folder that is only read stays, and is seen again when the tag is gone.
    fn remove_behind(&self, name: &Repository, tag: &str) -> Result<(), MirrorError> {
        match self.remove_model(name, tag) {
            Ok(_) | Err(MirrorError::Store(StoreError::OnlyRead { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a tag, or a manifest with its tags.
    pub(crate) fn remove_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<bool, MirrorError> {
        let _changes = self.changes()?;
        let removed = match reference {
            Reference::Tag(tag) => match folder::remove(&self.tags(name).join(tag))? {
                true => self.remove_behind(name, tag).map(|()| true)?,
                false => self.remove_model(name, tag)?,
            },
            Reference::Digest(digest) => {
                self.check_no_list_needs(name, digest)?;
                self.remove_kept(name, digest)? | self.remove_models(name, digest)?
            }
        };
        if removed {
            self.tidy(name);
        }
        Ok(removed)
    }

    /// Removes what still is as it was seen: nobody else writes meanwhile. All manifests that may need something are read once for
    /// all that goes.
    pub(crate) fn retire(
        &self,
        doomed: &[Doomed],
    ) -> Result<Vec<Result<bool, MirrorError>>, MirrorError> {
        let _changes = self.changes()?;
        let mut removed: Vec<_> = doomed.iter().map(|_| Ok(false)).collect();
        if self.needed().is_none() {
            return Ok(removed);
        }
        let (models, others): (Vec<usize>, Vec<usize>) =
            (0..doomed.len()).partition(|n| doomed[*n].is_model);
        self.retire_models(doomed, &models, &mut removed)?;
        let mut of: BTreeMap<&Repository, Vec<usize>> = BTreeMap::new();
        for n in others {
            of.entry(&doomed[n].name).or_default().push(n);
        }
        let mut freed = Vec::new();
        for (name, ones) in of {
            match self.retire_in(name, doomed, &ones, &mut removed) {
                Ok(blobs) => freed.extend(blobs),
                Err(error) => ones.iter().for_each(|n| removed[*n] = Err(error.clone())),
            }
            self.tidy(name);
        }
        // What was fetched has come through the store, where it has another name.
        freed.retain(|blob| self.store.has_blob(blob));
        if !freed.is_empty()
            && let Err(error) = self.store.remove_blobs(&freed)
        {
            tracing::warn!(%error, "blobs of removed manifests stay in the store until unused ones are cleared away");
        }
        Ok(removed)
    }

    fn retire_models(
        &self,
        doomed: &[Doomed],
        ones: &[usize],
        removed: &mut [Result<bool, MirrorError>],
    ) -> Result<(), MirrorError> {
        let seen = |n: &usize| {
            let Doomed { name, tag, digest, tag_written, .. } = &doomed[*n];
            let name = name.model(tag.as_deref()?)?;
            Some((*n, Seen { name, digest: *digest, modified: (*tag_written)? }))
        };
        let (ones, seen): (Vec<usize>, Vec<Seen>) = ones.iter().filter_map(seen).unzip();
        for (n, done) in ones.into_iter().zip(self.store.delete_seen(&seen)?) {
            removed[n] = done.map_err(MirrorError::from);
        }
        Ok(())
    }

    /// Removes tags of a repository, and then the manifests that go with them or by themselves. Says which blobs those needed.
    fn retire_in(
        &self,
        name: &Repository,
        doomed: &[Doomed],
        ones: &[usize],
        removed: &mut [Result<bool, MirrorError>],
    ) -> Result<Vec<Digest>, MirrorError> {
        let mut manifests = HashMap::new();
        for n in ones {
            let one = &doomed[*n];
            if let Some(tag) = &one.tag {
                let path = self.tags(name).join(tag);
                let is_same = folder::written(&path) == one.tag_written
                    && self.tagged(name, tag)? == Some(one.digest);
                removed[*n] = if is_same { folder::remove(&path) } else { Ok(false) };
            }
            if one.with_manifest && (one.tag.is_none() || removed[*n] == Ok(true)) {
                manifests.insert(one.digest, one.manifest_written);
            }
        }
        if manifests.is_empty() {
            return Ok(Vec::new());
        }
        let (kept, mut tagged) = (self.kept_of(name)?, Vec::new());
        for tag in folder::names(&self.tags(name))? {
            tagged.extend(self.tagged(name, &tag)?);
        }
        // Children of lists that are models of the store stay with these.
        tagged.extend(self.tagged_models(name)?.iter().flat_map(children_of));
        let gone = leaving(&manifests, tagged, &kept);
        let mut freed = Vec::new();
        for held in
            kept.iter().filter(|held| held.manifest.is_some_and(|digest| gone.contains(&digest)))
        {
            self.remove_held(name, held)?;
            freed.extend(held.blobs.iter().map(|(blob, _)| *blob));
        }
        for n in ones.iter().filter(|n| doomed[**n].tag.is_none()) {
            removed[*n] = Ok(gone.contains(&doomed[*n].digest));
        }
        Ok(freed)
    }

    fn remove_held(&self, name: &Repository, held: &Holding) -> Result<bool, MirrorError> {
        let Some(digest) = held.manifest else { return Ok(false) };
        if let Some(subject) = &held.subject {
            folder::remove(&self.referrers(name, subject).join(digest.hex()))?;
        }
        let manifest = self.manifests(name).join(digest.hex());
        let removed = self.move_to_trash(&manifest, &format!("manifest-{}", digest.hex()))?;
        self.forget_children(name, &digest, &held.children)?;
        Ok(removed)
    }

    pub(super) fn remove_kept(
        &self,
        name: &Repository,
        digest: &Digest,
    ) -> Result<bool, MirrorError> {
        let path = self.manifests(name).join(digest.hex());
        let Some(manifest) = folder::read(&path)? else { return Ok(false) };
        // The tags first: one that stands for nothing would be an error.
        for tag in folder::names(&self.tags(name))? {
            if self.tagged(name, &tag)? == Some(*digest) {
                folder::remove(&self.tags(name).join(tag))?;
            }
        }
        let manifest = Manifest::parse(manifest.into(), None);
        if let Ok(Manifest { subject: Some(subject), .. }) = &manifest {
            folder::remove(&self.referrers(name, subject).join(digest.hex()))?;
        }
        let removed = folder::remove(&path)?;
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

    /// Removes the folders of a repository that has nothing any more.
    fn tidy(&self, name: &Repository) {
        let dir = self.repository(name);
        for inner in [dir.join("tags"), dir.join("manifests")] {
            let _ = fs::remove_dir(inner);
        }
        for outer in [dir.join("referrers"), dir.join("lists")] {
            for inner in folder::names(&outer).unwrap_or_default() {
                let _ = fs::remove_dir(outer.join(inner));
            }
            let _ = fs::remove_dir(outer);
        }
        let _ = fs::remove_dir(dir);
    }

    pub(crate) fn tags_of(&self, name: &Repository) -> Result<Option<Vec<String>>, MirrorError> {
        let mut tags: BTreeSet<String> = self.model_tags(name)?.into_iter().collect();
        let kept = self.repository(name).is_dir();
        if tags.is_empty() && !kept {
            return Ok(None);
        }
        tags.extend(folder::names(&self.tags(name))?);
        Ok(Some(tags.into_iter().collect()))
    }

    pub(crate) fn all_repositories(&self) -> Result<Vec<Repository>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let mut all: BTreeSet<_> =
            models.filter_map(|entry| Repository::of_model(&entry.name)).collect();
        all.extend(
            folder::names(&self.repositories())?
                .iter()
                .filter_map(|name| Repository::of_folder(name)),
        );
        Ok(all.into_iter().collect())
    }

    pub(crate) fn shown(&self) -> Result<Vec<Shown>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let of_model = |entry: Entry| {
            let (name, tag) = (Repository::of_model(&entry.name)?, entry.name.tag().to_owned());
            let whose = if entry.place == Place::Own { Whose::Store } else { Whose::Elsewhere };
            let size =
                blobs_of(&entry).iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
            let written = Some(entry.modified);
            Some(Shown { name, tag, digest: entry.digest, size, completed: None, whose, written })
        };
        let is_seen = |shown: &Shown| !self.tags(&shown.name).join(&shown.tag).exists();
        let mut shown: Vec<Shown> = models.filter_map(of_model).filter(is_seen).collect();
        for folder in folder::names(&self.repositories())? {
            let Some(name) = Repository::of_folder(&folder) else { continue };
            for tag in folder::names(&self.tags(&name))? {
                let Some(digest) = self.tagged(&name, &tag)? else { continue };
                let Some(manifest) = self.kept(&name, &digest)? else { continue };
                let written = folder::written(&self.tags(&name).join(&tag));
                let size = self.size_of(&name, &manifest)?;
                let (name, whose) = (name.clone(), Whose::Registry);
                shown.push(Shown { name, tag, digest, size, completed: None, whose, written });
            }
        }
        Ok(shown)
    }

    pub(crate) fn referrers_of(
        &self,
        name: &Repository,
        subject: &Digest,
    ) -> Result<Vec<Descriptor>, MirrorError> {
        let mut found = Vec::new();
        for hex in folder::names(&self.referrers(name, subject))? {
            let Ok(digest) = format!("sha256:{hex}").parse() else { continue };
            found.extend(self.kept(name, &digest)?.map(|manifest| manifest.descriptor()));
        }
        Ok(found)
    }
}

/// A blob that the store misses is the client's to push.
fn missing(error: StoreError) -> MirrorError {
    match error {
        StoreError::BlobMissing(digest) => MirrorError::ManifestBlobUnknown(digest),
        StoreError::BlobSize { digest, expected, found } => MirrorError::ManifestInvalid(format!(
            "it says that blob {digest} has {expected} bytes, but it has {found}"
        )),
        error => error.into(),
    }
}
