//! Notes in the folder of a registry.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use bytes::Bytes;

use super::folder::{self, Folder};
use crate::error::MirrorError;
use crate::notes::{Note, Notes};
use crate::waiting::{Answer, blocking};

/// Notes of one kind, which lie in a folder of their own.
#[derive(Clone)]
pub(super) struct FolderNotes {
    folder: Folder,
    dir: PathBuf,
}

impl FolderNotes {
    pub(super) fn new(folder: Folder, dir: PathBuf) -> Self {
        Self { folder, dir }
    }

    fn listed(&self) -> Result<Vec<Note>, MirrorError> {
        let mut notes = Vec::new();
        for name in folder::names(&self.dir)? {
            // It may have gone meanwhile.
            let Ok(meta) = fs::metadata(self.dir.join(&name)) else { continue };
            let Ok(written) = meta.modified() else { continue };
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            notes.push(Note { name, version: format!("{written:?} {}", meta.len()), age });
        }
        Ok(notes)
    }
}

impl Notes for FolderNotes {
    fn list(&self) -> Answer<'_, Vec<Note>> {
        let notes = self.clone();
        Box::pin(blocking(move || notes.listed()))
    }

    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>> {
        let path = self.dir.join(name);
        Box::pin(blocking(move || Ok(folder::read(&path)?.map(Bytes::from))))
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()> {
        let (folder, path) = (self.folder.clone(), self.dir.join(name));
        // The folder may just have been cleared away, since it was empty.
        let write = move || folder.write(&path, &bytes).or_else(|_| folder.write(&path, &bytes));
        Box::pin(blocking(write))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let path = self.dir.join(name);
        Box::pin(blocking(move || folder::remove(&path).map(drop)))
    }
}
