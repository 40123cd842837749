//! Activations in the form that matrix units take.

use std::ops::Range;

/// Rows of one tile.
pub const TILE_ROWS: usize = 16;
/// Values of K in one tile of bf16.
pub const TILE_K: usize = 32;
/// Values of K that lie together for all rows.
pub const SLICE: usize = 256;

/// Rows of activations as bf16, interleaved for matrix units.
///
/// K is cut into *slices* of [`SLICE`] values, a slice into *pieces* of [`TILE_ROWS`] rows, a piece into *tiles* of
/// [`TILE_K`] values. A tile is 16 lines of 64 bytes: line i holds the values 2i and 2i + 1 of each of the 16 rows. Rows
/// and values past the end are zero or belong to nobody. So one slice of all rows is one stretch of memory, which fits the
/// second-level cache where a matrix with long rows would fall into few of its sets.
///
/// With two *parts* a value is the sum of two bf16, all first ones before all second ones.
#[derive(Debug, Clone, Copy)]
pub struct TileRows<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Values a row.
    pub k: usize,
    /// bf16 a value: 1 or 2.
    pub parts: usize,
    /// `parts` × [`TileRows::part`] bf16.
    pub data: &'a [u16],
}

impl TileRows<'_> {
    /// Values of one part of `rows` rows of `k` values, filled up to whole tiles.
    pub fn part(rows: usize, k: usize) -> usize {
        let (rows, k) = (rows.next_multiple_of(TILE_ROWS), k.next_multiple_of(TILE_K));
        rows.checked_mul(k).expect("the activations exist")
    }

    /// Where the piece of the rows `16 · tile …` and the values `256 · slice …` lies in a part.
    pub fn piece(rows: usize, k: usize, tile: usize, slice: usize) -> Range<usize> {
        let len = slice_len(k, slice).next_multiple_of(TILE_K);
        let start = slice * SLICE * rows.next_multiple_of(TILE_ROWS) + tile * TILE_ROWS * len;
        start..start + TILE_ROWS * len
    }

    /// Panics unless the data has all values.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no other level has a matrix unit yet")
    )]
    pub(super) fn check(&self) {
        let part = Self::part(self.rows, self.k);
        assert!((1..=2).contains(&self.parts) && self.data.len() / self.parts >= part);
    }
}

/// Values of K in slice number `slice`.
pub fn slice_len(k: usize, slice: usize) -> usize {
    k.saturating_sub(slice * SLICE).min(SLICE)
}

/// Rounds one piece: up to 16 rows of up to 256 values.
///
/// Row r is `x[r · stride ..][..len]`. `high` gets the piece, `low` (if not empty) what the rounding took away, rounded too.
pub type Interleave =
    fn(x: &[f32], stride: usize, rows: usize, len: usize, high: &mut [u16], low: &mut [u16]);

/// How a kernel wants [`TileRows`].
#[derive(Debug, Clone, Copy)]
pub struct TileForm {
    /// bf16 a value, at least.
    pub parts: usize,
    /// What makes them.
    pub interleave: Interleave,
}

impl TileForm {
    /// The form that serves two kernels that read the same rows, if one of them wants tiles: the finer of theirs.
    pub fn common(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let parts = |form: Option<Self>| form.map_or(0, |form| form.parts);
        if parts(a) >= parts(b) { a } else { b }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_part_without_overlap() {
        for (rows, k) in [(1, 7), (16, 256), (17, 300), (40, 512), (33, 1000)] {
            let mut taken = vec![false; TileRows::part(rows, k)];
            for slice in 0..k.div_ceil(SLICE) {
                for tile in 0..rows.div_ceil(TILE_ROWS) {
                    for i in TileRows::piece(rows, k, tile, slice) {
                        assert!(!std::mem::replace(&mut taken[i], true), "{rows} rows of {k}: {i} twice");
                    }
                }
            }
            assert!(taken.iter().all(|&t| t), "{rows} rows of {k}");
        }
    }
}
