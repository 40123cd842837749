//! Uploads into a bucket. All that is known of one lies in the bucket when an answer says how far it is, so that the next part
//! may come to another mirror, or to this one after a restart.

mod memory;
mod note;
mod open;
mod writer;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use puna_registry::Sum;
use puna_store::Digest;

use super::bucket::Bucket;
use super::{Place, blob_key, data_key, json, place_at};
use crate::error::MirrorError;
use crate::holding::mark_of;
use crate::id::UploadId;
use crate::library::Part;
use crate::library::crowd::crowd;
use crate::lock::{Turn, Turns};
use crate::name::Repository;
use memory::Memory;
use note::Note;
#[cfg(test)]
pub(super) use open::Fate;
use open::Known;
use writer::Writer;

/// Uploads into a bucket.
pub(super) struct Uploads {
    bucket: Bucket,
    /// What is known of open ones.
    known: Mutex<HashMap<UploadId, Known>>,
    /// Held while this process does something with an upload.
    held: Turns<UploadId>,
    /// Held by the one who begins one, from the look at how many there are until it is one of them.
    beginning: tokio::sync::Mutex<()>,
    memory: Memory,
}

impl Uploads {
    pub(super) fn new(bucket: Bucket) -> Self {
        let (beginning, memory) = (tokio::sync::Mutex::default(), Memory::default());
        Self { bucket, known: Mutex::default(), held: Turns::default(), beginning, memory }
    }

    fn note_key(&self, id: &UploadId) -> Path {
        self.bucket.key(["uploads", &format!("{id}.json")])
    }

    /// The bytes behind the parts of an upload of a length.
    fn tail_key(&self, id: &UploadId, len: u64) -> Path {
        self.bucket.key(["uploads", &format!("{id}.{len}")])
    }

    pub(super) async fn begin(
        &self,
        name: &Repository,
        owner: &str,
    ) -> Result<UploadId, MirrorError> {
        let _beginning = self.beginning.lock().await;
        let open = self.look().await?;
        if let Some(crowd) = crowd(open, owner) {
            self.make_room(&crowd).await?;
        }
        let id = UploadId::random()?;
        self.bucket.write(&self.note_key(&id), json(&Note::new(name, owner))?).await?;
        Ok(id)
    }

    /// How far an upload is, and how long ago that was noted; `None`: it is none any more.
    async fn note(&self, id: &UploadId) -> Result<Option<(Note, Duration)>, MirrorError> {
        let key = self.note_key(id);
        let Some((bytes, entry)) = self.bucket.read_entry(&key).await? else { return Ok(None) };
        match serde_json::from_slice(&bytes) {
            Ok(note) => Ok(Some((note, entry.age()))),
            Err(_) => Err(self.bucket.wrong(&key, "it does not say how far the upload is")),
        }
    }

    /// An upload to a repository, for nobody else of this process as long as it is held. Of two mirrors that take bytes of
    /// one upload at a time, one writes parts that the other's note does not name, and the service refuses the object.
    async fn hold(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(Turn, Note, Duration), MirrorError> {
        let held = self.held.wait(id.clone()).await;
        let noted = self.note(id).await?.filter(|(note, _)| note.repository == name.as_str());
        let (note, age) = noted.ok_or_else(|| MirrorError::UploadUnknown(id.to_string()))?;
        Ok((held, note, age))
    }

    pub(super) async fn uploaded(
        &self,
        name: &Repository,
        id: &UploadId,
    ) -> Result<u64, MirrorError> {
        Ok(self.hold(name, id).await?.1.len)
    }

    pub(super) async fn append(
        &self,
        name: &Repository,
        id: &UploadId,
        part: Part,
    ) -> Result<u64, MirrorError> {
        let (_held, note, age) = self.hold(name, id).await?;
        let first = part.at.unwrap_or(note.len);
        // What broke off may come again from its beginning, or from where it broke off.
        if first != note.len && first != note.committed {
            return Err(MirrorError::OutOfOrder { first, at: note.len });
        }
        let mut writer = Writer::new(self, id, (note, age), first, part.len);
        let received = writer.receive(part).await;
        // Bytes that the service did not take are lost here: the upload is as far as it was noted before. What was given up stays so.
        if let Err(
            error @ (MirrorError::Storage { .. }
            | MirrorError::Internal(_)
            | MirrorError::UploadUnknown(_)),
        ) = received
        {
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
        let (_held, note, _) = self.hold(name, id).await?;
        if note.len > note.committed {
            return Err(MirrorError::UploadInvalid(format!(
                "the last part broke off at byte {}: send the rest of it, or all of it from byte {} on",
                note.len, note.committed
            )));
        }
        let _room = self.memory.room(note.tail).await?;
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
            None => Err(self
                .bucket
                .wrong(&name, "somebody removed it while it came: finish the upload again")),
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
        let (_held, note, _) = self.hold(name, id).await?;
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
