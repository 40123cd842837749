//! Uploads into namespaces that have a quota: what they have brought takes of it, before it is a blob.
//!
//! Those count that this process has to do with. One of an earlier run, or of another mirror before the same bucket, counts from its next
//! request here on, and becomes a blob only if there is room for it then: a bucket has no locks under which mirrors could count together, and
//! a note of each part would have pushes wait for each other. The manual says by how much that may go beyond.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::MirrorError;
use crate::id::UploadId;
use crate::library::{Library, MAX_AGE};
use crate::lock::{Turn, Turns, lock};
use crate::name::Repository;
use crate::quota::fits;

/// How long nobody has been at an upload that gives way to others for which there is no room.
const REST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// The uploads.
#[derive(Default)]
pub(crate) struct Uploading {
    uploads: Mutex<HashMap<UploadId, Upload>>,
    turns: Turns<String>,
}

struct Upload {
    name: Repository,
    /// Bytes that it has, or will have when what was announced has come.
    bytes: u64,
    /// How many are at it, and when somebody was last.
    takers: usize,
    since: Instant,
    /// Its last part broke off.
    is_broken: bool,
}

impl Upload {
    fn is_of(&self, namespace: &str) -> bool {
        self.name.is_in(namespace)
    }

    /// Whether it is given up where others need the room that it takes. Who sent a part that broke off has most often begun anew: few clients go on.
    fn gives_way(&self) -> bool {
        self.takers == 0 && self.bytes > 0 && (self.is_broken || self.since.elapsed() >= REST)
    }
}

impl Uploading {
    /// Waits until nobody else judges or makes blobs of a namespace.
    pub(crate) async fn turn(&self, namespace: &str) -> Turn {
        self.turns.wait(namespace.to_ascii_lowercase()).await
    }

    /// Somebody is at an upload, which has so many bytes, of a namespace that may have `quota` and whose blobs have `held`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        library: &Arc<dyn Library>,
        (name, id): (&Repository, &UploadId),
        there: u64,
        quota: u64,
        held: u64,
    ) -> Room {
        let mut uploads = lock(&self.uploads);
        // The library has cleared them away.
        uploads.retain(|_, upload| upload.takers > 0 || upload.since.elapsed() < MAX_AGE);
        let upload = uploads.entry(id.clone()).or_insert_with(|| Upload {
            name: name.clone(),
            bytes: 0,
            takers: 0,
            since: Instant::now(),
            is_broken: false,
        });
        upload.takers += 1;
        upload.bytes = upload.bytes.max(there);
        Room {
            library: library.clone(),
            uploading: self.clone(),
            namespace: name.namespace().to_owned(),
            id: id.clone(),
            quota,
            held,
            there: AtomicU64::new(there),
            is_whole: AtomicBool::new(false),
        }
    }

    /// Gives an upload up.
    pub(crate) async fn cancel(
        &self,
        library: &dyn Library,
        name: &Repository,
        id: &UploadId,
    ) -> Result<(), MirrorError> {
        let cancelled = library.cancel(name, id).await;
        if matches!(cancelled, Ok(()) | Err(MirrorError::UploadUnknown(_))) {
            self.forget(name, id);
        }
        cancelled
    }

    /// An upload is none any more.
    pub(crate) fn forget(&self, name: &Repository, id: &UploadId) {
        let mut uploads = lock(&self.uploads);
        if uploads.get(id).is_some_and(|upload| upload.name == *name) {
            uploads.remove(id);
        }
    }
}

/// The room that there is for an upload. As long as this is held somebody is at it.
pub(crate) struct Room {
    library: Arc<dyn Library>,
    uploading: Arc<Uploading>,
    namespace: String,
    id: UploadId,
    quota: u64,
    /// Bytes of the namespace's blobs.
    held: u64,
    /// Bytes that the upload has.
    there: AtomicU64,
    /// What was to come has come.
    is_whole: AtomicBool,
}

impl Room {
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Relaxed)
    }

    /// Has the upload count with the bytes before `end`, or refuses them. Uploads that nobody is at give way, if that helps.
    pub(crate) async fn takes(&self, end: u64) -> Result<(), MirrorError> {
        loop {
            let Err(refused) = self.count(end) else { return Ok(()) };
            let Some((name, id)) = self.who_gives_way(end) else { return Err(refused) };
            tracing::info!(repository = %name, "an upload that nobody is at is given up: another one needs its room");
            match self.uploading.cancel(&*self.library, &name, &id).await {
                Ok(()) | Err(MirrorError::UploadUnknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn count(&self, end: u64) -> Result<(), MirrorError> {
        let mut uploads = lock(&self.uploading.uploads);
        let used = self.used(&uploads, |_| true);
        fits(&self.namespace, self.quota, used, end)?;
        if let Some(upload) = uploads.get_mut(&self.id) {
            upload.bytes = upload.bytes.max(end);
        }
        Ok(())
    }

    /// The upload that was left alone first, where there is room without all such.
    fn who_gives_way(&self, end: u64) -> Option<(Repository, UploadId)> {
        let uploads = lock(&self.uploading.uploads);
        let used = self.used(&uploads, |upload| !upload.gives_way());
        fits(&self.namespace, self.quota, used, end).ok()?;
        let alone = self.others(&uploads).filter(|(_, upload)| upload.gives_way());
        alone
            .min_by_key(|(_, upload)| upload.since)
            .map(|(id, upload)| (upload.name.clone(), id.clone()))
    }

    /// Bytes of the namespace beside this upload.
    fn used(&self, uploads: &HashMap<UploadId, Upload>, counts: impl Fn(&Upload) -> bool) -> u64 {
        let others = self.others(uploads).filter(|(_, upload)| counts(upload));
        others.fold(self.held, |sum, (_, upload)| sum.saturating_add(upload.bytes))
    }

    fn others<'a>(
        &'a self,
        uploads: &'a HashMap<UploadId, Upload>,
    ) -> impl Iterator<Item = (&'a UploadId, &'a Upload)> {
        uploads.iter().filter(|(id, upload)| **id != self.id && upload.is_of(&self.namespace))
    }

    /// The bytes before `end` have come.
    pub(crate) fn came(&self, end: u64) {
        self.there.fetch_max(end, Relaxed);
    }

    /// All has come that was to come: the upload has so many bytes.
    pub(crate) fn has(&self, bytes: u64) {
        self.there.store(bytes, Relaxed);
        self.is_whole.store(true, Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut uploads = lock(&self.uploading.uploads);
        let Some(upload) = uploads.get_mut(&self.id) else { return };
        upload.takers = upload.takers.saturating_sub(1);
        (upload.since, upload.is_broken) = (Instant::now(), !self.is_whole.load(Relaxed));
        // What was announced and has not come takes no room.
        if upload.takers == 0 {
            upload.bytes = self.there();
        }
    }
}
