//! Uploads into a bucket. All that is known of one lies in the bucket when an answer says how far it is, so that the next part
//! may come to another mirror, or to this one after a restart.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::PutPayload;
use object_store::path::Path;
use puna_registry::{SavedSum, Sum};
use puna_store::Digest;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::bucket::Bucket;
use super::{Place, blob_key, data_key, json, place_at};
use crate::error::MirrorError;
use crate::holding::mark_of;
use crate::id::UploadId;
use crate::library::crowd::{Crowd, MAX_AGE, Open, crowd};
use crate::library::uploads::PATIENCE;
use crate::library::{Body, Part};
use crate::lock::lock;
use crate::name::Repository;
use crate::waiting::blocking;

/// Bytes of a part. Some services want all parts of an object to be of one size.
const PART: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };
/// Bytes of the parts of what is larger than 128 GB: an object has 10,000 parts at most.
const LARGE_PART: usize = 8 * PART;
/// Parts of the first size.
const SMALL_PARTS: usize = 4000;
/// Parts of an object.
const MAX_PARTS: usize = 10_000;
/// Bytes of parts that are in memory at a time, of all uploads together: those that arrive and those on their way to the service.
const MEMORY: usize = 8 * PART;
const _: () = assert!(LARGE_PART <= MEMORY);
/// How long one more waits for some of it.
const TURN: Duration = Duration::from_secs(60);
/// How long an upload may fill its part while others wait for memory; then it puts down in the bucket what it has, and waits itself.
const SHARE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// How often it looks for that.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// How long an upload without bytes is kept. Another mirror has in its memory what a slow client has sent it of a first part.
const EMPTY_AGE: Duration = Duration::from_secs(60 * 60);

/// Uploads into a bucket.
pub(super) struct Uploads {
    bucket: Bucket,
    /// What is known of open ones.
    known: Mutex<HashMap<UploadId, Known>>,
    /// Held while this process does something with an upload.
    held: Mutex<HashMap<UploadId, Arc<tokio::sync::Mutex<()>>>>,
    /// A permit a byte.
    memory: Arc<Semaphore>,
    /// Those that wait for some.
    waiting: AtomicUsize,
}

/// What does not change of an upload, so that its note need not be read again.
#[derive(Clone)]
struct Known {
    owner: String,
    has_bytes: bool,
}

/// Memory for bytes, as long as somebody holds it.
type Room = OwnedSemaphorePermit;

/// How far an upload is, as it lies in the bucket.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    repository: String,
    /// Whose it is.
    #[serde(default)]
    owner: String,
    /// Bytes that are there, also of a part that broke off.
    len: u64,
    /// Bytes of all parts that came whole.
    committed: u64,
    /// What the service calls the object in the making, once it has a part.
    object: Option<String>,
    /// What it calls its parts.
    parts: Vec<String>,
    /// The sum of the parts' bytes.
    sum: Option<SavedSum>,
    /// Bytes behind the parts, which lie in an object of their own.
    tail: u64,
}

impl Note {
    fn new(name: &Repository, owner: &str) -> Self {
        Self {
            repository: name.to_string(),
            owner: owner.to_owned(),
            len: 0,
            committed: 0,
            object: None,
            parts: Vec::new(),
            sum: None,
            tail: 0,
        }
    }

    /// Bytes of the next part.
    fn next_part(&self) -> usize {
        if self.parts.len() < SMALL_PARTS { PART } else { LARGE_PART }
    }

    /// Bytes that the next part takes of memory, where so many are there and so many, if that is known, are to come.
    fn next_room(&self, there: u64, coming: Option<u64>) -> u64 {
        let most = self.next_part() as u64;
        coming.map_or(most, |coming| there.saturating_add(coming).min(most))
    }
}

impl Uploads {
    pub(super) fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            known: Mutex::default(),
            held: Mutex::default(),
            memory: Arc::new(Semaphore::new(MEMORY)),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Memory for so many bytes, if there is any.
    fn room_now(&self, bytes: usize) -> Option<Room> {
        self.memory.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// Waits for memory for the bytes of a part.
    async fn room(&self, bytes: u64) -> Result<Room, MirrorError> {
        let permits = u32::try_from(bytes.min(MEMORY as u64)).unwrap_or(u32::MAX);
        let _waiting = Waiting::of(&self.waiting);
        match timeout(TURN, self.memory.clone().acquire_many_owned(permits)).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(MirrorError::TooMany(
                "other uploads take all the memory that there is for them: come back later".into(),
            )),
        }
    }

    fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn note_key(&self, id: &UploadId) -> Path {
        self.bucket.key(["uploads", &format!("{id}.json")])
    }

    /// The bytes behind the parts of an upload of a length.
    fn tail_key(&self, id: &UploadId, len: u64) -> Path {
        self.bucket.key(["uploads", &format!("{id}.{len}")])
    }

    pub(super) async fn begin(&self, name: &Repository, owner: &str) -> Result<UploadId, MirrorError> {
        let open = self.look().await?;
        if let Some(crowd) = crowd(open, owner) {
            self.make_room(&crowd).await?;
        }
        let id = UploadId::random()?;
        self.bucket.write(&self.note_key(&id), json(&Note::new(name, owner))?).await?;
        Ok(id)
    }

    /// Gives one up for somebody who has too many, or of those who have, where there are.
    async fn make_room(&self, crowd: &Crowd) -> Result<(), MirrorError> {
        for is_empty in [true, false] {
            for one in &crowd.of {
                // What lies in the bucket of one that somebody is at here says little of it.
                if !crowd.may_go(one, is_empty) || self.is_held(&one.id) {
                    continue;
                }
                let Some(note) = self.note(&one.id).await? else { return Ok(()) };
                if (note.len == 0) == is_empty {
                    tracing::info!(owner = one.owner, "an open upload is given up: there are too many");
                    return self.forget(&one.id, &note, false).await;
                }
            }
        }
        Err(crowd.refusal())
    }

    fn is_held(&self, id: &UploadId) -> bool {
        lock(&self.held).get(id).is_some_and(|held| held.try_lock().is_err())
    }

    /// Removes uploads that were left alone for too long.
    pub(super) async fn clear(&self) -> Result<(), MirrorError> {
        self.look().await.map(drop)
    }

    /// The same, and what is left.
    async fn look(&self) -> Result<Vec<Open>, MirrorError> {
        let entries = self.bucket.entries(&self.bucket.key(["uploads"])).await?;
        let (mut open, mut alive) = (Vec::new(), HashSet::new());
        for entry in &entries {
            let Some(Ok(id)) = entry.name.strip_suffix(".json").map(UploadId::parse) else { continue };
            let age = entry.age();
            let Some(known) = self.known(&id, age).await? else { continue };
            let most = if known.has_bytes { MAX_AGE } else { EMPTY_AGE };
            if age <= most || self.is_held(&id) {
                alive.insert(id.clone());
                open.push(Open { id, owner: known.owner, age });
            } else if let Some(note) = self.note(&id).await? {
                self.forget(&id, &note, false).await?;
            }
        }
        lock(&self.known).retain(|id, _| alive.contains(id));
        // What a crash has left of others.
        for entry in entries.iter().filter(|entry| entry.age() > MAX_AGE && !entry.name.ends_with(".json")) {
            let id = entry.name.split('.').next().map(UploadId::parse);
            if !id.is_some_and(|id| id.is_ok_and(|id| alive.contains(&id))) {
                self.bucket.remove(&self.bucket.key(["uploads", &entry.name])).await?;
            }
        }
        Ok(open)
    }

    /// What is known of an upload of an age, whose note is read once, and once more when it may be that no byte has come; `None`: it is
    /// none any more.
    async fn known(&self, id: &UploadId, age: Duration) -> Result<Option<Known>, MirrorError> {
        let known = lock(&self.known).get(id).cloned();
        if let Some(known) = known.filter(|known| known.has_bytes || age <= EMPTY_AGE) {
            return Ok(Some(known));
        }
        let note = match self.note(id).await {
            Ok(Some(note)) => note,
            Ok(None) => return Ok(None),
            // One that nobody can go on with keeps nobody from beginning another.
            Err(_) => return Ok(Some(Known { owner: String::new(), has_bytes: true })),
        };
        let known = Known { owner: note.owner, has_bytes: note.len > 0 };
        lock(&self.known).insert(id.clone(), known.clone());
        Ok(Some(known))
    }

