//! Sparse attention: an indexer selects the top-k positions that each token attends to (DeepSeek-AI, "DeepSeek-V3.2", 2025).

use crate::attention::{AttentionSpec, Mask};
use crate::graph::Graph;
use crate::kv::CacheLayer;
use crate::ops::Op;
use crate::values::{Rows, ValueId};

/// Shape of the lists of selected blocks of positions, which an indexer writes and an attention reads.
///
/// A value holds the lists of a token in consecutive columns. Each column has the bits of a block number ([`Self::entry`]), in ascending
/// order, then [`Self::NONE`]. A token that sees no more positions than a list can hold attends to all of them; its lists are neither
/// written nor read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectedPositions {
    /// Lists per token: one for all heads, or one for each key head.
    pub lists: usize,
    /// Length of a list in blocks.
    pub count: usize,
    /// Positions per block; block 0 begins at position 0.
    pub block: usize,
}

impl SelectedPositions {
    /// Entry behind the last block of a list that is not full.
    pub const NONE: u32 = u32::MAX;

    /// Stores a block number in a value, bit by bit.
    pub fn entry(number: u32) -> f32 {
        f32::from_bits(number)
    }

    /// Columns of the value that holds the lists.
    pub fn cols(&self) -> usize {
        self.lists * self.count
    }

    /// Positions that a list can hold. With at most this many positions, attention is dense.
    pub fn room(&self) -> usize {
        self.count.saturating_mul(self.block)
    }
}

/// Specification of [`Op::TopKPositions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopKPositionsSpec {
    /// Query heads, all with one key head. The heads of a list are consecutive.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Whether ReLU is applied to the products of query and key.
    pub rectified: bool,
    /// Positions to select from.
    pub mask: Mask,
    /// Number of nearest blocks that are selected regardless of their scores.
    pub near: usize,
    /// Shape of the lists.
    pub chosen: SelectedPositions,
}

impl TopKPositionsSpec {
    /// Query heads whose products are summed for a list.
    pub fn heads_of_list(&self) -> usize {
        self.heads / self.chosen.lists
    }

    /// Specification of an attention without values that stores the indexer's keys.
    pub fn keys(&self) -> AttentionSpec {
        AttentionSpec { mask: self.mask, ..AttentionSpec::causal(self.heads, 1, self.dim, 0) }
    }

    /// Cache layer of the indexer's keys.
    pub fn cache_layer(&self) -> CacheLayer {
        self.keys().cache_layer()
    }
}

impl Graph {
    /// Stores the keys `k` in cache layer `layer` and selects blocks for the queries `q`; `weights` has one column per query head.
    pub fn top_k_positions(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k]: [ValueId; 2],
        weights: Option<ValueId>,
        spec: TopKPositionsSpec,
    ) -> ValueId {
        let TopKPositionsSpec { heads, dim, near, chosen, .. } = spec;
        assert_eq!([q, k].map(|x| self.value(x).cols), [heads * dim, dim]);
        assert!(weights.is_none_or(|weights| self.value(weights).cols == heads));
        assert!(chosen.block > 0 && chosen.count > 0 && heads.is_multiple_of(chosen.lists));
        assert!(near <= chosen.count);
        self.push(
            name,
            Op::TopKPositions { q, k, weights, layer, spec },
            Rows::Tokens,
            chosen.cols(),
        )
    }

    /// Attention over cache layer `layer` to the selected positions.
    pub fn sparse_attention(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        (chosen, form): (ValueId, SelectedPositions),
        spec: AttentionSpec,
    ) -> ValueId {
        assert_eq!(self.value(chosen).cols, form.cols());
        assert!(form.lists == 1 || form.lists == spec.kv_heads);
        assert_eq!(spec.mask, Mask::Causal);
        assert!(
            spec.alibi.is_none() && spec.shifts.is_none(),
            "sparse attention has no position biases"
        );
        let spec = AttentionSpec { chosen: Some(form), ..spec };
        self.attention_of(name, layer, [q, k, v], [Some(chosen), None], spec)
    }
}
