//! Size of the buffer for partial results: attention over a context that is split among tasks, and
//! the indexer scores of sparse attention. Instructions run one after the other and share the
//! buffer.

use puna_graph::{Op, Plan};

/// Length of the buffer in f32 (32 MiB). An instruction does not split its context if the partial
/// results do not fit.
const SPLIT_SCRATCH_LEN: usize = 1 << 23;

/// Length in f32 of the buffer that the steps of a plan need: 0 or [`SPLIT_SCRATCH_LEN`]. It
/// depends on neither threads nor contexts, which the memory plan does not know.
pub fn split_scratch_len(plan: &Plan) -> usize {
    let splits = |op: &Op| matches!(op, Op::Attention { .. } | Op::TopKPositions { .. });
    if plan.graph.nodes().iter().any(|node| splits(&node.op)) { SPLIT_SCRATCH_LEN } else { 0 }
}
