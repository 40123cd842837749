//! The K formats: 256 weights with scales of few bits.

use puna_quant::TensorType;
use puna_quant::tables::IQ4NL_VALUES;

use super::blocks::SUB_BLOCKS_OF_BLOCKS;
use super::{
    half, last_half, lookup_signed_each, spread_2bit, spread_nibbles, u16_at, u32_at, u64_at,
};
use crate::generic::quant::{Codes, Format, QuantSimd, transposed};

/// Declares a format of 256 weights and its constants.
macro_rules! k_format {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $sub:literal, $codes:expr,
     scales($p:ident) => $scales:expr,
     $codes_of:ident($q:ident $(, $j:ident)?) => $unpack:expr
     $(, by_sub_blocks($r:ident, $sub_blocks:expr) => $by_sub_blocks:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$name;
            const BLOCK: (usize, usize) = (256, $bytes);
            const SUB: usize = $sub;
            const CODES: Codes = $codes;
            #[inline(always)]
            unsafe fn scales<S: QuantSimd>($p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
                // SAFETY: offsets lie inside the block; features by the contract.
                unsafe { $scales }
            }
            #[inline(always)]
            unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
                // SAFETY: offsets lie inside the block; features by the contract.
                unsafe { $codes_of!(p, $q $(, $j)?, $unpack) }
            }
            $(const SUB_BLOCKS: [u8; 16] = $sub_blocks;
            #[inline(always)]
            unsafe fn by_sub_blocks<S: QuantSimd>($r: *const u8) -> [S::CodeVec; 4] {
                // SAFETY: offsets lie inside the chunk; features by the contract.
                unsafe {
                    if S::SUB_BLOCKS_AS_LANES { $by_sub_blocks } else { transposed::<S, Self>($r) }
                }
            })?
        }
    };
}
pub(super) use k_format;

/// Scales and minimums of Q4_K and Q5_K as bytes: 6-bit fields in 12 bytes at `p + 4`.
///
/// # Safety
/// `p` is valid for 16 bytes.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn six_bits(p: *const u8) -> (u64, u64) {
    // Masks of fields in each byte.
    const LOW6: u32 = 0x3f3f_3f3f;
    const LOW4: u32 = 0x0f0f_0f0f;
    const TOP2: u32 = 0x3030_3030;
    // SAFETY: the fields lie inside the caller's block; features by the contract.
    unsafe {
        let [a, b, c] = [u32_at(p.add(4)), u32_at(p.add(8)), u32_at(p.add(12))];
        let scales = u64::from(a & LOW6) | u64::from((c & LOW4) | (a >> 2 & TOP2)) << 32;
        let minimums = u64::from(b & LOW6) | u64::from((c >> 4 & LOW4) | (b >> 2 & TOP2)) << 32;
        (scales, minimums)
    }
}

/// Scales and minimums of a block.
#[inline(always)]
unsafe fn scales_and_minimums<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
    // SAFETY: the caller's block is whole; features by the contract.
    unsafe {
        let (scales, minimums) = S::w_six_bits(p);
        let (d, dmin) = (half::<S>(p), half::<S>(p.add(2)));
        (S::w_mul(scales, S::w_splat(d)), S::w_mul(minimums, S::w_splat(dmin)))
    }
}

/// Sub-blocks of 16 weights of nibbles in pieces of 32 bytes: low nibbles are 32 weights, high ones
/// the next.
const SUB_BLOCKS_OF_PIECES: [u8; 16] = [0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15];

/// Sub-blocks of 16 weights of 2-bit fields in pieces of 32 bytes: the lowest are 32 weights, the
/// next the next 32.
pub(super) const SUB_BLOCKS_OF_2BIT: [u8; 16] =
    [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];

k_format!(Q4_K, 144, 32, Codes::Minimum(15),
scales(p) => scales_and_minimums::<S>(p),
codes(p, j) => S::fields(S::broadcast32(p.add(16 + 32 * j)), 0, 4, 0x0f),
by_sub_blocks(p, SUB_BLOCKS_OF_PIECES) => {
    S::nibbles_by_sub_blocks(S::load64(p.add(16)), S::load64(p.add(80)))
});

