//! The CPU backend: thread pool, cache, attention, and the division of steps into tasks.
//!
//! [`CpuBackend`] compiles a plan into a program: a list of instructions. Each instruction is
//! divided into tasks, which the threads of the pool take from a work queue, with a barrier after
//! each instruction. Tasks call [`kernels`].

mod affinity;
mod backend;
mod barrier;
mod cache;
mod cgroup_quota;
mod compile;
mod cpu_limits_watcher;
mod memory;
mod ops;
mod pool;
pub mod probe;
mod states;
mod step;
mod sync;
mod thread_backoff;
mod topology;
mod work_queue;

pub use backend::{Config, CpuBackend, CpuError, describe};

/// Kernels of the backend, see `puna-kernels`.
pub mod kernels {
    pub use puna_kernels::*;

    /// Emulated levels, only with the feature `emulated` of this crate: tests of whole models take
    /// minutes at each.
    pub fn emulated() -> &'static [&'static Level] {
        if cfg!(feature = "emulated") { puna_kernels::emulated() } else { &[] }
    }
}
