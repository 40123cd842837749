//! The codebook formats: 256 weights as rows of a grid, with signs and scales.

use puna_quant::TensorType;
use puna_quant::tables::{IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, SIGNS};

use super::kquants::k_format;
use super::{half, spread_nibbles, u16_at, u32_at, u64_at};
use crate::kernels::generic::quant::{Codes, Format, Quant};

/// Sign bytes of the four 7-bit indices in the low 28 bits of `w`.
#[inline(always)]
fn signs28(w: u32) -> u32 {
    let sign = |l: u32| u32::from(SIGNS[(w >> (7 * l) & 127) as usize]) << (8 * l);
    sign(0) | sign(1) | sign(2) | sign(3)
}

/// `d · (0.5 + n) · factor` of the top four bits of eight words, `stride` bytes apart.
#[inline(always)]
unsafe fn top_scales<S: Quant>(d: f32, p: *const u8, stride: usize, factor: f32) -> S::W {
    // SAFETY: the caller's block has eight words; features by the contract.
    unsafe {
        let mut n = [0.0; 16];
        for (ib, n) in n.iter_mut().enumerate().take(8) {
            *n = 0.5 + (u32_at(p.add(stride * ib)) >> 28) as f32;
        }
        S::w_mul(S::w_new(&n), S::w_splat(d * factor))
    }
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

/// Rows of a grid of eights with the sign bits of 64 weights.
#[inline(always)]
unsafe fn eights<S: Quant, const N: usize>(
    grid: &[u64; N],
    index: impl Fn(usize) -> usize,
    signs: u64,
) -> S::C {
    // SAFETY: features by the contract. Indices are masked to the table's power of two, so the check folds away.
    unsafe { S::signed(S::negate_where(S::words(std::array::from_fn(|i| grid[index(i) & (N - 1)])), signs)) }
}

/// The same with a grid of fours.
#[inline(always)]
unsafe fn fours<S: Quant, const N: usize>(
    grid: &[u32; N],
    index: impl Fn(usize) -> usize,
    signs: u64,
) -> S::C {
    let word = |i: usize| {
        u64::from(grid[index(2 * i) & (N - 1)]) | u64::from(grid[index(2 * i + 1) & (N - 1)]) << 32
    };
    // SAFETY: features by the contract.
    unsafe { S::signed(S::negate_where(S::words(std::array::from_fn(word)), signs)) }
}

k_format!(IQ2_XXS, 66, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(6), 8, 0.25), S::w_splat(0.0)),
codes(p, j) => {
    let p = p.add(2 + 16 * j);
    let signs = u64::from(signs28(u32_at(p.add(4)))) | u64::from(signs28(u32_at(p.add(12)))) << 32;
    eights::<S, 256>(&IQ2XXS_GRID, |i| usize::from(*p.add(i / 4 * 8 + i % 4)), signs)
});

k_format!(IQ2_XS, 74, 16, Codes::Signed,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(66)), S::w_splat(0.0)),
codes(p, j) => {
    let index = |i: usize| u16_at(p.add(2 + 16 * j + 2 * i));
    let sign = |i: usize| u64::from(SIGNS[usize::from(index(i) >> 9)]) << (8 * i);
    let signs = (0..8).fold(0, |signs, i| signs | sign(i));
    eights::<S, 512>(&IQ2XS_GRID, |i| usize::from(index(i) & 511), signs)
});

k_format!(IQ2_S, 82, 16, Codes::Signed,
scales(p) => (nibble_scales::<S>(half::<S>(p), p.add(74)), S::w_splat(0.0)),
codes(p, j) => {
    let top = u16_at(p.add(66 + 2 * j));
    let index = |i: usize| usize::from(*p.add(2 + 8 * j + i)) | usize::from(top >> (2 * i) & 3) << 8;
    eights::<S, 1024>(&IQ2S_GRID, index, u64_at(p.add(34 + 8 * j)))
});

k_format!(IQ3_XXS, 98, 32, Codes::Signed,
scales(p) => (top_scales::<S>(half::<S>(p), p.add(66), 4, 0.5), S::w_splat(0.0)),
codes(p, j) => {
    let word = |ib: usize| u64::from(signs28(u32_at(p.add(66 + 4 * (2 * j + ib)))));
    fours::<S, 256>(&IQ3XXS_GRID, |i| usize::from(*p.add(2 + 16 * j + i)), word(0) | word(1) << 32)
});

k_format!(IQ3_S, 110, 32, Codes::Signed,
scales(p) => {
    let n = S::w_bytes8(spread_nibbles(u32_at(p.add(106))));
    let odd = S::w_add(S::w_add(n, n), S::w_splat(1.0));
    (S::w_mul(odd, S::w_splat(half::<S>(p))), S::w_splat(0.0))
},
codes(p, j) => {
    let top = u16_at(p.add(66 + 2 * j));
    let index = |i: usize| usize::from(*p.add(2 + 16 * j + i)) | usize::from(top >> i & 1) << 8;
    fours::<S, 512>(&IQ3S_GRID, index, u64_at(p.add(74 + 8 * j)))
});

/// Eight codes `8 · grid + 1` or `8 · grid - 1` (where `minus`) of a grid of −1, 0, 1.
#[inline(always)]
fn shifted_row(row: u64, minus: bool) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let eight = row << 3 & 0xf8f8_f8f8_f8f8_f8f8;
    if minus {
        // Bytewise − 1: + 0x7f in the low seven bits cannot leave a byte, the top bit is flipped by hand.
        ((eight & !HIGH) + !HIGH) ^ (!eight & HIGH)
    } else {
        eight | 0x0101_0101_0101_0101
    }
}

k_format!(IQ1_S, 50, 32, Codes::Signed,
scales(p) => {
    let mut n = [0.0; 16];
    for (ib, n) in n.iter_mut().enumerate().take(8) {
        *n = f32::from(2 * (u16_at(p.add(34 + 2 * ib)) >> 12 & 7) + 1);
    }
    (S::w_mul(S::w_new(&n), S::w_splat(half::<S>(p) * 0.125)), S::w_splat(0.0))
},
codes(p, j) => {
    let word = |i: usize| {
        let h = u16_at(p.add(34 + 2 * (2 * j + i / 4)));
        let index = usize::from(*p.add(2 + 8 * j + i)) | usize::from(h >> (3 * (i % 4)) & 7) << 8;
        shifted_row(IQ1S_GRID[index], h & 0x8000 != 0)
    };
    S::signed(S::words(std::array::from_fn(word)))
});

k_format!(IQ1_M, 56, 16, Codes::Signed,
scales(p) => {
    let word = |i: usize| u16_at(p.add(48 + 2 * i));
    let d = word(0) >> 12 | (word(1) >> 8 & 0xf0) | (word(2) >> 4 & 0xf00) | (word(3) & 0xf000);
    let n = std::array::from_fn(|i| f32::from(2 * (word(i / 4) >> (3 * (i % 4)) & 7) + 1));
    (S::w_mul(S::w_new(&n), S::w_splat(S::half(d) * 0.125)), S::w_splat(0.0))
},
codes(p, j) => {
    let word = |i: usize| {
        let nibble = *p.add(32 + 4 * j + i / 2) >> (4 * (i % 2));
        let index = usize::from(*p.add(8 * j + i)) | usize::from(nibble & 7) << 8;
        shifted_row(IQ1S_GRID[index], nibble & 8 != 0)
    };
    S::signed(S::words(std::array::from_fn(word)))
});
