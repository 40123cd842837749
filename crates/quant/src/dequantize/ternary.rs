//! Ternary types: −1, 0, 1 times one scale per 256 values.

use super::{f16_field, for_each_block};
use crate::layout::{BlockTQ1_0, BlockTQ2_0};

pub(super) fn tq1_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockTQ1_0, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        digits::<32, 5>(&b.qs[..32], d, &mut y[..160]);
        digits::<16, 5>(&b.qs[32..], d, &mut y[160..240]);
        digits::<4, 4>(&b.qh, d, &mut y[240..]);
    });
}

/// Decodes the `DIGITS` base-3 digits of `N` bytes. A byte is a fraction in units of 1/256.
/// Multiplication by 3^n with overflow drops the first n digits, and the next digit is the integer
/// part of three times the rest.
#[inline(always)]
fn digits<const N: usize, const DIGITS: usize>(bytes: &[u8], d: f32, y: &mut [f32]) {
    let mut power = 1_u8;
    for y in y.as_chunks_mut::<N>().0.iter_mut().take(DIGITS) {
        for (y, &byte) in y.iter_mut().zip(bytes) {
            let rest = byte.wrapping_mul(power);
            let digit = (u16::from(rest) * 3) >> 8;
            *y = f32::from(digit as i16 - 1) * d;
        }
        power = power.wrapping_mul(3);
    }
}

pub(super) fn tq2_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockTQ2_0, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, shift) = (s / 4, s % 4 * 2);
            for (y, q) in y.iter_mut().zip(&b.qs[32 * half..32 * half + 32]) {
                *y = f32::from((q >> shift & 3) as i8 - 1) * d;
            }
        }
    });
}
