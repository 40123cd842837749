//! Fixed tables of the formats, expanded for kernels.
//!
//! A grid row of eight values is a `u64` (of four values: a `u32`) with value `j` in byte `j`. So a
//! little-endian machine can load, gather or shuffle a row at once. `to_le_bytes` returns the
//! values.

use crate::codebooks;

/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
pub const IQ4NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the E2M1 codes of MXFP4 and NVFP4, doubled. Code 8 is +0, since the format has no −0.
pub const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Levels of the 2-bit codebooks.
pub const IQ2_LEVELS: [u8; 3] = [8, 25, 43];
/// Levels of the IQ3_XXS codebook.
pub const IQ3XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// Levels of the IQ3_S codebook.
pub const IQ3S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Levels of the IQ1_S codebook as two's complement bytes: −1, 0, 1.
pub const IQ1_LEVELS: [u8; 3] = [0xff, 0, 1];

/// IQ2_XXS: 8 magnitudes (8, 25 or 43) per 8-bit index.
pub static IQ2XXS_GRID: [u64; 256] = expand_eights(&codebooks::IQ2_XXS, IQ2_LEVELS);
/// IQ2_XS: 8 magnitudes per 9-bit index.
pub static IQ2XS_GRID: [u64; 512] = expand_eights(&codebooks::IQ2_XS, IQ2_LEVELS);
/// IQ2_S: 8 magnitudes per 10-bit index.
pub static IQ2S_GRID: [u64; 1024] = expand_eights(&codebooks::IQ2_S, IQ2_LEVELS);
/// IQ1_S and IQ1_M: 8 signed values (−1, 0 or 1, as `i8`) per 11-bit index.
pub static IQ1S_GRID: [u64; 2048] = expand_eights(&codebooks::IQ1_S, IQ1_LEVELS);
/// IQ3_XXS: 4 magnitudes per 8-bit index.
pub static IQ3XXS_GRID: [u32; 256] = expand_fours(&codebooks::IQ3_XXS, IQ3XXS_LEVELS);
/// IQ3_S: 4 magnitudes per 9-bit index.
pub static IQ3S_GRID: [u32; 512] = expand_fours(&codebooks::IQ3_S, IQ3S_LEVELS);

/// Sign bytes of the 7-bit sign indices. A set bit `j` means that value `j` is negative.
pub static SIGNS: [u8; 128] = {
    let mut table = [0; 128];
    let mut i = 0;
    while i < 128 {
        table[i] = signs(i as u8);
        i += 1;
    }
    table
};

/// Sign byte of a 7-bit index. The eighth bit makes the number of minus signs even.
#[inline(always)]
pub const fn signs(index: u8) -> u8 {
    let index = index & 127;
    index | ((index.count_ones() as u8 & 1) << 7)
}

const fn expand_eights<const N: usize>(packed: &[u16; N], levels: [u8; 3]) -> [u64; N] {
    let mut rows = [0; N];
    let mut i = 0;
    while i < N {
        let mut bytes = [0; 8];
        let mut j = 0;
        while j < 8 {
            bytes[j] = levels[(packed[i] >> (2 * j)) as usize & 3];
            j += 1;
        }
        rows[i] = u64::from_le_bytes(bytes);
        i += 1;
    }
    rows
}

const fn expand_fours<const N: usize>(packed: &[u16; N], levels: [u8; 8]) -> [u32; N] {
    let mut rows = [0; N];
    let mut i = 0;
    while i < N {
        let mut bytes = [0; 4];
        let mut j = 0;
        while j < 4 {
            bytes[j] = levels[(packed[i] >> (3 * j)) as usize & 7];
            j += 1;
        }
        rows[i] = u32::from_le_bytes(bytes);
        i += 1;
    }
    rows
}
