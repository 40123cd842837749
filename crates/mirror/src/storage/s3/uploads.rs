//! Uploads of the S3 driver. When a response states the progress of an upload, the bucket
//! has all of its state. So the next part may go to another mirror, or to this one after a restart.

mod memory_budget;
mod open_uploads;
mod record;
mod sessions;
mod writer;

use puna_registry::ResumableSha256;
use puna_store::Digest;

use super::PUSH_MARKS;
use super::blob_location::{BlobLocation, blob_key, data_key, read_blob_location};
use super::bucket::to_json;
use crate::blocking::StorageFuture;
use crate::error::{MirrorError, UploadProblem};
use crate::storage::{InventoryScope, UploadPart, UploadStore};
use crate::types::repository::Repository;
use crate::types::storage_usage::StoredUpload;
use crate::types::stored_object::push_mark_name;
use crate::types::upload_id::UploadId;
use crate::uploads::admission::drop_candidates;
pub(crate) use memory_budget::UPLOAD_MEMORY;
#[cfg(test)]
pub(super) use open_uploads::DropOutcome;
use record::UploadRecord;
pub(super) use sessions::UploadSessions;
use writer::Writer;

impl UploadSessions {
    /// Makes the blob. Returns whether the blob uses the data of this upload.
    async fn make_blob(
        &self,
        id: &UploadId,
        record: &UploadRecord,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        let read_tail = self.read_tail(id, record).await?;
        let mut sum = record.sum.as_ref().map(ResumableSha256::resume).unwrap_or_default();
        sum.update(&read_tail);
        let found = sum.finish();
        if found != digest {
            return Err(MirrorError::DigestMismatch { expected: digest, found });
        }
        let (name, data) = (blob_key(&self.bucket, &digest), data_key(&self.bucket, id));
        if let Some(location) = read_blob_location(&self.bucket, &name).await? {
            // Another upload was faster, or an earlier attempt of this one. Writing the name again
            // renews its age.
            self.bucket.write(&name, to_json(&location)?).await?;
            return Ok(location.data == *id);
        }
        match &record.object {
            None => self.bucket.write(&data, read_tail).await?,
            // An earlier attempt may have come this far.
            Some(_) if self.bucket.age(&data).await?.is_some() => {}
            Some(object) => {
                let mut parts = record.parts.clone();
                if !read_tail.is_empty() {
                    parts.push(
                        self.bucket.put_part(&data, object, parts.len(), read_tail.into()).await?,
                    );
                }
                self.bucket.complete_multipart(&data, object, parts).await?;
            }
        }
        let location = to_json(&BlobLocation { data: id.clone(), size: record.len })?;
        if self.bucket.create(&name, location).await? {
            return Ok(true);
        }
        // The name may still be of this upload: a write that returned an error may have succeeded,
        // so that the retry finds the name. Another mirror may also be finishing the same upload.
        match read_blob_location(&self.bucket, &name).await? {
            Some(location) if location.data == *id => Ok(true),
            Some(_) => self.bucket.remove(&data).await.map(|()| true),
            None => Err(self.bucket.invalid_object(
                &name,
                "the blob was removed during the upload: finish the upload again",
            )),
        }
    }
}

impl UploadStore for UploadSessions {
    fn begin<'a>(&'a self, name: &'a Repository, owner: &'a str) -> StorageFuture<'a, UploadId> {
        Box::pin(async move {
            let _beginning = self.begin_lock.lock().await;
            let open = self.list_open().await?;
            if let Some(drop_candidates) = drop_candidates(open, owner) {
                self.drop_one(&drop_candidates).await?;
            }
            let id = UploadId::random()?;
            self.bucket
                .write(&self.record_key(&id), to_json(&UploadRecord::new(name, owner))?)
                .await?;
            Ok(id)
        })
    }

    fn append<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        part: UploadPart,
    ) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            let (_held, record, age) = self.lock_upload(name, id).await?;
            let first = part.at.unwrap_or(record.len);
            // An interrupted part may be sent again from its beginning or continued.
            if first != record.len && first != record.committed {
                return Err(MirrorError::OutOfOrder { first, at: record.len });
            }
            let mut writer = Writer::new(self, id, (record, age), first, part.len);
            let received = writer.receive(part).await;
            // Bytes that the service did not accept are lost, so the upload stays at its last
            // record. A dropped upload stays dropped.
            if let Err(
                error @ (MirrorError::StorageFailed { .. }
                | MirrorError::Internal(_)
                | MirrorError::UploadUnknown(_)),
            ) = received
            {
                return Err(error);
            }
            // An interrupted part is recorded too, so that the client can continue it.
            let kept = writer.flush(received.is_ok()).await;
            received.and(kept)
        })
    }

    fn size<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, u64> {
        Box::pin(async move { Ok(self.lock_upload(name, id).await?.1.len) })
    }

    fn finish<'a>(
        &'a self,
        name: &'a Repository,
        id: &'a UploadId,
        digest: Digest,
    ) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            let (_held, record, _) = self.lock_upload(name, id).await?;
            if record.len > record.committed {
                let (received, committed) = (record.len, record.committed);
                return Err(UploadProblem::Interrupted { received, committed }.into());
            }
            let _room = self.memory.reserve(&record.owner, record.tail).await?;
            let result = self.make_blob(id, &record, digest).await;
            // A failure of the service may be retried; a wrong digest stays wrong.
            if !matches!(result, Err(MirrorError::StorageFailed { .. })) {
                let keeps_data = matches!(result, Ok(true));
                self.delete_upload(id, &record, keeps_data).await?;
            }
            result?;
            // The client that pushed the bytes may name them in a manifest.
            let mark = self.bucket.key([
                PUSH_MARKS,
                &name.dir_name(),
                &push_mark_name(&digest, record.len),
            ]);
            self.bucket.write(&mark, "").await
        })
    }

    fn cancel<'a>(&'a self, name: &'a Repository, id: &'a UploadId) -> StorageFuture<'a, ()> {
        Box::pin(async move {
            let (_held, record, _) = self.lock_upload(name, id).await?;
            self.delete_upload(id, &record, false).await
        })
    }

    fn stored_uploads(&self, scope: InventoryScope) -> StorageFuture<'_, Vec<StoredUpload>> {
        Box::pin(self.stored_in(scope))
    }
}
