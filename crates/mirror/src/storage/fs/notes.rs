//! Notes in the registry directory.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;

use super::registry_dir::{self, RegistryDir};
use crate::blocking::{StorageFuture, blocking};
use crate::error::MirrorError;
use crate::storage::note_store::{NoteInfo, NoteStore};

/// Notes of one kind, in a directory of their own.
#[derive(Clone)]
pub(super) struct FileNotes {
    registry: RegistryDir,
    dir: PathBuf,
}

impl FileNotes {
    pub(super) fn new(registry: RegistryDir, dir: PathBuf) -> Self {
        Self { registry, dir }
    }

    fn listed(&self) -> Result<Vec<NoteInfo>, MirrorError> {
        let mut notes = Vec::new();
        for name in registry_dir::file_names(&self.dir)? {
            // The note may have been removed meanwhile.
            let Ok(meta) = fs::metadata(self.dir.join(&name)) else { continue };
            let Ok(modified) = meta.modified() else { continue };
            let age = SystemTime::now().duration_since(modified).unwrap_or_default();
            notes.push(NoteInfo { name, version: format!("{modified:?} {}", meta.len()), age });
        }
        Ok(notes)
    }
}

impl NoteStore for FileNotes {
    fn list(&self) -> StorageFuture<'_, Vec<NoteInfo>> {
        let notes = self.clone();
        Box::pin(blocking(move || notes.listed()))
    }

    fn read<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Option<Bytes>> {
        let path = self.dir.join(name);
        Box::pin(blocking(move || Ok(registry_dir::read_small_file(&path)?.map(Bytes::from))))
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> StorageFuture<'a, ()> {
        let (registry, path) = (self.registry.clone(), self.dir.join(name));
        // The empty directory may just have been removed.
        let write =
            move || registry.write(&path, &bytes).or_else(|_| registry.write(&path, &bytes));
        Box::pin(blocking(write))
    }

    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()> {
        let path = self.dir.join(name);
        Box::pin(blocking(move || registry_dir::remove_file(&path).map(drop)))
    }
}
