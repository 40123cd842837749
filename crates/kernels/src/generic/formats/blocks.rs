//! Blocks of 32, 64 or 128 weights with one or two scales.

use puna_quant::TensorType;
use puna_quant::tables::{FP4_VALUES, IQ4NL_VALUES};

use super::{half, lookup_signed_each, spread_2bit, u16_at, u32_at, u64_at};
use crate::generic::quant::{Codes, Format, QuantSimd, transposed};

/// The 5th bits of the blocks of group `j`.
#[inline(always)]
unsafe fn bits64(p: *const u8, stride: usize, j: usize) -> u64 {
    // SAFETY: the caller's chunk has eight blocks with a mask at `p`.
    unsafe {
        let (low, high) = (u32_at(p.add(2 * j * stride)), u32_at(p.add((2 * j + 1) * stride)));
        u64::from(low) | u64::from(high) << 32
    }
}

/// Formats with blocks of 32 weights in nibbles. They differ in stride and offset of the nibbles.
macro_rules! nibble_blocks {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $codes:expr, ($p:ident, $j:ident) => $unpack:expr,
     $scales:expr $(, by_sub_blocks($r:ident, $sub_blocks:expr) => $by_sub_blocks:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$name;
            const BLOCK: (usize, usize) = (32, $bytes);
            const SUB: usize = 32;
            const CODES: Codes = $codes;
            #[inline(always)]
            unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
                // SAFETY: the chunk has eight blocks; features by the contract.
                unsafe {
                    let scales: unsafe fn(*const u8) -> (S::ScaleVec, S::ScaleVec) = $scales;
                    scales(p)
                }
            }
            #[inline(always)]
            unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
                // SAFETY: group j lies in blocks 2j and 2j + 1 of the chunk; features by the
                // contract.
                unsafe { codes!(p, $p, $j, $unpack) }
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

/// Scales alone, at the start of blocks.
#[inline(always)]
unsafe fn plain<S: QuantSimd, const STRIDE: usize>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
    // SAFETY: the caller's chunk has eight blocks; features by the contract.
    unsafe { (S::w_halves(p, STRIDE), S::w_splat(0.0)) }
}

/// Scales, and minimums with the opposite sign, which are added.
#[inline(always)]
unsafe fn with_minimum<S: QuantSimd, const STRIDE: usize>(
    p: *const u8,
) -> (S::ScaleVec, S::ScaleVec) {
    // SAFETY: the caller's chunk has eight blocks; features by the contract.
    unsafe {
        let m = S::w_halves(p.add(2), STRIDE);
        (S::w_halves(p, STRIDE), S::w_mul(m, S::w_splat(-1.0)))
    }
}

#[inline(always)]
unsafe fn powers<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
    // SAFETY: the caller's chunk has eight blocks of 17 bytes; features by the contract.
    unsafe {
        let mut powers = 0;
        for i in 0..8 {
            powers |= u64::from(*p.add(17 * i)) << (8 * i);
        }
        (S::w_powers(powers), S::w_splat(0.0))
    }
}

/// [`FP4_VALUES`] as unsigned codes.
const FP4_CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = (FP4_VALUES[i] + 16) as u8;
        i += 1;
    }
    codes
};

/// Sub-blocks of 16 weights of nibbles in blocks of 16 bytes: low nibbles are 16 weights, high ones
/// the next.
pub(super) const SUB_BLOCKS_OF_BLOCKS: [u8; 16] =
    [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];

/// The nibbles of eight blocks, as [`SUB_BLOCKS_OF_BLOCKS`].
#[inline(always)]
unsafe fn nibbles_of_blocks<S: QuantSimd>(p: *const u8, stride: usize) -> [S::CodeVec; 4] {
    // SAFETY: the caller's chunk has eight blocks; features by the contract.
    unsafe {
        let at = [0, stride, 2 * stride, 3 * stride];
        S::nibbles_by_sub_blocks(S::pieces(p, at), S::pieces(p.add(4 * stride), at))
    }
}

nibble_blocks!(Q4_0, 18, Codes::Offset(8),
    (p, j) => S::nibbles(p.add(36 * j + 2), p.add(36 * j + 20)), plain::<S, 18>,
    by_sub_blocks(p, SUB_BLOCKS_OF_BLOCKS) => nibbles_of_blocks::<S>(p.add(2), 18));
nibble_blocks!(Q4_1, 20, Codes::Minimum(15),
    (p, j) => S::nibbles(p.add(40 * j + 4), p.add(40 * j + 24)), with_minimum::<S, 20>,
    by_sub_blocks(p, SUB_BLOCKS_OF_BLOCKS) => nibbles_of_blocks::<S>(p.add(4), 20));
