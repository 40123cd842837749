//! Shapes, operations, the graph builder, the memory planner and the `Backend` trait; no
//! arithmetic.
//!
//! An architecture records the operations of a step in a [`Graph`]; a [`Plan`] gives every value a
//! place in one arena; a [`Backend`] compiles the plan and runs it for steps of any size up to the
//! plan's capacity.

#![forbid(unsafe_code)]

mod adapter_scales;
mod adapter_updates;
mod attention;
mod backend;
mod graph;
mod kv;
mod mask;
mod ops;
mod plan;
mod pooled;
mod recurrent;
mod selected_positions;
mod streams;
#[cfg(feature = "suite")]
pub mod suite;
mod top_k_positions;
mod values;

pub use adapter_scales::AdapterScales;
pub use adapter_updates::{AdapterUpdates, ControlVector, ExpertLoraUpdates, LowRank};
pub use attention::{AttentionSpec, RelativePositionBias};
pub use backend::{
    AXES, ActivationStats, Backend, BackendError, Bytes, CacheSpec, Description, OpTime, ProgramId,
    RowWindow, Segment, SegmentWindowPages, StateSpec, StepInput, Weight,
};
pub use graph::{Graph, Linear, Node, Norm, PerHeadLinear, Storage, Value};
pub use kv::{CacheLayer, KvType, UnknownKvType};
pub use mask::Mask;
pub use ops::{Activation, AttnTemperatureSpec, Gating, Glu, Groups, MoeSpec, Op};
pub use plan::{ArenaRange, Capacity, Plan};
pub use pooled::Pooled;
pub use recurrent::{
    ConvSpec, DecayKind, DeltaSpec, NgramEmbeddingSpec, NgramHead, PoolSpec, Recurrence,
    RetentionSpec, ScanSpec, Wkv7Spec, WkvSpec,
};
pub use selected_positions::SelectedPositions;
pub use streams::{StreamSpec, StreamWrite};
pub use top_k_positions::TopKPositionsSpec;
pub use values::{Index, InputId, Rope, RopeId, RopeKind, Rows, ValueId, WeightId};
