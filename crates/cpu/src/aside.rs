//! Room for what tasks of one instruction leave to the one that finishes last: partial results of contexts that are cut into spans,
//! and scores that are chosen by. Instructions come one after the other and share it.

use puna_graph::{Op, Plan};

/// Floats that there are, where anything is cut. What would take more is not cut, however many threads there are.
const ROOM: usize = 1 << 23;

/// Floats that steps of a plan may put aside. It does not depend on threads and contexts: those of a plan of memory are not yet known.
pub fn room(plan: &Plan) -> usize {
    let cuts = |op: &Op| matches!(op, Op::Attention { .. } | Op::Choose { .. });
    if plan.graph.nodes().iter().any(|node| cuts(&node.op)) { ROOM } else { 0 }
}