nibble_blocks!(Q5_0, 22, Codes::Offset(16),
    (p, j) => S::or_where(S::nibbles(p.add(44 * j + 6), p.add(44 * j + 28)), bits64(p.add(2), 22, j), 16),
    plain::<S, 22>);
nibble_blocks!(Q5_1, 24, Codes::Minimum(31),
    (p, j) => S::or_where(S::nibbles(p.add(48 * j + 8), p.add(48 * j + 32)), bits64(p.add(4), 24, j), 16),
    with_minimum::<S, 24>);
nibble_blocks!(Q8_0, 34, Codes::Signed,
    (p, j) => S::signed(S::pair(p.add(68 * j + 2), p.add(68 * j + 36))), plain::<S, 34>);
nibble_blocks!(IQ4_NL, 18, Codes::Signed,
(p, j) => S::lookup_signed(&IQ4NL_VALUES, S::nibbles(p.add(36 * j + 2), p.add(36 * j + 20))),
plain::<S, 18>,
by_sub_blocks(p, SUB_BLOCKS_OF_BLOCKS) => {
    lookup_signed_each::<S>(&IQ4NL_VALUES, nibbles_of_blocks::<S>(p.add(2), 18))
});
nibble_blocks!(MXFP4, 17, Codes::Offset(16),
(p, j) => S::lookup_unsigned(&FP4_CODES, S::nibbles(p.add(34 * j + 1), p.add(34 * j + 18))),
powers::<S>,
by_sub_blocks(p, SUB_BLOCKS_OF_BLOCKS) => {
    let [a, b, c, d] = nibbles_of_blocks::<S>(p.add(1), 17);
    let table = &FP4_CODES;
    [
        S::lookup_unsigned(table, a),
        S::lookup_unsigned(table, b),
        S::lookup_unsigned(table, c),
        S::lookup_unsigned(table, d),
    ]
});

/// 64 weights: four scales, then for each 16 weights 8 bytes of nibbles.
#[derive(Clone, Copy)]
pub(crate) struct NVFP4;

impl Format for NVFP4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const BLOCK: (usize, usize) = (64, 36);
    const SUB: usize = 16;
    const CODES: Codes = Codes::Signed;
    #[inline(always)]
    unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
        // SAFETY: the chunk has four blocks; features by the contract.
        unsafe { (S::w_ue4m3(std::array::from_fn(|i| u32_at(p.add(36 * i)))), S::w_splat(0.0)) }
    }
    #[inline(always)]
    unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
        // SAFETY: group j is block j; features by the contract.
        unsafe {
            codes!(p, p, j, S::lookup_signed(&FP4_VALUES, S::nibbles_of_words(p.add(36 * j + 4))))
        }
    }
}

/// 128 weights of one bit: ±d.
#[derive(Clone, Copy)]
pub(crate) struct Q1_0;

impl Format for Q1_0 {
    const TYPE: TensorType = TensorType::Q1_0;
    const BLOCK: (usize, usize) = (128, 18);
    const SUB: usize = 32;
    const CODES: Codes = Codes::Minimum(1);
    #[inline(always)]
    unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
        // SAFETY: the chunk has two blocks; features by the contract.
        unsafe {
            let d = [half::<S>(p), half::<S>(p.add(18))];
            let d = S::w_new(&std::array::from_fn(|i| d[i / 4 % 2]));
            (S::w_add(d, d), d)
        }
    }
    #[inline(always)]
    unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
        // SAFETY: group j is half of block j / 2; features by the contract.
        unsafe {
            codes!(
                p,
                p,
                j,
                S::or_where(S::from_u64s([0; 8]), u64_at(p.add(18 * (j / 2) + 2 + 8 * (j % 2))), 1)
            )
        }
    }
}

/// 64 weights of two bits: −d, 0, d, 2d.
#[derive(Clone, Copy)]
pub(crate) struct Q2_0;

impl Format for Q2_0 {
    const TYPE: TensorType = TensorType::Q2_0;
    const BLOCK: (usize, usize) = (64, 18);
    const SUB: usize = 32;
    const CODES: Codes = Codes::Offset(1);
    #[inline(always)]
    unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
        // SAFETY: the chunk has four blocks; features by the contract.
        unsafe {
            let d: [f32; 4] = std::array::from_fn(|i| half::<S>(p.add(18 * i)));
            (S::w_new(&std::array::from_fn(|i| d[i / 2 % 4])), S::w_splat(0.0))
        }
    }
    #[inline(always)]
    unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
        // SAFETY: group j is block j; features by the contract.
        unsafe {
            codes!(
                p,
                p,
                j,
                S::from_u64s(std::array::from_fn(|i| spread_2bit(u16_at(
                    p.add(18 * j + 2 + 2 * i)
                ))))
            )
        }
    }
}
