//! Block layouts as in files: plain bytes, alignment 1, little-endian.
//!
//! A `[u8; 2]` field named `d`, `dmin` or `m` is a binary16 number. A nibble is a 4-bit half of a
//! byte. Low nibbles come first in element order, unless a type says otherwise.

// Names as in the format.
#![allow(non_camel_case_types)]

use bytemuck::{Pod, Zeroable};

use crate::TensorType;

/// A block of a packed type.
pub trait Block: Pod {
    /// Tensor type with rows of these blocks.
    const TYPE: TensorType;
    /// Number of values in a block.
    const VALUES: usize;
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident: $ty:ident, $values:literal values, $bytes:literal bytes {
        $($(#[$field_doc:meta])* $field:ident: $field_ty:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $field_ty,)*
        }

        impl Block for $name {
            const TYPE: TensorType = TensorType::$ty;
            const VALUES: usize = $values;
        }

        const _: () = assert!(size_of::<$name>() == $bytes && align_of::<$name>() == 1);
    )*};
}

blocks! {
    /// Value: `(q − 8) · d`.
    BlockQ4_0: Q4_0, 32 values, 18 bytes {
        /// Scale.
        d: [u8; 2],
        /// Low nibbles: elements 0..16. High nibbles: 16..32.
        qs: [u8; 16],
    }
    /// Value: `q · d + m`.
    BlockQ4_1: Q4_1, 32 values, 20 bytes {
        /// Scale.
        d: [u8; 2],
        /// Minimum.
        m: [u8; 2],
        /// Nibbles as in Q4_0.
        qs: [u8; 16],
    }
    /// Value: `(q − 16) · d`, with `q` of 5 bits.
    BlockQ5_0: Q5_0, 32 values, 22 bytes {
        /// Scale.
        d: [u8; 2],
        /// Fifth bits: bit `i` of this `u32` belongs to element `i`.
        qh: [u8; 4],
        /// Nibbles as in Q4_0.
        qs: [u8; 16],
    }
    /// Value: `q · d + m`, with `q` of 5 bits.
    BlockQ5_1: Q5_1, 32 values, 24 bytes {
        /// Scale.
        d: [u8; 2],
        /// Minimum.
        m: [u8; 2],
        /// Fifth bits as in Q5_0.
        qh: [u8; 4],
        /// Nibbles as in Q4_0.
        qs: [u8; 16],
    }
    /// Value: `q · d`.
    BlockQ8_0: Q8_0, 32 values, 34 bytes {
        /// Scale.
        d: [u8; 2],
        /// Codes.
        qs: [i8; 32],
    }
    /// Value: `q · d`. Used for activations with types that have a minimum.
    BlockQ8_1: Q8_1, 32 values, 36 bytes {
        /// Scale.
        d: [u8; 2],
        /// binary16 of `d · Σ q`.
        s: [u8; 2],
        /// Codes.
        qs: [i8; 32],
    }
    /// One bit per value: `+d` or `−d`.
    BlockQ1_0: Q1_0, 128 values, 18 bytes {
        /// Scale.
        d: [u8; 2],
        /// A set bit `i`, lowest first, means `+d`.
        qs: [u8; 16],
    }
    /// Value: `(q − 1) · d`, with `q` of 2 bits.
    BlockQ2_0: Q2_0, 64 values, 18 bytes {
        /// Scale.
        d: [u8; 2],
        /// Four consecutive values per byte, lowest bits first.
        qs: [u8; 16],
    }
    /// Value: `IQ4NL_VALUES[q] · d`.
    BlockIQ4_NL: IQ4_NL, 32 values, 18 bytes {
        /// Scale.
        d: [u8; 2],
        /// Nibbles as in Q4_0.
        qs: [u8; 16],
    }
    /// Value: `FP4_VALUES[q]` times half of `2^(e−127)`.
    BlockMXFP4: MXFP4, 32 values, 17 bytes {
        /// Biased exponent. 255 is invalid.
        e: u8,
        /// Nibbles as in Q4_0.
        qs: [u8; 16],
    }
    /// Value: `FP4_VALUES[q]` times half of the sub-block's scale, times an f32 scale of the whole
    /// tensor.
    BlockNVFP4: NVFP4, 64 values, 36 bytes {
        /// Unsigned E4M3 scales of four sub-blocks of 16 values.
        d: [u8; 4],
        /// 8 bytes per sub-block. Low nibbles: its elements 0..8. High nibbles: 8..16.
        qs: [u8; 32],
    }
    /// Value: `(d · scale) · q − dmin · min`. 16 sub-blocks of 16 values.
    BlockQ2_K: Q2_K, 256 values, 84 bytes {
        /// Low nibble: scale. High nibble: minimum.
        scales: [u8; 16],
        /// Element `128h + 32j + l` has bits `2j..2j+2` of byte `32h + l`.
        qs: [u8; 64],
        /// Scale of the scales.
        d: [u8; 2],
        /// Scale of the minima.
        dmin: [u8; 2],
    }
    /// Value: `(d · (scale − 32)) · (q − 4)`. 16 sub-blocks of 16 values.
    BlockQ3_K: Q3_K, 256 values, 110 bytes {
        /// Third bits: element `128h + 32j + l` has bit `4h + j` of byte `l`.
        hmask: [u8; 32],
        /// Low two bits as in Q2_K.
        qs: [u8; 64],
        /// 6-bit scales: low nibbles in bytes 0..8, high bits in bytes 8..12.
        scales: [u8; 12],
        /// Scale of the scales.
        d: [u8; 2],
    }
    /// Value: `(d · scale) · q − dmin · min`. 8 sub-blocks of 32 values.
    BlockQ4_K: Q4_K, 256 values, 144 bytes {
        /// Scale of the scales.
        d: [u8; 2],
        /// Scale of the minima.
        dmin: [u8; 2],
        /// 8 scales and 8 minima of 6 bits. See [`unpack_scales_k4`].
        scales: [u8; 12],
        /// 32 bytes per 64 values. Low nibbles: the first 32. High nibbles: the second 32.
        qs: [u8; 128],
    }
    /// Like Q4_K with 5-bit codes.
    BlockQ5_K: Q5_K, 256 values, 176 bytes {
        /// Scale of the scales.
        d: [u8; 2],
        /// Scale of the minima.
        dmin: [u8; 2],
        /// As in Q4_K.
        scales: [u8; 12],
        /// Fifth bits: bit `s` of byte `l` belongs to element `l` of sub-block `s`.
        qh: [u8; 32],
        /// As in Q4_K.
        qs: [u8; 128],
    }
    /// Value: `(d · scale) · (q − 32)`. 16 sub-blocks of 16 values.
    BlockQ6_K: Q6_K, 256 values, 210 bytes {
        /// 64 bytes of nibbles per 128 values. Low nibbles: the first 64. High nibbles: the second
        /// 64.
        ql: [u8; 128],
        /// 32 bytes of high bits per 128 values. Bits `2j..2j+2` belong to the values
        /// `32j..32j+32`.
        qh: [u8; 64],
        /// Scales.
        scales: [i8; 16],
        /// Scale of the scales.
        d: [u8; 2],
    }
    /// Value: `d · q`. Used for activations with k-quants and codebook types.
    BlockQ8_K: Q8_K, 256 values, 292 bytes {
        /// Scale as f32.
        d: [u8; 4],
        /// Codes.
        qs: [i8; 256],
        /// `i16` sums of 16 codes each.
        bsums: [[u8; 2]; 16],
    }
    /// Ternary values, 5 digits per byte.
    BlockTQ1_0: TQ1_0, 256 values, 54 bytes {
        /// Digit `n` of byte `m` is element `32n + m` for the first 32 bytes, and `160 + 16n + m −
        /// 32` for the others.
        qs: [u8; 48],
        /// Digit `n` (of 4) of byte `j` is element `240 + 4n + j`.
        qh: [u8; 4],
        /// Scale.
        d: [u8; 2],
    }
    /// Ternary values, 2 bits per value.
    BlockTQ2_0: TQ2_0, 256 values, 66 bytes {
        /// Element `128h + 32l + m` has bits `2l..2l+2` of byte `32h + m`.
        qs: [u8; 64],
        /// Scale.
        d: [u8; 2],
    }
    /// Grid of 256 rows with shared signs. 8 groups of 32 values.
    BlockIQ2_XXS: IQ2_XXS, 256 values, 66 bytes {
        /// Scale.
        d: [u8; 2],
        /// Per group: 4 grid indices, then a `u32` of four 7-bit sign indices and a 4-bit scale.
        qs: [[u8; 8]; 8],
    }
    /// Grid of 512 rows with shared signs.
    BlockIQ2_XS: IQ2_XS, 256 values, 74 bytes {
        /// Scale.
        d: [u8; 2],
        /// A `u16` per 8 values: 9-bit grid index, 7-bit sign index.
        qs: [[u8; 2]; 32],
        /// 4-bit scales of 16 values each.
        scales: [u8; 8],
    }
    /// Grid of 1024 rows with independent signs.
    BlockIQ2_S: IQ2_S, 256 values, 82 bytes {
        /// Scale.
        d: [u8; 2],
        /// Low 8 bits of the grid indices.
        qs: [u8; 32],
        /// Sign bytes.
        signs: [u8; 32],
        /// High 2 bits of four grid indices per byte.
        qh: [u8; 8],
        /// 4-bit scales of 16 values each.
        scales: [u8; 8],
    }
    /// Grid of 256 rows of 4 values with shared signs.
    BlockIQ3_XXS: IQ3_XXS, 256 values, 98 bytes {
        /// Scale.
        d: [u8; 2],
        /// Two grid indices per 8 values.
        qs: [u8; 64],
        /// A `u32` per 32 values: four 7-bit sign indices and a 4-bit scale.
        sas: [[u8; 4]; 8],
    }
    /// Grid of 512 rows of 4 values with independent signs.
    BlockIQ3_S: IQ3_S, 256 values, 110 bytes {
        /// Scale.
        d: [u8; 2],
        /// Low 8 bits of the grid indices.
        qs: [u8; 64],
        /// Ninth bits of eight grid indices per byte.
        qh: [u8; 8],
        /// Sign bytes.
        signs: [u8; 32],
        /// 4-bit scales of 32 values each.
        scales: [u8; 4],
    }
    /// Ternary grid of 2048 rows with a shift of ±1/8.
    BlockIQ1_S: IQ1_S, 256 values, 50 bytes {
        /// Scale.
        d: [u8; 2],
        /// Low 8 bits of the grid indices.
        qs: [u8; 32],
        /// A `u16` per 32 values: four times 3 high index bits, a 3-bit scale, and the sign of the
        /// shift.
        qh: [[u8; 2]; 8],
    }
    /// Like IQ1_S, with a scale per 16 values and a shift per 8 values.
    BlockIQ1_M: IQ1_M, 256 values, 56 bytes {
        /// Low 8 bits of the grid indices.
        qs: [u8; 32],
        /// A nibble per 8 values: 3 high index bits and the sign of the shift.
        qh: [u8; 16],
        /// Four `u16`, each with four 3-bit scales and a nibble of the block's binary16 scale. See
        /// [`BlockIQ1_M::d`].
        scales: [[u8; 2]; 4],
    }
    /// Value: `IQ4NL_VALUES[q] · (d · (scale − 32))`.
    BlockIQ4_XS: IQ4_XS, 256 values, 136 bytes {
        /// Scale.
        d: [u8; 2],
        /// A `u16` with the high 2 bits of the eight scales.
        scales_h: [u8; 2],
        /// Low 4 bits of the eight scales.
        scales_l: [u8; 4],
        /// 16 bytes per 32 values, nibbles as in Q4_0.
        qs: [u8; 128],
    }
}

