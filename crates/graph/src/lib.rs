//! Shapes, operations, the graph builder, the memory planner and the `Backend` trait; no arithmetic.

#![forbid(unsafe_code)]

mod kv;

pub use kv::{KvType, UnknownKvType};
