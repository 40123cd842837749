//! Attention to a few positions that a small attention of its own has chosen for each token (DeepSeek-AI, 2025).

use crate::attention::{AttentionSpec, Mask};
use crate::graph::Graph;
use crate::kv::CacheLayer;
use crate::ops::Op;
use crate::values::{Rows, ValueId};

/// What an attention sees of the positions that its mask lets through: blocks of them that were chosen for the token.
///
/// A list is so many columns of the value that holds it, each the bits of a block's number ([`Self::entry`]): ascending, those of no
/// block at the end. Of a token from whose position on not more is seen than a list has room for, everything is seen, and
/// nobody writes or reads its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectedPositions {
    /// Lists of a token: one for all heads, or one for each key head.
    pub lists: usize,
    /// Blocks of a list, at most.
    pub count: usize,
    /// Positions of a block; the first begins with the sequence.
    pub block: usize,
}

impl SelectedPositions {
    /// The number behind the last one of a list with room for more.
    pub const NONE: u32 = u32::MAX;

    /// How a number lies in a value.
    pub fn entry(number: u32) -> f32 {
        f32::from_bits(number)
    }

    /// Columns of the value that holds the lists.
    pub fn cols(&self) -> usize {
        self.lists * self.count
    }

    /// Positions that a list has room for: to fewer, or as many, attention is as if nothing were chosen.
    pub fn room(&self) -> usize {
        self.count.saturating_mul(self.block)
    }
}

/// The form of an [`Op::TopKPositions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopKPositionsSpec {
    /// Query heads, all of one key head. Those of a list lie side by side.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Whether products of query and key below zero count as zero.
    pub rectified: bool,
    /// What is chosen among.
    pub mask: Mask,
    /// Blocks up to the token's own that are chosen whatever their scores.
    pub near: usize,
    /// The lists.
    pub chosen: SelectedPositions,
}

impl TopKPositionsSpec {
    /// Query heads whose products are summed for a list.
    pub fn heads_of_list(&self) -> usize {
        self.heads / self.chosen.lists
    }

    /// How its keys are kept: as those of an attention without values.
    pub fn keys(&self) -> AttentionSpec {
        AttentionSpec { mask: self.mask, ..AttentionSpec::causal(self.heads, 1, self.dim, 0) }
    }

    /// What the cache keeps of it.
    pub fn cache_layer(&self) -> CacheLayer {
        self.keys().cache_layer()
    }
}

impl Graph {
    /// The lists of blocks that each token's queries choose among the keys in cache layer `layer`, which its own joins;
    /// `weights` has a column a query head.
    pub fn choose(
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
        self.push(name, Op::TopKPositions { q, k, weights, layer, spec }, Rows::Tokens, chosen.cols())
    }

    /// Attention of cache layer `layer` to what was chosen.
    pub fn attention_to_chosen(
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
        assert!(spec.alibi.is_none() && spec.shifts.is_none(), "distances of what is chosen are not known");
        let spec = AttentionSpec { chosen: Some(form), ..spec };
        self.attention_of(name, layer, [q, k, v], [Some(chosen), None], spec)
    }
}
