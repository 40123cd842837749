//! Lists open uploads and drops some of them.
//!
//! Other mirrors know an upload only by its record in the bucket. So a mirror that receives bytes
//! renews the record periodically (`Writer::send_heartbeat`), and only an upload with an old record
//! is idle.

use std::collections::HashSet;
use std::time::Duration;

use super::record::{OpenUploadSummary, UploadProgress, UploadRecord};
use super::sessions::UploadSessions;
use crate::error::MirrorError;
use crate::locks::lock;
use crate::storage::InventoryScope;
use crate::storage::s3::bucket::ObjectInfo;
use crate::types::repository::Repository;
use crate::types::storage_usage::StoredUpload;
use crate::types::upload_id::UploadId;
use crate::uploads::admission::{DropCandidates, MAX_IDLE_TIME, OpenUpload, UploadKind};

/// How long an upload without bytes is kept. A mirror of an older version, without heartbeats, may
/// have bytes of a first part in its memory.
const MAX_EMPTY_IDLE_TIME: Duration = Duration::from_secs(60 * 60);

/// Result of an attempt to drop an upload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DropOutcome {
    /// The upload no longer exists.
    Dropped,
    /// A request uses the upload, or it may not be dropped.
    Kept,
    /// The record cannot be read or used.
    Unreadable,
}

/// How long an idle upload is kept.
fn max_idle(has_bytes: bool) -> Duration {
    if has_bytes { MAX_IDLE_TIME } else { MAX_EMPTY_IDLE_TIME }
}

impl UploadSessions {
    /// Drops an upload if a limit on open uploads is reached.
    pub(super) async fn drop_one(
        &self,
        drop_candidates: &DropCandidates,
    ) -> Result<(), MirrorError> {
        for kind in UploadKind::DROP_ORDER {
            for (upload, min_idle) in drop_candidates.droppable(kind) {
                let may_drop = |record: &UploadRecord, age: Duration| {
                    UploadKind::of(record.has_bytes()) == kind && age >= min_idle
                };
                if self.drop_upload_if(&upload.id, may_drop).await? == DropOutcome::Dropped {
                    tracing::info!(
                        owner = upload.owner,
                        "dropped an open upload: too many open uploads"
                    );
                    return Ok(());
                }
            }
        }
        Err(drop_candidates.limit_error().into())
    }

    /// Removes an upload unless a request uses it. `may_drop` decides by the current record and its
    /// age.
    pub(crate) async fn drop_upload_if(
        &self,
        id: &UploadId,
        may_drop: impl Fn(&UploadRecord, Duration) -> bool,
    ) -> Result<DropOutcome, MirrorError> {
        // The lock is held until nothing of the upload is left. A part that arrived meanwhile would
        // be accepted and lost. The record of an upload that is in use here is outdated.
        let Some(_guard) = self.upload_locks.try_lock(id.clone()) else {
            return Ok(DropOutcome::Kept);
        };
        let (record, age) = match self.read_record(id).await {
            Ok(Some(noted)) => noted,
            Ok(None) => return Ok(DropOutcome::Dropped),
            // Such an upload does not count against the limits.
            Err(error) => {
                tracing::warn!(%error, "cannot read the record of an open upload");
                return Ok(DropOutcome::Unreadable);
            }
        };
        lock(&self.summaries).insert(id.clone(), OpenUploadSummary::from_record(&record));
        if !may_drop(&record, age) {
            return Ok(DropOutcome::Kept);
        }
        self.delete_upload(id, &record, false).await?;
        Ok(DropOutcome::Dropped)
    }

    /// Removes expired uploads.
    pub(crate) async fn remove_expired(&self) -> Result<(), MirrorError> {
        self.list_open().await.map(drop)
    }

