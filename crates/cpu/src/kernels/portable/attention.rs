//! Cached rows of keys and values: store, score, accumulate, as defined.

use puna_quant::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

use super::linear::dot;
use crate::kernels::{KvRows, KvType, Scratch};

/// The values of one cached row.
fn load_kv(ty: KvType, row: &[u8], x: &mut [f32]) {
    assert!(row.len() >= ty.row_bytes(x.len()));
    match ty {
        KvType::F32 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        KvType::F16 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        KvType::Bf16 => {
            for (x, b) in x.iter_mut().zip(row.as_chunks::<2>().0) {
                *x = bf16_to_f32(u16::from_le_bytes(*b));
            }
        }
        KvType::Q8_0 => {
            for (x, b) in x.as_chunks_mut::<32>().0.iter_mut().zip(row.as_chunks::<34>().0) {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                for (x, &q) in x.iter_mut().zip(&b[2..]) {
                    *x = f32::from(q as i8) * d;
                }
            }
        }
        KvType::Q4_0 => {
            for (x, b) in x.as_chunks_mut::<32>().0.iter_mut().zip(row.as_chunks::<18>().0) {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                for (j, &q) in b[2..].iter().enumerate() {
                    x[j] = (f32::from(q & 15) - 8.0) * d;
                    x[j + 16] = (f32::from(q >> 4) - 8.0) * d;
                }
            }
        }
    }
}

/// See [`VectorKernels::store_kv`](crate::kernels::VectorKernels). Q8_0 and Q4_0 round as the file formats do.
pub(crate) fn store_kv(ty: KvType, x: &[f32], row: &mut [u8]) {
    assert!(x.len().is_multiple_of(ty.block_values()) && row.len() >= ty.row_bytes(x.len()));
    match ty {
        KvType::F32 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<4>().0) {
                *b = x.to_le_bytes();
            }
        }
        KvType::F16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_f16(*x).to_le_bytes();
            }
        }
        KvType::Bf16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
        KvType::Q8_0 => {
            for (x, b) in x.as_chunks::<32>().0.iter().zip(row.as_chunks_mut::<34>().0) {
                store_q8_0(x, b);
            }
        }
        KvType::Q4_0 => {
            for (x, b) in x.as_chunks::<32>().0.iter().zip(row.as_chunks_mut::<18>().0) {
                store_q4_0(x, b);
            }
        }
    }
}

#[inline(always)]
fn store_q8_0(x: &[f32; 32], b: &mut [u8; 34]) {
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    b[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    for (b, x) in b[2..].iter_mut().zip(x) {
        *b = (x * inverse).round() as i8 as u8;
    }
}

#[inline(always)]
fn store_q4_0(x: &[f32; 32], b: &mut [u8; 18]) {
    let extreme = x.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    let d = extreme / -8.0;
    let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
    b[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    let code = |x: f32| ((x * inverse + 8.5) as u8).min(15);
    for j in 0..16 {
        b[2 + j] = code(x[j]) | code(x[j + 16]) << 4;
    }
}

/// See [`VectorKernels::scores`](crate::kernels::VectorKernels).
pub(super) fn scores(
    q: &[f32],
    g: usize,
    k: KvRows<'_>,
    scores: &mut [f32],
    stride: usize,
    scratch: &mut Scratch,
) {
    k.check(q.len(), g, scores.len(), stride);
    let row: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(k.dim * 4));
    for i in 0..k.rows {
        load_kv(k.ty, &k.data[i * k.stride..], row);
        for (h, q) in q.chunks_exact(k.dim).enumerate() {
            scores[h * stride + i] = dot(q, row);
        }
    }
}

/// See [`VectorKernels::accumulate`](crate::kernels::VectorKernels).
pub(super) fn accumulate(
    p: &[f32],
    stride: usize,
    g: usize,
    v: KvRows<'_>,
    acc: &mut [f32],
    scratch: &mut Scratch,
) {
    v.check(acc.len(), g, p.len(), stride);
    let row: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(v.dim * 4));
    for i in 0..v.rows {
        load_kv(v.ty, &v.data[i * v.stride..], row);
        for (h, acc) in acc.chunks_exact_mut(v.dim).enumerate() {
            let p = p[h * stride + i];
            for (acc, v) in acc.iter_mut().zip(&*row) {
                *acc += p * v;
            }
        }
    }
}
