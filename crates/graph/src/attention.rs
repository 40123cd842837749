//! Specification of attention operations.

use std::ops::RangeInclusive;

use crate::kv::CacheLayer;
use crate::mask::Mask;
use crate::selected_positions::SelectedPositions;
use crate::values::WeightId;

/// Specification of an attention operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; query head h uses head `h · kv_heads / heads`.
    pub kv_heads: usize,
    /// Dimensions of a query or key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Whether a value is the first dimensions of its key, so that the cache stores only keys
    /// (latent attention).
    pub values_in_keys: bool,
    /// Whether the attention reads keys and values that an earlier operation has stored in its
    /// cache layer.
    pub only_reads: bool,
    /// Factor of scores.
    pub scale: f32,
    /// `s ← c · tanh(s / c)` on scaled scores.
    pub softcap: Option<f32>,
    /// Attention mask.
    pub mask: Mask,
    /// Whether a token also sees later tokens of the same step, for cached masks.
    pub sees_ahead: bool,
    /// Whether a token of a media span also sees the later tokens of the span
    /// ([`crate::Segment::media_spans`]), for cached masks.
    pub sees_media_span: bool,
    /// Attention sinks: one logit per query head in the softmax, without a value.
    pub sinks: Option<WeightId>,
    /// ALiBi (Press et al., 2021): largest bias exponent, from which the slope of each head
    /// follows. Applied after the softcap.
    pub alibi: Option<f32>,
    /// Relative position bias. Applied after the softcap.
    pub position_bias: Option<RelativePositionBias>,
    /// Lists of selected positions, for sparse attention.
    pub selected: Option<SelectedPositions>,
    /// Whether positions behind the last whole block are seen in addition to selected blocks.
    pub sees_tail: bool,
    /// Whether the result is a partial result for a later attention, in [`Self::partial_cols`]
    /// columns: weighted sums of values of all heads, then their largest scores, then their sums of
    /// weights.
    pub returns_partial: bool,
}

impl AttentionSpec {
    /// Causal attention with scale `1 / √key_dim`.
    pub fn causal(heads: usize, kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let scale = 1.0 / (key_dim as f32).sqrt();
        let (mask, softcap, sinks, alibi, position_bias, selected) =
            (Mask::Causal, None, None, None, None, None);
        let (values_in_keys, only_reads, sees_tail, returns_partial) = (false, false, false, false);
        let (sees_ahead, sees_media_span) = (false, false);
        Self {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            values_in_keys,
            only_reads,
            scale,
            softcap,
            mask,
            sees_ahead,
            sees_media_span,
            sinks,
            alibi,
            position_bias,
            selected,
            sees_tail,
            returns_partial,
        }
    }

    /// ALiBi slope of each query head; empty without `alibi`.
    pub fn slopes(&self) -> Vec<f32> {
        let Some(max) = self.alibi else { return Vec::new() };
        let whole = 1 << self.heads.max(1).ilog2();
        let slope = |head: usize| match head.checked_sub(whole) {
            None => -max * (head + 1) as f32 / whole as f32,
            Some(more) => -max / 2.0 * (2 * more + 1) as f32 / whole as f32,
        };
        (0..self.heads).map(|head| slope(head).exp2()).collect()
    }

    /// Largest number of positions that a token sees with sparse attention. With at most this many
    /// positions, attention is dense.
    pub fn max_attended_positions(&self) -> Option<usize> {
        let tail =
            |selected: SelectedPositions| if self.sees_tail { selected.block - 1 } else { 0 };
        self.selected.map(|selected| selected.capacity().saturating_add(tail(selected)))
    }

    /// Columns of a partial result.
    pub fn partial_cols(&self) -> usize {
        self.heads * (self.value_dim + 2)
    }

    /// Cache layer of the keys and values.
    pub fn cache_layer(&self) -> CacheLayer {
        let Self { kv_heads, key_dim, value_dim, values_in_keys, mask, .. } = *self;
        CacheLayer { kv_heads, key_dim, value_dim, values_in_keys, mask }
    }
}

/// Relative position bias of T5 (Raffel et al., 2020): one bias for each bucket of distances and
/// each query head. If tokens see later keys, half of the buckets are for these. Near distances
/// have one bucket each; far distances share buckets logarithmically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RelativePositionBias {
    /// `[heads, buckets]`.
    pub table: WeightId,
    /// Number of buckets, in [`Self::BUCKETS`].
    pub buckets: usize,
    /// Whether tokens see later keys.
    pub both_sides: bool,
}

impl RelativePositionBias {
    /// Supported numbers of buckets.
    pub const BUCKETS: RangeInclusive<usize> = 4..=256;
    /// All distances from this one on share one bucket.
    pub const FAR: usize = 128;

    /// Bucket of a key `behind` positions after the query; negative for earlier keys.
    pub fn bucket(self, behind: i64) -> usize {
        let half = if self.both_sides { self.buckets / 2 } else { self.buckets };
        let near = half / 2;
        let behind = if self.both_sides { behind } else { behind.min(0) };
        let distance = usize::try_from(behind.unsigned_abs()).unwrap_or(usize::MAX);
        let side = if behind > 0 { half } else { 0 };
        if distance < near {
            return side + distance;
        }
        let log = |n: usize| (n as f32 / near as f32).ln();
        let more = log(distance) / log(Self::FAR) * (half - near) as f32;
        side + near.saturating_add(more as usize).min(half - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alibi_slopes_match_the_paper_for_any_number_of_heads() {
        let slopes = |heads| {
            AttentionSpec { alibi: Some(8.0), ..AttentionSpec::causal(heads, heads, 4, 4) }.slopes()
        };
        assert_eq!(slopes(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|n| (-(n as f32)).exp2()));
        // Every other one of twice as many comes behind.
        assert_eq!(slopes(3), [-4.0, -8.0, -2.0].map(f32::exp2));
        assert!(AttentionSpec::causal(8, 8, 4, 4).slopes().is_empty());
    }

    #[test]
    fn near_keys_have_their_own_buckets_and_far_keys_share_them() {
        let bucket = |behind| {
            RelativePositionBias { table: WeightId(0), buckets: 32, both_sides: true }
                .bucket(behind)
        };
        assert_eq!([0, -1, -7, -8, -9, -12, -16, -32].map(bucket), [0, 1, 7, 8, 8, 9, 10, 12]);
        assert_eq!([1, 7, 8, 127, 128, i64::MAX].map(bucket), [17, 23, 24, 31, 31, 31]);
        assert_eq!((bucket(-127), bucket(-128), bucket(i64::MIN)), (15, 15, 15));
        for buckets in RelativePositionBias::BUCKETS {
            for both_sides in [true, false] {
                let position_bias =
                    RelativePositionBias { table: WeightId(0), buckets, both_sides };
                assert!(
                    (-300..300).map(|behind| position_bias.bucket(behind)).max().unwrap() < buckets
                );
            }
        }
    }

    #[test]
    fn one_sided_attention_uses_all_buckets_for_earlier_keys() {
        let bucket = |behind| {
            RelativePositionBias { table: WeightId(0), buckets: 32, both_sides: false }
                .bucket(behind)
        };
        assert_eq!([0, -1, -15, -16, -19, -32, -64].map(bucket), [0, 1, 15, 16, 17, 21, 26]);
        assert_eq!([-110, -127, -128, i64::MIN, 1, 9].map(bucket), [30, 31, 31, 31, 0, 0]);
    }
}
