//! K-quants: scales of 16 or 32 values each, quantized again to 4 to 8 bits for a block of 256.

use super::legacy::weighted;
use super::search::*;
use super::{each_block, half};
use crate::layout::*;

/// As the search for Q2_K without an importance matrix differs: by absolute error.
const Q2_K_SEARCH: Affine = Affine { levels: 3, rmin: -0.5, rdelta: 0.1, steps: 15, absolute: true };
const Q4_K_SEARCH: Affine = Affine { levels: 15, rmin: -1.0, rdelta: 0.1, steps: 20, absolute: false };
const Q5_K_SEARCH: Affine = Affine { levels: 31, rmin: -0.5, rdelta: 0.1, steps: 15, absolute: false };

pub(super) fn q2_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let mut fit = match importance {
            None => plain_affine::<16, 16>(x, 15, &Q2_K_SEARCH, |x| x.map(f32::abs)),
            Some(w) => weighted_affine::<16, 16>(x, w, 15, 3, sum_of_squares(x) / 256.0),
        };
        let (d, dmin) = fit.requantize(x, 3);
        let scales = std::array::from_fn(|s| fit.scales[s] | fit.mins[s] << 4);
        BlockQ2_K { scales, qs: pack_crumbs(fit.codes.as_flattened()), d, dmin }
    });
}

pub(super) fn q3_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let groups = x.as_chunks::<16>().0;
        let mut codes = [[0; 16]; 16];
        let mut scales = [0.0; 16];
        let (d, stored) = match importance {
            None => {
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
                let mut sums = [0.0; 16];
                for (s, (x, w)) in groups.iter().zip(importance.as_chunks::<16>().0).enumerate() {
                    let w = weights(x, w, sigma2);
                    sums[s] = w.iter().fold(0.0, |sum, w| sum + w);
                    (scales[s], codes[s]) = symmetric(4, x, &w);
                }
                symmetric(32, &scales, &sums)
            }
        };
        let (d_bytes, d) = half(d);
        for (s, x) in groups.iter().enumerate() {
            requantize_symmetric(x, d * (i32::from(stored[s]) - 32) as f32, 4, &mut codes[s]);
        }
        let codes = codes.as_flattened();
        let mut hmask = [0; 32];
        for (i, code) in codes.iter().enumerate() {
            hmask[i % 32] |= (code >> 2) << (i / 32);
        }
        BlockQ3_K { hmask, qs: pack_crumbs(codes), scales: pack_scales_q3k(&stored), d: d_bytes }
    });
}

pub(super) fn q4_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let mut fit = match importance {
            None => plain_affine::<8, 32>(x, 63, &Q4_K_SEARCH, magnitude_weights),
            Some(w) => weighted_affine::<8, 32>(x, w, 63, 15, 2.0 * sum_of_squares(x) / 256.0),
        };
        let (d, dmin) = fit.requantize(x, 15);
        BlockQ4_K {
            d,
            dmin,
            scales: pack_scales_k4(&fit.scales, &fit.mins),
            qs: pack_nibble_pairs(&fit.codes),
        }
    });
}

pub(super) fn q5_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let mut fit = match importance {
            None => plain_affine::<8, 32>(x, 63, &Q5_K_SEARCH, magnitude_weights),
            Some(w) => weighted_affine::<8, 32>(x, w, 63, 31, 2.0 * sum_of_squares(x) / 256.0),
        };
        let (d, dmin) = fit.requantize(x, 31);
        let qh = std::array::from_fn(|l| (0..8).fold(0, |byte, s| byte | (fit.codes[s][l] >> 4) << s));
        BlockQ5_K {
            d,
            dmin,
            scales: pack_scales_k4(&fit.scales, &fit.mins),
            qh,
            qs: pack_nibble_pairs(&fit.codes),
        }
    });
}

