//! Two-dimensional rotary embedding: half of the pairs of a head rotate by the row of a patch, the
//! other half by its column.

use puna_graph::{Rope, RopeKind};

/// Base of the frequencies.
const BASE: f64 = 10_000.0;

/// Axes of positions: row and column of a patch.
pub(super) const ROW_AXIS: u8 = 1;
pub(super) const COLUMN_AXIS: u8 = 2;

/// Rotary table of heads with `head_dim` dimensions. The pairs of each half rotate by its axis of
/// `axes`. Pair i of a half has frequency `BASE^(-exponent(half, i))`.
pub(super) fn two_axis_rope(
    kind: RopeKind,
    axes: [u8; 2],
    head_dim: usize,
    exponent: impl Fn(usize, usize) -> f64,
) -> Rope {
    let quarter = head_dim / 4;
    let pairs = || (0..2).flat_map(|half| (0..quarter).map(move |i| (half, i)));
    Rope {
        kind,
        frequencies: pairs().map(|(half, i)| BASE.powf(-exponent(half, i)) as f32).collect(),
        magnitude: 1.0,
        axes: pairs().map(|(half, _)| axes[half]).collect(),
        position_offset: 0,
        is_inverse: false,
    }
}

/// Rotary table of `dims` dimensions that rotate by one axis, with equally spaced exponents of
/// `base`.
pub(super) fn one_axis_rope(axis: u8, dims: usize, base: f64) -> Rope {
    let pairs = dims / 2;
    let frequency = |i: usize| base.powf(-(i as f64) / pairs as f64) as f32;
    Rope {
        kind: RopeKind::Neox,
        frequencies: (0..pairs).map(frequency).collect(),
        magnitude: 1.0,
        axes: vec![axis; pairs],
        position_offset: 0,
        is_inverse: false,
    }
}

/// Both halves have the frequencies `2i / (head_dim / 2)`.
pub(super) fn equal_halves(head_dim: usize) -> impl Fn(usize, usize) -> f64 {
    move |_, i| 2.0 * i as f64 / (head_dim / 2) as f64
}
