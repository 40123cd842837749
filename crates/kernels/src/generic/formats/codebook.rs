//! The codebook formats: 256 weights as rows of a grid, with signs and scales.
//!
//! Row numbers, signs and scales of a chunk are computed in vectors. Rows are loaded by numbers
//! that pass through memory, because extracting them from vectors costs more than all other steps.

use puna_quant::TensorType;
use puna_quant::tables::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID};

use super::fields::{Above, HighBits, low_bytes, spread_threes};
use super::kquants::k_format;
use super::{half, spread_nibbles, u16_at, u32_at, u64_at};
use crate::generic::quant::{CHUNK, CodebookIndices, Codes, Format, QuantSimd};

/// `d · (0.5 + n) · factor` of the top four bits of eight words, `stride` bytes apart.
#[inline(always)]
unsafe fn top_scales<S: QuantSimd>(
    d: f32,
    p: *const u8,
    stride: usize,
    factor: f32,
) -> S::ScaleVec {
    // SAFETY: the caller's block has eight words; features by the contract.
    unsafe { S::w_mul(S::w_add(S::w_tops(p, stride), S::w_splat(0.5)), S::w_splat(d * factor)) }
}

/// `d · (0.5 + n) / 4` of sixteen nibbles at `p`.
#[inline(always)]
unsafe fn nibble_scales<S: QuantSimd>(d: f32, p: *const u8) -> S::ScaleVec {
    // SAFETY: the caller's block has eight bytes at `p`; features by the contract.
    unsafe {
        let n = S::w_bytes16(spread_nibbles(u32_at(p)), spread_nibbles(u32_at(p.add(4))));
        S::w_mul(S::w_add(n, S::w_splat(0.5)), S::w_splat(d * 0.25))
    }
}

/// Declares a codebook format: codes are rows of a grid. Arguments: number of rows, the word of a
/// row (joined by `$words`), the row numbers, and the change of a group of 64 codes by its bits.
macro_rules! grid_format {
    ($name:ident, $bytes:literal, $sub:literal, $codes:expr, [$word:ty; $rows:literal] by $words:ident,
     scales($p:ident) => $scales:expr,
     numbers($q:ident) => $numbers:expr,
     row($number:ident) => $row:expr,
     bits($r:ident) => $bits:expr,
     codes($c:ident, $bit:ident) => $of:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Format for $name {
            const TYPE: TensorType = TensorType::$name;
            const BLOCK: (usize, usize) = (CHUNK, $bytes);
            const SUB: usize = $sub;
            const CODES: Codes = $codes;
            const USES_CODEBOOK: bool = true;
            #[inline(always)]
            unsafe fn scales<S: QuantSimd>($p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
                // SAFETY: offsets lie inside the block; features by the contract.
                unsafe { $scales }
            }
            #[inline(always)]
            unsafe fn numbers<S: QuantSimd>($q: *const u8, to: &mut CodebookIndices) {
                // SAFETY: as above.
                let numbers: [u16; $rows] = unsafe { $numbers };
                to[..$rows].copy_from_slice(&numbers);
            }
            #[inline(always)]
            unsafe fn rows(numbers: &CodebookIndices, to: &mut [u8; CHUNK]) {
                const { assert!(size_of::<$word>() * $rows == CHUNK) };
                let to = to.as_mut_ptr().cast::<$word>();
                for i in (0..$rows).step_by(8) {
                    for i in i..i + 8 {
                        // SAFETY: the rows fill `to`, which the caller has aligned. Volatile, so
                        // that words are not put together in vectors first.
                        unsafe { to.add(i).write_volatile(Self::row(numbers[i])) }
                    }
                }
            }
            #[inline(always)]
            unsafe fn codes_of_entries<S: QuantSimd>(
                $r: *const u8,
                rows: [S::CodeVec; 4],
            ) -> [S::CodeVec; 4] {
                // SAFETY: as above.
                unsafe {
                    let (bits, [a, b, c, d]): ([u64; 4], _) = ($bits, rows);
                    macro_rules! group {
                        ($of_rows:ident, $j:literal) => {{
                            let ($c, $bit) = ($of_rows, bits[$j]);
                            $of
                        }};
                    }
                    [group!(a, 0), group!(b, 1), group!(c, 2), group!(d, 3)]
                }
            }
            #[inline(always)]
            unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
                // Rows per group of 64 codes.
                const EACH: usize = $rows / 4;
                let mut numbers: CodebookIndices = [0; CHUNK / 4];
                // SAFETY: as above.
                unsafe {
                    Self::numbers::<S>(p, &mut numbers);
                    std::hint::black_box(&mut numbers);
                    let words =
                        |j: usize| std::array::from_fn(|i| Self::row(numbers[EACH * j + i]));
                    let rows = codes!(p, p, j, S::$words(words(j)));
                    Self::codes_of_entries::<S>(p, rows)
                }
            }
        }

        impl $name {
            #[inline(always)]
            fn row($number: u16) -> $word {
                $row
            }
        }
    };
}

/// Row `number` of a grid; [`QuantSimd::indices`] computes the numbers from the high bits `H`.
#[inline(always)]
fn row<H: HighBits, T: Copy, const N: usize>(grid: &[T; N], number: u16) -> T {
    const { assert!(N == 256 << H::BITS) };
    // SAFETY: a number has eight bits and the high bits of `H`, so it is below `N`.
    unsafe { *grid.get_unchecked(usize::from(number)) }
}

