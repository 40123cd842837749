//! Converts packed blocks to f32, bit-identical to the format's reference.
//!
//! Every product and every sum is rounded separately, in the order of the format's description. The
//! functions loop over fixed-size arrays without branches, so that they vectorize on every target.

mod codebook;
mod fp4;
mod k;
mod legacy;
mod ternary;
mod unblocked;

use crate::layout::Block;
use crate::{QuantError, TensorType};

/// Dequantizes rows of whole blocks. [`dequantizer`] returns one. Panics if the lengths do not
/// match.
pub type Dequantizer = fn(&[u8], &mut [f32]);

/// Dequantizes whole blocks. `src` must have the exact size of `dst.len()` values. Rejects integer
/// types.
pub fn dequantize(ty: TensorType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let convert = dequantizer(ty).ok_or(QuantError::NoFloats { ty })?;
    let values = dst.len();
    let expected = ty.row_bytes(values).ok_or(QuantError::PartialBlock {
        ty,
        values,
        block: ty.block_values(),
    })?;
    if src.len() != expected {
        return Err(QuantError::Bytes { ty, values, expected, bytes: src.len() });
    }
    convert(src, dst);
    Ok(())
}

/// Dequantizer of a type. `None` for integer types.
pub fn dequantizer(ty: TensorType) -> Option<Dequantizer> {
    use TensorType::*;
    Some(match ty {
        F32 => unblocked::f32,
        F16 => unblocked::f16,
        BF16 => unblocked::bf16,
        F64 => unblocked::f64,
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
        IQ4_NL => codebook::iq4_nl,
        IQ4_XS => codebook::iq4_xs,
        IQ2_XXS => codebook::iq2_xxs,
        IQ2_XS => codebook::iq2_xs,
        IQ2_S => codebook::iq2_s,
        IQ3_XXS => codebook::iq3_xxs,
        IQ3_S => codebook::iq3_s,
        IQ1_S => codebook::iq1_s,
        IQ1_M => codebook::iq1_m,
        I8 | I16 | I32 | I64 => return None,
    })
}

/// Calls `body` for each block of `src` with its `N` values in `dst`.
#[inline(always)]
fn for_each_block<B: Block, const N: usize>(
    src: &[u8],
    dst: &mut [f32],
    body: impl Fn(&B, &mut [f32; N]),
) {
    const { assert!(B::VALUES == N) };
    let blocks: &[B] = bytemuck::cast_slice(src);
    let (chunks, rest) = dst.as_chunks_mut::<N>();
    assert!(
        rest.is_empty() && blocks.len() == chunks.len(),
        "{} bytes and {} values of {}",
        src.len(),
        dst.len(),
        B::TYPE
    );
    for (block, chunk) in blocks.iter().zip(chunks) {
        body(block, chunk);
    }
}

/// f32 value of a binary16 field.
#[inline(always)]
fn f16_field(bytes: [u8; 2]) -> f32 {
    crate::float::f16_to_f32(u16::from_le_bytes(bytes))
}
