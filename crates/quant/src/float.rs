//! Small float formats: binary16, bfloat16, and the scale formats of the FP4 types.
//!
//! The conversions are plain integer code. They give the same bits on every machine, and vectorize
//! in loops.

/// Converts a binary16 bit pattern to f32. Exact; keeps NaN payloads.
#[inline(always)]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let magnitude = bits as u32 & 0x7fff;
    let widened = if magnitude >= 0x7c00 {
        (magnitude << 13) | 0x7f80_0000
    } else if magnitude >= 0x0400 {
        (magnitude << 13) + (112 << 23)
    } else {
        // A subnormal is a multiple of 2^-24. The product is exact.
        (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits()
    };
    f32::from_bits(sign | widened)
}

/// Rounds `x` to a binary16 bit pattern, ties to even. Values from 65520 become infinity, NaN
/// becomes a quiet NaN.
#[inline(always)]
pub const fn f32_to_f16(x: f32) -> u16 {
    let sign = ((x.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x477f_f000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Normal: rebias the exponent, then round away the 13 low bits.
        let rebiased = magnitude - (112 << 23);
        (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13
    } else {
        // Subnormal: adding 0.5 places the last bit of the sum at 2^-24, and the addition rounds to
        // even.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    };
    sign | rounded as u16
}

/// Converts a bfloat16 bit pattern to f32. Exact.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds `x` to a bfloat16 bit pattern, ties to even. NaN becomes quiet.
#[inline(always)]
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        (bits >> 16) as u16 | 64
    } else {
        ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
    }
}

/// Half of 2^(e−127): the scale of MXFP4, halved because its table of values is doubled.
#[inline(always)]
pub const fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 })
}

/// Half of an unsigned E4M3 number: the scale of 16 NVFP4 values. Ignores bit 7. 0x7f (NaN) is
/// zero.
#[inline(always)]
pub fn ue4m3_half(x: u8) -> f32 {
    let (exponent, mantissa) = ((x >> 3) & 15, x & 7);
    if x == 0 || x == 0x7f {
        0.0
    } else if exponent == 0 {
        f32::from(mantissa) * f32::from_bits(0x3a80_0000) // 2^-10
    } else {
        f32::from_bits(((u32::from(exponent) + 119) << 23) | (u32::from(mantissa) << 20))
    }
}

/// Rounds `x` to an unsigned E4M3 number, ties up. The maximum is 448.
pub fn f32_to_ue4m3(x: f32) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    let bits = x.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        // Subnormal: a multiple of 2^-9, which must not round up to a normal number.
        return ((x * 512.0 + 0.5) as u8).min(7);
    }
    // Exponent and mantissa as one number, so that rounding up the mantissa carries.
    let rounded = ((exponent as u32) << 3) + (bits >> 20 & 7) + (bits >> 19 & 1);
    // Exponent 15 always becomes its largest number, as in the reference.
    if rounded >= 15 << 3 { 0x7e } else { rounded as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary16_agrees_with_the_half_crate_on_every_pattern() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}"
            );
            if !ours.is_nan() {
                assert_eq!(f32_to_f16(ours), bits);
            }
        }
    }

    #[test]
    fn rounding_to_16_bits_agrees_with_the_half_crate() {
        let mut x = 0x1234_5678_u32;
        for _ in 0..400_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Half of the samples have exponents within binary16's range.
            let bits = if x & 1 == 0 { x } else { (x & 0x8fff_ffff) | 0x3000_0000 };
            let f = f32::from_bits(bits);
            if !f.is_nan() {
                assert_eq!(f32_to_f16(f), half::f16::from_f32_const(f).to_bits(), "{bits:#010x}");
                assert_eq!(f32_to_bf16(f), half::bf16::from_f32_const(f).to_bits(), "{bits:#010x}");
            }
        }
    }
}
