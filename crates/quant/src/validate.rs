//! Checks that packed data decodes to finite numbers.

use crate::layout::*;
use crate::{QuantError, TensorType};

/// Validates whole blocks like llama.cpp before it uses or writes a tensor: plain floats and scale
/// fields must be finite, and MXFP4 exponents must not be 255. Integers and NVFP4 scales are always
/// valid.
pub fn validate(ty: TensorType, bytes: &[u8]) -> Result<(), QuantError> {
    use TensorType::*;
    if !bytes.len().is_multiple_of(ty.block_bytes()) {
        return Err(QuantError::PartialBytes { ty, bytes: bytes.len(), block: ty.block_bytes() });
    }
    macro_rules! check_f16_fields {
        ($block:ty: $($field:ident),+) => {
            blocks::<$block, _>(bytes, ty, |b| [$((stringify!($field), is_finite_f16(b.$field))),+])
        };
    }
    match ty {
        F32 => {
            blocks_of::<[u8; 4], 1>(bytes, ty, |b| [("value", f32::from_le_bytes(*b).is_finite())])
        }
        F64 => {
            blocks_of::<[u8; 8], 1>(bytes, ty, |b| [("value", f64::from_le_bytes(*b).is_finite())])
        }
        F16 => blocks_of::<[u8; 2], 1>(bytes, ty, |b| [("value", is_finite_f16(*b))]),
        BF16 => blocks_of::<[u8; 2], 1>(bytes, ty, |b| {
            [("value", u16::from_le_bytes(*b) & 0x7f80 != 0x7f80)]
        }),
        Q4_0 => check_f16_fields!(BlockQ4_0: d),
        Q4_1 => check_f16_fields!(BlockQ4_1: d, m),
        Q5_0 => check_f16_fields!(BlockQ5_0: d),
        Q5_1 => check_f16_fields!(BlockQ5_1: d, m),
        Q8_0 => check_f16_fields!(BlockQ8_0: d),
        Q8_1 => check_f16_fields!(BlockQ8_1: d, s),
        Q1_0 => check_f16_fields!(BlockQ1_0: d),
        Q2_0 => check_f16_fields!(BlockQ2_0: d),
        Q2_K => check_f16_fields!(BlockQ2_K: d, dmin),
        Q3_K => check_f16_fields!(BlockQ3_K: d),
        Q4_K => check_f16_fields!(BlockQ4_K: d, dmin),
        Q5_K => check_f16_fields!(BlockQ5_K: d, dmin),
        Q6_K => check_f16_fields!(BlockQ6_K: d),
        Q8_K => blocks::<BlockQ8_K, 1>(bytes, ty, |b| [("d", f32::from_le_bytes(b.d).is_finite())]),
        TQ1_0 => check_f16_fields!(BlockTQ1_0: d),
        TQ2_0 => check_f16_fields!(BlockTQ2_0: d),
        IQ2_XXS => check_f16_fields!(BlockIQ2_XXS: d),
        IQ2_XS => check_f16_fields!(BlockIQ2_XS: d),
        IQ2_S => check_f16_fields!(BlockIQ2_S: d),
        IQ3_XXS => check_f16_fields!(BlockIQ3_XXS: d),
        IQ3_S => check_f16_fields!(BlockIQ3_S: d),
        IQ1_S => check_f16_fields!(BlockIQ1_S: d),
        IQ1_M => blocks::<BlockIQ1_M, 1>(bytes, ty, |b| {
            [("the scale in `scales`", is_finite_f16(b.d()))]
        }),
        IQ4_NL => check_f16_fields!(BlockIQ4_NL: d),
        IQ4_XS => check_f16_fields!(BlockIQ4_XS: d),
        MXFP4 => blocks::<BlockMXFP4, 1>(bytes, ty, |b| [("e", b.e != 255)]),
        NVFP4 | I8 | I16 | I32 | I64 => Ok(()),
    }
}

fn blocks<B: Block, const N: usize>(
    bytes: &[u8],
    ty: TensorType,
    fields: impl Fn(&B) -> [(&'static str, bool); N],
) -> Result<(), QuantError> {
    debug_assert_eq!(B::TYPE, ty);
    blocks_of(bytes, ty, fields)
}

/// Calls `fields` for every block. It returns the name and validity of each checked field.
#[inline(always)]
fn blocks_of<B: bytemuck::Pod, const N: usize>(
    bytes: &[u8],
    ty: TensorType,
    fields: impl Fn(&B) -> [(&'static str, bool); N],
) -> Result<(), QuantError> {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    // Checks whole chunks without branches, so that plain floats are checked at memory speed.
    for (i, chunk) in blocks.chunks(64).enumerate() {
        if chunk.iter().fold(true, |good, b| good & fields(b).iter().all(|f| f.1)) {
            continue;
        }
        for (j, block) in chunk.iter().enumerate() {
            if let Some((field, _)) = fields(block).into_iter().find(|f| !f.1) {
                return Err(QuantError::Invalid { ty, block: 64 * i + j, field });
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn is_finite_f16(bytes: [u8; 2]) -> bool {
    bytes[1] & 0x7c != 0x7c
}
