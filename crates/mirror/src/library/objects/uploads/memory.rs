//! The memory for what arrives of uploads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::note::{LARGE_PART, PART};
use crate::error::MirrorError;

/// Bytes of parts that are in memory at a time, of all uploads together: those that arrive and those on their way to the service.
const MEMORY: usize = 8 * PART;
const _: () = assert!(LARGE_PART <= MEMORY);
/// How long one more waits for some of it.
const TURN: Duration = Duration::from_secs(60);

/// Memory for bytes, as long as somebody holds it.
pub(super) type Room = OwnedSemaphorePermit;

/// All of it.
pub(super) struct Memory {
    /// A permit a byte.
    permits: Arc<Semaphore>,
    /// Those that wait for some.
    waiting: AtomicUsize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MEMORY)), waiting: AtomicUsize::new(0) }
    }
}

impl Memory {
    /// Memory for so many bytes, if there is any.
    pub(super) fn room_now(&self, bytes: usize) -> Option<Room> {
        self.permits.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// Waits for memory for the bytes of a part.
    pub(super) async fn room(&self, bytes: u64) -> Result<Room, MirrorError> {
        let permits = u32::try_from(bytes.min(MEMORY as u64)).unwrap_or(u32::MAX);
        let _waiting = Waiting::of(&self.waiting);
        match timeout(TURN, self.permits.clone().acquire_many_owned(permits)).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(MirrorError::TooMany(
                "other uploads take all the memory that there is for them: come back later".into(),
            )),
        }
    }

    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
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
