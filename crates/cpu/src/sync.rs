//! Synchronization primitives of the pool: from the standard library, or under `--cfg loom` from
//! the model checker loom.

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

/// Orders the accesses before and after it, where loom needs it: loom treats `SeqCst` accesses as
/// `AcqRel`. In a program the `SeqCst` accesses suffice.
#[inline(always)]
pub fn order_seq_cst() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
