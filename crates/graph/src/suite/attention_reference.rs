//! Attention by its definition: scores of all visible positions, softmax, weighted sum.

use std::ops::Range;

use super::Tolerance;
use super::problem::{Input, Tensor};
use super::schedule::Span;
use crate::attention::AttentionSpec;
use crate::backend::RowWindow;
use crate::kv::KvType;
use crate::mask::Mask;

/// Inputs of an attention.
pub(super) struct AttentionInputs {
    /// Specification.
    pub spec: AttentionSpec,
    /// Queries by token id.
    pub q: Input,
    /// Keys by token id.
    pub k: Input,
    /// Values by token id.
    pub v: Input,
    /// Attention sinks.
    pub sinks: Option<Tensor>,
    /// Relative position bias.
    pub position_bias: Option<Tensor>,
}

/// A visible key with its value and the bias of its score.
pub(super) struct Seen<'a> {
    /// The key.
    pub key: &'a [f32],
    /// The value.
    pub value: &'a [f32],
    /// Added to the score after the softcap.
    pub bias: f64,
}

/// Indices of the tokens that the token at index `i` of a sequence sees.
pub(super) fn visible(spec: &AttentionSpec, span: &Span, i: usize) -> Range<usize> {
    let in_media_span = spec.sees_media_span && span.media_span.contains(&i);
    let end = match spec.sees_ahead {
        true => span.tokens.len(),
        false if in_media_span => span.media_span.end,
        false => i + 1,
    };
    match spec.mask {
        Mask::Causal => 0..end,
        Mask::Window(n) => (i + 1).saturating_sub(n as usize)..end,
        Mask::Chunk(n) => i / n as usize * n as usize..end,
        Mask::Full => 0..span.tokens.len(),
        Mask::SymmetricWindow(n) => {
            i.saturating_sub(n as usize)..span.tokens.len().min(i + n as usize + 1)
        }
        Mask::RowWindow => {
            let all = 0..span.tokens.len();
            let window = span.row_windows.iter().find(|window| window.rows.contains(&i));
            window.map_or(all.clone(), |RowWindow { sees, .. }| sees.start..sees.end.min(all.end))
        }
        Mask::CrossAttention => 0..span.encoder_tokens,
        Mask::DecoderCausal => span.encoder_tokens..end,
        Mask::Pooled(n) => 0..(i + 1) / n as usize,
    }
}

/// Weighted sum of the values of `seen` for one query head, and `sink` as a further logit without a
/// value. Zeros if nothing is visible.
pub(super) fn attend_head(
    spec: &AttentionSpec,
    q: &[f32],
    seen: &[Seen<'_>],
    sink: Option<f64>,
) -> Vec<f64> {
    let score = |seen: &Seen<'_>| {
        let product = q.iter().zip(seen.key).map(|(&q, &k)| f64::from(q) * f64::from(k));
        let score = f64::from(spec.scale) * product.sum::<f64>();
        let cap = spec.softcap.map(f64::from);
        cap.map_or(score, |cap| cap * (score / cap).tanh()) + seen.bias
    };
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    let mut out = vec![0.0; spec.value_dim];
    for (seen, weight) in seen.iter().zip(weights) {
        let pairs = out.iter_mut().zip(seen.value);
        pairs.for_each(|(out, &value)| *out += weight / sum * f64::from(value));
    }
    out
}

impl AttentionInputs {
    /// Rows of a sequence in a step, with what [`visible`] shows.
    pub fn rows(&self, span: &Span) -> Vec<Vec<f64>> {
        let seen = |i: usize, _| visible(&self.spec, span, i).collect();
        span.indices().map(|i| self.row(span, i, seen)).collect()
    }

    /// The row of the token at index `i`, which sees the indices `seen(i, KV head)`.
    pub fn row(
        &self,
        span: &Span,
        i: usize,
        seen: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Vec<f64> {
        let AttentionSpec { heads, kv_heads, key_dim, .. } = self.spec;
        let slopes = self.spec.slopes();
        let of_head = |head: usize| {
            let kv_head = head * kv_heads / heads;
            let bias = |j: usize| {
                let slope = slopes.get(head).map_or(0.0, |&slope| f64::from(slope));
                self.shift(head, j as i64 - i as i64) - slope * i.abs_diff(j) as f64
            };
            let seen: Vec<Seen<'_>> = seen(i, kv_head)
                .into_iter()
                .map(|j| {
                    let (key, value) = self.key_and_value(span.tokens[j], kv_head);
                    Seen { key, value, bias: bias(j) }
                })
                .collect();
            let q = &self.q.row(span.tokens[i])[head * key_dim..][..key_dim];
            attend_head(&self.spec, q, &seen, self.sink(head))
        };
        (0..heads).flat_map(of_head).collect()
    }

    /// Key and value of a token in a KV head.
    fn key_and_value(&self, token: usize, kv_head: usize) -> (&[f32], &[f32]) {
        let AttentionSpec { key_dim, value_dim, values_in_keys, .. } = self.spec;
        let key = &self.k.row(token)[kv_head * key_dim..][..key_dim];
        match values_in_keys {
            true => (key, &key[..value_dim]),
            false => (key, &self.v.row(token)[kv_head * value_dim..][..value_dim]),
        }
    }

    /// The sink of a query head.
    pub fn sink(&self, head: usize) -> Option<f64> {
        self.sinks.as_ref().map(|sinks| f64::from(sinks.values[head]))
    }

    /// Relative position bias of a key `behind` positions after the query.
    fn shift(&self, head: usize, behind: i64) -> f64 {
        let (Some(table), Some(position_bias)) = (&self.position_bias, self.spec.position_bias)
        else {
            return 0.0;
        };
        f64::from(table.values[position_bias.bucket(behind) * self.spec.heads + head])
    }
}

/// Error of an attention to keys and values of these cache types. An 8-bit block keeps 7 bits of
/// its largest value, a 4-bit block 3 bits.
pub(super) fn cache_tolerance(types: [KvType; 2]) -> Tolerance {
    let error = |ty: KvType| -> f64 {
        match ty {
            KvType::F32 => 1e-10,
            KvType::F16 => 2e-6,
            KvType::Bf16 => 5e-5,
            KvType::Q8_0 => 5e-4,
            KvType::Q4_0 => 8e-2,
        }
    };
    Tolerance::any(error(types[0]).max(error(types[1])))
}
