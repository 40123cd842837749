//! Notes in the folder of a registry.

use std::fs;
use std::time::SystemTime;

use bytes::Bytes;

use super::folder::{self, Folder};
use crate::error::MirrorError;
use crate::notes::{Note, Notes};
use crate::waiting::{Answer, blocking};

impl Folder {
    fn notes_listed(&self) -> Result<Vec<Note>, MirrorError> {
        let mut notes = Vec::new();
        for name in folder::names(&self.history())? {
            // It may have gone meanwhile.
            let Ok(meta) = fs::metadata(self.history().join(&name)) else { continue };
            let Ok(written) = meta.modified() else { continue };
            let age = SystemTime::now().duration_since(written).unwrap_or_default();
            notes.push(Note { name, version: format!("{written:?} {}", meta.len()), age });
        }
        Ok(notes)
    }
}

impl Notes for Folder {
    fn list(&self) -> Answer<'_, Vec<Note>> {
        let folder = self.clone();
        Box::pin(blocking(move || folder.notes_listed()))
    }

    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>> {
        let path = self.history().join(name);
        Box::pin(blocking(move || Ok(folder::read(&path)?.map(Bytes::from))))
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()> {
        let (folder, path) = (self.clone(), self.history().join(name));
        Box::pin(blocking(move || Folder::write(&folder, &path, &bytes)))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let path = self.history().join(name);
        Box::pin(blocking(move || folder::remove(&path).map(drop)))
    }
}
