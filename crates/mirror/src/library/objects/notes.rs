//! Notes in a bucket.

use bytes::Bytes;
use object_store::path::Path;

use super::bucket::{Bucket, Entry};
use crate::notes::{Note, Notes};
use crate::waiting::Answer;

/// Notes of one kind, below a key of their own.
pub(super) struct BucketNotes {
    bucket: Bucket,
    folder: Path,
}

impl BucketNotes {
    pub(super) fn new(bucket: Bucket, folder: Path) -> Self {
        Self { bucket, folder }
    }

    fn key(&self, name: &str) -> Path {
        self.folder.clone().join(name)
    }
}

impl Notes for BucketNotes {
    fn list(&self) -> Answer<'_, Vec<Note>> {
        Box::pin(async move {
            let entries = self.bucket.entries(&self.folder).await?;
            let note = |entry: Entry| {
                let age = entry.age();
                Note { name: entry.name, version: entry.version, age }
            };
            Ok(entries.into_iter().map(note).collect())
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>> {
        Box::pin(async move { self.bucket.read(&self.key(name)).await })
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()> {
        Box::pin(async move { self.bucket.write(&self.key(name), bytes).await })
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { self.bucket.remove(&self.key(name)).await })
    }
}
