//! IQ4: single values from a table of sixteen.

use super::codebook::pack_pairs;
use super::legacy::{pack_nibbles, reciprocal};
use super::search::{ALMOST_ZERO, extreme, nearest, sum_of_squares, weights};
use super::{for_each_block, to_f16};
use crate::layout::{BlockIQ4_NL, BlockIQ4_XS};
use crate::tables::IQ4NL_VALUES;

/// Number of scales tried on each side of the scale that maps the extreme value to an end of the
/// table.
const SCALES_PER_SIDE: i32 = 5;

pub(super) fn iq4_nl(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 32], importance| {
        let sigma2 = 2.0 * sum_of_squares(x) / 32.0;
        let (d, inverse) = stored_scale(table_scale(x, &table_weights(x, importance, sigma2)));
        BlockIQ4_NL { d, qs: pack_nibbles(&nearest_codes(x, inverse)) }
    });
}

pub(super) fn iq4_xs(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], importance| {
        let sigma2 = 2.0 * sum_of_squares(x) / 256.0;
        let groups = x.as_chunks::<32>().0;
        let ideal: [f32; 8] = std::array::from_fn(|g| {
            table_scale(
                &groups[g],
                &table_weights(&groups[g], importance.map(|w| &w.as_chunks().0[g]), sigma2),
            )
        });
        let (d_bytes, d) = to_f16(extreme(&ideal) / -32.0);
        let inverse = reciprocal(d);
        let (mut low, mut scales_h, mut qs) = ([0; 8], 0_u16, [0; 128]);
        for (g, x) in groups.iter().enumerate() {
            let scale = nearest(inverse * ideal[g]).clamp(-32, 31);
            low[g] = (scale + 32) as u8 & 15;
            scales_h |= ((scale + 32) as u16 >> 4) << (2 * g);
            let codes = nearest_codes(x, reciprocal(d * scale as f32));
            qs[16 * g..16 * g + 16].copy_from_slice(&pack_nibbles(&codes));
        }
        BlockIQ4_XS { d: d_bytes, scales_h: scales_h.to_le_bytes(), scales_l: pack_pairs(&low), qs }
    });
}

fn table_weights(x: &[f32; 32], importance: Option<&[f32; 32]>, sigma2: f32) -> [f32; 32] {
    weights(x, importance.unwrap_or(&[1.0; 32]), sigma2)
}

/// A scale as stored, and the inverse of the value that a reader gets.
fn stored_scale(scale: f32) -> ([u8; 2], f32) {
    let (bytes, d) = to_f16(scale);
    (bytes, reciprocal(d))
}

/// Scale with which table values fit `x` best. The table extends further down than up, so the
/// search maps the extreme value to either end. The scale may be negative.
fn table_scale(x: &[f32; 32], w: &[f32; 32]) -> f32 {
    let max = extreme(x);
    if max.abs() < ALMOST_ZERO {
        return 0.0;
    }
    let (mut scale, mut best) = (0.0, 0.0);
    for end in [IQ4NL_VALUES[0], IQ4NL_VALUES[15]] {
        for step in -SCALES_PER_SIDE..=SCALES_PER_SIDE {
            let inverse = (2 * step + i32::from(end)) as f32 / max;
            let values = nearest_values(x, inverse);
            let (lx, l2) = sums(x, w, &values);
            if l2 > 0.0 && lx * lx > best * l2 {
                scale = lx / l2;
                best = scale * lx;
            }
        }
    }
    scale
}

/// Σ w·x·v and Σ w·v², in eight lanes.
#[inline(always)]
fn sums(x: &[f32; 32], w: &[f32; 32], values: &[i16; 32]) -> (f32, f32) {
    let (mut lx, mut l2) = ([0.0; 8], [0.0; 8]);
    for i in 0..32 {
        let value = f32::from(values[i]);
        lx[i % 8] += w[i] * value * x[i];
        l2[i % 8] += w[i] * value * value;
    }
    (lx.iter().sum(), l2.iter().sum())
}

/// Twice `x · inverse` as integers. On this scale the boundaries between table values are integers.
#[inline(always)]
fn doubled(x: &[f32; 32], inverse: f32) -> [i16; 32] {
    // The offset makes all values positive, so that the conversion rounds down.
    x.map(|x| ((2.0 * (x * inverse)).clamp(-500.0, 500.0) + 512.0) as i16 - 512)
}

/// Table values nearest to `x · inverse`.
#[inline(always)]
fn nearest_values(x: &[f32; 32], inverse: f32) -> [i16; 32] {
    let doubled = doubled(x, inverse);
    let mut values = [i16::from(IQ4NL_VALUES[0]); 32];
    for pair in IQ4NL_VALUES.windows(2) {
        let (low, high) = (i16::from(pair[0]), i16::from(pair[1]));
        for i in 0..32 {
            values[i] += if doubled[i] >= low + high { high - low } else { 0 };
        }
    }
    values
}

/// Codes of the table values nearest to `x · inverse`.
fn nearest_codes(x: &[f32; 32], inverse: f32) -> [u8; 32] {
    let doubled = doubled(x, inverse);
    let mut codes = [0; 32];
    for pair in IQ4NL_VALUES.windows(2) {
        let boundary = i16::from(pair[0]) + i16::from(pair[1]);
        for i in 0..32 {
            codes[i] += u8::from(doubled[i] >= boundary);
        }
    }
    codes
}
