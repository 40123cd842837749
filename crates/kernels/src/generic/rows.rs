//! Rows stored in floats or in blocks, read as f32 vectors: plain weights and cached keys and
//! values.

use puna_quant::TensorType;
use puna_quant::float::{bf16_to_f32, f16_to_f32};

use super::Simd;
use crate::KV_TILE;

/// A storage format of rows.
///
/// # Safety
/// For both methods: the row at `row` has all values that are read, and the processor the features
/// of `S`.
pub(crate) trait RowFormat: Copy {
    /// Tensor type of this format.
    const TYPE: TensorType;
    /// Values of one block. The length of a row is a multiple.
    const BLOCK: usize;
    /// Bytes of one block.
    const BYTES: usize;

    /// Values `i … i + LANES`; `i` is a multiple of `LANES`.
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F;
    /// Value `i`.
    unsafe fn one(row: *const u8, i: usize) -> f32;

    /// All values of the block at `block`.
    #[inline(always)]
    unsafe fn block<S: Simd>(block: *const u8, to: *mut f32) {
        // SAFETY: the contract; `to` has room for a block.
        unsafe {
            for i in (0..Self::BLOCK).step_by(S::LANES) {
                S::store(to.add(i), Self::load::<S>(block, i));
            }
        }
    }

    /// All values of a block of `LANES` positions from position i on, of a block in columns (see
    /// `KvLayout`): value j of position i goes to `to[j · KV_TILE]`.
    #[inline(always)]
    unsafe fn columns<S: Simd>(_block: *const u8, _i: usize, _to: *mut f32) {
        unreachable!("columns of a type without blocks are read as rows");
    }

    /// Values `i … n`, fewer than `LANES`, then zeros.
    #[inline(always)]
    unsafe fn tail<S: Simd>(row: *const u8, i: usize, n: usize) -> S::F {
        let mut padded = [0.0f32; 16];
        // SAFETY: the caller's row has n values; `padded` has room for any vector.
        unsafe {
            for (j, x) in padded.iter_mut().enumerate().take(n - i) {
                *x = Self::one(row, i + j);
            }
            S::load(padded.as_ptr())
        }
    }
}

/// Rows of f32.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// Rows of binary16.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// Rows of bfloat16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// Blocks of 32: a binary16 scale, then 32 i8.
#[derive(Clone, Copy)]
pub(crate) struct Q8Blocks;
/// Blocks of 32: a binary16 scale, then 16 bytes; the low halves are values 0…15, the high halves
/// 16…31.
#[derive(Clone, Copy)]
pub(crate) struct Q4Blocks;

#[inline(always)]
unsafe fn u16_at(p: *const u8) -> u16 {
    // SAFETY: the caller's two bytes.
    u16::from_le(unsafe { p.cast::<u16>().read_unaligned() })
}

#[inline(always)]
unsafe fn half_at(p: *const u8) -> f32 {
    // SAFETY: the caller's two bytes.
    f16_to_f32(unsafe { u16_at(p) })
}

impl RowFormat for F32 {
    const TYPE: TensorType = TensorType::F32;
    const BLOCK: usize = 1;
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract.
        unsafe { S::load(row.add(i * 4).cast()) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, i: usize) -> f32 {
        // SAFETY: the contract.
        unsafe { row.add(i * 4).cast::<f32>().read_unaligned() }
    }
}

impl RowFormat for F16 {
    const TYPE: TensorType = TensorType::F16;
    const BLOCK: usize = 1;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract.
        unsafe { S::load_f16(row.add(i * 2)) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, i: usize) -> f32 {
        // SAFETY: the contract.
        unsafe { half_at(row.add(i * 2)) }
    }
}

impl RowFormat for Bf16 {
    const TYPE: TensorType = TensorType::BF16;
    const BLOCK: usize = 1;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract.
        unsafe { S::load_bf16(row.add(i * 2)) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, i: usize) -> f32 {
        // SAFETY: the contract.
        bf16_to_f32(unsafe { u16_at(row.add(i * 2)) })
    }
}

impl RowFormat for Q8Blocks {
    const TYPE: TensorType = TensorType::Q8_0;
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    #[inline(always)]
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract; LANES divides 32, so the values lie in one block.
        unsafe {
            let block = row.add(i / 32 * 34);
            S::mul(S::load_i8(block.add(2 + i % 32)), S::splat(S::half(u16_at(block))))
        }
    }
    #[inline(always)]
    unsafe fn block<S: Simd>(block: *const u8, to: *mut f32) {
        // SAFETY: the contract.
        unsafe {
            let scale = S::splat(S::half(u16_at(block)));
            for i in (0..32).step_by(S::LANES) {
                S::store(to.add(i), S::mul(S::load_i8(block.add(2 + i)), scale));
            }
        }
    }
    #[inline(always)]
    unsafe fn columns<S: Simd>(block: *const u8, i: usize, to: *mut f32) {
        // SAFETY: the contract: scales of KV_TILE positions, then 32 times a code of each.
        unsafe {
            let scale = S::load_f16(block.add(2 * i));
            for j in 0..32 {
                S::store(
                    to.add(j * KV_TILE),
                    S::mul(S::load_i8(block.add((2 + j) * KV_TILE + i)), scale),
                );
            }
        }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, i: usize) -> f32 {
        // SAFETY: the contract.
        unsafe {
            let block = row.add(i / 32 * 34);
            f32::from(*block.add(2 + i % 32) as i8) * half_at(block)
        }
    }
}

impl RowFormat for Q4Blocks {
    const TYPE: TensorType = TensorType::Q4_0;
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    #[inline(always)]
    unsafe fn load<S: Simd>(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract; LANES divides 16, so the values lie in one half of one block.
        unsafe {
            let block = row.add(i / 32 * 18);
            let codes = S::load_nibbles(block.add(2 + i % 16), i % 32 >= 16);
            S::mul(codes, S::splat(S::half(u16_at(block))))
        }
    }
    #[inline(always)]
    unsafe fn block<S: Simd>(block: *const u8, to: *mut f32) {
        // SAFETY: the contract.
        unsafe {
            let scale = S::splat(S::half(u16_at(block)));
            for i in (0..32).step_by(S::LANES) {
                S::store(to.add(i), S::mul(S::load_nibbles(block.add(2 + i % 16), i >= 16), scale));
            }
        }
    }
    #[inline(always)]
    unsafe fn columns<S: Simd>(block: *const u8, i: usize, to: *mut f32) {
        // SAFETY: the contract: scales of KV_TILE positions, then 16 times a byte of each.
        unsafe {
            let scale = S::load_f16(block.add(2 * i));
            for j in 0..16 {
                let codes = block.add((2 + j) * KV_TILE + i);
                S::store(to.add(j * KV_TILE), S::mul(S::load_nibbles(codes, false), scale));
                S::store(to.add((16 + j) * KV_TILE), S::mul(S::load_nibbles(codes, true), scale));
            }
        }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, i: usize) -> f32 {
        // SAFETY: the contract.
        unsafe {
            let block = row.add(i / 32 * 18);
            let byte = *block.add(2 + i % 16);
            (f32::from(if i % 32 < 16 { byte & 15 } else { byte >> 4 }) - 8.0) * half_at(block)
        }
    }
}
