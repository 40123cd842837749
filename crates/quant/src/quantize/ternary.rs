//! Ternary types: values rounded to −1, 0 or 1 times the largest magnitude.

use super::legacy::reciprocal;
use super::search::{largest, nearest_away};
use super::{for_each_block, to_f16};
use crate::layout::{BlockTQ1_0, BlockTQ2_0};

pub(super) fn tq1_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], _| {
        let (d, digits) = ternary(x);
        let mut qs = [0; 48];
        for (m, byte) in qs.iter_mut().enumerate() {
            let (start, stride) = if m < 32 { (m, 32) } else { (160 + m - 32, 16) };
            *byte = five_digits(std::array::from_fn(|n| digits[start + stride * n]));
        }
        let qh = std::array::from_fn(|j| {
            let start = 240 + j;
            five_digits([
                digits[start],
                digits[start + 4],
                digits[start + 8],
                digits[start + 12],
                0,
            ])
        });
        BlockTQ1_0 { qs, qh, d: to_f16(d).0 }
    });
}

pub(super) fn tq2_0(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 256], _| {
        let (d, digits) = ternary(x);
        let qs = std::array::from_fn(|i| {
            let start = i / 32 * 128 + i % 32;
            (0..4).fold(0, |byte, l| byte | digits[start + 32 * l] << (2 * l))
        });
        BlockTQ2_0 { qs, d: to_f16(d).0 }
    });
}

/// The scale, and digits 0, 1, 2 for −1, 0, 1.
fn ternary(x: &[f32; 256]) -> (f32, [u8; 256]) {
    let d = largest(x);
    let inverse = reciprocal(d);
    (d, x.map(|x| (nearest_away(x * inverse) + 1).clamp(0, 2) as u8))
}

/// Encodes five digits as a fraction in units of 1/256, rounded up so that multiplication by 3
/// recovers them.
fn five_digits(digits: [u8; 5]) -> u8 {
    let value = digits.iter().fold(0, |value, &digit| value * 3 + u16::from(digit));
    (value * 256).div_ceil(243) as u8
}
