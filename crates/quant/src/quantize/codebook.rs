//! IQ2 and IQ3: magnitudes from a codebook, with separate signs.

use std::sync::LazyLock;

use super::for_each_block;
use super::grid::{BlockFit, Grid, ScaleSearch, fit_block};
use super::search::{largest, sum_of_squares, weights};
use crate::codebooks;
use crate::layout::*;
use crate::tables::{IQ2_LEVELS, IQ3S_LEVELS, IQ3XXS_LEVELS};

// Levels in units of the block's `d · (2·scale + 1)`.
static IQ2XXS: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ2_XXS, &levels(IQ2_LEVELS, 8.0), 2));
static IQ2XS: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ2_XS, &levels(IQ2_LEVELS, 8.0), 2));
static IQ2S: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ2_S, &levels(IQ2_LEVELS, 8.0), 1));
static IQ3XXS: LazyLock<Grid<4>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ3_XXS, &levels(IQ3XXS_LEVELS, 4.0), 2));
static IQ3S: LazyLock<Grid<4>> =
    LazyLock::new(|| Grid::new(&codebooks::IQ3_S, &levels(IQ3S_LEVELS, 1.0), 3));

fn levels<const N: usize>(levels: [u8; N], unit: f32) -> [f32; N] {
    levels.map(|level| f32::from(level) / unit)
}

/// Groups of 16 or 32 values on three levels. The largest level is 5.375.
const IQ2_SEARCH: ScaleSearch = ScaleSearch { low: 4.2, step: 0.4, count: 11, codes: 15 };
/// Groups of 32 values on eight levels. The largest level is 15 or 15.5.
const IQ3_SEARCH: ScaleSearch = ScaleSearch { low: 12.0, step: 0.6, count: 12, codes: 15 };

pub(super) fn iq2_xxs(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*IQ2XXS;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let (components, fit) =
            fit_rows::<8, 8>(grid, &IQ2_SEARCH, BlockComponents::with_even_signs(x, importance));
        let qs = std::array::from_fn(|g| {
            let rows = fit.groups[g].rows;
            let [a, b, c, d] = components.sign_word(g, fit.scales[g]).to_le_bytes();
            [rows[0] as u8, rows[1] as u8, rows[2] as u8, rows[3] as u8, a, b, c, d]
        });
        BlockIQ2_XXS { d: fit.d, qs }
    });
}

pub(super) fn iq2_xs(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*IQ2XS;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let (components, fit) =
            fit_rows::<8, 16>(grid, &IQ2_SEARCH, BlockComponents::with_even_signs(x, importance));
        let qs = std::array::from_fn(|i| {
            let row = fit.groups[i / 2].rows[i % 2];
            (row | u16::from(components.signs[i] & 127) << 9).to_le_bytes()
        });
        BlockIQ2_XS { d: fit.d, qs, scales: pack_pairs(&fit.scales) }
    });
}

pub(super) fn iq2_s(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*IQ2S;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let (components, fit) =
            fit_rows::<8, 16>(grid, &IQ2_SEARCH, BlockComponents::with_free_signs(x, importance));
        let row = |i: usize| fit.groups[i / 2].rows[i % 2];
        BlockIQ2_S {
            d: fit.d,
            qs: std::array::from_fn(|i| row(i) as u8),
            signs: components.signs,
            qh: std::array::from_fn(|i| {
                (0..4).fold(0, |byte, l| byte | (row(4 * i + l) >> 8 << (2 * l)) as u8)
            }),
            scales: pack_pairs(&fit.scales),
        }
    });
}

pub(super) fn iq3_xxs(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*IQ3XXS;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let (components, fit) =
            fit_rows::<4, 8>(grid, &IQ3_SEARCH, BlockComponents::with_even_signs(x, importance));
        BlockIQ3_XXS {
            d: fit.d,
            qs: std::array::from_fn(|i| fit.groups[i / 8].rows[i % 8] as u8),
            sas: std::array::from_fn(|g| components.sign_word(g, fit.scales[g]).to_le_bytes()),
        }
    });
}

pub(super) fn iq3_s(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = &*IQ3S;
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let (components, fit) =
            fit_rows::<4, 8>(grid, &IQ3_SEARCH, BlockComponents::with_free_signs(x, importance));
        BlockIQ3_S {
            d: fit.d,
            qs: std::array::from_fn(|i| fit.groups[i / 8].rows[i % 8] as u8),
            qh: std::array::from_fn(|g| {
                (0..8).fold(0, |byte, k| byte | (fit.groups[g].rows[k] >> 8 << k) as u8)
            }),
            signs: components.signs,
            scales: pack_pairs(&fit.scales),
        }
    });
}

/// Components of a block: magnitudes, signs of 8 values per byte, and weights.
struct BlockComponents {
    magnitudes: [f32; 256],
    signs: [u8; 32],
    weights: [f32; 256],
}

impl BlockComponents {
    fn with_free_signs(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let sigma2 = 2.0 * sum_of_squares(x) / 256.0;
        let weights = weights(x, importance.unwrap_or(&[1.0; 256]), sigma2);
        let groups = x.as_chunks::<8>().0;
        let signs = std::array::from_fn(|g| {
            groups[g].iter().enumerate().fold(0, |s, (j, x)| s | u8::from(*x < 0.0) << j)
        });
        Self { magnitudes: x.map(f32::abs), signs, weights }
    }

    /// Splits a block for types that store only 7 of 8 signs. If the number of minus signs is odd,
    /// flips the sign of the value with the least weighted square. The magnitude of this value
    /// becomes negative.
    fn with_even_signs(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Self {
        let mut components = Self::with_free_signs(x, importance);
        for (g, signs) in
            components.signs.iter_mut().enumerate().filter(|(_, s)| s.count_ones() % 2 == 1)
        {
            let loss = |j: &usize| {
                let i = 8 * g + j;
                components.weights[i] * x[i] * x[i]
            };
            let cheapest = (0..8).min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap_or(0);
            *signs ^= 1 << cheapest;
            components.magnitudes[8 * g + cheapest] *= -1.0;
        }
        components
    }

    /// Packs four 7-bit sign indices and a 4-bit scale.
    fn sign_word(&self, group: usize, scale: u8) -> u32 {
        (0..4).fold(u32::from(scale) << 28, |word, l| {
            word | u32::from(self.signs[4 * group + l] & 127) << (7 * l)
        })
    }
}

/// Fits `S` groups of rows of `N` values.
fn fit_rows<const N: usize, const S: usize>(
    grid: &Grid<N>,
    search: &ScaleSearch,
    components: BlockComponents,
) -> (BlockComponents, BlockFit<S>) {
    let values = 256 / S;
    let largest =
        std::array::from_fn(|g| largest(&components.magnitudes[values * g..values * (g + 1)]));
    let (x, w) = (components.magnitudes.as_chunks::<N>().0, components.weights.as_chunks::<N>().0);
    let rows = values / N;
    let fit = fit_block(search, largest, |g, scale, effort| {
        grid.choose(&x[rows * g..rows * (g + 1)], &w[rows * g..rows * (g + 1)], scale, 0.0, effort)
    });
    (components, fit)
}

/// Packs nibbles, even ones low.
pub(super) fn pack_pairs<const N: usize>(nibbles: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| nibbles[2 * i] | nibbles[2 * i + 1] << 4)
}
