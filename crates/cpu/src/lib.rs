//! The CPU backend: thread pool, cache, attention, and steps cut into tasks.
//!
//! [`CpuBackend`] compiles a plan into a program: a list of instructions, each cut into tasks that are dealt
//! out to the pool's threads, with a barrier between instructions. What a task computes is in [`kernels`], as tables of functions by level.

mod affinity;
mod aside;
mod backend;
mod cache;
mod compile;
mod deal;
mod ease;
mod memory;
mod ops;
mod pool;
pub mod probe;
mod quota;
mod states;
mod step;
mod topology;
mod watch;

pub use backend::{Config, CpuBackend, CpuError};

/// The kernels that the backend runs.
pub mod kernels {
    pub use puna_kernels::*;

    /// Levels of other processors, with the feature `emulated` of this crate: tests of whole models take minutes at each.
    pub fn emulated() -> &'static [&'static Level] {
        if cfg!(feature = "emulated") { puna_kernels::emulated() } else { &[] }
    }
}
