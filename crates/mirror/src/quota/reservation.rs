//! Quota reservations of open uploads: their bytes count before they become blobs.
//!
//! Only uploads that this process handles are counted. An upload of an earlier run, or of another
//! mirror of the same bucket, counts from its next request to this process. It becomes a blob only
//! if the quota allows it then. A bucket has no locks for a shared count, and a note for each part
//! would make pushes wait for each other. The manual states how far this may exceed a quota.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::MirrorError;
use crate::locks::{KeyGuard, KeyedLocks, lock};
use crate::quota::check_quota;
use crate::storage::UploadStore;
use crate::types::repository::Repository;
use crate::types::upload_id::UploadId;
use crate::uploads::admission::MAX_IDLE_TIME;

/// How long an upload must be idle before it is dropped in favor of others.
const MIN_IDLE_BEFORE_DROP: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// Open uploads and their reserved bytes.
pub(crate) struct QuotaReservations {
    store: Arc<dyn UploadStore>,
    uploads: Mutex<HashMap<UploadId, TrackedUpload>>,
    namespace_locks: KeyedLocks<String>,
}

struct TrackedUpload {
    name: Repository,
    /// Bytes received or announced.
    bytes: u64,
    /// Number of requests that use the upload now; `last_active` is the end of the last one.
    active_requests: usize,
    last_active: Instant,
    /// Whether the last part was interrupted.
    is_broken: bool,
}

impl TrackedUpload {
    fn is_in_namespace(&self, namespace: &str) -> bool {
        self.name.is_in(namespace)
    }

    /// Whether the upload may be dropped if others need its bytes. Most clients start a new upload
    /// after an interrupted part; few resume.
    fn is_droppable(&self) -> bool {
        self.active_requests == 0
            && self.bytes > 0
            && (self.is_broken || self.last_active.elapsed() >= MIN_IDLE_BEFORE_DROP)
    }
}

impl QuotaReservations {
    pub(crate) fn new(store: Arc<dyn UploadStore>) -> Self {
        Self { store, uploads: Mutex::default(), namespace_locks: KeyedLocks::default() }
    }

    /// Waits until no other request checks the quota or makes blobs of the namespace.
    pub(crate) async fn lock_namespace(&self, namespace: &str) -> KeyGuard {
        self.namespace_locks.lock(namespace.to_ascii_lowercase()).await
    }

    /// Opens the reservation of an upload that has `received` bytes. The namespace has `quota`
    /// bytes and `blob_bytes` of them are in blobs.
    pub(crate) fn open(
        self: &Arc<Self>,
        (name, id): (&Repository, &UploadId),
        received: u64,
        quota: u64,
        blob_bytes: u64,
    ) -> UploadReservation {
        let mut uploads = lock(&self.uploads);
        // The storage has removed these.
        uploads.retain(|_, upload| {
            upload.active_requests > 0 || upload.last_active.elapsed() < MAX_IDLE_TIME
        });
        let upload = uploads.entry(id.clone()).or_insert_with(|| TrackedUpload {
            name: name.clone(),
            bytes: 0,
            active_requests: 0,
            last_active: Instant::now(),
            is_broken: false,
        });
        upload.active_requests += 1;
        upload.bytes = upload.bytes.max(received);
        UploadReservation {
            reservations: self.clone(),
            namespace: name.namespace().to_owned(),
            id: id.clone(),
            quota,
            blob_bytes,
            received: AtomicU64::new(received),
            is_complete: AtomicBool::new(false),
        }
    }

    /// Cancels an upload in the storage and removes its reservation.
    pub(crate) async fn cancel(&self, name: &Repository, id: &UploadId) -> Result<(), MirrorError> {
        let cancelled = self.store.cancel(name, id).await;
        if matches!(cancelled, Ok(()) | Err(MirrorError::UploadUnknown(_))) {
            self.forget(name, id);
        }
        cancelled
    }