    async fn note(&self, id: &UploadId) -> Result<Option<Note>, MirrorError> {
        let key = self.note_key(id);
        let Some(bytes) = self.bucket.read(&key).await? else { return Ok(None) };
        let note = serde_json::from_slice(&bytes);
        note.map(Some).map_err(|_| self.bucket.wrong(&key, "it does not say how far the upload is"))
    }

    /// An upload to a repository, for nobody else of this process as long as it is held. Of two mirrors that take bytes of
    /// one upload at a time, one writes parts that the other's note does not name, and the service refuses the object.
    async fn hold(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(OwnedMutexGuard<()>, Note), MirrorError> {
        let lock = {
            let mut held = lock(&self.held);
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            held.entry(id.clone()).or_default().clone()
        };
        let guard = lock.lock_owned().await;
        let note = self.note(id).await?.filter(|note| note.repository == name.as_str());
        Ok((guard, note.ok_or_else(|| MirrorError::UploadUnknown(id.to_string()))?))
    }

    pub(super) async fn uploaded(&self, name: &Repository, id: &UploadId) -> Result<u64, MirrorError> {
        Ok(self.hold(name, id).await?.1.len)
    }

    pub(super) async fn append(
        &self,
        name: &Repository,
        id: &UploadId,
        part: Part,
    ) -> Result<u64, MirrorError> {
        let (_held, note) = self.hold(name, id).await?;
        let first = part.at.unwrap_or(note.len);
        // What broke off may come again from its beginning, or from where it broke off.
        if first != note.len && first != note.committed {
            return Err(MirrorError::OutOfOrder { first, at: note.len });
        }
        let mut writer = Writer::new(self, id, note, first, part.len);
        let received = writer.receive(part).await;
        // Bytes that the service did not take are lost here: the upload is as far as it was noted before.
        if let Err(error @ (MirrorError::Storage { .. } | MirrorError::Internal(_))) = received {
            return Err(error);
        }
        // Also of a part that broke off, for the next attempt.
        let kept = writer.put_down(received.is_ok()).await;
        received.and(kept)
    }

    pub(super) async fn finish(
        &self,
        name: &Repository,
        id: &UploadId,
        digest: Digest,
    ) -> Result<(), MirrorError> {
        let (_held, note) = self.hold(name, id).await?;
        if note.len > note.committed {
            return Err(MirrorError::UploadInvalid(format!(
                "the last part broke off at byte {}: send the rest of it, or all of it from byte {} on",
                note.len, note.committed
            )));
        }
        let _room = self.room(note.tail).await?;
        let made = self.make(id, &note, digest).await;
        // What the service failed at may be tried again; what is wrong stays wrong.
        if !matches!(made, Err(MirrorError::Storage { .. })) {
            let is_kept = matches!(made, Ok(true));
            self.forget(id, &note, is_kept).await?;
        }
        made?;
        // Who brought the bytes may name them in a manifest.
        let mark = self.bucket.key(["brought", &name.folder(), &mark_of(&digest, note.len)]);
        self.bucket.write(&mark, "").await
    }

    /// Makes the blob. Says whether its bytes are those of this upload.
    async fn make(&self, id: &UploadId, note: &Note, digest: Digest) -> Result<bool, MirrorError> {
        let tail = self.tail(id, note).await?;
        let mut sum = note.sum.as_ref().map(Sum::resume).unwrap_or_default();
        sum.update(&tail);
        let found = sum.finish();
        if found != digest {
            return Err(MirrorError::DigestMismatch { expected: digest, found });
        }
        let (name, data) = (blob_key(&self.bucket, &digest), data_key(&self.bucket, id));
        if let Some(place) = place_at(&self.bucket, &name).await? {
            // Somebody else was faster, or an earlier attempt at this; the blob is as young as if it had come now.
            self.bucket.write(&name, json(&place)?).await?;
            return Ok(place.data == *id);
        }
        match &note.object {
            None => self.bucket.write(&data, tail).await?,
            // An earlier attempt may have come as far as this.
            Some(_) if self.bucket.age(&data).await?.is_some() => {}
            Some(object) => {
                let mut parts = note.parts.clone();
                if !tail.is_empty() {
                    parts.push(self.bucket.part(&data, object, parts.len(), tail.into()).await?);
                }
                self.bucket.complete(&data, object, parts).await?;
            }
        }
        let place = json(&Place { data: id.clone(), size: note.len })?;
        if self.bucket.create(&name, place).await? {
            return Ok(true);
        }
        // Not necessarily somebody else: of a name that was written, but with an error for an answer, a second attempt says that it
        // is there; and another mirror may be finishing the same upload.
        match place_at(&self.bucket, &name).await? {
            Some(place) if place.data == *id => Ok(true),
            Some(_) => self.bucket.remove(&data).await.map(|()| true),
            None => {
                Err(self.bucket.wrong(&name, "somebody removed it while it came: finish the upload again"))
            }
        }
    }

    /// The bytes behind the parts.
    async fn tail(&self, id: &UploadId, note: &Note) -> Result<Bytes, MirrorError> {
        match note.tail {
            0 => Ok(Bytes::new()),
            size => self.bucket.whole(self.tail_key(id, note.len), size).await,
        }
    }

    pub(super) async fn cancel(&self, name: &Repository, id: &UploadId) -> Result<(), MirrorError> {
        let (_held, note) = self.hold(name, id).await?;
        self.forget(id, &note, false).await
    }

    /// Removes all that is known of an upload, and its bytes unless they are a blob's now.
    async fn forget(&self, id: &UploadId, note: &Note, is_kept: bool) -> Result<(), MirrorError> {
        if let (Some(object), false) = (&note.object, is_kept) {
            self.bucket.abort(&data_key(&self.bucket, id), object).await?;
        }
        self.bucket.remove(&self.note_key(id)).await?;
        if note.tail > 0 {
            self.bucket.remove(&self.tail_key(id, note.len)).await?;
        }
        Ok(())
    }
}

/// One that waits, as long as it is there.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes what arrives.
struct Writer<'a> {
    uploads: &'a Uploads,
    id: &'a UploadId,
    note: Note,
    /// As it lies in the bucket.
    written: Note,
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
    fn new(uploads: &'a Uploads, id: &'a UploadId, note: Note, first: u64, len: Option<u64>) -> Self {
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
            uploads,
            id,
            note,
        }
    }

    /// Takes a part whole. Says how many bytes there are then.
    async fn receive(&mut self, mut part: Part) -> Result<u64, MirrorError> {
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
        }
        match part.len {
            Some(wanted) if wanted != came => Err(MirrorError::Size(came, wanted)),
            _ => Ok(self.note.len),
        }
    }

    /// What comes next. Who is slow while others wait for memory holds none.
    async fn next(&mut self, body: &mut Body) -> Result<Option<Result<Bytes, MirrorError>>, MirrorError> {
        let begun = Instant::now();
        loop {
            let held = self.room.as_ref().map(|(_, since)| since.elapsed());
            if held.is_some_and(|held| held > SHARE) && self.uploads.is_short() {
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
            let now = self.uploads.room_now(self.waiting + more);
            self.take_up(now).await?;
        }
        let Some((room, _)) = &mut self.room else { return Ok(()) };
        let lacks = (self.waiting + more).saturating_sub(room.num_permits());
        if lacks == 0 {
            return Ok(());
        }
        match self.uploads.room_now(lacks) {
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
            None => self.uploads.room(self.note.next_room(self.waiting as u64, self.coming)).await?,
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
                self.uploads.bucket.write(&self.uploads.note_key(self.id), json(&self.written)?).await?;
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
        let (bucket, data, number) = (self.uploads.bucket.clone(), self.data.clone(), self.note.parts.len());
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
        let part = sending.await.map_err(|e| MirrorError::Internal(e.to_string()))??;
        self.note.parts.push(part);
        self.note.sum = self.sum.save(0);
        Ok(())
    }

    /// Writes down how far it is, with all that is in memory. Says how many bytes there are then.
    async fn put_down(&mut self, is_whole: bool) -> Result<u64, MirrorError> {
        self.sent().await?;
        self.note.tail = self.waiting as u64;
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
        if self.written.tail > 0 && has_more {
            uploads.bucket.remove(&uploads.tail_key(id, self.written.len)).await?;
        }
        self.written = note.clone();
        self.pieces.clear();
        self.room = None;
        Ok(self.note.len)
    }
}
