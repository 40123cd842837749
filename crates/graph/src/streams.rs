//! Hyper-connections (Zhu et al., 2024): several residual streams in consecutive columns of a
//! value. A sublayer reads a weighted sum of the streams, and its result is added to each stream
//! with weights that depend on the token.

use crate::values::ValueId;

/// From projected numbers to the weights of a token. There are up to three kinds of numbers: a read
/// weight per stream, a write weight per stream, and a mixing matrix of streams × streams. Models
/// can have only the first kinds.
///
/// With `x = scale · number + base` (one `scale` per kind): read weights are `σ(x) + floor`, write
/// weights `magnitude · σ(x) + write_floor`. Mixing weights are the row-wise softmax plus `floor`,
/// normalized by `rounds` alternating divisions of columns and rows by their sums plus `floor`
/// (Sinkhorn and Knopp, 1967).
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSpec {
    /// Number of streams.
    pub streams: usize,
    /// Scale of each kind of numbers.
    pub scales: Vec<f32>,
    /// Base of each number.
    pub base: Vec<f32>,
    /// Added to read weights (`σ(x) + floor`), mixing weights and the sums of mixing weights.
    pub floor: f32,
    /// Factor of write weights: `magnitude · σ(x) + write_floor`.
    pub magnitude: f32,
    /// Added to write weights: `magnitude · σ(x) + write_floor`.
    pub write_floor: f32,
    /// Number of column normalizations, with row normalizations between them.
    pub rounds: usize,
}

impl StreamSpec {
    /// Limit of streams.
    pub const MAX_STREAMS: usize = 16;

    /// Count of numbers for `kinds` kinds.
    pub fn numbers(streams: usize, kinds: usize) -> usize {
        streams * kinds.min(2) + if kinds > 2 { streams * streams } else { 0 }
    }
}

/// Write and mixing weights of a sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWrite {
    /// Write weight of each stream, one column each.
    pub weights: ValueId,
    /// Mixing matrix; `None` leaves the streams as they are.
    pub mix: Option<ValueId>,
}