    /// Removes the reservation of an upload that no longer exists.
    pub(crate) fn forget(&self, name: &Repository, id: &UploadId) {
        let mut uploads = lock(&self.uploads);
        if uploads.get(id).is_some_and(|upload| upload.name == *name) {
            uploads.remove(id);
        }
    }
}

/// Reserved bytes of an upload. The upload counts as active while this value exists.
pub(crate) struct UploadReservation {
    reservations: Arc<QuotaReservations>,
    namespace: String,
    id: UploadId,
    quota: u64,
    /// Bytes of the blobs in the namespace.
    blob_bytes: u64,
    /// Bytes that the upload has.
    received: AtomicU64,
    /// Whether everything announced has arrived.
    is_complete: AtomicBool,
}

impl UploadReservation {
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Reserves the bytes before `end`, or fails. Drops idle uploads if that makes enough space.
    pub(crate) async fn reserve(&self, end: u64) -> Result<(), MirrorError> {
        loop {
            let Err(refused) = self.try_reserve(end) else { return Ok(()) };
            let Some((name, id)) = self.oldest_droppable(end) else { return Err(refused) };
            tracing::info!(repository = %name, "dropping an idle upload to free space for another upload");
            match self.reservations.cancel(&name, &id).await {
                Ok(()) | Err(MirrorError::UploadUnknown(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn try_reserve(&self, end: u64) -> Result<(), MirrorError> {
        let mut uploads = lock(&self.reservations.uploads);
        let used = self.used(&uploads, |_| true);
        check_quota(&self.namespace, self.quota, used, end)?;
        if let Some(upload) = uploads.get_mut(&self.id) {
            upload.bytes = upload.bytes.max(end);
        }
        Ok(())
    }

    /// Returns the upload that has been idle longest, if dropping all idle uploads would make
    /// enough space.
    fn oldest_droppable(&self, end: u64) -> Option<(Repository, UploadId)> {
        let uploads = lock(&self.reservations.uploads);
        let used = self.used(&uploads, |upload| !upload.is_droppable());
        check_quota(&self.namespace, self.quota, used, end).ok()?;
        let droppable = self.others(&uploads).filter(|(_, upload)| upload.is_droppable());
        droppable
            .min_by_key(|(_, upload)| upload.last_active)
            .map(|(id, upload)| (upload.name.clone(), id.clone()))
    }

    /// Bytes of the namespace without this upload.
    fn used(
        &self,
        uploads: &HashMap<UploadId, TrackedUpload>,
        counts: impl Fn(&TrackedUpload) -> bool,
    ) -> u64 {
        let others = self.others(uploads).filter(|(_, upload)| counts(upload));
        others.fold(self.blob_bytes, |sum, (_, upload)| sum.saturating_add(upload.bytes))
    }

    fn others<'a>(
        &'a self,
        uploads: &'a HashMap<UploadId, TrackedUpload>,
    ) -> impl Iterator<Item = (&'a UploadId, &'a TrackedUpload)> {
        uploads
            .iter()
            .filter(|(id, upload)| **id != self.id && upload.is_in_namespace(&self.namespace))
    }

    /// Records that the bytes before `end` have arrived.
    pub(crate) fn record_received(&self, end: u64) {
        self.received.fetch_max(end, Relaxed);
    }

    /// Records that the request is complete and the upload has `bytes` bytes.
    pub(crate) fn complete(&self, bytes: u64) {
        self.received.store(bytes, Relaxed);
        self.is_complete.store(true, Relaxed);
    }
}

impl Drop for UploadReservation {
    fn drop(&mut self) {
        let mut uploads = lock(&self.reservations.uploads);
        let Some(upload) = uploads.get_mut(&self.id) else { return };
        upload.active_requests = upload.active_requests.saturating_sub(1);
        (upload.last_active, upload.is_broken) = (Instant::now(), !self.is_complete.load(Relaxed));
        // Announced bytes that did not arrive are released.
        if upload.active_requests == 0 {
            upload.bytes = self.received();
        }
    }
}
