//! Memory for requests that arrive: one limit for all of them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::canonical::Failure;

/// Bytes that all bodies may take at a time while they are received, unpacked and decoded. The largest that is allowed fits.
pub(crate) const ROOM: usize = 640 << 20;

/// Bytes that a body has without asking, so that ordinary requests find room beside any number of large ones.
const FREE: usize = 64 << 10;

/// What is left of the memory. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<AtomicUsize>);

impl Default for Room {
    fn default() -> Self {
        Self::of(ROOM)
    }
}

impl Room {
    /// So many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// The share of a new request.
    pub(crate) fn share(&self) -> Share {
        Share { room: self.clone(), free: FREE, taken: 0 }
    }
}

/// What a request has taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    room: Room,
    free: usize,
    taken: usize,
}

impl Share {
    /// Takes more. Nobody waits for it: several that hold a part each could wait for each other.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        let free = bytes.min(self.free);
        self.free -= free;
        let bytes = bytes - free;
        let left =
            self.room.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.map_err(|_| full())?;
        self.taken += bytes;
        Ok(())
    }

    /// Whether so many more would fit now.
    pub(crate) fn check(&self, bytes: u64) -> Result<(), Failure> {
        let left = self.room.0.load(Ordering::Relaxed) + self.free;
        if bytes > left as u64 { Err(full()) } else { Ok(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.taken, Ordering::Relaxed);
    }
}

fn full() -> Failure {
    Failure::new(503, "the server is busy receiving large requests: try again in a moment")
}