pub(super) fn q6_k(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    each_block(row, importance, out, |x: &[f32; 256], importance| {
        let groups = x.as_chunks::<16>().0;
        let mut codes = [[0; 16]; 16];
        let mut scales = [0.0; 16];
        for (s, x) in groups.iter().enumerate() {
            let w = importance.map_or_else(|| x.map(|x| x * x), |w| w.as_chunks::<16>().0[s]);
            (scales[s], codes[s]) = symmetric(32, x, &w);
        }
        let extreme = extreme(&scales);
        if extreme.abs() < ALMOST_ZERO {
            return bytemuck::Zeroable::zeroed();
        }
        let inverse = -128.0 / extreme;
        let (d_bytes, d) = half(1.0 / inverse);
        let scales = scales.map(|s| nearest(inverse * s).clamp(-128, 127) as i8);
        for (s, x) in groups.iter().enumerate() {
            requantize_symmetric(x, d * f32::from(scales[s]), 32, &mut codes[s]);
        }
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
    each_block(row, importance, out, |x: &[f32; 256], _| {
        let extreme = extreme(x);
        if extreme == 0.0 {
            return bytemuck::Zeroable::zeroed();
        }
        let inverse = -127.0 / extreme;
        let qs = x.map(|x| nearest(inverse * x).clamp(-128, 127) as i8);
        let sums = qs.as_chunks::<16>().0;
        let bsums = std::array::from_fn(|g| sums[g].iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes());
        BlockQ8_K { d: (1.0 / inverse).to_le_bytes(), qs, bsums }
    });
}

/// A block of `S` groups of `N` values on lines of their own, whose scales and minima are integers times `d`, `dmin`.
struct AffineBlock<const S: usize, const N: usize> {
    d: f32,
    dmin: f32,
    scales: [u8; S],
    mins: [u8; S],
    codes: [[u8; N]; S],
}

impl<const S: usize, const N: usize> AffineBlock<S, N> {
    /// Rounds `d` and `dmin` to binary16 and the values to what the rounded scales can express. Groups whose scale
    /// became zero keep their codes.
    fn requantize(&mut self, x: &[f32; 256], levels: i32) -> ([u8; 2], [u8; 2]) {
        let ((d_bytes, d), (dmin_bytes, dmin)) = (half(self.d), half(self.dmin));
        for (s, x) in x.as_chunks::<N>().0.iter().enumerate() {
            let (scale, min) = (d * f32::from(self.scales[s]), dmin * f32::from(self.mins[s]));
            if scale != 0.0 {
                self.codes[s] = x.map(|x| nearest((x + min) / scale).clamp(0, levels) as u8);
            }
        }
        (d_bytes, dmin_bytes)
    }
}

/// Group lines by `search`, their scales and minima relative to the largest in steps of 1/`steps`.
fn plain_affine<const S: usize, const N: usize>(
    x: &[f32; 256],
    steps: u8,
    search: &Affine,
    weigh: impl Fn(&[f32; N]) -> [f32; N],
) -> AffineBlock<S, N> {
    let (mut scales, mut mins, mut codes) = ([0.0; S], [0.0; S], [[0; N]; S]);
    for (s, x) in x.as_chunks::<N>().0.iter().enumerate() {
        let fit = affine(x, &weigh(x), search);
        (scales[s], mins[s], codes[s]) = (fit.scale, fit.min, fit.codes);
    }
    let top = f32::from(steps);
    let to_steps = |values: [f32; S]| {
        let max = values.iter().fold(0.0_f32, |a, &b| if b > a { b } else { a });
        let inverse = if max > 0.0 { top / max } else { 0.0 };
        (max / top, values.map(|v| nearest(inverse * v).clamp(0, i32::from(steps)) as u8))
    };
    let ((d, scales), (dmin, mins)) = (to_steps(scales), to_steps(mins));
    AffineBlock { d, dmin, scales, mins, codes }
}

/// As [`plain_affine`], weighted by importance down to the scales.
fn weighted_affine<const S: usize, const N: usize>(
    x: &[f32; 256],
    importance: &[f32; 256],
    steps: u8,
    levels: i32,
    sigma2: f32,
) -> AffineBlock<S, N> {
    let (mut scales, mut mins, mut codes) = ([0.0; S], [0.0; S], [[0; N]; S]);
    let mut sums = [0.0; S];
    for (s, (x, w)) in x.as_chunks::<N>().0.iter().zip(importance.as_chunks::<N>().0).enumerate() {
        let w = weights(x, w, sigma2);
        sums[s] = w.iter().fold(0.0, |sum, w| sum + w);
        let fit = affine(x, &w, &weighted(levels));
        (scales[s], mins[s], codes[s]) = (fit.scale, fit.min, fit.codes);
    }
    let (d, scales) = positive(i32::from(steps), &scales, &sums);
    let (dmin, mins) = positive(i32::from(steps), &mins, &sums);
    AffineBlock { d, dmin, scales, mins, codes }
}

fn magnitude_weights(x: &[f32; 32]) -> [f32; 32] {
    let rms = (sum_of_squares(x) / 32.0).sqrt();
    x.map(|x| rms + x.abs())
}

/// Rounds a group to codes `0..2·nmax` for the scale it finally got; a scale of zero leaves the codes.
fn requantize_symmetric(x: &[f32; 16], scale: f32, nmax: i32, codes: &mut [u8; 16]) {
    if scale != 0.0 {
        *codes = x.map(|x| (nearest(x / scale).clamp(-nmax, nmax - 1) + nmax) as u8);
    }
}

/// Two low bits of each code: element `128h + 32j + l` at bits `2j` of byte `32h + l`.
fn pack_crumbs(codes: &[u8]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let start = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, j| byte | (codes[start + 32 * j] & 3) << (2 * j))
    })
}

/// Low nibbles of each two groups of 32 in 32 bytes.
fn pack_nibble_pairs(codes: &[[u8; 32]; 8]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let (pair, l) = (i / 32 * 2, i % 32);
        codes[pair][l] & 15 | codes[pair + 1][l] << 4
    })
}
