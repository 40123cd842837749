//! Operations of sparse attention.

use super::Graph;
use crate::attention::AttentionSpec;
use crate::mask::Mask;
use crate::ops::Op;
use crate::selected_positions::SelectedPositions;
use crate::top_k_positions::TopKPositionsSpec;
use crate::values::{Rows, ValueId};

impl Graph {
    /// Stores the keys `k` in cache layer `layer` and selects blocks for the queries `q`; `weights`
    /// has one column per query head.
    pub fn top_k_positions(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k]: [ValueId; 2],
        weights: Option<ValueId>,
        spec: TopKPositionsSpec,
    ) -> ValueId {
        let TopKPositionsSpec { heads, dim, near, selected, .. } = spec;
        assert_eq!([q, k].map(|x| self.value(x).cols), [heads * dim, dim]);
        assert!(weights.is_none_or(|weights| self.value(weights).cols == heads));
        assert!(selected.block > 0 && selected.count > 0 && heads.is_multiple_of(selected.lists));
        assert!(near <= selected.count);
        self.push(
            name,
            Op::TopKPositions { q, k, weights, layer, spec },
            Rows::Tokens,
            selected.cols(),
        )
    }

    /// Attention over cache layer `layer` to the selected positions.
    pub fn sparse_attention(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        (selected, form): (ValueId, SelectedPositions),
        spec: AttentionSpec,
    ) -> ValueId {
        assert_eq!(self.value(selected).cols, form.cols());
        assert!(form.lists == 1 || form.lists == spec.kv_heads);
        assert_eq!(spec.mask, Mask::Causal);
        assert!(
            spec.alibi.is_none() && spec.position_bias.is_none(),
            "sparse attention has no position biases"
        );
        let spec = AttentionSpec { selected: Some(form), ..spec };
        self.attention_of(name, layer, [q, k, v], [Some(selected), None], spec)
    }
}
