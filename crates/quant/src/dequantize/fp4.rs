//! 4-bit floats (E2M1) with 8-bit float block scales.

use super::for_each_block;
use super::legacy::nibbles;
use crate::float::{e8m0_half, ue4m3_half};
use crate::layout::{BlockMXFP4, BlockNVFP4};
use crate::tables::FP4_VALUES;

pub(super) fn mxfp4(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockMXFP4, 32>(src, dst, |b, y| {
        let d = e8m0_half(b.e);
        for (y, q) in y.iter_mut().zip(nibbles(&b.qs)) {
            *y = f32::from(FP4_VALUES[usize::from(q)]) * d;
        }
    });
}

pub(super) fn nvfp4(src: &[u8], dst: &mut [f32]) {
    for_each_block::<BlockNVFP4, 64>(src, dst, |b, y| {
        for (s, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let d = ue4m3_half(b.d[s]);
            for (j, byte) in b.qs[8 * s..8 * s + 8].iter().enumerate() {
                y[j] = f32::from(FP4_VALUES[usize::from(byte & 15)]) * d;
                y[j + 8] = f32::from(FP4_VALUES[usize::from(byte >> 4)]) * d;
            }
        }
    });
}
