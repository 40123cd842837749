//! Types without blocks.

use crate::float::{bf16_to_f32, f16_to_f32};

pub(super) fn f32(src: &[u8], dst: &mut [f32]) {
    for_each_value(src, dst, f32::from_le_bytes);
}

pub(super) fn f16(src: &[u8], dst: &mut [f32]) {
    for_each_value(src, dst, |b| f16_to_f32(u16::from_le_bytes(b)));
}

pub(super) fn bf16(src: &[u8], dst: &mut [f32]) {
    for_each_value(src, dst, |b| bf16_to_f32(u16::from_le_bytes(b)));
}

pub(super) fn f64(src: &[u8], dst: &mut [f32]) {
    for_each_value(src, dst, |b| f64::from_le_bytes(b) as f32);
}

#[inline(always)]
fn for_each_value<const N: usize>(src: &[u8], dst: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (values, rest) = src.as_chunks::<N>();
    assert!(
        rest.is_empty() && values.len() == dst.len(),
        "{} bytes for {} values",
        src.len(),
        dst.len()
    );
    for (bytes, y) in values.iter().zip(dst) {
        *y = value(*bytes);
    }
}
