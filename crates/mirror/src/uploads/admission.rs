//! Limits on open uploads, for each owner and in total, and which upload is dropped when a limit is
//! reached.
//!
//! Opening an upload costs nothing, so an upload without bytes is dropped first: the longest idle
//! one of the owner with most uploads. If there is none, an idle upload with bytes is dropped. At
//! the limit of an owner, it is one of its own. At the total limit, it is one of the owner with
//! most uploads, but never of an owner with fewer than the requesting one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use crate::error::LimitReached;
use crate::types::shared_table::{SharedTable, TableLimit};
use crate::types::upload_id::UploadId;

/// Largest number of open uploads.
pub(crate) const MAX_UPLOADS: usize = if cfg!(test) { 24 } else { 512 };
/// Largest number of open uploads of one owner.
pub(crate) const MAX_UPLOADS_PER_OWNER: usize = if cfg!(test) { 16 } else { 64 };
/// How long an upload is kept after its last byte.
pub(crate) const MAX_IDLE_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an upload without bytes is kept.
pub(crate) const MAX_EMPTY_IDLE_TIME: Duration = Duration::from_secs(10 * 60);
/// How long a new upload may wait for its first byte before it can be dropped for its own owner.
const FIRST_BYTE_GRACE: Duration = Duration::from_secs(10);
/// How long an upload with bytes must be idle before it can be dropped for another owner.
const MIN_IDLE_BEFORE_DROP: Duration = Duration::from_secs(60);
/// How long an upload with bytes must be idle before it can be dropped for its own owner, who can
/// resume it until then.
const MIN_OWN_IDLE_BEFORE_DROP: Duration = Duration::from_secs(10 * 60);
/// How often a mirror records that an open upload receives bytes. Other mirrors see only this
/// record, so it is at most half of the shortest idle time.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(if cfg!(test) {
    50
} else {
    MIN_IDLE_BEFORE_DROP.as_millis() as u64 / 2
});
/// How long a mirror waits before it first records that an open upload receives bytes.
pub(crate) const FIRST_HEARTBEAT: Duration =
    Duration::from_millis(if cfg!(test) { 20 } else { FIRST_BYTE_GRACE.as_millis() as u64 / 2 });

/// Description of the open uploads of all drivers.
pub(crate) static OPEN_UPLOADS: SharedTable = SharedTable {
    name: "mirror: open uploads",
    holders: &[
        "puna_mirror::storage::fs::uploads::UploadSessions",
        "puna_mirror::storage::s3::uploads::sessions::UploadSessions",
        "puna_mirror::quota::reservation::QuotaReservations",
    ],
    limits: &[TableLimit::Entries(MAX_UPLOADS)],
    shares: &[TableLimit::Entries(MAX_UPLOADS_PER_OWNER)],
    when_full: "idle ones of the largest owner are dropped; then 429",
    test: "no_client_can_block_the_uploads_of_others",
};

/// An open upload.
pub(crate) struct OpenUpload {
    pub(crate) id: UploadId,
    /// Key or address that opened the upload.
    pub(crate) owner: String,
    /// Time since the last activity.
    pub(crate) idle: Duration,
    /// Whether the upload has bytes, as far as known; more may have arrived since.
    pub(crate) has_bytes: bool,
}

/// Kind of an open upload that is dropped for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadKind {
    /// An upload without bytes.
    Empty,
    /// An upload with bytes.
    Partial,
}

impl UploadKind {
    /// All kinds, in the order in which uploads are dropped.
    pub(crate) const DROP_ORDER: [Self; 2] = [Self::Empty, Self::Partial];

    /// The kind of an upload that has bytes, or none.
    pub(crate) fn of(has_bytes: bool) -> Self {
        if has_bytes { Self::Partial } else { Self::Empty }
    }
}

