//! Notes in a bucket.

use bytes::Bytes;
use object_store::path::Path;

use super::bucket::{Bucket, Entry};
use crate::notes::{Note, Notes};
use crate::waiting::Answer;

impl Bucket {
    fn note_key(&self, name: &str) -> Path {
        self.key(["history", name])
    }
}

impl Notes for Bucket {
    fn list(&self) -> Answer<'_, Vec<Note>> {
        Box::pin(async move {
            let entries = self.entries(&self.key(["history"])).await?;
            let note = |entry: Entry| {
                let age = entry.age();
                Note { name: entry.name, version: entry.version, age }
            };
            Ok(entries.into_iter().map(note).collect())
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>> {
        Box::pin(async move { Bucket::read(self, &self.note_key(name)).await })
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()> {
        Box::pin(async move { Bucket::write(self, &self.note_key(name), bytes).await })
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { Bucket::remove(self, &self.note_key(name)).await })
    }
}
