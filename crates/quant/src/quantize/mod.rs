//! Converts f32 to packed blocks.
//!
//! Round-to-nearest types, and k-quants without an importance matrix, produce exactly the bytes of
//! the reference quantizer: sums run in element order, and every operation is rounded separately.
//! The weighted searches and the codebook searches are original, and their error is at most that of
//! the reference.

mod codebook;
mod fp4;
mod grid;
mod iq1;
mod iq4;
mod k;
mod legacy;
mod search;
mod simd;
mod ternary;

use crate::float::{f32_to_bf16, f32_to_f16};
use crate::layout::Block;
use crate::{QuantError, TensorType, validate};

/// Quantizes rows of `row_len` values. `importance` has weights for the columns of a row, for types
/// that use them.
///
/// `dst` must have the exact size of `src.len()` values. The input must be finite. Values too large
/// for the type's scales are rejected, so the result always passes [`validate`]. Only NVFP4
/// saturates, at ±2688, since its tensors have an additional scale.
pub fn quantize(
    ty: TensorType,
    src: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), QuantError> {
    check(ty, src, row_len, importance, dst)?;
    if src.is_empty() {
        return Ok(());
    }
    let quantizer = quantizer(ty).ok_or(QuantError::NoQuantizer { ty })?;
    let row_bytes = dst.len() / (src.len() / row_len);
    for (row, out) in src.chunks_exact(row_len).zip(dst.chunks_exact_mut(row_bytes)) {
        quantizer(row, importance, out);
    }
    validate(ty, dst)
}

/// Whether the type requires an importance matrix, as in llama.cpp's file-level rules.
pub fn requires_importance(ty: TensorType) -> bool {
    matches!(ty, TensorType::IQ1_S | TensorType::IQ2_XXS | TensorType::IQ2_XS)
}

fn check(
    ty: TensorType,
    src: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    dst: &[u8],
) -> Result<(), QuantError> {
    let block = ty.block_values();
    if row_len == 0 || !row_len.is_multiple_of(block) {
        return Err(QuantError::PartialBlock { ty, values: row_len, block });
    }
    if !src.len().is_multiple_of(row_len) {
        return Err(QuantError::PartialRow { values: src.len(), row: row_len });
    }
    let values = src.len();
    let expected = ty.row_bytes(values).ok_or(QuantError::PartialBlock { ty, values, block })?;
    if dst.len() != expected {
        return Err(QuantError::Bytes { ty, values, expected, bytes: dst.len() });
    }
    match importance {
        Some(weights) if weights.len() != row_len => {
            return Err(QuantError::ImportanceLength { found: weights.len(), row: row_len });
        }
        Some(weights) => {
            if let Some(column) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
                return Err(QuantError::ImportanceValue {
                    column,
                    value: weights[column].to_string(),
                });
            }
        }
        None if requires_importance(ty) => return Err(QuantError::ImportanceRequired { ty }),
        None => {}
    }
    check_values(ty, src)
}

/// No type with binary16 scales exceeds this (Q6_K reaches 65504 · 128 · 32), and sums of larger
/// squares could overflow.
const MAX_MAGNITUDE: f32 = 3e8;

fn check_values(ty: TensorType, src: &[f32]) -> Result<(), QuantError> {
    use TensorType::*;
    let largest = if matches!(ty, F32 | F16 | BF16 | Q8_K | MXFP4 | NVFP4) {
        f32::MAX
    } else {
        MAX_MAGNITUDE
    };
    // `<=` is false for NaN. The fold has no branch and vectorizes.
    if src.iter().fold(true, |good, x| good & (x.abs() <= largest)) {
        return Ok(());
    }
    let index = src.iter().position(|x| x.is_nan() || x.abs() > largest).unwrap_or_default();
    let value = src[index].to_string();
    Err(if src[index].is_finite() {
        QuantError::OutOfRange { ty, index, value }
    } else {
        QuantError::NotFinite { ty, index, value }
    })
}

/// Quantizes one row of whole blocks. The caller has checked lengths and values.
type RowQuantizer = fn(&[f32], Option<&[f32]>, &mut [u8]);

fn quantizer(ty: TensorType) -> Option<RowQuantizer> {
    use TensorType::*;
    Some(match ty {
        F32 => |x, _, out| for_each_value(x, out, f32::to_le_bytes),
        F16 => |x, _, out| for_each_value(x, out, |x| f32_to_f16(x).to_le_bytes()),
        BF16 => |x, _, out| for_each_value(x, out, |x| f32_to_bf16(x).to_le_bytes()),
        Q1_0 => legacy::q1_0,
        Q2_0 => legacy::q2_0,
        Q4_0 => legacy::q4_0,
        Q4_1 => legacy::q4_1,
        Q5_0 => legacy::q5_0,
        Q5_1 => legacy::q5_1,
        Q8_0 => legacy::q8_0,
        Q8_1 => legacy::q8_1,
        Q2_K => k::q2_k,
        Q3_K => k::q3_k,
        Q4_K => k::q4_k,
        Q5_K => k::q5_k,
        Q6_K => k::q6_k,
        Q8_K => k::q8_k,
        TQ1_0 => ternary::tq1_0,
        TQ2_0 => ternary::tq2_0,
        MXFP4 => fp4::mxfp4,
        NVFP4 => fp4::nvfp4,
        IQ4_NL => iq4::iq4_nl,
        IQ4_XS => iq4::iq4_xs,
        IQ2_XXS => codebook::iq2_xxs,
        IQ2_XS => codebook::iq2_xs,
        IQ2_S => codebook::iq2_s,
        IQ3_XXS => codebook::iq3_xxs,
        IQ3_S => codebook::iq3_s,
        IQ1_S => iq1::iq1_s,
        IQ1_M => iq1::iq1_m,
        I8 | I16 | I32 | I64 | F64 => return None,
    })
}

/// Fills the blocks of a row from its values and their optional importance.
#[inline(always)]
fn for_each_block<B: Block, const N: usize>(
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(&[f32; N], Option<&[f32; N]>) -> B,
) {
    const { assert!(B::VALUES == N) };
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    let values = row.as_chunks::<N>().0;
    let weights = importance.map(|w| w.as_chunks::<N>().0);
    for (i, (block, x)) in blocks.iter_mut().zip(values).enumerate() {
        *block = encode(x, weights.map(|w| &w[i]));
    }
}

fn for_each_value<const N: usize>(row: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (x, out) in row.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = bytes(*x);
    }
}

/// `x` as a binary16 field, and the f32 that a reader gets.
#[inline(always)]
fn to_f16(x: f32) -> ([u8; 2], f32) {
    let bits = f32_to_f16(x);
    (bits.to_le_bytes(), crate::float::f16_to_f32(bits))
}