/// Open uploads, one of which must be dropped before a new one starts.
pub(crate) struct DropCandidates {
    /// Sorted by the number of uploads of their owner, then by idle time, largest first.
    uploads: Vec<OpenUpload>,
    /// Number of uploads of each owner.
    counts: HashMap<String, usize>,
    /// Number of uploads of the requesting owner.
    own_count: usize,
    /// Whether the owner's limit is reached, not the total one.
    is_owner_limit: bool,
}

impl DropCandidates {
    /// Returns the uploads that can be dropped as `kind`, in order. An upload that had no bytes may
    /// be [`UploadKind::Partial`] now. The caller must check the kind and the returned idle time
    /// again before it drops an upload.
    pub(crate) fn droppable(
        &self,
        kind: UploadKind,
    ) -> impl Iterator<Item = (&OpenUpload, Duration)> {
        let may_be = move |upload: &&OpenUpload| kind == UploadKind::Partial || !upload.has_bytes;
        let uploads = self.uploads.iter().filter(may_be);
        let uploads =
            uploads.filter_map(move |upload| Some((upload, self.min_idle(upload, kind)?)));
        uploads.filter(|(upload, min_idle)| upload.idle >= *min_idle)
    }

    /// Idle time after which an upload can be dropped; `None` if it cannot.
    fn min_idle(&self, upload: &OpenUpload, kind: UploadKind) -> Option<Duration> {
        let count = self.counts.get(&upload.owner).copied().unwrap_or(0);
        match kind {
            // An owner with more uploads cannot keep others out by opening new ones quickly.
            UploadKind::Empty if count > self.own_count + 1 => Some(Duration::ZERO),
            UploadKind::Empty => Some(FIRST_BYTE_GRACE),
            UploadKind::Partial if self.is_owner_limit => Some(MIN_OWN_IDLE_BEFORE_DROP),
            UploadKind::Partial => (count >= self.own_count).then_some(MIN_IDLE_BEFORE_DROP),
        }
    }

    /// Error if no upload can be dropped.
    pub(crate) fn limit_error(&self) -> LimitReached {
        match self.is_owner_limit {
            true => LimitReached::OwnUploads { max: MAX_UPLOADS_PER_OWNER },
            false => LimitReached::Uploads { max: MAX_UPLOADS },
        }
    }
}

