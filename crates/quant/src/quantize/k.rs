//! K-quants: scales of 16 or 32 values each, which are quantized to 4 to 8 bits per block of 256
//! values.

use super::legacy::weighted_search;
use super::search::*;
use super::{for_each_block, to_f16};
use crate::layout::*;

/// Search for Q2_K without an importance matrix. Unlike the others, it minimizes the absolute
/// error.
const Q2_K_SEARCH: AffineSearch =
    AffineSearch { levels: 3, rmin: -0.5, rdelta: 0.1, steps: 15, absolute: true };
const Q4_K_SEARCH: AffineSearch =
    AffineSearch { levels: 15, rmin: -1.0, rdelta: 0.1, steps: 20, absolute: false };
const Q5_K_SEARCH: AffineSearch =
    AffineSearch { levels: 31, rmin: -0.5, rdelta: 0.1, steps: 15, absolute: false };

pub(super) fn q2_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let block = match importance {
            None => plain_affine::<16, 16>(x, 15, Q2_K_SEARCH, |x| x.map(f32::abs)),
            Some(w) => weighted_affine::<16, 16>(x, w, 15, 3, sum_of_squares(x) / 256.0),
        };
        let (d, dmin, codes) = block.quantize::<16>(x, 3);
        let scales = std::array::from_fn(|s| block.scales[s] | block.mins[s] << 4);
        BlockQ2_K { scales, qs: pack_two_bits(codes.as_flattened()), d, dmin }
    });
}

pub(super) fn q3_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let groups = x.as_chunks::<16>().0;
        let mut codes = [[0; 16]; 16];
        let (d, stored) = match importance {
            None => {
                let mut scales = [0.0; 16];
                for (s, x) in groups.iter().enumerate() {
                    (scales[s], codes[s]) = symmetric_by_descent(4, x);
                }
                let inverse = -32.0 / extreme(&scales);
                if inverse.is_finite() {
                    let stored = scales.map(|s| (nearest(inverse * s).clamp(-32, 31) + 32) as u8);
                    (1.0 / inverse, stored)
                } else {
                    (0.0, [0; 16])
                }
            }
            Some(importance) => {
                let sigma2 = 2.0 * sum_of_squares(x) / 256.0;
                let w = group_weights::<16, 16>(groups, importance, sigma2);
                let fit = symmetric::<16, 16>(4, groups, &w);
                codes = std::array::from_fn(|s| fit.codes(s, &groups[s]));
                let block = symmetric::<16, 1>(32, &[fit.scales], &[w.map(|w| sum(&w))]);
                (block.scales[0], block.codes(0, &fit.scales))
            }
        };
        let (d_bytes, d) = to_f16(d);
        for (s, x) in groups.iter().enumerate() {
            let scale = d * (i32::from(stored[s]) - 32) as f32;
            if scale != 0.0 {
                codes[s] = round_group(x, scale, 4);
            }
        }
        let codes = codes.as_flattened();
        let mut hmask = [0; 32];
        for (i, code) in codes.iter().enumerate() {
            hmask[i % 32] |= (code >> 2) << (i / 32);
        }
        BlockQ3_K { hmask, qs: pack_two_bits(codes), scales: pack_scales_q3k(&stored), d: d_bytes }
    });
}

pub(super) fn q4_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let block = match importance {
            None => plain_affine::<8, 32>(x, 63, Q4_K_SEARCH, magnitude_weights),
            Some(w) => weighted_affine::<8, 32>(x, w, 63, 15, 2.0 * sum_of_squares(x) / 256.0),
        };
        let (d, dmin, codes) = block.quantize::<32>(x, 15);
        BlockQ4_K {
            d,
            dmin,
            scales: pack_scales_k4(&block.scales, &block.mins),
            qs: pack_nibble_pairs(&codes),
        }
    });
}

pub(super) fn q5_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let block = match importance {
            None => plain_affine::<8, 32>(x, 63, Q5_K_SEARCH, magnitude_weights),
            Some(w) => weighted_affine::<8, 32>(x, w, 63, 31, 2.0 * sum_of_squares(x) / 256.0),
        };
        let (d, dmin, codes) = block.quantize::<32>(x, 31);
        let qh = std::array::from_fn(|l| (0..8).fold(0, |byte, s| byte | (codes[s][l] >> 4) << s));
        BlockQ5_K {
            d,
            dmin,
            scales: pack_scales_k4(&block.scales, &block.mins),
            qh,
            qs: pack_nibble_pairs(&codes),
        }
    });
}

pub(super) fn q6_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let groups = x.as_chunks::<16>().0;
        let squares = x.map(|x| x * x);
        let weights = importance.unwrap_or(&squares).as_chunks::<16>().0;
        let fit = symmetric::<16, 16>(32, groups, weights);
        let extreme = extreme(&fit.scales);
        if extreme.abs() < ALMOST_ZERO {
            return bytemuck::Zeroable::zeroed();
        }
        let inverse = -128.0 / extreme;
        let (d_bytes, d) = to_f16(1.0 / inverse);
        let scales = fit.scales.map(|s| nearest(inverse * s).clamp(-128, 127) as i8);
        let codes: [[u8; 16]; 16] = std::array::from_fn(|s| {
            let scale = d * f32::from(scales[s]);
            if scale != 0.0 { round_group(&groups[s], scale, 32) } else { fit.codes(s, &groups[s]) }
        });
        let codes = codes.as_flattened();
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        for half in 0..2 {
            for l in 0..32 {
                let q: [u8; 4] = std::array::from_fn(|j| codes[128 * half + 32 * j + l]);
                ql[64 * half + l] = q[0] & 15 | q[2] << 4;
                ql[64 * half + 32 + l] = q[1] & 15 | q[3] << 4;
                qh[32 * half + l] = q[0] >> 4 | q[1] >> 4 << 2 | q[2] >> 4 << 4 | q[3] >> 4 << 6;
            }
        }
        BlockQ6_K { ql, qh, scales, d: d_bytes }
    });
}

