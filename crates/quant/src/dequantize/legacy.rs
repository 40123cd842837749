//! Types with one scale per 32 to 128 values.

use super::{f16_field, for_each_block};
use crate::layout::*;

pub(super) fn q4_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ4_0, 32>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (j, q) in nibbles(&b.qs).into_iter().enumerate() {
            y[j] = f32::from(q as i8 - 8) * d;
        }
    });
}

pub(super) fn q4_1(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ4_1, 32>(src, dst, |b, y| {
        let (d, m) = (f16_field(b.d), f16_field(b.m));
        for (j, q) in nibbles(&b.qs).into_iter().enumerate() {
            y[j] = f32::from(q) * d + m;
        }
    });
}

pub(super) fn q5_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ5_0, 32>(src, dst, |b, y| {
        let (d, high) = (f16_field(b.d), u32::from_le_bytes(b.qh));
        for (j, q) in nibbles(&b.qs).into_iter().enumerate() {
            let q = q | ((high >> j & 1) as u8) << 4;
            y[j] = f32::from(q as i8 - 16) * d;
        }
    });
}

pub(super) fn q5_1(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ5_1, 32>(src, dst, |b, y| {
        let (d, m, high) = (f16_field(b.d), f16_field(b.m), u32::from_le_bytes(b.qh));
        for (j, q) in nibbles(&b.qs).into_iter().enumerate() {
            let q = q | ((high >> j & 1) as u8) << 4;
            y[j] = f32::from(q) * d + m;
        }
    });
}

pub(super) fn q8_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ8_0, 32>(src, dst, |b, y| scaled(&b.qs, f16_field(b.d), y));
}

pub(super) fn q8_1(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ8_1, 32>(src, dst, |b, y| scaled(&b.qs, f16_field(b.d), y));
}

pub(super) fn q1_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ1_0, 128>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (byte, y) in b.qs.iter().zip(y.as_chunks_mut::<8>().0) {
            for (i, y) in y.iter_mut().enumerate() {
                *y = if byte >> i & 1 == 1 { d } else { -d };
            }
        }
    });
}

pub(super) fn q2_0(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ2_0, 64>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (byte, y) in b.qs.iter().zip(y.as_chunks_mut::<4>().0) {
            for (i, y) in y.iter_mut().enumerate() {
                *y = f32::from((byte >> (2 * i) & 3) as i8 - 1) * d;
            }
        }
    });
}

#[inline(always)]
fn scaled(qs: &[i8; 32], d: f32, y: &mut [f32; 32]) {
    for (y, &q) in y.iter_mut().zip(qs) {
        *y = f32::from(q) * d;
    }
}

/// Low nibbles, then high nibbles.
#[inline(always)]
pub(super) fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut codes = [0; 32];
    for (j, byte) in qs.iter().enumerate() {
        codes[j] = byte & 15;
        codes[j + 16] = byte >> 4;
    }
    codes
}
