//! Notes of those who serve a library, beside what it keeps. Each writes its own and reads those of the others, so that nobody
//! overwrites what another one knows.

use std::fs;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::Answer;
use super::folder::{self, Folder, blocking};
use crate::error::MirrorError;

/// A note, as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its name.
    pub name: String,
    /// What tells this version from others.
    pub version: String,
    /// How long ago it was written.
    pub age: Duration,
}

/// Where notes are.
pub trait Notes: Send + Sync {
    /// All of them, in no order.
    fn list(&self) -> Answer<'_, Vec<Note>>;

    /// What one says; `None` if it is not there.
    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>>;

    /// Writes one whole: the old one is there until the new one is.
    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()>;

    /// Removes one, if it is there.
    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}

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
