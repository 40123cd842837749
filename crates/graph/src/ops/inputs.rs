//! Values that operations read and overwrite.

use super::Op;
use crate::values::ValueId;

impl Op {
    /// Whether the operation stores keys or values in the cache.
    pub fn stores(&self) -> bool {
        match self {
            Op::Attention { spec, .. } => spec.mask.is_cached() && !spec.only_reads,
            Op::TopKPositions { .. } | Op::StoreKv { .. } => true,
            _ => false,
        }
    }

    /// The values that the operation reads.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        let list: [Option<ValueId>; 5] = match *self {
            Op::Embed { .. } | Op::InputRows { .. } | Op::Recur(_) | Op::DepthAttention { .. } => {
                [None; 5]
            }
            Op::EmbedRows { numbers: x, .. }
            | Op::Linear { x, .. }
            | Op::PerHeadLinear { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Activate { x, .. }
            | Op::AttnTemperature { x, .. }
            | Op::Scale { x, .. }
            | Op::ScaleAdapter { x, .. }
            | Op::AddControlVector { x, .. }
            | Op::Softcap { x, .. }
            | Op::GaussianTopK { x, .. }
            | Op::StridedColumns { x, .. }
            | Op::Unfold { x, .. }
            | Op::GroupNorm { x, .. }
            | Op::StreamWeights { x, .. }
            | Op::ConcatRows { x, .. }
            | Op::MeanRows { x, .. }
            | Op::GatherOutputs { x } => [Some(x), None, None, None, None],
            Op::ReadStreams { streams, weights } => {
                [Some(streams), Some(weights), None, None, None]
            }
            Op::WriteStreams { streams, x, weights, mix } => {
                [Some(streams), Some(x), Some(weights), mix, None]
            }
            Op::MatchNorm { x, like } => [Some(x), Some(like), None, None, None],
            Op::DynamicConv { x, dynamic_taps, .. } => {
                [Some(x), Some(dynamic_taps), None, None, None]
            }
            Op::Attention { q, k, v, selected, partial_input, .. } => {
                [Some(q), Some(k), Some(v), selected, partial_input]
            }
            Op::TopKPositions { q, k, weights, .. } => [Some(q), Some(k), weights, None, None],
            Op::StoreKv { k, v, .. } => [Some(k), Some(v), None, None, None],
            Op::Glu { gate, up, .. } => [Some(gate), Some(up), None, None, None],
            Op::Moe { x, router, .. } => [Some(x), Some(router), None, None, None],
            Op::Add { a, b } | Op::Concat { a, b } | Op::StreamSimilarityGate { a, b, .. } => {
                [Some(a), Some(b), None, None, None]
            }
            Op::Mul { x, by } => [Some(x), Some(by), None, None, None],
        };
        let more = match self {
            Op::Recur(recurrence) => recurrence.inputs(),
            Op::DepthAttention { depths, .. } => depths.clone(),
            _ => Vec::new(),
        };
        list.into_iter().flatten().chain(more)
    }

    /// The input that may lend its memory to the result, element by element.
    pub fn in_place_input(&self) -> Option<ValueId> {
        match *self {
            Op::Rope { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Activate { x, .. }
            | Op::Mul { x, .. }
            | Op::AttnTemperature { x, .. }
            | Op::Scale { x, .. }
            | Op::ScaleAdapter { x, .. }
            | Op::AddControlVector { x, .. }
            | Op::Softcap { x, .. }
            | Op::MatchNorm { x, .. }
            | Op::GaussianTopK { x, .. }
            | Op::StreamWeights { x, .. } => Some(x),
            Op::WriteStreams { streams, .. } => Some(streams),
            Op::Add { a, .. } => Some(a),
            Op::Glu { gate, .. } => Some(gate),
            _ => None,
        }
    }
}
