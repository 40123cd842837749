//! Locks that a panic of their holder does not close (what they guard is whole between two statements), and locks of many things.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// Locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn at something, as long as it is held.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// Turns at things, each of which one alone has at a time. What nobody has or waits for takes no memory.
pub(crate) struct Turns<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits for a turn.
    pub(crate) async fn wait(&self, at: K) -> Turn {
        self.of(at).lock_owned().await
    }

    /// A turn, unless somebody has it.
    pub(crate) fn now(&self, at: K) -> Option<Turn> {
        self.of(at).try_lock_owned().ok()
    }

    fn of(&self, at: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.0);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(at).or_default().clone()
    }
}
