//! The library in a folder of models.

use std::collections::HashSet;
use std::sync::Arc;

use puna_store::{Digest, Store};

use super::folder::{self, Folder, blocking};
use super::uploads::Uploads;
use super::{Answer, Blob, Library, Part, UploadId};
use crate::error::MirrorError;
use crate::manifest::{Descriptor, Manifest};
use crate::name::{Reference, Repository};

/// What a store holds, and beside it what was pushed and is no model.
pub struct StoreLibrary {
    folder: Folder,
    uploads: Uploads,
}

impl StoreLibrary {
    /// The library of a store. Nothing is made before somebody pushes.
    pub fn new(store: Arc<Store>) -> Self {
        Self { folder: Folder::new(store), uploads: Uploads::default() }
    }

    /// Does something with the folder on a thread that may wait for the disk.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T, MirrorError> + Send + 'static,
    ) -> Result<T, MirrorError> {
        let folder = self.folder.clone();
        blocking(move || work(&folder)).await
    }
}

impl Folder {
    /// The blobs of all manifests in the registry's folder.
    pub(crate) fn needed(&self) -> Result<HashSet<Digest>, MirrorError> {
        let mut needed = HashSet::new();
        for name in folder::names(&self.repositories())? {
            let Some(name) = Repository::of_folder(&name) else { continue };
            let dir = self.manifests(&name);
            for hex in folder::names(&dir)? {
                let Some(bytes) = folder::read(&dir.join(hex))? else { continue };
                needed.extend(Manifest::parse(bytes.into(), None)?.blobs.iter().map(|blob| blob.digest));
            }
        }
        Ok(needed)
    }
}

impl Library for StoreLibrary {
    fn manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
    ) -> Answer<'a, Option<Manifest>> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.manifest(&name, &reference)))
    }

    fn put_manifest<'a>(
        &'a self,
        name: &'a Repository,
        reference: &'a Reference,
        manifest: Manifest,
    ) -> Answer<'a, ()> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.put_manifest(&name, &reference, &manifest)))
    }

    fn remove_manifest<'a>(&'a self, name: &'a Repository, reference: &'a Reference) -> Answer<'a, bool> {
        let (name, reference) = (name.clone(), reference.clone());
        Box::pin(self.with(move |folder| folder.remove_manifest(&name, &reference)))
    }

    fn tags<'a>(&'a self, name: &'a Repository) -> Answer<'a, Option<Vec<String>>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.tags_of(&name)))
    }

    fn repositories(&self) -> Answer<'_, Vec<Repository>> {
        Box::pin(self.with(Folder::all_repositories))
    }

    fn referrers<'a>(&'a self, name: &'a Repository, subject: Digest) -> Answer<'a, Vec<Descriptor>> {
        let name = name.clone();
        Box::pin(self.with(move |folder| folder.referrers_of(&name, &subject)))
    }

    fn blob(&self, digest: Digest) -> Answer<'_, Option<Box<dyn Blob>>> {
        Box::pin(self.with(move |folder| {
            let blob = folder.open_blob(&digest)?;
            Ok(blob.map(|blob| Box::new(blob) as Box<dyn Blob>))
        }))
    }

    fn remove_blob(&self, digest: Digest) -> Answer<'_, bool> {
        Box::pin(self.with(move |folder| folder.remove_blob(&digest)))
    }

    fn begin<'a>(&'a self, name: &'a Repository) -> Answer<'a, UploadId> {
        Box::pin(async move { self.uploads.begin(&self.folder, name) })
    }

    fn uploaded<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, u64> {
        Box::pin(self.uploads.uploaded(&self.folder, name, id))
    }

    fn append<'a>(&'a self, name: &'a Repository, id: &'a UploadId, part: Part) -> Answer<'a, u64> {
        Box::pin(self.uploads.append(&self.folder, name, id, part))
    }

    fn finish<'a>(&'a self, name: &'a Repository, id: &'a UploadId, digest: Digest) -> Answer<'a, ()> {
        Box::pin(self.uploads.finish(&self.folder, name, id, digest))
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> Answer<'a, ()> {
        Box::pin(self.uploads.cancel(&self.folder, name, id))
    }
}