impl BlockIQ1_M {
    /// Bits of the block's binary16 scale, collected from the high nibbles of `scales`.
    #[inline(always)]
    pub fn d(&self) -> [u8; 2] {
        let [a, b, c, e] = self.scales.map(|s| s[1] >> 4);
        [a | b << 4, c | e << 4]
    }
}

/// Unpacks the 6-bit scales and minima of a Q4_K or Q5_K block.
#[inline(always)]
pub fn unpack_scales_k4(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = s[j] & 63;
        mins[j] = s[j + 4] & 63;
        scales[j + 4] = (s[j + 8] & 15) | (s[j] >> 6) << 4;
        mins[j + 4] = (s[j + 8] >> 4) | (s[j + 4] >> 6) << 4;
    }
    (scales, mins)
}

/// Packs 6-bit scales and minima for [`unpack_scales_k4`].
pub fn pack_scales_k4(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut s = [0; 12];
    for j in 0..4 {
        s[j] = (scales[j] & 63) | (scales[j + 4] >> 4) << 6;
        s[j + 4] = (mins[j] & 63) | (mins[j + 4] >> 4) << 6;
        s[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
    }
    s
}

/// Unpacks the 6-bit scales of a Q3_K block, which are stored with 32 added.
#[inline(always)]
pub fn unpack_scales_q3k(s: &[u8; 12]) -> [u8; 16] {
    let mut scales = [0; 16];
    for k in 0..4 {
        let high = s[8 + k];
        scales[k] = (s[k] & 15) | (high & 3) << 4;
        scales[4 + k] = (s[4 + k] & 15) | (high >> 2 & 3) << 4;
        scales[8 + k] = (s[k] >> 4) | (high >> 4 & 3) << 4;
        scales[12 + k] = (s[4 + k] >> 4) | (high >> 6) << 4;
    }
    scales
}

/// Packs 6-bit scales for [`unpack_scales_q3k`].
pub fn pack_scales_q3k(scales: &[u8; 16]) -> [u8; 12] {
    let mut s = [0; 12];
    for k in 0..8 {
        s[k] = (scales[k] & 15) | (scales[8 + k] & 15) << 4;
    }
    for k in 0..4 {
        for quarter in 0..4 {
            s[8 + k] |= (scales[4 * quarter + k] >> 4) << (2 * quarter);
        }
    }
    s
}