k_format!(Q5_K, 176, 32, Codes::Minimum(31),
scales(p) => scales_and_minimums::<S>(p),
codes(p, j) => {
    let low = S::fields(S::broadcast32(p.add(48 + 32 * j)), 0, 4, 0x0f);
    let bit = 2 * j as i32;
    S::or(low, S::fields(S::broadcast32(p.add(16)), bit - 4, bit - 3, 0x10))
});

k_format!(Q6_K, 210, 16, Codes::Offset(32),
scales(p) => {
    let scales = S::w_bytes16(u64_at(p.add(192)), u64_at(p.add(200)));
    (S::w_mul(scales, S::w_splat(last_half::<S>(p.add(208)))), S::w_splat(0.0))
},
codes(p, j) => {
    // Each 128 weights: 64 bytes of low nibbles (first half) and high nibbles (second), 32 bytes of
    // upper bits.
    let (half, shift) = (j / 2, 4 * (j % 2) as i32);
    let low = S::fields(S::load64(p.add(64 * half)), shift, shift, 0x0f);
    S::or(low, S::fields(S::broadcast32(p.add(128 + 32 * half)), shift - 4, shift - 2, 0x30))
});

k_format!(Q2_K, 84, 16, Codes::Minimum(15),
scales(p) => {
    let (low, high) = (u64_at(p), u64_at(p.add(8)));
    // The low four bits of each byte.
    const LOW4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let scales = S::w_bytes16(low & LOW4, high & LOW4);
    let minimums = S::w_bytes16(low >> 4 & LOW4, high >> 4 & LOW4);
    let (d, dmin) = (half::<S>(p.add(80)), last_half::<S>(p.add(82)));
    (S::w_mul(scales, S::w_splat(d)), S::w_mul(minimums, S::w_splat(dmin)))
},
codes(p, j) => {
    let shift = 4 * (j % 2) as i32;
    S::fields(S::broadcast32(p.add(16 + 32 * (j / 2))), shift, shift + 2, 3)
},
by_sub_blocks(p, SUB_BLOCKS_OF_2BIT) => S::unpack_2bit_by_lane(S::load64(p.add(16))));

k_format!(Q3_K, 110, 16, Codes::Offset(4),
scales(p) => {
    // Masks of fields in each byte.
    const LOW4: u32 = 0x0f0f_0f0f;
    const TOP2: u32 = 0x3030_3030;
    let [a, b, c] = [u32_at(p.add(96)), u32_at(p.add(100)), u32_at(p.add(104))];
    let low = u64::from((a & LOW4) | (c << 4 & TOP2)) | u64::from((b & LOW4) | (c << 2 & TOP2)) << 32;
    let high = u64::from((a >> 4 & LOW4) | (c & TOP2)) | u64::from((b >> 4 & LOW4) | (c >> 2 & TOP2)) << 32;
    let scales = S::w_add(S::w_bytes16(low, high), S::w_splat(-32.0));
    (S::w_mul(scales, S::w_splat(last_half::<S>(p.add(108)))), S::w_splat(0.0))
},
codes(p, j) => {
    let shift = 4 * (j % 2) as i32;
    let low = S::fields(S::broadcast32(p.add(32 + 32 * (j / 2))), shift, shift + 2, 3);
    // The third bit of the 32 weights 2j is bit 2j of a byte, that of weights 2j + 1 the next.
    let bit = 2 * j as i32;
    S::or(low, S::fields(S::broadcast32(p), bit - 2, bit - 1, 4))
});

k_format!(IQ4_XS, 136, 32, Codes::Signed,
scales(p) => {
    let scales = spread_nibbles(u32_at(p.add(4))) | spread_2bit(u16_at(p.add(2))) << 4;
    let scales = S::w_add(S::w_bytes8(scales), S::w_splat(-32.0));
    (S::w_mul(scales, S::w_splat(half::<S>(p))), S::w_splat(0.0))
},
codes(p, j) => S::lookup_signed(&IQ4NL_VALUES, S::nibbles(p.add(8 + 32 * j), p.add(24 + 32 * j))),
by_sub_blocks(p, SUB_BLOCKS_OF_BLOCKS) => {
    let codes = S::nibbles_by_sub_blocks(S::load64(p.add(8)), S::load64(p.add(72)));
    lookup_signed_each::<S>(&IQ4NL_VALUES, codes)
});
