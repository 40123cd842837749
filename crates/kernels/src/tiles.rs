//! Layout of activations for matrix units (AMX).

use std::ops::Range;

/// Rows per tile.
pub const TILE_ROWS: usize = 16;
/// Values of K per tile of bf16.
pub const TILE_K: usize = 32;
/// Values of K per slice.
pub const AMX_SLICE: usize = 256;

/// Rows of activations as bf16, interleaved for matrix units.
///
/// ```text
/// part:  slice 0 (256 values of all rows) │ slice 1 │ …
/// slice: piece 0 (16 rows) │ piece 1 │ …
/// piece: tile 0 (32 values) │ tile 1 │ …
/// tile:  16 lines of 64 bytes; line i: values 2i, 2i + 1 of row 0, of row 1, …, of row 15
/// ```
///
/// Padding rows and values are zero or undefined. One slice of all rows is contiguous, so it fits
/// the second-level cache; a slice of a matrix with long rows would occupy few sets of that cache.
///
/// With two *parts*, each value is the sum of two bf16: the high parts of all values, then the low
/// parts of all values.
#[derive(Debug, Clone, Copy)]
pub struct TileRows<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Values per row.
    pub k: usize,
    /// bf16 per value: 1 or 2.
    pub parts: usize,
    /// `parts` × [`TileRows::part`] bf16.
    pub data: &'a [u16],
}

impl TileRows<'_> {
    /// Length of one part of `rows × k` values, padded to whole tiles.
    pub fn part(rows: usize, k: usize) -> usize {
        let (rows, k) = (rows.next_multiple_of(TILE_ROWS), k.next_multiple_of(TILE_K));
        rows.checked_mul(k).expect("the activations exist")
    }

    /// Range in a part of the piece with rows `16 · tile …` and values `256 · slice …`.
    pub fn piece(rows: usize, k: usize, tile: usize, slice: usize) -> Range<usize> {
        let len = slice_len(k, slice).next_multiple_of(TILE_K);
        let start = slice * AMX_SLICE * rows.next_multiple_of(TILE_ROWS) + tile * TILE_ROWS * len;
        start..start + TILE_ROWS * len
    }

    /// Panics if the data is too short.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no other level has a matrix unit yet")
    )]
    pub(super) fn check(&self) {
        let part = Self::part(self.rows, self.k);
        assert!((1..=2).contains(&self.parts) && self.data.len() / self.parts >= part);
    }
}

/// Number of values of K in slice `slice`.
pub fn slice_len(k: usize, slice: usize) -> usize {
    k.saturating_sub(slice * AMX_SLICE).min(AMX_SLICE)
}

/// Converts one piece: up to 16 rows of up to 256 values.
///
/// Row r is `x[r · stride ..][..len]`. `high` gets the values as bf16, `low` (if not empty) the
/// rounding errors as bf16.
pub type Interleave =
    fn(x: &[f32], stride: usize, rows: usize, len: usize, high: &mut [u16], low: &mut [u16]);

/// Form of [`TileRows`] that a kernel takes.
#[derive(Debug, Clone, Copy)]
pub struct TileForm {
    /// Smallest number of bf16 per value.
    pub parts: usize,
    /// Function that makes the pieces.
    pub interleave: Interleave,
}

impl TileForm {
    /// The form that serves two kernels with the same input: the one with more parts, if any.
    pub fn common(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let parts = |form: Option<Self>| form.map_or(0, |form| form.parts);
        if parts(a) >= parts(b) { a } else { b }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tile_pieces_cover_the_buffer_without_overlap() {
        for (rows, k) in [(1, 7), (16, 256), (17, 300), (40, 512), (33, 1000)] {
            let mut taken = vec![false; TileRows::part(rows, k)];
            for slice in 0..k.div_ceil(AMX_SLICE) {
                for tile in 0..rows.div_ceil(TILE_ROWS) {
                    for i in TileRows::piece(rows, k, tile, slice) {
                        assert!(
                            !std::mem::replace(&mut taken[i], true),
                            "{rows} rows of {k}: {i} twice"
                        );
                    }
                }
            }
            assert!(taken.iter().all(|&t| t), "{rows} rows of {k}");
        }
    }
}
