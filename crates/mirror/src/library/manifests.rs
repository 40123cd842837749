//! Manifests: those of models in the store itself, others in the registry's folder.

use std::collections::BTreeSet;
use std::fs;

use bytes::Bytes;
use puna_store::{Digest, Place, StoreError};

use super::folder::{self, Folder};
use super::{Shown, Whose};
use crate::error::MirrorError;
use crate::manifest::{Descriptor, Kind, Manifest};
use crate::name::{Reference, Repository};

/// Any tag: what a repository is asked for to learn the model's other parts.
const SOME_TAG: &str = "latest";

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
            Reference::Digest(digest) => match self.kept(name, digest)? {
                Some(manifest) => Ok(Some(manifest)),
                None => self.model_of(name, digest),
            },
        }
    }

    /// The digest that a tag stands for, of manifests in the registry's folder.
    fn tagged(&self, name: &Repository, tag: &str) -> Result<Option<Digest>, MirrorError> {
        let text = folder::read(&self.tags(name).join(tag))?;
        Ok(text.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok()))
    }

    /// A manifest in the registry's folder.
    fn kept(&self, name: &Repository, digest: &Digest) -> Result<Option<Manifest>, MirrorError> {
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
            Ok((_, bytes)) => as_model(bytes).map(Some),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A model of the store by its digest.
    fn model_of(&self, name: &Repository, digest: &Digest) -> Result<Option<Manifest>, MirrorError> {
        for tag in self.model_tags(name)? {
            if let Some(manifest) = self.model(name, &tag)?
                && manifest.digest == *digest
            {
                return Ok(Some(manifest));
            }
        }
        Ok(None)
    }

    fn model_tags(&self, name: &Repository) -> Result<Vec<String>, MirrorError> {
        let Some(model) = name.model(SOME_TAG) else { return Ok(Vec::new()) };
        Ok(self.store.tags(&model)?)
    }

    /// Keeps a manifest. A model becomes one of the store if its name and form allow it.
    pub(crate) fn put_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
    ) -> Result<(), MirrorError> {
        if let Reference::Tag(tag) = reference
            && manifest.kind == Kind::Model
            && let Some(model) = name.model(tag)
        {
            for blob in &manifest.blobs {
                self.give_to_store(&blob.digest)?;
            }
            let model = self.store.spelled(&model)?;
            self.store.store_manifest(&model, &manifest.bytes, true, &mut || ()).map_err(missing)?;
            folder::remove(&self.tags(name).join(tag))?;
            return Ok(());
        }
        let _changes = self.changes();
        for blob in &manifest.blobs {
            self.take_from_store(&blob.digest)?;
        }
        self.write(&self.manifests(name).join(manifest.digest.hex()), &manifest.bytes)?;
        if let Some(subject) = &manifest.subject {
            self.write(&self.referrers(name, subject).join(manifest.digest.hex()), b"")?;
        }
        if let Reference::Tag(tag) = reference {
            self.write(&self.tags(name).join(tag), manifest.digest.to_string().as_bytes())?;
            self.remove_model(name, tag)?;
        }
        Ok(())
    }

    fn remove_model(&self, name: &Repository, tag: &str) -> Result<bool, MirrorError> {
        let Some(model) = name.model(tag) else { return Ok(false) };
        match self.store.delete(&model) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound(_) | StoreError::BuiltIn { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a tag, or a manifest with its tags.
    pub(crate) fn remove_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
    ) -> Result<bool, MirrorError> {
        let removed = match reference {
            Reference::Tag(tag) => {
                folder::remove(&self.tags(name).join(tag))? | self.remove_model(name, tag)?
            }
            Reference::Digest(digest) => {
                self.remove_kept(name, digest)? | self.remove_models(name, digest)?
            }
        };
        if removed {
            self.tidy(name);
        }
        Ok(removed)
    }

    /// Removes a tag that stands for a manifest still, or a manifest that no tag stands for.
    pub(crate) fn retire(
        &self,
        name: &Repository,
        tag: Option<&str>,
        digest: &Digest,
    ) -> Result<bool, MirrorError> {
        let _changes = self.changes();
        let removed = match tag {
            Some(tag) => match self.tagged(name, tag)? {
                Some(found) => found == *digest && folder::remove(&self.tags(name).join(tag))?,
                None => {
                    let found = self.model(name, tag)?;
                    found.is_some_and(|found| found.digest == *digest) && self.remove_model(name, tag)?
                }
            },
            None => self.remove_untagged(name, digest)?,
        };
        if removed {
            self.tidy(name);
        }
        Ok(removed)
    }

    fn remove_untagged(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        for tag in folder::names(&self.tags(name))? {
            if self.tagged(name, &tag)? == Some(*digest) {
                return Ok(false);
            }
        }
        let Some(manifest) = self.kept(name, digest)? else { return Ok(false) };
        let removed = self.remove_kept(name, digest)?;
        // What was fetched has come through the store, where it has another name.
        let blobs = manifest.blobs.iter().map(|blob| blob.digest);
        let stored: Vec<_> = blobs.filter(|blob| self.store.has_blob(blob)).collect();
        if removed && !stored.is_empty() {
            self.store.remove_blobs(&stored)?;
        }
        Ok(removed)
    }

    fn remove_kept(&self, name: &Repository, digest: &Digest) -> Result<bool, MirrorError> {
        let path = self.manifests(name).join(digest.hex());
        let Some(manifest) = folder::read(&path)? else { return Ok(false) };
        // The tags first: one that stands for nothing would be an error.
        for tag in folder::names(&self.tags(name))? {
            if self.tagged(name, &tag)? == Some(*digest) {
                folder::remove(&self.tags(name).join(tag))?;
            }
        }
        if let Ok(Manifest { subject: Some(subject), .. }) = Manifest::parse(manifest.into(), None) {
            folder::remove(&self.referrers(name, &subject).join(digest.hex()))?;
        }
        folder::remove(&path)
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
        for subject in folder::names(&dir.join("referrers")).unwrap_or_default() {
            let _ = fs::remove_dir(dir.join("referrers").join(subject));
        }
        let _ = fs::remove_dir(dir.join("referrers"));
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
        let mut all: BTreeSet<_> = models.filter_map(|entry| Repository::of_model(&entry.name)).collect();
        all.extend(
            folder::names(&self.repositories())?.iter().filter_map(|name| Repository::of_folder(name)),
        );
        Ok(all.into_iter().collect())
    }

    pub(crate) fn shown(&self) -> Result<Vec<Shown>, MirrorError> {
        let models = self.store.list()?.into_iter().filter(|entry| !entry.is_embedded());
        let of_model = |entry: puna_store::Entry| {
            let (name, tag) = (Repository::of_model(&entry.name)?, entry.name.tag().to_owned());
            let whose = if entry.place == Place::Own { Whose::Store } else { Whose::Elsewhere };
            let (size, written) = (entry.size(), Some(entry.modified));
            Some(Shown { name, tag, digest: entry.digest, size, completed: None, whose, written })
        };
        let mut shown: Vec<Shown> = models.filter_map(of_model).collect();
        for folder in folder::names(&self.repositories())? {
            let Some(name) = Repository::of_folder(&folder) else { continue };
            for tag in folder::names(&self.tags(&name))? {
                let Some(digest) = self.tagged(&name, &tag)? else { continue };
                let Some(manifest) = self.kept(&name, &digest)? else { continue };
                let written = fs::metadata(self.tags(&name).join(&tag)).and_then(|meta| meta.modified()).ok();
                let (name, size, whose) = (name.clone(), manifest.size(), Whose::Registry);
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

/// A manifest of the store's. It may be older than any rule, and Docker's is what all of Ollama's are.
fn as_model(bytes: Vec<u8>) -> Result<Manifest, MirrorError> {
    Manifest::parse(Bytes::from(bytes), Some(puna_store::media::MANIFEST))
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
