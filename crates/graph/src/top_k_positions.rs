//! Sparse attention: an indexer selects the top-k positions that each token attends to
//! (DeepSeek-AI, "DeepSeek-V3.2", 2025).

use crate::attention::AttentionSpec;
use crate::kv::CacheLayer;
use crate::mask::Mask;
use crate::selected_positions::SelectedPositions;

/// Specification of [`crate::Op::TopKPositions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopKPositionsSpec {
    /// Query heads, all with one KV head. The heads of a list are consecutive.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Whether ReLU is applied to the products of query and key.
    pub relu: bool,
    /// Positions to select from.
    pub mask: Mask,
    /// Number of nearest blocks that are selected regardless of their scores.
    pub near: usize,
    /// Shape of the lists.
    pub selected: SelectedPositions,
}

impl TopKPositionsSpec {
    /// Query heads per list; the list uses the sum of their products.
    pub fn heads_of_list(&self) -> usize {
        self.heads / self.selected.lists
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
