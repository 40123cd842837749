//! The forms of attention.

use std::ops::RangeInclusive;

use crate::choice::SelectedPositions;
use crate::kv::CacheLayer;
use crate::values::WeightId;

/// Which earlier tokens a token sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All tokens at or before its position.
    Causal,
    /// The last `n` tokens up to and with itself.
    Window(u32),
    /// The tokens of its own chunk of `n` positions up to and with itself.
    Chunk(u32),
    /// Rows that each stand for `n` positions of its sequence, those of which all are at or before its own. One is written
    /// at the last of its positions, and kept in the place of `n`.
    Pooled(u32),
    /// Every token of its sequence: encoders. Nothing is cached.
    Full,
    /// Tokens of its sequence up to `n` positions before or behind it: encoders. Nothing is cached.
    Around(u32),
    /// What an encoder has read: the first `encoded` tokens of its segment.
    Encoded,
    /// All tokens at or before its position but those that an encoder has read.
    Decoded,
}

impl Mask {
    /// Whether keys and values are kept for later steps, in which tokens see what came before.
    pub fn is_cached(self) -> bool {
        !matches!(self, Mask::Full | Mask::Around(_))
    }

    /// Positions that a token sees at most, where that does not grow with its context: what lies farther behind need not
    /// be kept.
    pub fn reach(self) -> Option<usize> {
        match self {
            Mask::Window(n) | Mask::Chunk(n) => Some(n.max(1) as usize),
            Mask::Causal | Mask::Pooled(_) | Mask::Full | Mask::Around(_) | Mask::Encoded | Mask::Decoded => {
                None
            }
        }
    }

    /// The first position that the token at `position` sees, and those behind it ever will, where keys and values are kept.
    pub fn first_seen(self, position: usize) -> usize {
        match self {
            Mask::Window(n) => (position + 1).saturating_sub(n.max(1) as usize),
            Mask::Chunk(n) => position - position % n.max(1) as usize,
            Mask::Causal | Mask::Pooled(_) | Mask::Full | Mask::Around(_) | Mask::Encoded | Mask::Decoded => {
                0
            }
        }
    }

    /// Positions that each row stands for that is kept.
    pub fn pooled(self) -> usize {
        match self {
            Mask::Pooled(n) => n.max(1) as usize,
            _ => 1,
        }
    }

    /// Whether no token sees more than with `other`.
    pub fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Mask::Window(own), Mask::Window(n)) => own <= n,
            (Mask::Pooled(_), _) | (_, Mask::Pooled(_)) => self == other,
            (_, Mask::Causal) => self.is_cached(),
            _ => self == other,
        }
    }
}

/// The form of an attention operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h · kv_heads / heads`.
    pub kv_heads: usize,
    /// Features of a query or key head.
    pub key_dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Whether a value is the first features of its key, so that the cache keeps both once.
    pub values_in_keys: bool,
    /// Whether keys and values are those that an earlier operation has put into the layer of the cache.
    pub only_reads: bool,
    /// Multiplies scores.
    pub scale: f32,
    /// `s ← c · tanh(s / c)` on scaled scores.
    pub softcap: Option<f32>,
    /// Which tokens are seen.
    pub mask: Mask,
    /// Whether tokens behind it that are of the same step are seen, too, where keys and values are kept.
    pub sees_ahead: bool,
    /// One logit a query head that joins the softmax and contributes no value.
    pub sinks: Option<WeightId>,
    /// Scores fall with the distance of key and query, in each head by another slope: the largest exponent of two
    /// (Press et al., 2021). After the softcap.
    pub alibi: Option<f32>,
    /// What is added to scores by the distance of key and query. After the softcap.
    pub shifts: Option<Shifts>,
    /// What is seen of what the mask lets through, if not everything.
    pub chosen: Option<SelectedPositions>,
    /// Whether what lies behind the last whole block is seen beside those that are chosen.
    pub sees_tail: bool,
    /// Whether the result is what a further attention goes on with, in [`Self::part_cols`] columns: all heads' weighed sums of
    /// values, then their largest scores, then their sums of weights.
    pub is_part: bool,
}

impl AttentionSpec {
    /// Causal attention of so many query heads on so many key heads of these features, with scores over their root.
    pub fn causal(heads: usize, kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let scale = 1.0 / (key_dim as f32).sqrt();
        let (mask, softcap, sinks, alibi, shifts, chosen) = (Mask::Causal, None, None, None, None, None);
        let (values_in_keys, only_reads, sees_tail, is_part) = (false, false, false, false);
        let sees_ahead = false;
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
            sinks,
            alibi,
            shifts,
            chosen,
            sees_tail,
            is_part,
        }
    }

    /// By how much a score falls with each position of distance, for each query head; nothing without `alibi`.
    pub fn slopes(&self) -> Vec<f32> {
        let Some(most) = self.alibi else { return Vec::new() };
        let whole = 1 << self.heads.max(1).ilog2();
        let slope = |head: usize| match head.checked_sub(whole) {
            None => -most * (head + 1) as f32 / whole as f32,
            Some(more) => -most / 2.0 * (2 * more + 1) as f32 / whole as f32,
        };
        (0..self.heads).map(|head| slope(head).exp2()).collect()
    }

    /// Positions that a token sees at most where they are chosen: of fewer, or as many, all are seen.
    pub fn room(&self) -> Option<usize> {
        let tail = |chosen: SelectedPositions| if self.sees_tail { chosen.block - 1 } else { 0 };
        self.chosen.map(|chosen| chosen.room().saturating_add(tail(chosen)))
    }

    /// Columns of a result that a further attention goes on with.
    pub fn part_cols(&self) -> usize {
        self.heads * (self.value_dim + 2)
    }

    /// What the cache keeps for a layer of this form.
    pub fn cache_layer(&self) -> CacheLayer {
        let Self { kv_heads, key_dim, value_dim, values_in_keys, mask, .. } = *self;
        CacheLayer { kv_heads, key_dim, value_dim, values_in_keys, mask }
    }
}