pub(super) fn q8_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], _| {
        let extreme = extreme(x);
        if extreme == 0.0 {
            return bytemuck::Zeroable::zeroed();
        }
        let inverse = -127.0 / extreme;
        let qs = x.map(|x| nearest(inverse * x).clamp(-128, 127) as i8);
        let sums = qs.as_chunks::<16>().0;
        let bsums = std::array::from_fn(|g| {
            sums[g].iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes()
        });
        BlockQ8_K { d: (1.0 / inverse).to_le_bytes(), qs, bsums }
    });
}

/// A block of `G` groups, each with its own scale and minimum, which are integers times `d` and
/// `dmin`.
struct AffineBlock<const G: usize> {
    fit: AffineFit<G>,
    d: f32,
    dmin: f32,
    scales: [u8; G],
    mins: [u8; G],
}

impl<const G: usize> AffineBlock<G> {
    /// Rounds `d` and `dmin` to binary16, and the values to codes for the rounded scales. Groups
    /// with a zero scale after rounding keep the codes of the search.
    fn quantize<const N: usize>(
        &self,
        x: &[f32; 256],
        levels: i32,
    ) -> ([u8; 2], [u8; 2], [[u8; N]; G]) {
        let ((d_bytes, d), (dmin_bytes, dmin)) = (to_f16(self.d), to_f16(self.dmin));
        let groups = x.as_chunks::<N>().0;
        let codes = std::array::from_fn(|g| {
            let (scale, min) = (d * f32::from(self.scales[g]), dmin * f32::from(self.mins[g]));
            if scale != 0.0 {
                groups[g].map(|x| nearest((x + min) / scale).clamp(0, levels) as u8)
            } else {
                self.fit.codes(g, &groups[g])
            }
        });
        (d_bytes, dmin_bytes, codes)
    }
}

/// Fits each group by `search`, and quantizes scales and minima relative to the largest, in steps
/// of 1/`steps`.
fn plain_affine<const G: usize, const N: usize>(
    x: &[f32; 256],
    steps: u8,
    search: AffineSearch,
    weigh: impl Fn(&[f32; N]) -> [f32; N],
) -> AffineBlock<G> {
    let groups = x.as_chunks::<N>().0;
    let w: [[f32; N]; G] = std::array::from_fn(|g| weigh(&groups[g]));
    let fit = affine::<N, G>(groups, &w, search);
    let top = f32::from(steps);
    let to_steps = |values: [f32; G]| {
        let max = values.iter().fold(0.0_f32, |a, &b| if b > a { b } else { a });
        let inverse = if max > 0.0 { top / max } else { 0.0 };
        (max / top, values.map(|v| nearest(inverse * v).clamp(0, i32::from(steps)) as u8))
    };
    let ((d, scales), (dmin, mins)) = (to_steps(fit.scales), to_steps(fit.mins));
    AffineBlock { fit, d, dmin, scales, mins }
}

/// Like [`plain_affine`], but weighted by importance, including the fit of scales and minima.
fn weighted_affine<const G: usize, const N: usize>(
    x: &[f32; 256],
    importance: &[f32; 256],
    steps: u8,
    levels: u8,
    sigma2: f32,
) -> AffineBlock<G> {
    let groups = x.as_chunks::<N>().0;
    let w = group_weights::<G, N>(groups, importance, sigma2);
    let fit = affine::<N, G>(groups, &w, weighted_search(levels));
    let sums = w.map(|w| sum(&w));
    let (d, scales) = fit_nonnegative(i32::from(steps), &fit.scales, &sums);
    let (dmin, mins) = fit_nonnegative(i32::from(steps), &fit.mins, &sums);
    AffineBlock { fit, d, dmin, scales, mins }
}

fn magnitude_weights(x: &[f32; 32]) -> [f32; 32] {
    let rms = (sum_of_squares(x) / 32.0).sqrt();
    x.map(|x| rms + x.abs())
}

/// Rounds a group to codes `0..2·nmax` for its final scale.
fn round_group(x: &[f32; 16], scale: f32, nmax: i32) -> [u8; 16] {
    x.map(|x| (nearest(x / scale).clamp(-nmax, nmax - 1) + nmax) as u8)
}

fn sum(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, v| sum + v)
}

fn group_weights<const G: usize, const N: usize>(
    groups: &[[f32; N]],
    importance: &[f32; 256],
    sigma2: f32,
) -> [[f32; N]; G] {
    let importance = importance.as_chunks::<N>().0;
    std::array::from_fn(|g| weights(&groups[g], &importance[g], sigma2))
}

/// Packs the two low bits of each code. Element `128h + 32j + l` is at bits `2j` of byte `32h + l`.
fn pack_two_bits(codes: &[u8]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let start = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, j| byte | (codes[start + 32 * j] & 3) << (2 * j))
    })
}

/// Packs the low nibbles of each two groups of 32 into 32 bytes.
fn pack_nibble_pairs(codes: &[[u8; 32]; 8]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let (pair, l) = (i / 32 * 2, i % 32);
        codes[pair][l] & 15 | codes[pair + 1][l] << 4
    })
}
