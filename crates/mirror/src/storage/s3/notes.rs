//! Notes in a bucket.

use bytes::Bytes;
use object_store::path::Path;

use super::bucket::{Bucket, ObjectInfo};
use crate::blocking::StorageFuture;
use crate::storage::note_store::{NoteInfo, NoteStore};

/// Notes of one kind, in a folder of their own.
pub(super) struct S3Notes {
    bucket: Bucket,
    folder: Path,
}

impl S3Notes {
    pub(super) fn new(bucket: Bucket, folder: Path) -> Self {
        Self { bucket, folder }
    }

    fn key(&self, name: &str) -> Path {
        self.folder.clone().join(name)
    }
}

impl NoteStore for S3Notes {
    fn list(&self) -> StorageFuture<'_, Vec<NoteInfo>> {
        Box::pin(async move {
            let objects = self.bucket.list_objects(&self.folder).await?;
            let note = |entry: ObjectInfo| {
                let age = entry.age();
                NoteInfo { name: entry.name, version: entry.version, age }
            };
            Ok(objects.into_iter().map(note).collect())
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Option<Bytes>> {
        Box::pin(async move { self.bucket.read(&self.key(name)).await })
    }

    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> StorageFuture<'a, ()> {
        Box::pin(async move { self.bucket.write(&self.key(name), bytes).await })
    }

    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()> {
        Box::pin(async move { self.bucket.remove(&self.key(name)).await })
    }
}
