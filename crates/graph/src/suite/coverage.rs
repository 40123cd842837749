//! Check that the suite has a case for every operation and for every variant of their parameters.
//!
//! Each list below names the variants of an enum once and becomes a `match` without a wildcard. So
//! a new variant does not compile until it is listed, and [`uncovered_operations`] names it until
//! it has a case.

use std::collections::BTreeSet;

use super::cases;
use crate::mask::Mask;
use crate::ops::{Activation, Gating, Glu, Op};
use crate::recurrent::{DecayKind, Recurrence};
use crate::values::{Index, Rope, RopeKind};

/// Defines the names of the variants of an enum, and the function from a value to the name of its
/// variant.
macro_rules! variants {
    ($names:ident, $name_of:ident, $ty:ident: $($variant:ident),* $(,)?) => {
        const $names: &[&str] = &[$(concat!(stringify!($ty), "::", stringify!($variant))),*];

        fn $name_of(value: &$ty) -> &'static str {
            match value {
                $($ty::$variant { .. } => concat!(stringify!($ty), "::", stringify!($variant)),)*
            }
        }
    };
}

variants!(OPS, op_name, Op: Embed, EmbedRows, InputRows, Linear, PerHeadLinear, RmsNorm, LayerNorm,
    Rope, Attention, TopKPositions, StoreKv, Glu, Activate, Moe, Add, Concat, Mul, AttnTemperature,
    Scale, ScaleAdapter, AddControlVector, Softcap, MatchNorm, DepthAttention, GaussianTopK,
    StridedColumns, DynamicConv, Unfold, GroupNorm, StreamWeights, ReadStreams, WriteStreams, StreamSimilarityGate, Recur,
    ConcatRows, MeanRows, GatherOutputs);
variants!(RECURRENCES, recurrence_name, Recurrence: Conv, Scan, Delta, Wkv, Wkv7, Retention, Pool,
    NgramRows);
variants!(DECAY_KINDS, decay_kind_name, DecayKind: Unbounded, Bounded);
variants!(ACTIVATIONS, activation_name, Activation: Silu, GeluTanh, GeluErf, Tanh, Sigmoid,
    Softplus, Relu, ReluSquared, Clamp, Xielu);
variants!(GLUS, glu_name, Glu: Silu, Gelu, Relu, GatedReluSquared, UngatedGelu, ReluSquared,
    Identity, Clamped, SiluOfClamped, ClampedSilu, BoundedSilu);
variants!(GATINGS, gating_name, Gating: Softmax, SoftmaxOfSelected, Sigmoid, SqrtSoftplus,
    SparseMixer);
variants!(MASKS, mask_name, Mask: Causal, Window, Chunk, Pooled, Full, SymmetricWindow,
    RowWindow, CrossAttention, DecoderCausal);
variants!(INDICES, index_name, Index: Token, TokenOr, Remapped, Position, Fixed);
variants!(ROPE_KINDS, rope_kind_name, RopeKind: Norm, Neox);

/// Names of the operations, and of the variants of their parameters, that no case of the suite has.
/// Empty unless an operation was added without a case.
pub fn uncovered_operations() -> Vec<&'static str> {
    let mut covered = BTreeSet::new();
    for case in cases() {
        let problem = (case.problem)();
        for node in problem.graph.nodes() {
            covered.extend(names(&node.op));
        }
        covered.extend(problem.finish().ropes.iter().map(|Rope { kind, .. }| rope_kind_name(kind)));
    }
    let lists =
        [OPS, RECURRENCES, DECAY_KINDS, ACTIVATIONS, GLUS, GATINGS, MASKS, INDICES, ROPE_KINDS];
    lists.concat().into_iter().filter(|name| !covered.contains(name)).collect()
}

/// Names of an operation and of the variants of its parameters.
fn names(op: &Op) -> Vec<&'static str> {
    let mut names = vec![op_name(op)];
    match op {
        Op::Embed { index, .. } => names.push(index_name(index)),
        Op::Attention { spec, .. } | Op::StoreKv { spec, .. } => names.push(mask_name(&spec.mask)),
        Op::TopKPositions { spec, .. } => names.push(mask_name(&spec.mask)),
        Op::Glu { kind, .. } => names.push(glu_name(kind)),
        Op::Activate { kind, .. } => names.push(activation_name(kind)),
        Op::Moe { spec, .. } => names.extend([gating_name(&spec.gating), glu_name(&spec.glu)]),
        Op::Recur(recurrence) => {
            names.push(recurrence_name(recurrence));
            if let Recurrence::Delta { spec, .. } = &**recurrence {
                names.push(decay_kind_name(&spec.decay_kind));
            }
        }
        _ => {}
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_case() {
        assert_eq!(uncovered_operations(), [""; 0]);
    }

    #[test]
    fn case_names_are_unique() {
        let all = cases();
        let names: BTreeSet<&str> = all.iter().map(|case| case.name()).collect();
        assert_eq!(names.len(), all.len());
    }
}
