//! Mutex that ignores poisoning, and a set of locks by key. Ignoring poison is sound because
//! guarded data is consistent between any two statements.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// Locks a mutex, also if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the lock of one key.
pub(crate) type KeyGuard = OwnedMutexGuard<()>;

/// One asynchronous lock for each key. Keys that nobody holds or waits for take no memory.
pub(crate) struct KeyedLocks<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> KeyedLocks<K> {
    /// Waits for the lock of a key.
    pub(crate) async fn lock(&self, key: K) -> KeyGuard {
        self.mutex(key).lock_owned().await
    }

    /// Takes the lock of a key if it is free.
    pub(crate) fn try_lock(&self, key: K) -> Option<KeyGuard> {
        self.mutex(key).try_lock_owned().ok()
    }

    fn mutex(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.0);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(key).or_default().clone()
    }
}
