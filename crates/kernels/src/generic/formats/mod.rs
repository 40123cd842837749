//! Unpacking of each packed format. `puna_quant` describes the layouts, which are the file
//! format's.
//!
//! # Safety
//! A pointer to a chunk is valid for all bytes of the chunk, and one to a block for all bytes of
//! the block. The rest of the contract is that of [`generic`](super).

#![allow(non_camel_case_types)] // types are named as the formats are

/// All groups of 64 codes by an expression of the block and the group's number.
macro_rules! codes {
    ($block:ident, $p:ident, $j:ident, $unpack:expr) => {{
        #[allow(unused_variables)] // by those who have looked at the block before
        let $p: *const u8 = $block;
        // No closure: it would not have the processor's features.
        macro_rules! group {
            ($number:literal) => {{
                let $j: usize = $number;
                $unpack
            }};
        }
        [group!(0), group!(1), group!(2), group!(3)]
    }};
}

/// All groups of 64 codes by one expression of the block.
macro_rules! all_codes {
    ($block:ident, $p:ident, $unpack:expr) => {{
        let $p: *const u8 = $block;
        $unpack
    }};
}

pub(crate) mod blocks;
pub(crate) mod codebook;
pub(crate) mod fields;
pub(crate) mod kquants;
pub(crate) mod ternary;

use super::QuantSimd;
use fields::{u16_at, u32_at};

/// The binary16 at `p`, which two more bytes of the block follow.
#[inline(always)]
unsafe fn half<S: QuantSimd>(p: *const u8) -> f32 {
    // SAFETY: the caller's bytes and features.
    unsafe { S::half_of(p, false) }
}

/// The binary16 at `p`, before which there are two more bytes of the block.
#[inline(always)]
unsafe fn last_half<S: QuantSimd>(p: *const u8) -> f32 {
    // SAFETY: the caller's bytes and features.
    unsafe { S::half_of(p.sub(2), true) }
}

#[inline(always)]
unsafe fn u64_at(p: *const u8) -> u64 {
    // SAFETY: the caller's eight bytes.
    u64::from_le(unsafe { p.cast::<u64>().read_unaligned() })
}

/// Signed values of a table for all codes of a chunk.
#[inline(always)]
unsafe fn lookup_signed_each<S: QuantSimd>(
    table: &[i8; 16],
    [a, b, c, d]: [S::CodeVec; 4],
) -> [S::CodeVec; 4] {
    // SAFETY: the caller's features.
    unsafe {
        [
            S::lookup_signed(table, a),
            S::lookup_signed(table, b),
            S::lookup_signed(table, c),
            S::lookup_signed(table, d),
        ]
    }
}

/// Eight 4-bit fields, lowest first, as bytes.
#[inline(always)]
fn spread_nibbles(x: u32) -> u64 {
    let x = u64::from(x);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Eight 2-bit fields, lowest first, as bytes.
#[inline(always)]
fn spread_2bit(x: u16) -> u64 {
    let x = u64::from(x);
    let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
    let x = (x | x << 12) & 0x000f_000f_000f_000f;
    (x | x << 6) & 0x0303_0303_0303_0303
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_puts_each_field_in_its_byte() {
        assert_eq!(spread_nibbles(0x8765_4321).to_le_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(spread_2bit(0b11_10_01_00_00_01_10_11).to_le_bytes(), [3, 2, 1, 0, 0, 1, 2, 3]);
    }
}
