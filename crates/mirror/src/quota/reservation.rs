//! Quota reservations of open uploads: their bytes count before they become blobs.
//!
//! Uploads of an earlier run, and of other mirrors of the same bucket, count with the bytes that
//! the storage has of them. So bytes that another mirror is receiving count late. An upload becomes
//! a blob only if the quota allows it then. A bucket has no locks for a shared count, and a note
//! for each part would make pushes wait for each other. The manual states how far this may exceed
//! a quota.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::MirrorError;
use crate::locks::{KeyGuard, KeyedLocks, lock};
use crate::quota::check_quota;
use crate::storage::UploadStore;
use crate::types::repository::Repository;
use crate::types::storage_usage::{StorageUsage, StoredUpload};
use crate::types::upload_id::UploadId;
use crate::uploads::admission::MAX_IDLE_TIME;

/// How long an upload must be idle before it is dropped in favor of others.
const MIN_IDLE_BEFORE_DROP: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });

/// Open uploads and their reserved bytes.
pub(crate) struct QuotaReservations {
    store: Arc<dyn UploadStore>,
    uploads: Mutex<UploadMap>,
    namespace_locks: KeyedLocks<String>,
}

type UploadMap = HashMap<UploadId, TrackedUpload>;

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

/// A namespace in which an operation needs space.
struct SpaceRequest<'a> {
    namespace: &'a str,
    limit: StorageUsage,
    /// Usage without the bytes of open uploads.
    used: StorageUsage,
    /// Upload that needs the space, so that it does not count itself.
    except: Option<&'a UploadId>,
}

impl SpaceRequest<'_> {
    /// Fails if `asked` exceeds the quota, with the uploads that `counts` selects.
    fn check(
        &self,
        uploads: &UploadMap,
        asked: StorageUsage,
        counts: impl Fn(&TrackedUpload) -> bool,
    ) -> Result<(), MirrorError> {
        let others = self.others(uploads).filter(|(_, upload)| counts(upload));
        let bytes = others.fold(0u64, |sum, (_, upload)| sum.saturating_add(upload.bytes));
        let used = self.used.plus(StorageUsage { bytes, objects: 0 });
        check_quota(self.namespace, self.limit, used, asked)
    }

    /// Returns the upload that has been idle longest, if dropping all idle uploads would make
    /// enough space.
    fn oldest_droppable(
        &self,
        uploads: &UploadMap,
        asked: StorageUsage,
    ) -> Option<(Repository, UploadId)> {
        self.check(uploads, asked, |upload| !upload.is_droppable()).ok()?;
        let droppable = self.others(uploads).filter(|(_, upload)| upload.is_droppable());
        droppable
            .min_by_key(|(_, upload)| upload.last_active)
            .map(|(id, upload)| (upload.name.clone(), id.clone()))
    }

    fn others<'a>(
        &'a self,
        uploads: &'a UploadMap,
    ) -> impl Iterator<Item = (&'a UploadId, &'a TrackedUpload)> {
        uploads.iter().filter(|(id, upload)| {
            Some(*id) != self.except && upload.is_in_namespace(self.namespace)
        })
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

    /// Takes over the state of the idle uploads of a namespace from the storage. The caller has
    /// listed them under the lock of the namespace.
    pub(crate) fn synchronize(&self, namespace: &str, stored: &[StoredUpload]) {
        let now = Instant::now();
        let mut uploads = lock(&self.uploads);
        let is_stored = |id: &UploadId| stored.iter().any(|upload| upload.id == *id);
        uploads.retain(|id, upload| {
            upload.active_requests > 0 || !upload.is_in_namespace(namespace) || is_stored(id)
        });
        for upload in stored {
            let tracked = uploads.entry(upload.id.clone()).or_insert_with(|| TrackedUpload {
                name: upload.name.clone(),
                bytes: 0,
                active_requests: 0,
                last_active: now.checked_sub(upload.idle).unwrap_or(now),
                is_broken: false,
            });
            if tracked.active_requests == 0 {
                tracked.bytes = upload.bytes;
            }
        }
    }

    /// Fails if `asked` exceeds the quota of a namespace that uses `used` without the bytes of its
    /// open uploads. Drops idle uploads if that makes enough space.
    pub(crate) async fn make_space(
        &self,
        namespace: &str,
        limit: StorageUsage,
        used: StorageUsage,
        asked: StorageUsage,
    ) -> Result<(), MirrorError> {
        let space = SpaceRequest { namespace, limit, used, except: None };
        self.make_space_for(&space, asked, |_| ()).await
    }

    /// The same, and calls `admit` under the lock of the uploads once there is space.
    async fn make_space_for(
        &self,
        space: &SpaceRequest<'_>,
        asked: StorageUsage,
        admit: impl Fn(&mut UploadMap),
    ) -> Result<(), MirrorError> {
        loop {
            let refused = {
                let mut uploads = lock(&self.uploads);
                match space.check(&uploads, asked, |_| true) {
                    Ok(()) => {
                        admit(&mut uploads);
                        return Ok(());
                    }
                    Err(refused) => refused,
                }
            };
            let Some((name, id)) = space.oldest_droppable(&lock(&self.uploads), asked) else {
                return Err(refused);
            };
            tracing::info!(repository = %name, "dropping an idle upload to free space in its namespace");
            match self.cancel(&name, &id).await {
                Ok(()) => {}
                // Another process has removed the upload.
                Err(MirrorError::UploadUnknown(_)) => self.forget(&name, &id),
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the reservation of an upload that has `received` bytes. The namespace may use `limit`,
    /// and uses `used` without the bytes of its open uploads.
    pub(crate) fn open(
        self: &Arc<Self>,
        (name, id): (&Repository, &UploadId),
        received: u64,
        limit: StorageUsage,
        used: StorageUsage,
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
            limit,
            used,
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
    limit: StorageUsage,
    /// Usage of the namespace without the bytes of its open uploads.
    used: StorageUsage,
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
        let (namespace, limit, used) = (&*self.namespace, self.limit, self.used);
        let space = SpaceRequest { namespace, limit, used, except: Some(&self.id) };
        let asked = StorageUsage { bytes: end, objects: 0 };
        let admit = |uploads: &mut UploadMap| {
            if let Some(upload) = uploads.get_mut(&self.id) {
                upload.bytes = upload.bytes.max(end);
            }
        };
        self.reservations.make_space_for(&space, asked, admit).await
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
