//! Locks that outlive a panic of their holder: what they guard is whole at any moment.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
