//! The codebook formats: 256 weights as rows of a grid, with signs and scales.
//!
//! What can be had of all row numbers, signs and scales of a chunk at once is computed in vectors; the rows themselves are loads.

use puna_quant::TensorType;
use puna_quant::tables::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID};

use super::fields::{Above, HighBits, low_bytes, spread_threes};
use super::kquants::k_format;
use super::{half, spread_nibbles, u16_at, u32_at, u64_at};
use crate::kernels::generic::quant::{Codes, Format, Quant};

/// `d · (0.5 + n) · factor` of the top four bits of eight words, `stride` bytes apart.
#[inline(always)]
unsafe fn top_scales<S: Quant>(d: f32, p: *const u8, stride: usize, factor: f32) -> S::W {
    // SAFETY: the caller's block has eight words; features by the contract.
    unsafe { S::w_mul(S::w_add(S::w_tops(p, stride), S::w_splat(0.5)), S::w_splat(d * factor)) }
}

/// `d · (0.5 + n) / 4` of sixteen nibbles at `p`.
#[inline(always)]
unsafe fn nibble_scales<S: Quant>(d: f32, p: *const u8) -> S::W {
    // SAFETY: the caller's block has eight bytes at `p`; features by the contract.
    unsafe {
        let n = S::w_bytes16(spread_nibbles(u32_at(p)), spread_nibbles(u32_at(p.add(4))));
        S::w_mul(S::w_add(n, S::w_splat(0.5)), S::w_splat(d * 0.25))
    }
}

/// Row `number` of a grid, numbers being what [`Quant::indices`] gives for the high bits `H`.
#[inline(always)]
fn row<H: HighBits, T: Copy, const N: usize>(grid: &[T; N], number: u16) -> T {
    const { assert!(N == 256 << H::BITS) };
    // SAFETY: numbers have eight bits and those of `H`.
    unsafe { *grid.get_unchecked(usize::from(number)) }
}

k_format!(IQ2_XXS, 66, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(6), 8, 0.25), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_words(p.add(6), 8);
    let row = |j: usize, i: usize| IQ2XXS_GRID[usize::from(*p.add(2 + 16 * j + i / 4 * 8 + i % 4))];
    codes!(p, p, j, S::signed(S::negate_where(S::words(std::array::from_fn(|i| row(j, i))), signs[j])))
});

k_format!(IQ2_XS, 74, 16, Codes::Signed,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(66)), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_halves(p.add(2));
    let row = |j: usize, i: usize| IQ2XS_GRID[usize::from(u16_at(p.add(2 + 16 * j + 2 * i)) & 511)];
    codes!(p, p, j, S::signed(S::negate_where(S::words(std::array::from_fn(|i| row(j, i))), signs[j])))
});

/// Two bits of each of four rows a byte.
type TwosOfFour = Above<1, 4, 2, 2>;

k_format!(IQ2_S, 82, 16, Codes::Signed,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(74)), S::w_splat(0.0)),
all_codes(p) => {
    let rows = S::indices::<TwosOfFour, 32>(p.add(2), p.add(66));
    codes!(p, p, j, {
        let rows = S::words(std::array::from_fn(|i| row::<TwosOfFour, _, _>(&IQ2S_GRID, rows[8 * j + i])));
        S::signed(S::negate_where(rows, u64_at(p.add(34 + 8 * j))))
    })
});

k_format!(IQ3_XXS, 98, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(66), 4, 0.5), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_words(p.add(66), 4);
    let row = |j: usize, i: usize| IQ3XXS_GRID[usize::from(*p.add(2 + 16 * j + i))];
    codes!(p, p, j, S::signed(S::negate_where(S::short_words(std::array::from_fn(|i| row(j, i))), signs[j])))
});

/// A bit of each of eight rows a byte.
type OnesOfEight = Above<1, 8, 1, 1>;

k_format!(IQ3_S, 110, 32, Codes::Signed,
scales(p) => {
    let n = S::w_bytes8(spread_nibbles(u32_at(p.add(106))));
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(half::<S>(p))), S::w_splat(0.0))
},
all_codes(p) => {
    let rows = S::indices::<OnesOfEight, 64>(p.add(2), p.add(66));
    codes!(p, p, j, {
        let rows = std::array::from_fn(|i| row::<OnesOfEight, _, _>(&IQ3S_GRID, rows[16 * j + i]));
        S::signed(S::negate_where(S::short_words(rows), u64_at(p.add(74 + 8 * j))))
    })
});

/// Rows of the grid of −1, 0, 1 as the codes `8 · row − 1 + 10`. Weights that are shifted up have 2 more, a bit that no code
/// has.
static IQ1_CODES: [u64; 2048] = {
    let mut codes = [0; 2048];
    let mut i = 0;
    while i < 2048 {
        let mut row = IQ1S_GRID[i].to_le_bytes();
        let mut j = 0;
        while j < 8 {
            row[j] = (8 * row[j] as i8 + 9) as u8;
            j += 1;
        }
        codes[i] = u64::from_le_bytes(row);
        i += 1;
    }
    codes
};

/// Three bits of each of four rows in 16.
type ThreesOfFour = Above<2, 4, 3, 3>;

k_format!(IQ1_S, 50, 32, Codes::Offset(10),
scales(p) => {
    let n = |at: usize| low_bytes(u64_at(p.add(at)) >> 12 & 0x0007_0007_0007_0007);
    let n = S::w_bytes8(u64::from(n(34)) | u64::from(n(42)) << 32);
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(half::<S>(p) * 0.125)), S::w_splat(0.0))
},
all_codes(p) => {
    let rows = S::indices::<ThreesOfFour, 32>(p.add(2), p.add(34));
    // Up unless the top bit of its 16 says down, all 32 weights alike.
    let up = |j: usize| {
        let up = !u32_at(p.add(34 + 4 * j));
        let (low, high) = (u64::from(up >> 15 & 1), u64::from(up >> 31));
        (low | high << 32) * 0xffff_ffff
    };
    codes!(p, p, j, {
        let rows = std::array::from_fn(|i| row::<ThreesOfFour, _, _>(&IQ1_CODES, rows[8 * j + i]));
        S::or_where(S::words(rows), up(j), 2)
    })
});

/// Three bits of each of two rows a byte.
type ThreesOfTwo = Above<1, 2, 4, 3>;

k_format!(IQ1_M, 56, 16, Codes::Offset(10),
scales(p) => {
    let word = |i: usize| u16_at(p.add(48 + 2 * i));
    let d = word(0) >> 12 | (word(1) >> 8 & 0xf0) | (word(2) >> 4 & 0xf00) | (word(3) & 0xf000);
    let n = S::w_bytes16(spread_threes(word(0), word(1)), spread_threes(word(2), word(3)));
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(S::half(d) * 0.125)), S::w_splat(0.0))
},
all_codes(p) => {
    let rows = S::indices::<ThreesOfTwo, 32>(p, p.add(32));
    // Up unless the top bit of its nibble says down, eight weights alike.
    let up = |j: usize| (spread_nibbles(!u32_at(p.add(32 + 4 * j))) >> 3 & 0x0101_0101_0101_0101) * 0xff;
    codes!(p, p, j, {
        let rows = std::array::from_fn(|i| row::<ThreesOfTwo, _, _>(&IQ1_CODES, rows[8 * j + i]));
        S::or_where(S::words(rows), up(j), 2)
    })
});
