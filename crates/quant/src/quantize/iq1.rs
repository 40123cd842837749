//! IQ1: ternary rows from a codebook, moved up or down by an eighth.

use std::sync::LazyLock;

use super::each_block;
use super::grid::{Grid, GroupChoice, ScaleSearch, fit_block};
use super::search::{largest, sum_of_squares, weights};
use crate::codebooks;
use crate::layout::{BlockIQ1_M, BlockIQ1_S};

static GRID: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&codebooks::IQ1_S, &[-1.0, 0.0, 1.0], 3));

const SHIFT: f32 = 0.125;
/// Marks rows that are moved down.
const DOWN: u16 = 1 << 15;

const IQ1_SEARCH: ScaleSearch = ScaleSearch { low: 0.7, step: 0.12, count: 16, codes: 7 };

pub(super) fn iq1_s(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*GRID;
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let w = block_weights(x, importance);
        let (x8, w8) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
        // All four rows of a group move the same way.
        let moved = |g: usize, scale: f32, shift: f32| {
            let mut group = GroupChoice::default();
            for k in 0..4 {
                group.add(k, grid.choose(&x8[4 * g + k], &w8[4 * g + k], scale, shift));
            }
            group
        };
        let fit = fit_block::<8>(&IQ1_SEARCH, group_maxima(x), |g, scale| {
            let (up, mut down) = (moved(g, scale, SHIFT), moved(g, scale, -SHIFT));
            down.rows[0] |= DOWN;
            if down.sums.error(scale) < up.sums.error(scale) { down } else { up }
        });
        let row = |i: usize| fit.groups[i / 4].rows[i % 4] & !DOWN;
        let qh = std::array::from_fn(|g| {
            let high = (0..4).fold(0, |word, l| word | (row(4 * g + l) >> 8) << (3 * l));
            (high | u16::from(fit.scales[g]) << 12 | fit.groups[g].rows[0] & DOWN).to_le_bytes()
        });
        BlockIQ1_S { d: fit.d, qs: std::array::from_fn(|i| row(i) as u8), qh }
    });
}

pub(super) fn iq1_m(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*GRID;
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let w = block_weights(x, importance);
        let (x8, w8) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
        let fit = fit_block::<16>(&IQ1_SEARCH, group_maxima(x), |g, scale| {
            let mut group = GroupChoice::default();
            for k in 0..2 {
                let i = 2 * g + k;
                let up = grid.choose(&x8[i], &w8[i], scale, SHIFT);
                let mut down = grid.choose(&x8[i], &w8[i], scale, -SHIFT);
                down.row |= DOWN;
                group.add(k, if down.error(scale) < up.error(scale) { down } else { up });
            }
            group
        });
        let row = |i: usize| fit.groups[i / 2].rows[i % 2];
        // A nibble: three high bits of the row and, as the fourth, its direction.
        let high = |i: usize| ((row(i) >> 8 & 7) | row(i) >> 15 << 3) as u8;
        let d = u16::from_le_bytes(fit.d);
        let scales = std::array::from_fn(|i| {
            let codes = (0..4).fold(0, |word, k| word | u16::from(fit.scales[4 * i + k]) << (3 * k));
            (codes | (d >> (4 * i) & 15) << 12).to_le_bytes()
        });
        BlockIQ1_M {
            qs: std::array::from_fn(|i| row(i) as u8),
            qh: std::array::from_fn(|i| high(2 * i) | high(2 * i + 1) << 4),
            scales,
        }
    });
}

fn block_weights(x: &[f32; 256], importance: Option<&[f32; 256]>) -> [f32; 256] {
    weights(x, importance.unwrap_or(&[1.0; 256]), 2.0 * sum_of_squares(x) / 256.0)
}

fn group_maxima<const S: usize>(x: &[f32; 256]) -> [f32; S] {
    std::array::from_fn(|g| largest(&x[256 / S * g..256 / S * (g + 1)]))
}