    /// Removes expired uploads and returns the others.
    pub(super) async fn list_open(&self) -> Result<Vec<OpenUpload>, MirrorError> {
        let objects = self.bucket.list_objects(&self.bucket.key(["uploads"])).await?;
        let (mut open, mut alive) = (Vec::new(), HashSet::new());
        for entry in &objects {
            let Some(Ok(id)) = entry.name.strip_suffix(".json").map(UploadId::parse) else {
                continue;
            };
            let age = entry.age();
            let Some(OpenUploadSummary { owner, has_bytes }) = self.summary(&id, age).await? else {
                continue;
            };
            let is_expired =
                |record: &UploadRecord, age: Duration| age > max_idle(record.has_bytes());
            if age <= max_idle(has_bytes)
                || self.drop_upload_if(&id, is_expired).await? == DropOutcome::Kept
            {
                alive.insert(id.clone());
                open.push(OpenUpload { id, owner, idle: age, has_bytes });
            }
        }
        lock(&self.summaries).retain(|id, _| alive.contains(id));
        // Leftovers of crashed processes.
        for entry in objects
            .iter()
            .filter(|entry| entry.age() > MAX_IDLE_TIME && !entry.name.ends_with(".json"))
        {
            let id = entry.name.split('.').next().map(UploadId::parse);
            if !id.is_some_and(|id| id.is_ok_and(|id| alive.contains(&id))) {
                self.bucket.remove(&self.bucket.key(["uploads", &entry.name])).await?;
            }
        }
        Ok(open)
    }

    /// Returns the open uploads in a scope.
    pub(super) async fn stored_in(
        &self,
        scope: InventoryScope,
    ) -> Result<Vec<StoredUpload>, MirrorError> {
        let objects = self.bucket.list_objects(&self.bucket.key(["uploads"])).await?;
        let (mut stored, mut alive) = (Vec::new(), HashSet::new());
        for entry in objects {
            let Some(Ok(id)) = entry.name.strip_suffix(".json").map(UploadId::parse) else {
                continue;
            };
            alive.insert(id.clone());
            let Some(UploadProgress { repository, len: bytes, .. }) =
                self.progress(&id, &entry, &scope).await?
            else {
                continue;
            };
            let Ok(name) = Repository::parse(&repository) else { continue };
            if scope.contains(&name) {
                let (record_bytes, idle) = (entry.size, entry.age());
                stored.push(StoredUpload { name, id, bytes, record_bytes, idle });
            }
        }
        lock(&self.progress).retain(|id, _| alive.contains(id));
        Ok(stored)
    }

    /// Returns repository and size of an upload; `None` if its record cannot be used. The record is
    /// read again only if it has changed and its repository is in the scope.
    async fn progress(
        &self,
        id: &UploadId,
        entry: &ObjectInfo,
        scope: &InventoryScope,
    ) -> Result<Option<UploadProgress>, MirrorError> {
        let known = lock(&self.progress).get(id).cloned();
        if let Some(known) = known {
            let name = Repository::parse(&known.repository);
            let is_wanted = name.is_ok_and(|name| scope.contains(&name));
            if known.version == entry.version || !is_wanted {
                return Ok(Some(known));
            }
        }
        let Some(bytes) = self.bucket.read(&self.record_key(id)).await? else { return Ok(None) };
        let Ok(UploadRecord { repository, len, .. }) = serde_json::from_slice(&bytes) else {
            return Ok(None);
        };
        let progress = UploadProgress { version: entry.version.clone(), repository, len };
        lock(&self.progress).insert(id.clone(), progress.clone());
        Ok(Some(progress))
    }

    /// Returns the properties of an upload; `None` if it does not exist. The record is read once,
    /// and again when an upload without bytes may expire.
    async fn summary(
        &self,
        id: &UploadId,
        age: Duration,
    ) -> Result<Option<OpenUploadSummary>, MirrorError> {
        let summary = lock(&self.summaries).get(id).cloned();
        if let Some(summary) =
            summary.filter(|summary| summary.has_bytes || age <= MAX_EMPTY_IDLE_TIME)
        {
            return Ok(Some(summary));
        }
        let record = match self.read_record(id).await {
            Ok(Some((record, _))) => record,
            Ok(None) => return Ok(None),
            // An upload that cannot be resumed does not count against an owner.
            Err(_) => return Ok(Some(OpenUploadSummary { owner: String::new(), has_bytes: true })),
        };
        let summary = OpenUploadSummary::from_record(&record);
        lock(&self.summaries).insert(id.clone(), summary.clone());
        Ok(Some(summary))
    }
}
