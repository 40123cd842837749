//! Memory budget for the bytes of uploads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::record::{LARGE_PART_BYTES, PART_BYTES};
use crate::error::LimitReached;

/// Bytes of parts in memory, of all uploads: those that arrive and those on their way to the
/// service.
const BUDGET_BYTES: usize = 8 * PART_BYTES;
const _: () = assert!(LARGE_PART_BYTES <= BUDGET_BYTES);
/// Longest wait for memory.
const MEMORY_WAIT: Duration = Duration::from_secs(60);

/// Right to use memory while it is held; one permit for each byte.
pub(super) type MemoryPermit = OwnedSemaphorePermit;

/// The memory budget of all uploads.
pub(super) struct MemoryBudget {
    /// One permit for each byte.
    permits: Arc<Semaphore>,
    /// Number of uploads that wait for memory.
    waiting: AtomicUsize,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(BUDGET_BYTES)), waiting: AtomicUsize::new(0) }
    }
}

impl MemoryBudget {
    /// Reserves memory if enough is free.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<MemoryPermit> {
        self.permits.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// Waits for memory for the bytes of a part.
    pub(super) async fn reserve(&self, bytes: u64) -> Result<MemoryPermit, LimitReached> {
        let permits = u32::try_from(bytes.min(BUDGET_BYTES as u64)).unwrap_or(u32::MAX);
        let _waiting = WaitingCounter::of(&self.waiting);
        match timeout(MEMORY_WAIT, self.permits.clone().acquire_many_owned(permits)).await {
            Ok(Ok(reserve)) => Ok(reserve),
            _ => Err(LimitReached::UploadMemory),
        }
    }

    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
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
