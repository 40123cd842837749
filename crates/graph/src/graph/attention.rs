//! Operations of attention.

use super::Graph;
use crate::attention::AttentionSpec;
use crate::mask::Mask;
use crate::ops::Op;
use crate::values::{Rows, ValueId};

impl Graph {
    /// Attention of cache layer `layer`.
    pub fn attention(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        spec: AttentionSpec,
    ) -> ValueId {
        self.attention_of(name, layer, [q, k, v], [None; 2], spec)
    }

    pub(crate) fn attention_of(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        [selected, partial_input]: [Option<ValueId>; 2],
        spec: AttentionSpec,
    ) -> ValueId {
        assert!(!spec.only_reads);
        let cols = |id| self.value(id).cols;
        assert_eq!(cols(k), spec.kv_heads * spec.key_dim);
        match spec.values_in_keys {
            true => assert!(v == k && spec.value_dim <= spec.key_dim),
            false => assert_eq!(cols(v), spec.kv_heads * spec.value_dim),
        }
        self.attend(name, layer, [q, k, v], [selected, partial_input], spec)
    }

    /// Attention to the keys and values that cache layer `layer` already has.
    pub fn attention_to(
        &mut self,
        name: &'static str,
        layer: usize,
        q: ValueId,
        spec: AttentionSpec,
    ) -> ValueId {
        self.attend(name, layer, [q; 3], [None; 2], AttentionSpec { only_reads: true, ..spec })
    }

    /// Stores keys and values in cache layer `layer` for attention of later steps with this
    /// specification. The result has no columns, so that a graph can consist of this operation.
    pub fn store_kv(
        &mut self,
        name: &'static str,
        layer: usize,
        [k, v]: [ValueId; 2],
        spec: AttentionSpec,
    ) -> ValueId {
        let cols = |id| self.value(id).cols;
        assert!(!spec.values_in_keys && cols(k) == spec.kv_heads * spec.key_dim);
        assert_eq!(cols(v), spec.kv_heads * spec.value_dim);
        self.push(name, Op::StoreKv { k, v, layer, spec }, Rows::Tokens, 0)
    }

    fn attend(
        &mut self,
        name: &'static str,
        layer: usize,
        [q, k, v]: [ValueId; 3],
        [selected, partial_input]: [Option<ValueId>; 2],
        spec: AttentionSpec,
    ) -> ValueId {
        let mask =
            if self.is_bidirectional && spec.mask == Mask::Causal { Mask::Full } else { spec.mask };
        let spec = AttentionSpec { mask, ..spec };
        assert_eq!(selected.is_some(), spec.selected.is_some());
        assert!(
            partial_input.is_none_or(|partial| self.value(partial).cols == spec.partial_cols())
        );
        let cols =
            if spec.returns_partial { spec.partial_cols() } else { spec.heads * spec.value_dim };
        assert_eq!(self.value(q).cols, spec.heads * spec.key_dim);
        self.push(
            name,
            Op::Attention { q, k, v, layer, selected, partial_input, spec },
            Rows::Tokens,
            cols,
        )
    }
}
