//! Open uploads: the state of this process, and their objects in the bucket.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;

use super::memory_budget::MemoryBudget;
use super::record::{OpenUploadSummary, UploadProgress, UploadRecord};
use crate::error::MirrorError;
use crate::locks::{KeyGuard, KeyedLocks};
use crate::storage::s3::blob_location::data_key;
use crate::storage::s3::bucket::Bucket;
use crate::types::repository::Repository;
use crate::types::upload_id::UploadId;

/// Open uploads to a bucket.
pub(crate) struct UploadSessions {
    pub(super) bucket: Bucket,
    /// Cached properties of open uploads.
    pub(super) summaries: Mutex<HashMap<UploadId, OpenUploadSummary>>,
    /// Repositories and sizes of open uploads, as of a version of their records.
    pub(super) progress: Mutex<HashMap<UploadId, UploadProgress>>,
    /// Held while this process works on an upload.
    pub(super) upload_locks: KeyedLocks<UploadId>,
    /// Held from counting the open uploads until the new one exists.
    pub(super) begin_lock: tokio::sync::Mutex<()>,
    pub(super) memory: MemoryBudget,
}

impl UploadSessions {
    pub(crate) fn new(bucket: Bucket) -> Self {
        let (begin_lock, memory) = (tokio::sync::Mutex::default(), MemoryBudget::default());
        Self {
            bucket,
            summaries: Mutex::default(),
            progress: Mutex::default(),
            upload_locks: KeyedLocks::default(),
            begin_lock,
            memory,
        }
    }

    pub(super) fn record_key(&self, id: &UploadId) -> Path {
        self.bucket.key(["uploads", &format!("{id}.json")])
    }

    /// Key of the bytes behind the uploaded parts, for an upload of `len` bytes.
    pub(super) fn tail_key(&self, id: &UploadId, len: u64) -> Path {
        self.bucket.key(["uploads", &format!("{id}.{len}")])
    }

    /// Reads the record of an upload and its age; `None` if the upload does not exist.
    pub(super) async fn read_record(
        &self,
        id: &UploadId,
    ) -> Result<Option<(UploadRecord, Duration)>, MirrorError> {
        let key = self.record_key(id);
        let Some((bytes, entry)) = self.bucket.read_entry(&key).await? else { return Ok(None) };
        match serde_json::from_slice(&bytes) {
            Ok(record) => Ok(Some((record, entry.age()))),
            Err(_) => Err(self.bucket.invalid_object(&key, "the record of the upload is invalid")),
        }
    }

    /// Locks an upload within this process and reads its record. If two mirrors append to one
    /// upload at the same time, the record of one lacks parts of the other, and the service rejects
    /// the object.
    pub(super) async fn lock_upload(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(KeyGuard, UploadRecord, Duration), MirrorError> {
        let upload_locks = self.upload_locks.lock(id.clone()).await;
        let noted =
            self.read_record(id).await?.filter(|(record, _)| record.repository == name.as_str());
        let (record, age) = noted.ok_or_else(|| MirrorError::UploadUnknown(id.to_string()))?;
        Ok((upload_locks, record, age))
    }

    /// Reads the bytes behind the uploaded parts.
    pub(super) async fn read_tail(
        &self,
        id: &UploadId,
        record: &UploadRecord,
    ) -> Result<Bytes, MirrorError> {
        match record.tail {
            0 => Ok(Bytes::new()),
            size => self.bucket.read_whole(self.tail_key(id, record.len), size).await,
        }
    }

    /// Removes the record of an upload, and its data unless a blob uses it.
    pub(super) async fn delete_upload(
        &self,
        id: &UploadId,
        record: &UploadRecord,
        keeps_data: bool,
    ) -> Result<(), MirrorError> {
        if let (Some(object), false) = (&record.object, keeps_data) {
            self.bucket.abort_multipart(&data_key(&self.bucket, id), object).await?;
        }
        self.bucket.remove(&self.record_key(id)).await?;
        if record.tail > 0 {
            self.bucket.remove(&self.tail_key(id, record.len)).await?;
        }
        Ok(())
    }
}
