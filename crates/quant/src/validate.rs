//! Checks that packed data decodes to finite numbers.

use crate::layout::*;
use crate::{QuantError, TensorType};

/// Checks whole blocks as llama.cpp does before it uses or writes a tensor: plain floats and the scale fields of
/// blocks are finite, and MXFP4 exponents are not 255. Integers and NVFP4 scales are always valid.
pub fn validate(ty: TensorType, bytes: &[u8]) -> Result<(), QuantError> {
    use TensorType::*;
    if !bytes.len().is_multiple_of(ty.block_bytes()) {
        return Err(QuantError::PartialBytes { ty, bytes: bytes.len(), block: ty.block_bytes() });
    }
    macro_rules! halves {
        ($block:ty: $($field:ident),+) => {
            blocks::<$block, _>(bytes, ty, |b| [$((stringify!($field), finite_half(b.$field))),+])
        };
    }
    match ty {
        F32 => {
            blocks_of::<[u8; 4], 1>(bytes, ty, |b| [("value", f32::from_le_bytes(*b).is_finite())])
        }
        F64 => {
            blocks_of::<[u8; 8], 1>(bytes, ty, |b| [("value", f64::from_le_bytes(*b).is_finite())])
        }
        F16 => blocks_of::<[u8; 2], 1>(bytes, ty, |b| [("value", finite_half(*b))]),
        BF16 => blocks_of::<[u8; 2], 1>(bytes, ty, |b| {
            [("value", u16::from_le_bytes(*b) & 0x7f80 != 0x7f80)]
        }),
        Q4_0 => halves!(BlockQ4_0: d),
        Q4_1 => halves!(BlockQ4_1: d, m),
        Q5_0 => halves!(BlockQ5_0: d),
        Q5_1 => halves!(BlockQ5_1: d, m),
        Q8_0 => halves!(BlockQ8_0: d),
        Q8_1 => halves!(BlockQ8_1: d, s),
        Q1_0 => halves!(BlockQ1_0: d),
        Q2_0 => halves!(BlockQ2_0: d),
        Q2_K => halves!(BlockQ2_K: d, dmin),
        Q3_K => halves!(BlockQ3_K: d),
        Q4_K => halves!(BlockQ4_K: d, dmin),
        Q5_K => halves!(BlockQ5_K: d, dmin),
        Q6_K => halves!(BlockQ6_K: d),
        Q8_K => blocks::<BlockQ8_K, 1>(bytes, ty, |b| [("d", f32::from_le_bytes(b.d).is_finite())]),
        TQ1_0 => halves!(BlockTQ1_0: d),
        TQ2_0 => halves!(BlockTQ2_0: d),
        IQ2_XXS => halves!(BlockIQ2_XXS: d),
        IQ2_XS => halves!(BlockIQ2_XS: d),
        IQ2_S => halves!(BlockIQ2_S: d),
        IQ3_XXS => halves!(BlockIQ3_XXS: d),
        IQ3_S => halves!(BlockIQ3_S: d),
        IQ1_S => halves!(BlockIQ1_S: d),
        IQ1_M => {
            blocks::<BlockIQ1_M, 1>(bytes, ty, |b| [("the scale in `scales`", finite_half(b.d()))])
        }
        IQ4_NL => halves!(BlockIQ4_NL: d),
        IQ4_XS => halves!(BlockIQ4_XS: d),
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

/// Runs `fields` on every block; it gives for each checked field its name and whether it is good.
#[inline(always)]
fn blocks_of<B: bytemuck::Pod, const N: usize>(
    bytes: &[u8],
    ty: TensorType,
    fields: impl Fn(&B) -> [(&'static str, bool); N],
) -> Result<(), QuantError> {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    // Whole chunks are judged without branches, so that plain floats are checked at memory speed.
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
fn finite_half(bytes: [u8; 2]) -> bool {
    bytes[1] & 0x7c != 0x7c
}