/// Amounts that are added to scores, one for each bucket of distances and each query head (Raffel et al., 2020): half of the
/// buckets are for keys behind the query where tokens see such. Near distances have a bucket each, farther ones share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shifts {
    /// `[heads, buckets]`.
    pub table: WeightId,
    /// How many there are, see [`Self::BUCKETS`].
    pub buckets: usize,
    /// Whether tokens see keys behind them.
    pub both_sides: bool,
}

impl Shifts {
    /// As many as the distances make sense of.
    pub const BUCKETS: RangeInclusive<usize> = 4..=256;
    /// All distances from this one on share a bucket.
    pub const FAR: usize = 128;

    /// The bucket of a key that lies so many positions behind the query.
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
    fn slopes_are_those_of_the_paper_also_where_heads_are_no_power_of_two() {
        let slopes =
            |heads| AttentionSpec { alibi: Some(8.0), ..AttentionSpec::causal(heads, heads, 4, 4) }.slopes();
        assert_eq!(slopes(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|n| (-(n as f32)).exp2()));
        // Every other one of twice as many comes behind.
        assert_eq!(slopes(3), [-4.0, -8.0, -2.0].map(f32::exp2));
        assert!(AttentionSpec::causal(8, 8, 4, 4).slopes().is_empty());
    }

    #[test]
    fn what_a_token_does_not_see_no_later_one_does() {
        let all =
            [Mask::Causal, Mask::Decoded, Mask::Window(1), Mask::Window(5), Mask::Chunk(4), Mask::Window(0)];
        for mask in all {
            let seen: Vec<usize> = (0..40).map(|position| mask.first_seen(position)).collect();
            assert!(seen.is_sorted(), "{mask:?}: {seen:?}");
            let most = (0..40).map(|position| position + 1 - seen[position]).max();
            assert_eq!(most, Some(mask.reach().unwrap_or(40)), "{mask:?}");
        }
        let seen = |mask: Mask| [0, 3, 4, 9].map(|position| mask.first_seen(position));
        assert_eq!(seen(Mask::Window(4)), [0, 0, 1, 6]);
        assert_eq!(seen(Mask::Chunk(4)), [0, 0, 4, 8]);
    }

    #[test]
    fn a_narrower_window_is_within_a_wider_one_and_all_within_everything() {
        assert!(Mask::Window(3).is_within(Mask::Window(4)) && !Mask::Window(5).is_within(Mask::Window(4)));
        assert!(Mask::Chunk(3).is_within(Mask::Causal) && !Mask::Causal.is_within(Mask::Window(9)));
        assert!(!Mask::Chunk(3).is_within(Mask::Window(3)) && !Mask::Full.is_within(Mask::Causal));
    }

    #[test]
    fn near_keys_have_a_bucket_each_and_far_ones_share() {
        let bucket = |behind| Shifts { table: WeightId(0), buckets: 32, both_sides: true }.bucket(behind);
        assert_eq!([0, -1, -7, -8, -9, -12, -16, -32].map(bucket), [0, 1, 7, 8, 8, 9, 10, 12]);
        assert_eq!([1, 7, 8, 127, 128, i64::MAX].map(bucket), [17, 23, 24, 31, 31, 31]);
        assert_eq!((bucket(-127), bucket(-128), bucket(i64::MIN)), (15, 15, 15));
        for buckets in Shifts::BUCKETS {
            for both_sides in [true, false] {
                let shifts = Shifts { table: WeightId(0), buckets, both_sides };
                assert!((-300..300).map(|behind| shifts.bucket(behind)).max().unwrap() < buckets);
            }
        }
    }

    #[test]
    fn where_nothing_behind_is_seen_all_buckets_are_for_what_came_before() {
        let bucket = |behind| Shifts { table: WeightId(0), buckets: 32, both_sides: false }.bucket(behind);
        assert_eq!([0, -1, -15, -16, -19, -32, -64].map(bucket), [0, 1, 15, 16, 17, 21, 26]);
        assert_eq!([-110, -127, -128, i64::MIN, 1, 9].map(bucket), [30, 31, 31, 31, 0, 0]);
    }
}
