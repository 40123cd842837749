//! K-quants: 256 values in sub-blocks with quantized scales.

use super::{f16_field, for_each_block};
use crate::layout::*;

pub(super) fn q2_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ2_K, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_field(b.d), f16_field(b.dmin));
        for (s, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, shift, part) = (s / 8, s % 8 / 2 * 2, s % 2);
            let (scale, min) =
                (d * f32::from(b.scales[s] & 15), dmin * f32::from(b.scales[s] >> 4));
            let qs: &[u8; 16] = array(&b.qs, 32 * half + 16 * part);
            for (y, q) in y.iter_mut().zip(qs) {
                *y = scale * f32::from(q >> shift & 3) - min;
            }
        }
    });
}

pub(super) fn q3_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ3_K, 256>(src, dst, |b, y| {
        let (d, scales) = (f16_field(b.d), unpack_scales_q3k(&b.scales));
        for (s, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, shift, part) = (s / 8, s % 8 / 2, s % 2);
            let scale = d * f32::from(scales[s] as i8 - 32);
            let qs: &[u8; 16] = array(&b.qs, 32 * half + 16 * part);
            let high: &[u8; 16] = array(&b.hmask, 16 * part);
            for l in 0..16 {
                let q = (qs[l] >> (2 * shift) & 3) | (high[l] >> (4 * half + shift) & 1) << 2;
                y[l] = scale * f32::from(q as i8 - 4);
            }
        }
    });
}

pub(super) fn q4_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ4_K, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_field(b.d), f16_field(b.dmin));
        let (scales, mins) = unpack_scales_k4(&b.scales);
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[s]), dmin * f32::from(mins[s]));
            let qs: &[u8; 32] = array(&b.qs, s / 2 * 32);
            let shift = s % 2 * 4;
            for (y, q) in y.iter_mut().zip(qs) {
                *y = scale * f32::from(q >> shift & 15) - min;
            }
        }
    });
}

pub(super) fn q5_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ5_K, 256>(src, dst, |b, y| {
        let (d, dmin) = (f16_field(b.d), f16_field(b.dmin));
        let (scales, mins) = unpack_scales_k4(&b.scales);
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[s]), dmin * f32::from(mins[s]));
            let qs: &[u8; 32] = array(&b.qs, s / 2 * 32);
            let shift = s % 2 * 4;
            for l in 0..32 {
                let q = (qs[l] >> shift & 15) | (b.qh[l] >> s & 1) << 4;
                y[l] = scale * f32::from(q) - min;
            }
        }
    });
}

pub(super) fn q6_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ6_K, 256>(src, dst, |b, y| {
        let d = f16_field(b.d);
        for (s, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, quarter, part) = (s / 8, s % 8 / 2, s % 2);
            let scale = d * f32::from(b.scales[s]);
            let low: &[u8; 16] = array(&b.ql, 64 * half + quarter % 2 * 32 + 16 * part);
            let high: &[u8; 16] = array(&b.qh, 32 * half + 16 * part);
            for l in 0..16 {
                let q = (low[l] >> (quarter / 2 * 4) & 15) | (high[l] >> (2 * quarter) & 3) << 4;
                y[l] = scale * f32::from(q as i8 - 32);
            }
        }
    });
}

pub(super) fn q8_k(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockQ8_K, 256>(src, dst, |b, y| {
        let d = f32::from_le_bytes(b.d);
        for (y, &q) in y.iter_mut().zip(&b.qs) {
            *y = d * f32::from(q);
        }
    });
}

/// `N` bytes from `start`, as an array so that loops have a fixed length.
#[inline(always)]
fn array<const N: usize>(bytes: &[u8], start: usize) -> &[u8; N] {
    bytes[start..].first_chunk().expect("offsets lie inside the block")
}
