//! Types with one scale per 32 to 128 values.

use super::search::{
    AffineSearch, affine, extreme, largest, nearest_away, sum_of_squares, symmetric, weights,
};
use super::{for_each_block, to_f16};
use crate::layout::*;

/// The affine search with an importance matrix.
pub(super) const fn weighted_search(levels: u8) -> AffineSearch {
    AffineSearch { levels, rmin: -0.9, rdelta: 0.05, steps: 36, absolute: false }
}

pub(super) fn q4_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let sigma2 = mean_square(row);
    for_each_block(row, importance, out, |x: &[f32; 32], importance| {
        let (d, codes) = match importance {
            Some(importance) => quantize_symmetric_weighted(x, &weights(x, importance, sigma2), 8),
            None => quantize_symmetric(x, 8),
        };
        BlockQ4_0 { d: to_f16(d).0, qs: pack_nibbles(&codes) }
    });
}

pub(super) fn q5_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let sigma2 = mean_square(row);
    for_each_block(row, importance, out, |x: &[f32; 32], importance| {
        let (d, codes) = match importance {
            Some(importance) => quantize_symmetric_weighted(x, &weights(x, importance, sigma2), 16),
            None => quantize_symmetric(x, 16),
        };
        BlockQ5_0 { d: to_f16(d).0, qh: fifth_bits(&codes), qs: pack_nibbles(&codes) }
    });
}

pub(super) fn q4_1(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let sigma2 = mean_square(row);
    for_each_block(row, importance, out, |x: &[f32; 32], importance| {
        let (d, m, codes) = quantize_affine(x, importance, sigma2, 15);
        BlockQ4_1 { d: to_f16(d).0, m: to_f16(m).0, qs: pack_nibbles(&codes) }
    });
}

pub(super) fn q5_1(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let sigma2 = mean_square(row);
    for_each_block(row, importance, out, |x: &[f32; 32], importance| {
        let (d, m, codes) = quantize_affine(x, importance, sigma2, 31);
        BlockQ5_1 {
            d: to_f16(d).0,
            m: to_f16(m).0,
            qh: fifth_bits(&codes),
            qs: pack_nibbles(&codes),
        }
    });
}

pub(super) fn q8_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 32], _| {
        let (d, qs) = quantize_8bit(x);
        BlockQ8_0 { d: to_f16(d).0, qs }
    });
}

pub(super) fn q8_1(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 32], _| {
        let (d, qs) = quantize_8bit(x);
        let sum: i32 = qs.iter().map(|&q| i32::from(q)).sum();
        BlockQ8_1 { d: to_f16(d).0, s: to_f16(sum as f32 * d).0, qs }
    });
}

pub(super) fn q1_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 128], _| {
        let d = x.iter().fold(0.0, |sum, x| sum + x.abs()) / 128.0;
        let bytes = x.as_chunks::<8>().0;
        let qs = std::array::from_fn(|i| {
            bytes[i].iter().enumerate().fold(0, |byte, (bit, &x)| byte | u8::from(x >= 0.0) << bit)
        });
        BlockQ1_0 { d: to_f16(d).0, qs }
    });
}

pub(super) fn q2_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 64], _| {
        let d = largest(x);
        let inverse = reciprocal(d);
        let bytes = x.as_chunks::<4>().0;
        let qs = std::array::from_fn(|i| {
            let codes = bytes[i].map(|x| (nearest_away(x * inverse) + 1).clamp(0, 3) as u8);
            codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        });
        BlockQ2_0 { d: to_f16(d).0, qs }
    });
}

/// 1/d, or 0 if `d` is 0.
#[inline(always)]
pub(super) fn reciprocal(d: f32) -> f32 {
    if d != 0.0 { 1.0 / d } else { 0.0 }
}

fn mean_square(row: &[f32]) -> f32 {
    sum_of_squares(row) / row.len() as f32
}

/// Codes `0..2·n` centered at `n`. The scale maps the extreme value to −n.
#[inline(always)]
fn quantize_symmetric(x: &[f32; 32], n: u8) -> (f32, [u8; 32]) {
    let n = f32::from(n);
    let d = extreme(x) / -n;
    let inverse = reciprocal(d);
    (d, x.map(|x| ((x * inverse + (n + 0.5)) as i32).min(2 * n as i32 - 1) as u8))
}

fn quantize_symmetric_weighted(x: &[f32; 32], w: &[f32; 32], n: u8) -> (f32, [u8; 32]) {
    let fit = symmetric::<32, 1>(n, &[*x], &[*w]);
    (fit.scales[0], fit.codes(0, x))
}

/// Codes `0..=levels` from the minimum up. Returns scale, minimum and codes.
#[inline(always)]
fn quantize_affine(
    x: &[f32; 32],
    importance: Option<&[f32; 32]>,
    sigma2: f32,
    levels: u8,
) -> (f32, f32, [u8; 32]) {
    if let Some(importance) = importance {
        let fit =
            affine::<32, 1>(&[*x], &[weights(x, importance, sigma2)], weighted_search(levels));
        return (fit.scales[0], -fit.mins[0], fit.codes(0, x));
    }
    let min = x.iter().fold(f32::MAX, |a, &b| if b < a { b } else { a });
    let max = x.iter().fold(f32::MIN, |a, &b| if b > a { b } else { a });
    let d = (max - min) / f32::from(levels);
    let inverse = reciprocal(d);
    (d, min, x.map(|x| (((x - min) * inverse + 0.5) as i32).min(i32::from(levels)) as u8))
}

#[inline(always)]
fn quantize_8bit(x: &[f32; 32]) -> (f32, [i8; 32]) {
    let d = largest(x) / 127.0;
    let inverse = reciprocal(d);
    (d, x.map(|x| nearest_away(x * inverse).clamp(-128, 127) as i8))
}

/// Packs elements 0..16 into low nibbles and 16..32 into high nibbles. Drops bits above the fourth.
#[inline(always)]
pub(super) fn pack_nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

#[inline(always)]
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes
        .iter()
        .enumerate()
        .fold(0_u32, |bits, (i, &code)| bits | u32::from(code >> 4 & 1) << i);
    bits.to_le_bytes()
}
