//! Writes the bytes of an upload to the bucket.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::PutPayload;
use object_store::path::Path;
use puna_registry::ResumableSha256;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::memory_budget::MemoryPermit;
use super::record::UploadRecord;
use super::sessions::UploadSessions;
use crate::blocking::blocking;
use crate::error::{InternalError, MirrorError, UploadProblem};
use crate::storage::s3::blob_location::data_key;
use crate::storage::s3::bucket::to_json;
use crate::storage::{ByteStream, UploadPart};
use crate::types::upload_id::UploadId;
use crate::uploads::PIECE_TIMEOUT;
use crate::uploads::admission::{FIRST_HEARTBEAT, HEARTBEAT_INTERVAL};

/// Largest number of parts of an object.
const MAX_PARTS: usize = 10_000;
/// How long an upload may fill its part while others wait for memory. Then it writes its bytes to
/// the bucket and waits itself.
const MEMORY_SHARE_TIME: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// Interval of that check.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// Writes one part of an upload session to the bucket.
pub(super) struct Writer<'a> {
    uploads: &'a UploadSessions,
    id: &'a UploadId,
    record: UploadRecord,
    /// Record as stored in the bucket; `stored_at` is the time of that write.
    stored_record: UploadRecord,
    stored_at: Instant,
    data: Path,
    sum: ResumableSha256,
    /// Bytes that are no part yet; empty if they all lie in the bucket.
    pieces: Vec<Bytes>,
    /// Number of these bytes.
    buffered_bytes: usize,
    /// Memory for these bytes, and since when it is held.
    memory: Option<(MemoryPermit, Instant)>,
    /// Bytes that are still to come, if known.
    remaining: Option<u64>,
    /// Bytes that the client sends again and that are already stored.
    skip_bytes: u64,
    /// The part that is being uploaded.
    part_upload: Option<JoinHandle<Result<String, MirrorError>>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        uploads: &'a UploadSessions,
        id: &'a UploadId,
        (record, age): (UploadRecord, Duration),
        first: u64,
        len: Option<u64>,
    ) -> Self {
        let skip_bytes = record.len - first;
        Self {
            memory: None,
            remaining: len.map(|len| len.saturating_sub(skip_bytes)),
            skip_bytes,
            data: data_key(&uploads.bucket, id),
            sum: record.sum.as_ref().map(ResumableSha256::resume).unwrap_or_default(),
            buffered_bytes: usize::try_from(record.tail).unwrap_or(usize::MAX),
            pieces: Vec::new(),
            part_upload: None,
            stored_record: record.clone(),
            stored_at: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            uploads,
            id,
            record,
        }
    }

    /// Receives a part to its end. Returns the size of the upload.
    pub(super) async fn receive(&mut self, mut part: UploadPart) -> Result<u64, MirrorError> {
        let mut came = 0;
        loop {
            let Some(piece) = self.next(&mut part.body).await? else { break };
            let mut bytes = piece?;
            came += bytes.len() as u64;
            if let Some(wanted) = part.len.filter(|wanted| came > *wanted) {
                return Err(MirrorError::SizeMismatch { received: came, announced: wanted });
            }
            let again = self.skip_bytes.min(bytes.len() as u64);
            self.skip_bytes -= again;
            let _ = bytes.split_to(again as usize);
            self.buffer(bytes).await?;
            self.send_heartbeat().await?;
        }
        match part.len {
            Some(wanted) if wanted != came => {
                Err(MirrorError::SizeMismatch { received: came, announced: wanted })
            }
            _ => Ok(self.record.len),
        }
    }

    /// Renews the record unless it is recent. Other mirrors take an upload with an old record for
    /// idle.
    async fn send_heartbeat(&mut self) -> Result<(), MirrorError> {
        let max = if self.stored_record.has_bytes() { HEARTBEAT_INTERVAL } else { FIRST_HEARTBEAT };
        if self.stored_at.elapsed() < max {
            return Ok(());
        }
        self.stored_record.is_receiving = true;
        let signed = match self.uploads.read_record(self.id).await {
            Ok(Some(_)) => self.store_record().await,
            // Another mirror has dropped or finished the upload.
            Ok(None) => return Err(MirrorError::UploadUnknown(self.id.to_string())),
            Err(error) => Err(error),
        };
        // A failed renewal does not affect the transfer; it is repeated later.
        if let Err(error) = signed {
            tracing::warn!(%error, "cannot update the record of a running upload");
            self.stored_at = Instant::now();
        }
        Ok(())
    }

    /// Waits for a future that the transfer depends on, and renews the record meanwhile.
    async fn wait_with_heartbeat<T>(
        &mut self,
        done: impl Future<Output = T>,
    ) -> Result<T, MirrorError> {
        let mut done = pin!(done);
        loop {
            match timeout(FIRST_HEARTBEAT, done.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(_) => self.send_heartbeat().await?,
            }
        }
    }

    /// Stores the last state and the id of the multipart upload in the record.
    async fn store_record(&mut self) -> Result<(), MirrorError> {
        self.uploads
            .bucket
            .write(&self.uploads.record_key(self.id), to_json(&self.stored_record)?)
            .await?;
        self.stored_at = Instant::now();
        Ok(())
    }

    /// Returns the next piece of the body. A slow client holds no memory while others wait for it.
    async fn next(
        &mut self,
        body: &mut ByteStream,
    ) -> Result<Option<Result<Bytes, MirrorError>>, MirrorError> {
        let begun = Instant::now();
        loop {
            let held = self.memory.as_ref().map(|(_, since)| since.elapsed());
            if held.is_some_and(|held| held > MEMORY_SHARE_TIME)
                && self.uploads.memory.is_short(&self.record.owner)
            {
                self.flush(false).await?;
            }
            match timeout(MEMORY_CHECK_INTERVAL, body.next()).await {
                Ok(piece) => return Ok(piece),
                Err(_) if begun.elapsed() < PIECE_TIMEOUT => {}
                Err(_) => {
                    return Err(MirrorError::BodyStalled { seconds: PIECE_TIMEOUT.as_secs() });
                }
            }
        }
    }

    async fn buffer(&mut self, mut bytes: Bytes) -> Result<(), MirrorError> {
        while !bytes.is_empty() {
            let rest = self.record.next_part_bytes() - self.buffered_bytes;
            let piece = bytes.split_to(rest.min(bytes.len()));
            self.reserve_more(piece.len()).await?;
            self.buffered_bytes += piece.len();
            self.record.len += piece.len() as u64;
            self.remaining =
                self.remaining.map(|remaining| remaining.saturating_sub(piece.len() as u64));
            self.pieces.push(piece);
            if self.buffered_bytes == self.record.next_part_bytes() {
                self.start_part_upload().await?;
            }
        }
        Ok(())
    }

    /// Reserves memory for `more` bytes. If none is free, the upload releases what it holds, then
    /// waits for enough for a whole part. If many uploads each held half of a part, none could
    /// continue.
    async fn reserve_more(&mut self, more: usize) -> Result<(), MirrorError> {
        if self.memory.is_none() {
            let bytes = self.buffered_bytes + more;
            let now = self.uploads.memory.try_reserve(&self.record.owner, bytes);
            self.reserve_memory(now).await?;
        }
        let Some((memory, _)) = &mut self.memory else { return Ok(()) };
        let lacks = (self.buffered_bytes + more).saturating_sub(memory.bytes());
        if lacks == 0 {
            return Ok(());
        }
        match self.uploads.memory.try_reserve(&self.record.owner, lacks) {
            Some(found) => memory.merge(found),
            None => {
                self.flush(false).await?;
                self.reserve_memory(None).await?;
            }
        }
        Ok(())
    }

    /// Reads buffered bytes back from the bucket, into memory that is given or waited for.
    async fn reserve_memory(&mut self, found: Option<MemoryPermit>) -> Result<(), MirrorError> {
        let memory = match found {
            Some(memory) => memory,
            None => {
                let (memory, owner, bytes) = (
                    &self.uploads.memory,
                    self.record.owner.clone(),
                    self.record.next_part_memory(self.buffered_bytes as u64, self.remaining),
                );
                self.wait_with_heartbeat(memory.reserve(&owner, bytes)).await??
            }
        };
        if self.buffered_bytes > 0 {
            self.pieces = vec![self.uploads.read_tail(self.id, &self.record).await?];
        }
        self.memory = Some((memory, Instant::now()));
        Ok(())
    }

    /// Uploads a part, once the previous one has arrived.
    async fn start_part_upload(&mut self) -> Result<(), MirrorError> {
        self.finish_part_upload().await?;
        if self.record.parts.len() >= MAX_PARTS {
            return Err(UploadProblem::TooManyParts { max: MAX_PARTS }.into());
        }
        let object = match &self.record.object {
            Some(object) => object.clone(),
            None => {
                let object = self.uploads.bucket.begin_multipart(&self.data).await?;
                // The id is stored at once, so that the multipart upload can be aborted.
                self.stored_record.object = Some(object.clone());
                self.store_record().await?;
                self.record.object.insert(object).clone()
            }
        };
        let memory = self.memory.take().map(|(memory, _)| Arc::new(memory));
        let pieces = std::mem::take(&mut self.pieces);
        self.buffered_bytes = 0;
        let (sum, hashed) = (self.sum.clone(), pieces.clone());
        let hashing = blocking(move || {
            let mut sum = sum;
            hashed.iter().for_each(|piece| sum.update(piece));
            Ok(sum)
        });
        let (bucket, data, number) =
            (self.uploads.bucket.clone(), self.data.clone(), self.record.parts.len());
        let payload = PutPayload::from_iter(pieces);
        let held = memory.clone();
        let part_upload = tokio::spawn(async move {
            let part = bucket.put_part(&data, &object, number, payload).await;
            drop(held);
            part
        });
        self.part_upload = Some(part_upload);
        self.sum = hashing.await?;
        drop(memory);
        Ok(())
    }

    /// Waits until the part in progress has arrived.
    async fn finish_part_upload(&mut self) -> Result<(), MirrorError> {
        let Some(part_upload) = self.part_upload.take() else { return Ok(()) };
        let part = self.wait_with_heartbeat(part_upload).await?.map_err(InternalError::from)??;
        self.record.parts.push(part);
        self.record.sum = self.sum.save(0);
        Ok(())
    }

    /// Writes all state and buffered bytes to the bucket. Returns the size of the upload.
    pub(super) async fn flush(&mut self, is_whole: bool) -> Result<u64, MirrorError> {
        self.finish_part_upload().await?;
        self.record.tail = self.buffered_bytes as u64;
        self.record.is_receiving = false;
        if is_whole {
            self.record.committed = self.record.len;
        }
        let (uploads, id, record) = (self.uploads, self.id, &self.record);
        let has_more = record.len != self.stored_record.len;
        if record.tail > 0 && has_more {
            let tail = PutPayload::from_iter(self.pieces.iter().cloned());
            uploads.bucket.write(&uploads.tail_key(id, record.len), tail).await?;
        }
        uploads.bucket.write(&uploads.record_key(id), to_json(record)?).await?;
        self.stored_at = Instant::now();
        if self.stored_record.tail > 0 && has_more {
            uploads.bucket.remove(&uploads.tail_key(id, self.stored_record.len)).await?;
        }
        self.stored_record = record.clone();
        self.pieces.clear();
        self.memory = None;
        Ok(self.record.len)
    }
}
