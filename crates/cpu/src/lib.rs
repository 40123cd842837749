//! The CPU backend: thread pool, kernels by level, attention, panels.

pub mod kernels;
