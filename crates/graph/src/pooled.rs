//! Attention to what is near, and beside it to rows that blocks of earlier tokens were pooled into (DeepSeek-AI, 2026).

use crate::attention::{AttentionSpec, Mask};
use crate::top_k_positions::SelectedPositions;
use crate::graph::Graph;
use crate::values::ValueId;

/// Rows of blocks, which are keys and their own values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pooled {
    /// Their layer of the cache.
    pub layer: usize,
    /// [`Mask::Pooled`].
    pub mask: Mask,
    /// Each at the last token of its block.
    pub rows: ValueId,
    /// What is seen of them, if not all.
    pub chosen: Option<(ValueId, SelectedPositions)>,
}

impl Graph {
    /// Attention of cache layer `layer` together with attention to pooled rows, with one softmax over both. The form is that of the
    /// first; values lie in keys.
    pub fn attention_and_pooled(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k]: [ValueId; 2],
        pooled: Pooled,
        spec: AttentionSpec,
    ) -> ValueId {
        assert!(spec.values_in_keys && matches!(pooled.mask, Mask::Pooled(_)));
        assert!(spec.alibi.is_none() && spec.shifts.is_none(), "distances of pooled rows are not known");
        let near = AttentionSpec { is_part: true, sinks: None, ..spec };
        let near = self.attention(name, layer, [q, k, k], near);
        let form = pooled.chosen.map(|(_, form)| form);
        assert!(form.is_none_or(|form| form.lists == 1 || form.lists == spec.kv_heads));
        let spec = AttentionSpec { mask: pooled.mask, chosen: form, ..spec };
        let chosen = pooled.chosen.map(|(lists, _)| lists);
        self.attention_of(name, pooled.layer, [q, pooled.rows, pooled.rows], [chosen, Some(near)], spec)
    }
}
