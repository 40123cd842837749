//! The CPU backend: thread pool, kernels by level, attention, panels.
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
pub mod kernels;
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
