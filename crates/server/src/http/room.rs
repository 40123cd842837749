//! Memory for requests that arrive or wait: one limit for all of them together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::canonical::Failure;
use crate::lock::lock;

/// Bytes that all bodies may take at a time while they are received, unpacked and decoded, and until somebody has taken
/// what they ask for. The largest that is allowed fits.
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

tokio::task_local! {
    static HELD: Held;
}

/// The share of the request that is being answered, once its body is decoded.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Option<Share>>);

impl Held {
    /// Waits for an answer; what it holds then goes, if nobody was handed it.
    pub(crate) async fn during<T>(answer: impl Future<Output = T>) -> T {
        HELD.scope(Self::default(), answer).await
    }

    /// The same for what goes on with the answer when its request is no longer waited for: it has what the request still held.
    pub(crate) fn passed_on<T>(answer: impl Future<Output = T>) -> impl Future<Output = T> {
        HELD.scope(Self(Mutex::new(hand_over())), answer)
    }
}

/// Keeps the share of a body that was decoded: what it says has to be held still.
pub(crate) fn hold(share: Share) {
    let _ = HELD.try_with(|held| *lock(&held.0) = Some(share));
}

/// Hands over the share of the request that is being answered: with its task, so that it is held until that is taken.
pub(crate) fn hand_over() -> Option<Share> {
    HELD.try_with(|held| lock(&held.0).take()).ok().flatten()
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
        let left = self
            .room
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.map_err(|_| full())?;
        self.taken += bytes;
        Ok(())
    }

    /// Gives back some of it.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.taken);
        self.taken -= bytes;
        self.room.0.fetch_add(bytes, Ordering::Relaxed);
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
    Failure::new(503, "the server is busy with large requests: try again in a moment")
}
