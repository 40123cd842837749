//! Shapes, operations, the graph builder, the memory planner and the `Backend` trait; no arithmetic.
//!
//! An architecture records the operations of a step in a [`Graph`]; a [`Plan`] gives every value a place in one
//! arena; a [`Backend`] compiles the plan and runs it for steps of any size up to the plan's capacity.

#![forbid(unsafe_code)]

mod backend;
mod doses;
mod graph;
mod kv;
mod ops;
mod plan;
mod recurrent;

pub use backend::{
    Backend, BackendError, Bytes, CacheLayer, CacheSpec, Description, Observed, OpTime, ProgramId, Segment,
    StateSpec, StepInput, Weight,
};
pub use doses::Doses;
pub use graph::{Graph, HeadLinear, Linear, Node, Norm, Storage, Value};
pub use kv::{KvType, UnknownKvType};
pub use ops::{
    Activation, AttentionSpec, Changes, Direction, ExpertChanges, Gating, Glu, Groups, Index, LowRank, Mask,
    MoeSpec, Op, Rope, RopeId, RopeKind, Rows, Shifts, Temperature, ValueId, WeightId,
};
pub use plan::{Capacity, Place, Plan};
pub use recurrent::{ConvSpec, DeltaSpec, Recurrence, ScanSpec, WkvSpec};
