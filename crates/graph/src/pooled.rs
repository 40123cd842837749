//! Attention over near positions and pooled rows of earlier blocks with one softmax (DeepSeek-AI,
//! 2026).

use crate::attention::AttentionSpec;
use crate::graph::Graph;
use crate::mask::Mask;
use crate::selected_positions::SelectedPositions;
use crate::values::ValueId;

/// Pooled rows, which are keys and values at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pooled {
    /// Cache layer of the rows.
    pub layer: usize,
    /// [`Mask::Pooled`].
    pub mask: Mask,
    /// Pooled rows, each at the last token of its block.
    pub rows: ValueId,
    /// Selected rows; `None` for all.
    pub selected: Option<(ValueId, SelectedPositions)>,
}

impl Graph {
    /// Attention over cache layer `layer` and over pooled rows, with one softmax. `spec` is that of
    /// the first; values are columns of keys.
    pub fn attention_and_pooled(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k]: [ValueId; 2],
        pooled: Pooled,
        spec: AttentionSpec,
    ) -> ValueId {
        assert!(spec.values_in_keys && matches!(pooled.mask, Mask::Pooled(_)));
        assert!(
            spec.alibi.is_none() && spec.position_bias.is_none(),
            "attention to pooled rows has no position biases"
        );
        let near = AttentionSpec { returns_partial: true, sinks: None, ..spec };
        let near = self.attention(name, layer, [q, k, k], near);
        let form = pooled.selected.map(|(_, form)| form);
        assert!(form.is_none_or(|form| form.lists == 1 || form.lists == spec.kv_heads));
        let spec = AttentionSpec { mask: pooled.mask, selected: form, ..spec };
        let selected = pooled.selected.map(|(lists, _)| lists);
        self.attention_of(
            name,
            pooled.layer,
            [q, pooled.rows, pooled.rows],
            [selected, Some(near)],
            spec,
        )
    }
}