/// Returns the uploads that can be dropped for a new upload of `owner`; `None` if no limit is
/// reached. The empty owner is this mirror itself, which has no limit of its own.
pub(crate) fn drop_candidates(mut open: Vec<OpenUpload>, owner: &str) -> Option<DropCandidates> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    open.iter().for_each(|upload| *counts.entry(upload.owner.clone()).or_default() += 1);
    let own_count = counts.get(owner).copied().unwrap_or(0);
    let is_owner_limit = !owner.is_empty() && own_count >= MAX_UPLOADS_PER_OWNER;
    match is_owner_limit {
        true => open.retain(|upload| upload.owner == owner),
        false if open.len() < MAX_UPLOADS => return None,
        false => {}
    }
    open.sort_by_cached_key(|upload| Reverse((counts.get(&upload.owner).copied(), upload.idle)));
    Some(DropCandidates { uploads: open, counts, own_count, is_owner_limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uploads of an owner; the first has been idle longest.
    fn uploads(owner: &str, count: usize, seconds: u64, has_bytes: bool) -> Vec<OpenUpload> {
        let upload = |n: usize| OpenUpload {
            id: UploadId::random().unwrap(),
            owner: owner.to_owned(),
            idle: Duration::from_secs(seconds + (count - n) as u64),
            has_bytes,
        };
        (0..count).map(upload).collect()
    }

    /// Owner and idle time of the first droppable upload, and the number of droppable uploads.
    fn droppable(
        drop_candidates: &DropCandidates,
        kind: UploadKind,
    ) -> (Option<(&str, u64)>, usize) {
        let first = drop_candidates.droppable(kind).next();
        (
            first.map(|(upload, _)| (&*upload.owner, upload.idle.as_secs())),
            drop_candidates.droppable(kind).count(),
        )
    }

    #[test]
    fn an_owner_at_its_limit_drops_its_own_uploads() {
        let all = |has_bytes| {
            let all =
                [uploads("a", MAX_UPLOADS_PER_OWNER, 10, has_bytes), uploads("b", 1, 100, false)];
            all.into_iter().flatten().collect::<Vec<_>>()
        };
        for other in ["b", "c", ""] {
            assert!(drop_candidates(all(false), other).is_none(), "{other}");
        }
        let own_count = drop_candidates(all(false), "a").unwrap();
        assert_eq!(
            droppable(&own_count, UploadKind::Empty),
            (Some(("a", 10 + MAX_UPLOADS_PER_OWNER as u64)), MAX_UPLOADS_PER_OWNER)
        );
        assert_eq!(
            droppable(&drop_candidates(all(true), "a").unwrap(), UploadKind::Partial),
            (None, 0)
        );
        let young = drop_candidates(uploads("a", MAX_UPLOADS_PER_OWNER, 0, false), "a").unwrap();
        assert!(
            young.droppable(UploadKind::Empty).all(|(upload, _)| upload.idle >= FIRST_BYTE_GRACE),
            "it waits for its first byte"
        );
        assert!(young.limit_error().to_string().contains("of this client"));
    }

    #[test]
    fn interrupted_uploads_do_not_block_their_owner() {
        let broken =
            drop_candidates(uploads("a", MAX_UPLOADS_PER_OWNER, 10 * 60 - 2, true), "a").unwrap();
        assert_eq!(droppable(&broken, UploadKind::Empty), (None, 0));
        let oldest = 10 * 60 - 2 + MAX_UPLOADS_PER_OWNER as u64;
        assert_eq!(
            droppable(&broken, UploadKind::Partial),
            (Some(("a", oldest)), MAX_UPLOADS_PER_OWNER - 1),
            "after a rest"
        );
    }

    #[test]
    fn at_the_total_limit_the_owner_with_most_uploads_loses_one() {
        let all = |has_bytes| {
            let all = [
                uploads("a", MAX_UPLOADS_PER_OWNER, 0, has_bytes),
                uploads("b", MAX_UPLOADS - MAX_UPLOADS_PER_OWNER, 1000, has_bytes),
            ];
            all.into_iter().flatten().collect()
        };
        let empty = drop_candidates(all(false), "c").unwrap();
        assert_eq!(
            droppable(&empty, UploadKind::Empty),
            (Some(("a", MAX_UPLOADS_PER_OWNER as u64)), MAX_UPLOADS)
        );
        assert!(empty.uploads[..MAX_UPLOADS_PER_OWNER].iter().all(|upload| upload.owner == "a"));
        let last = empty.uploads[MAX_UPLOADS_PER_OWNER - 1].idle;
        assert!(
            last < FIRST_BYTE_GRACE,
            "an upload of the owner with most uploads is dropped before its first byte: {last:?}"
        );
        // The owner with most uploads is active; the other one is not.
        let busy = drop_candidates(all(true), "c").unwrap();
        let oldest = 1000 + (MAX_UPLOADS - MAX_UPLOADS_PER_OWNER) as u64;
        assert_eq!(
            droppable(&busy, UploadKind::Partial),
            (Some(("b", oldest)), MAX_UPLOADS - MAX_UPLOADS_PER_OWNER)
        );
    }

    #[test]
    fn owners_with_fewer_uploads_lose_no_bytes() {
        let all = [
            uploads("a", MAX_UPLOADS_PER_OWNER - 1, 0, true),
            uploads("b", MAX_UPLOADS - MAX_UPLOADS_PER_OWNER + 1, 1000, true),
        ];
        let drop_candidates = drop_candidates(all.into_iter().flatten().collect(), "a").unwrap();
        assert_eq!(droppable(&drop_candidates, UploadKind::Partial), (None, 0));
        assert!(drop_candidates.limit_error().to_string().contains(&MAX_UPLOADS.to_string()));
    }
}
