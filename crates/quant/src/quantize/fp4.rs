//! 4-bit floats (E2M1) with 8-bit float block scales.

use super::for_each_block;
use super::legacy::pack_nibbles;
use super::search::largest;
use crate::float::{e8m0_half, f32_to_ue4m3, ue4m3_half};
use crate::layout::{BlockMXFP4, BlockNVFP4};
use crate::tables::FP4_VALUES;

pub(super) fn mxfp4(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 32], _| {
        let e = shared_exponent(largest(x));
        BlockMXFP4 { e, qs: pack_nibbles(&nearest_codes(x, e8m0_half(e))) }
    });
}

pub(super) fn nvfp4(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for_each_block(row, importance, out, |x: &[f32; 64], _| {
        let (mut d, mut qs) = ([0; 4], [0; 32]);
        for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
            // The largest E2M1 value is 6.
            d[s] = f32_to_ue4m3(largest(x) / 6.0);
            let codes = nearest_codes(x, ue4m3_half(d[s]));
            for j in 0..8 {
                qs[8 * s + j] = codes[j] | codes[j + 8] << 4;
            }
        }
        BlockNVFP4 { d, qs }
    });
}

/// Biased exponent that puts the largest magnitude in the top binade of the codes.
fn shared_exponent(largest: f32) -> u8 {
    if largest == 0.0 {
        return 0;
    }
    // Rounds to f32 first: a value just below a power of two counts as that power, as in the
    // reference.
    let log2 = f64::from(largest).log2() as f32;
    (log2.floor() - 2.0 + 127.0).clamp(0.0, 254.0) as u8
}

/// For each value: the code with the nearest value, multiplied by `d`. The lowest code wins ties.
#[inline(always)]
fn nearest_codes<const N: usize>(x: &[f32; N], d: f32) -> [u8; N] {
    let (mut codes, mut best) = ([0; N], [f32::INFINITY; N]);
    for (code, &value) in FP4_VALUES.iter().enumerate() {
        let value = f32::from(value) * d;
        for i in 0..N {
            let error = (value - x[i]).abs();
            if error < best[i] {
                (codes[i], best[i]) = (code as u8, error);
            }
        }
    }
    codes
}