k_format!(IQ2_XXS, 66, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(6), 8, 0.25), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_words(p.add(6), 8);
    let row = |j: usize, i: usize| IQ2XXS_GRID[usize::from(*p.add(2 + 16 * j + i / 4 * 8 + i % 4))];
    codes!(p, p, j, S::signed(
        S::negate_where(S::from_u64s(std::array::from_fn(|i| row(j, i))), signs[j])
    ))
});

k_format!(IQ2_XS, 74, 16, Codes::Signed,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(66)), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_halves(p.add(2));
    let row = |j: usize, i: usize| IQ2XS_GRID[usize::from(u16_at(p.add(2 + 16 * j + 2 * i)) & 511)];
    codes!(p, p, j, S::signed(
        S::negate_where(S::from_u64s(std::array::from_fn(|i| row(j, i))), signs[j])
    ))
});

/// Two high bits for each of four rows, in a byte.
type TwosOfFour = Above<1, 4, 2, 2>;

grid_format!(IQ2_S, 82, 16, Codes::Signed, [u64; 32] by from_u64s,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(74)), S::w_splat(0.0)),
numbers(p) => S::indices::<TwosOfFour, 32>(p.add(2), p.add(66)),
row(number) => row::<TwosOfFour, _, _>(&IQ2S_GRID, number),
bits(p) => std::array::from_fn(|j| u64_at(p.add(34 + 8 * j))),
codes(c, negative) => S::signed(S::negate_where(c, negative)));

k_format!(IQ3_XXS, 98, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(66), 4, 0.5), S::w_splat(0.0)),
all_codes(p) => {
    let signs = S::signs_of_words(p.add(66), 4);
    let row = |j: usize, i: usize| IQ3XXS_GRID[usize::from(*p.add(2 + 16 * j + i))];
    codes!(p, p, j, S::signed(
        S::negate_where(S::from_u32s(std::array::from_fn(|i| row(j, i))), signs[j])
    ))
});

/// One high bit for each of eight rows, in a byte.
type OnesOfEight = Above<1, 8, 1, 1>;

grid_format!(IQ3_S, 110, 32, Codes::Signed, [u32; 64] by from_u32s,
scales(p) => {
    let n = S::w_bytes8(spread_nibbles(u32_at(p.add(106))));
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(half::<S>(p))), S::w_splat(0.0))
},
numbers(p) => S::indices::<OnesOfEight, 64>(p.add(2), p.add(66)),
row(number) => row::<OnesOfEight, _, _>(&IQ3S_GRID, number),
bits(p) => std::array::from_fn(|j| u64_at(p.add(74 + 8 * j))),
codes(c, negative) => S::signed(S::negate_where(c, negative)));

/// Rows of the grid of −1, 0, 1 as the codes `8 · row − 1 + 10`. Weights that are shifted up have 2
/// more, a bit that no code has.
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

/// Three high bits for each of four rows, in 16 bits.
type ThreesOfFour = Above<2, 4, 3, 3>;

grid_format!(IQ1_S, 50, 32, Codes::Offset(10), [u64; 32] by from_u64s,
scales(p) => {
    let n = |at: usize| low_bytes(u64_at(p.add(at)) >> 12 & 0x0007_0007_0007_0007);
    let n = S::w_bytes8(u64::from(n(34)) | u64::from(n(42)) << 32);
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(half::<S>(p) * 0.125)), S::w_splat(0.0))
},
numbers(p) => S::indices::<ThreesOfFour, 32>(p.add(2), p.add(34)),
row(number) => row::<ThreesOfFour, _, _>(&IQ1_CODES, number),
// Up unless the top bit of its 16 says down, all 32 weights alike.
bits(p) => std::array::from_fn(|j| {
    let up = !u32_at(p.add(34 + 4 * j));
    let (low, high) = (u64::from(up >> 15 & 1), u64::from(up >> 31));
    (low | high << 32) * 0xffff_ffff
}),
codes(c, up) => S::or_where(c, up, 2));

/// Three high bits for each of two rows, in a byte.
type ThreesOfTwo = Above<1, 2, 4, 3>;

grid_format!(IQ1_M, 56, 16, Codes::Offset(10), [u64; 32] by from_u64s,
scales(p) => {
    let word = |i: usize| u16_at(p.add(48 + 2 * i));
    let d = word(0) >> 12 | (word(1) >> 8 & 0xf0) | (word(2) >> 4 & 0xf00) | (word(3) & 0xf000);
    let n = S::w_bytes16(spread_threes(word(0), word(1)), spread_threes(word(2), word(3)));
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(S::half(d) * 0.125)), S::w_splat(0.0))
},
numbers(p) => S::indices::<ThreesOfTwo, 32>(p, p.add(32)),
row(number) => row::<ThreesOfTwo, _, _>(&IQ1_CODES, number),
// Up unless the top bit of its nibble says down, eight weights alike.
bits(p) => std::array::from_fn(|j| {
    (spread_nibbles(!u32_at(p.add(32 + 4 * j))) >> 3 & 0x0101_0101_0101_0101) * 0xff
}),
codes(c, up) => S::or_where(c, up, 2));
