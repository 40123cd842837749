//! Notes of those who serve a library, beside what it keeps. Each writes its own and reads those of the others, so that nobody
//! overwrites what another one knows.

use std::time::Duration;

use bytes::Bytes;

use crate::waiting::Answer;

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
