//! Writes what arrives of an upload into the bucket.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::PutPayload;
use object_store::path::Path;
use puna_registry::Sum;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::{data_key, json};
use super::Uploads;
use super::memory::Room;
use super::note::Note;
use crate::error::MirrorError;
use crate::id::UploadId;
use crate::library::crowd::{FIRST_SIGN, SIGN};
use crate::library::uploads::PATIENCE;
use crate::library::{Body, Part};
use crate::waiting::blocking;

/// Parts of an object.
const MAX_PARTS: usize = 10_000;
/// How long an upload may fill its part while others wait for memory; then it puts down in the bucket what it has, and waits itself.
const SHARE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// How often it looks for that.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// Writes what arrives.
pub(super) struct Writer<'a> {
    uploads: &'a Uploads,
    id: &'a UploadId,
    note: Note,
    /// As it lies in the bucket, and when it was written there.
    written: Note,
    noted: Instant,
    data: Path,
    sum: Sum,
    /// What is no part yet; nothing where that lies in the bucket, all of it.
    pieces: Vec<Bytes>,
    /// Its bytes.
    waiting: usize,
    /// The memory for it, and since when.
    room: Option<(Room, Instant)>,
    /// Bytes that are still to come, if that was said.
    coming: Option<u64>,
    /// Bytes that come again and are here.
    skip: u64,
    /// The part that is on its way.
    sending: Option<JoinHandle<Result<String, MirrorError>>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        uploads: &'a Uploads,
        id: &'a UploadId,
        (note, age): (Note, Duration),
        first: u64,
        len: Option<u64>,
    ) -> Self {
        let skip = note.len - first;
        Self {
            room: None,
            coming: len.map(|len| len.saturating_sub(skip)),
            skip,
            data: data_key(&uploads.bucket, id),
            sum: note.sum.as_ref().map(Sum::resume).unwrap_or_default(),
            waiting: usize::try_from(note.tail).unwrap_or(usize::MAX),
            pieces: Vec::new(),
            sending: None,
            written: note.clone(),
            noted: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            uploads,
            id,
            note,
        }
    }

    /// Takes a part whole. Says how many bytes there are then.
    pub(super) async fn receive(&mut self, mut part: Part) -> Result<u64, MirrorError> {
        let mut came = 0;
        loop {
            let Some(piece) = self.next(&mut part.body).await? else { break };
            let mut bytes = piece?;
            came += bytes.len() as u64;
            if let Some(wanted) = part.len.filter(|wanted| came > *wanted) {
                return Err(MirrorError::Size(came, wanted));
            }
            let again = self.skip.min(bytes.len() as u64);
            self.skip -= again;
            let _ = bytes.split_to(again as usize);
            self.take(bytes).await?;
            self.sign().await?;
        }
        match part.len {
            Some(wanted) if wanted != came => Err(MirrorError::Size(came, wanted)),
            _ => Ok(self.note.len),
        }
    }

    /// Notes that bytes come, unless something was noted a moment ago: other mirrors take what is not noted for what was left alone.
    async fn sign(&mut self) -> Result<(), MirrorError> {
        let most = if self.written.has_bytes() { SIGN } else { FIRST_SIGN };
        if self.noted.elapsed() < most {
            return Ok(());
        }
        self.written.comes = true;
        let signed = match self.uploads.note(self.id).await {
            Ok(Some(_)) => self.note_down().await,
            // Another mirror has given it up, or finished it.
            Ok(None) => return Err(MirrorError::UploadUnknown(self.id.to_string())),
            Err(error) => Err(error),
        };
        // What comes is none the worse for that; it is tried again after a while.
        if let Err(error) = signed {
            tracing::warn!(%error, "that bytes of an upload come cannot be noted");
            self.noted = Instant::now();
        }
        Ok(())
    }

    /// Waits for something without which nothing more is taken, and notes meanwhile that the upload goes on.
    async fn wait<T>(&mut self, done: impl Future<Output = T>) -> Result<T, MirrorError> {
        let mut done = pin!(done);
        loop {
            match timeout(FIRST_SIGN, done.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(_) => self.sign().await?,
            }
        }
    }

    /// Writes in the bucket how far it was before, and what the object in the making is called.
    async fn note_down(&mut self) -> Result<(), MirrorError> {
        self.uploads.bucket.write(&self.uploads.note_key(self.id), json(&self.written)?).await?;
        self.noted = Instant::now();
        Ok(())
    }

    /// What comes next. Who is slow while others wait for memory holds none.
    async fn next(
        &mut self,
        body: &mut Body,
    ) -> Result<Option<Result<Bytes, MirrorError>>, MirrorError> {
        let begun = Instant::now();
        loop {
            let held = self.room.as_ref().map(|(_, since)| since.elapsed());
            if held.is_some_and(|held| held > SHARE) && self.uploads.memory.is_short() {
                self.put_down(false).await?;
            }
            match timeout(LOOK, body.next()).await {
                Ok(piece) => return Ok(piece),
                Err(_) if begun.elapsed() < PATIENCE => {}
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(MirrorError::Broken(format!("nothing came for {seconds} seconds")));
                }
            }
        }
    }

    async fn take(&mut self, mut bytes: Bytes) -> Result<(), MirrorError> {
        while !bytes.is_empty() {
            let rest = self.note.next_part() - self.waiting;
            let piece = bytes.split_to(rest.min(bytes.len()));
            self.make_room(piece.len()).await?;
            self.waiting += piece.len();
            self.note.len += piece.len() as u64;
            self.coming = self.coming.map(|coming| coming.saturating_sub(piece.len() as u64));
            self.pieces.push(piece);
            if self.waiting == self.note.next_part() {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Takes memory for so many more bytes. Where there is none, who waits holds none either, and then has enough for the whole part: of
    /// many that held half of theirs none could go on.
    async fn make_room(&mut self, more: usize) -> Result<(), MirrorError> {
        if self.room.is_none() {
            let now = self.uploads.memory.room_now(self.waiting + more);
            self.take_up(now).await?;
        }
        let Some((room, _)) = &mut self.room else { return Ok(()) };
        let lacks = (self.waiting + more).saturating_sub(room.num_permits());
        if lacks == 0 {
            return Ok(());
        }
        match self.uploads.memory.room_now(lacks) {
            Some(found) => room.merge(found),
            None => {
                self.put_down(false).await?;
                self.take_up(None).await?;
            }
        }
        Ok(())
    }

    /// Takes up what was put down, with memory that was found, or waits for some.
    async fn take_up(&mut self, found: Option<Room>) -> Result<(), MirrorError> {
        let room = match found {
            Some(room) => room,
            None => {
                let (memory, bytes) =
                    (&self.uploads.memory, self.note.next_room(self.waiting as u64, self.coming));
                self.wait(memory.room(bytes)).await??
            }
        };
        if self.waiting > 0 {
            self.pieces = vec![self.uploads.tail(self.id, &self.note).await?];
        }
        self.room = Some((room, Instant::now()));
        Ok(())
    }

    /// Sends a part on its way, once the one before it has arrived.
    async fn send(&mut self) -> Result<(), MirrorError> {
        self.sent().await?;
        if self.note.parts.len() >= MAX_PARTS {
            return Err(MirrorError::UploadInvalid(format!(
                "this blob is larger than the storage takes: an object has {MAX_PARTS} parts at most"
            )));
        }
        let object = match &self.note.object {
            Some(object) => object.clone(),
            None => {
                let object = self.uploads.bucket.begin(&self.data).await?;
                // Noted at once, so that it can be given up.
                self.written.object = Some(object.clone());
                self.note_down().await?;
                self.note.object.insert(object).clone()
            }
        };
        let room = self.room.take().map(|(room, _)| Arc::new(room));
        let pieces = std::mem::take(&mut self.pieces);
        self.waiting = 0;
        let (sum, hashed) = (self.sum.clone(), pieces.clone());
        let hashing = blocking(move || {
            let mut sum = sum;
            hashed.iter().for_each(|piece| sum.update(piece));
            Ok(sum)
        });
        let (bucket, data, number) =
            (self.uploads.bucket.clone(), self.data.clone(), self.note.parts.len());
        let payload = PutPayload::from_iter(pieces);
        let held = room.clone();
        let sending = tokio::spawn(async move {
            let part = bucket.part(&data, &object, number, payload).await;
            drop(held);
            part
        });
        self.sending = Some(sending);
        self.sum = hashing.await?;
        drop(room);
        Ok(())
    }

    /// Waits until the part that is on its way has arrived.
    async fn sent(&mut self) -> Result<(), MirrorError> {
        let Some(sending) = self.sending.take() else { return Ok(()) };
        let part =
            self.wait(sending).await?.map_err(|e| MirrorError::Internal(e.to_string()))??;
        self.note.parts.push(part);
        self.note.sum = self.sum.save(0);
        Ok(())
    }

    /// Writes down how far it is, with all that is in memory. Says how many bytes there are then.
    pub(super) async fn put_down(&mut self, is_whole: bool) -> Result<u64, MirrorError> {
        self.sent().await?;
        self.note.tail = self.waiting as u64;
        self.note.comes = false;
        if is_whole {
            self.note.committed = self.note.len;
        }
        let (uploads, id, note) = (self.uploads, self.id, &self.note);
        let has_more = note.len != self.written.len;
        if note.tail > 0 && has_more {
            let tail = PutPayload::from_iter(self.pieces.iter().cloned());
            uploads.bucket.write(&uploads.tail_key(id, note.len), tail).await?;
        }
        uploads.bucket.write(&uploads.note_key(id), json(note)?).await?;
        self.noted = Instant::now();
        if self.written.tail > 0 && has_more {
            uploads.bucket.remove(&uploads.tail_key(id, self.written.len)).await?;
        }
        self.written = note.clone();
        self.pieces.clear();
        self.room = None;
        Ok(self.note.len)
    }
}
