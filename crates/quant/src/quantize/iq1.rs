//! IQ1: ternary rows from a codebook, shifted up or down by 1/8.

use std::sync::LazyLock;

use super::for_each_block;
use super::grid::{Grid, GroupChoice, ScaleSearch, SearchEffort, fit_block};
use super::search::{largest, sum_of_squares, weights};
use crate::codebooks;
use crate::layout::{BlockIQ1_M, BlockIQ1_S};

static GRID: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ1_S, &[-1.0, 0.0, 1.0], 3));

/// Shift of a group's values, in units of its scale.
const SHIFT: f32 = 0.125;
/// Flag of rows that are shifted down.
const SHIFTED_DOWN: u16 = 1 << 15;

const IQ1_SEARCH: ScaleSearch = ScaleSearch { low: 0.75, step: 0.22, count: 9, codes: 7 };

pub(super) fn iq1_s(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*GRID;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let w = block_weights(x, importance);
        let (x8, w8) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
        let fit = fit_block::<8>(&IQ1_SEARCH, group_maxima(x), |g, scale, effort| {
            let rows = 4 * g..4 * g + 4;
            choose_shifted(grid, &x8[rows.clone()], &w8[rows], scale, effort)
        });
        let row = |i: usize| fit.groups[i / 4].rows[i % 4] & !SHIFTED_DOWN;
        let qh = std::array::from_fn(|g| {
            let high = (0..4).fold(0, |word, l| word | (row(4 * g + l) >> 8) << (3 * l));
            (high | u16::from(fit.scales[g]) << 12 | fit.groups[g].rows[0] & SHIFTED_DOWN)
                .to_le_bytes()
        });
        BlockIQ1_S { d: fit.d, qs: std::array::from_fn(|i| row(i) as u8), qh }
    });
}

pub(super) fn iq1_m(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*GRID;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let w = block_weights(x, importance);
        let (x8, w8) = (x.as_chunks::<8>().0, w.as_chunks::<8>().0);
        let fit = fit_block::<16>(&IQ1_SEARCH, group_maxima(x), |g, scale, effort| {
            let [mut group, other] = [2 * g, 2 * g + 1]
                .map(|i| choose_shifted(grid, &x8[i..=i], &w8[i..=i], scale, effort));
            group.rows[1] = other.rows[0];
            group.sums.lx += other.sums.lx;
            group.sums.l2 += other.sums.l2;
            group
        });
        let row = |i: usize| fit.groups[i / 2].rows[i % 2];
        // A nibble: three high bits of the row, and its direction as the fourth bit.
        let high = |i: usize| ((row(i) >> 8 & 7) | row(i) >> 15 << 3) as u8;
        let d = u16::from_le_bytes(fit.d);
        let scales = std::array::from_fn(|i| {
            let codes =
                (0..4).fold(0, |word, k| word | u16::from(fit.scales[4 * i + k]) << (3 * k));
            (codes | (d >> (4 * i) & 15) << 12).to_le_bytes()
        });
        BlockIQ1_M {
            qs: std::array::from_fn(|i| row(i) as u8),
            qh: std::array::from_fn(|i| high(2 * i) | high(2 * i + 1) << 4),
            scales,
        }
    });
}

/// Chooses rows for values that all shift up or all shift down. The first row has the flag.
fn choose_shifted(
    grid: &Grid<8>,
    x: &[[f32; 8]],
    w: &[[f32; 8]],
    scale: f32,
    effort: SearchEffort,
) -> GroupChoice {
    let (up, mut down) =
        (grid.choose(x, w, scale, SHIFT, effort), grid.choose(x, w, scale, -SHIFT, effort));
    down.rows[0] |= SHIFTED_DOWN;
    if down.sums.error(scale) < up.sums.error(scale) { down } else { up }
}

fn block_weights(x: &[f32; 256], importance: Option<&[f32; 256]>) -> [f32; 256] {
    weights(x, importance.unwrap_or(&[1.0; 256]), 2.0 * sum_of_squares(x) / 256.0)
}

fn group_maxima<const S: usize>(x: &[f32; 256]) -> [f32; S] {
    std::array::from_fn(|g| largest(&x[256 / S * g..256 / S * (g + 1)]))
}
