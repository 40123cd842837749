//! Memory budget for the bytes of uploads, and the share of each owner of uploads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::record::{LARGE_PART_BYTES, PART_BYTES};
use crate::error::LimitReached;
use crate::locks::lock;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Bytes of parts in memory, of all uploads: arriving parts, and parts on their way to the service.
const BUDGET_BYTES: usize = 8 * PART_BYTES;
const _: () = assert!(LARGE_PART_BYTES <= BUDGET_BYTES);
/// Bytes of the uploads of one owner, except for a single larger part. Further uploads of the owner
/// wait for its own ones, and not in the queue of the others.
const OWNER_BYTES: usize = BUDGET_BYTES / 2;
/// Longest wait for memory.
const MEMORY_WAIT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 60_000 });

/// Description of [`MemoryBudget`].
pub(crate) static UPLOAD_MEMORY: SharedTable = SharedTable {
    name: "mirror: memory for uploads to a bucket",
    holders: &[
        "puna_mirror::storage::s3::uploads::memory_budget::MemoryBudget",
        "puna_mirror::storage::s3::uploads::memory_budget::OwnerShare",
    ],
    limits: &[TableLimit::Bytes(BUDGET_BYTES)],
    shares: &[TableLimit::Bytes(OWNER_BYTES)],
    when_full: "waits a minute, then 429",
    test: "an_owner_with_many_uploads_leaves_memory_to_others",
};

/// Right to use memory while it is held; one permit for each byte.
pub(super) struct MemoryPermit {
    all: OwnedSemaphorePermit,
    own: OwnedSemaphorePermit,
    _share: Arc<OwnerShare>,
}

/// Memory that the uploads of one owner may use.
struct OwnerShare {
    permits: Arc<Semaphore>,
    /// Number of its uploads that wait for each other.
    waiting: AtomicUsize,
}

/// The memory budget of all uploads.
pub(super) struct MemoryBudget {
    /// One permit for each byte.
    permits: Arc<Semaphore>,
    /// Number of uploads that wait for memory of others.
    waiting: AtomicUsize,
    /// Shares in use, by owner.
    shares: Mutex<HashMap<String, Weak<OwnerShare>>>,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(BUDGET_BYTES)),
            waiting: AtomicUsize::new(0),
            shares: Mutex::default(),
        }
    }
}

/// Converts a number of bytes to permits. Numbers above the budget are cut off earlier.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl MemoryBudget {
    /// Reserves memory for an owner if enough is free.
    pub(super) fn try_reserve(&self, owner: &str, bytes: usize) -> Option<MemoryPermit> {
        let share = self.share(owner);
        let own = permits(bytes.min(OWNER_BYTES));
        let own = share.permits.clone().try_acquire_many_owned(own).ok()?;
        let all = self.permits.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()?;
        Some(MemoryPermit { all, own, _share: share })
    }

    /// Waits for memory for the bytes of a part.
    pub(super) async fn reserve(
        &self,
        owner: &str,
        bytes: u64,
    ) -> Result<MemoryPermit, LimitReached> {
        let share = self.share(owner);
        let bytes = usize::try_from(bytes).map_or(BUDGET_BYTES, |bytes| bytes.min(BUDGET_BYTES));
        let reserved = async {
            let own = {
                let _waiting = WaitingCounter::of(&share.waiting);
                let own = permits(bytes.min(OWNER_BYTES));
                share.permits.clone().acquire_many_owned(own).await
            };
            let _waiting = WaitingCounter::of(&self.waiting);
            Ok::<_, tokio::sync::AcquireError>((
                own?,
                self.permits.clone().acquire_many_owned(permits(bytes)).await?,
            ))
        };
        match timeout(MEMORY_WAIT, reserved).await {
            Ok(Ok((own, all))) => Ok(MemoryPermit { all, own, _share: share.clone() }),
            _ => Err(LimitReached::UploadMemory),
        }
    }

    /// Whether another upload waits for memory that this owner may hold.
    pub(super) fn is_short(&self, owner: &str) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
            || self.share(owner).waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the share of an owner. It exists as long as an upload uses it.
    fn share(&self, owner: &str) -> Arc<OwnerShare> {
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(owner).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(OwnerShare {
            permits: Arc::new(Semaphore::new(OWNER_BYTES)),
            waiting: AtomicUsize::new(0),
        });
        shares.insert(owner.to_owned(), Arc::downgrade(&share));
        share
    }
}

impl MemoryPermit {
    /// Number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.all.num_permits()
    }

    /// Adds memory of the same owner.
    pub(super) fn merge(&mut self, other: Self) {
        self.all.merge(other.all);
        self.own.merge(other.own);
    }
}

/// Counts a waiting upload while it exists.
struct WaitingCounter<'a>(&'a AtomicUsize);

impl<'a> WaitingCounter<'a> {
    fn of(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingCounter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn an_owner_with_many_uploads_leaves_memory_to_others() {
        let budget = MemoryBudget::default();
        let part = PART_BYTES as u64;
        let mut held = Vec::new();
        while let Some(permit) = budget.try_reserve("a", PART_BYTES) {
            held.push(permit);
        }
        assert_eq!(held.len() * PART_BYTES, OWNER_BYTES);
        // Waiting uploads of the same owner are not before others.
        let mut waiting = Box::pin(join_all((0..50).map(|_| budget.reserve("a", part))));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(budget.is_short("a") && !budget.is_short("b"));
        assert_eq!(budget.reserve("b", part).await.unwrap().bytes(), PART_BYTES);
        let other = budget.reserve("b", part).await.unwrap();
        drop((held, waiting));
        // A part may be larger than a share, and the share is free afterwards.
        drop(other);
        let large = budget.reserve("a", LARGE_PART_BYTES as u64).await.unwrap();
        assert_eq!(large.bytes(), LARGE_PART_BYTES);
        assert_eq!(budget.reserve("b", part).await.err(), Some(LimitReached::UploadMemory));
        drop(large);
        let mut merged = budget.try_reserve("b", 10).unwrap();
        merged.merge(budget.try_reserve("b", 20).unwrap());
        assert_eq!(merged.bytes(), 30);
        drop(merged);
        assert_eq!(budget.permits.available_permits(), BUDGET_BYTES);
    }
}
