//! Fields of bits by AVX2: the functions of [`fields`](crate::generic::formats::fields).

use std::arch::x86_64::*;

use crate::generic::formats::fields::HighBits;

/// See [`indices`](crate::generic::formats::fields::indices).
///
/// # Safety
/// As there; the processor has AVX2; `N` is a multiple of 16.
#[inline(always)]
pub(super) unsafe fn indices<H: HighBits, const N: usize>(
    low: *const u8,
    high: *const u8,
) -> [u16; N] {
    const { assert!(N.is_multiple_of(16)) };
    let mut to = [0; N];
    // SAFETY: the caller's bytes and feature.
    unsafe {
        let shuffle: &'static [u8; 32] = &const { shuffle::<H>() };
        let factors: &'static [u16; 16] = &const { factors::<H>() };
        let (shuffle, factors) = (
            _mm256_loadu_si256(shuffle.as_ptr().cast()),
            _mm256_loadu_si256(factors.as_ptr().cast()),
        );
        for i in (0..N).step_by(16) {
            let units = high.add(i / H::EACH * H::UNIT);
            // The bytes of sixteen fields.
            let units = match 16 / H::EACH * H::UNIT {
                2 => u64::from(units.cast::<u16>().read_unaligned()),
                4 => u64::from(units.cast::<u32>().read_unaligned()),
                8 => units.cast::<u64>().read_unaligned(),
                _ => unreachable!("sixteen fields are 2, 4 or 8 bytes"),
            };
            let each = _mm256_shuffle_epi8(_mm256_set1_epi64x(units as i64), shuffle);
            // A multiplication, since AVX2 cannot shift 16-bit lanes by different amounts.
            let above = _mm256_srli_epi16::<1>(_mm256_mullo_epi16(each, factors));
            let above = _mm256_and_si256(above, _mm256_set1_epi16(((1 << H::BITS) - 1) << 8));
            let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(low.add(i).cast()));
            _mm256_storeu_si256(to.as_mut_ptr().add(i).cast(), _mm256_or_si256(low, above));
        }
    }
    to
}

/// The bytes of the unit of each of sixteen fields.
const fn shuffle<H: HighBits>() -> [u8; 32] {
    let mut to = [0x80; 32];
    let mut i = 0;
    while i < 16 {
        let unit = (i / H::EACH * H::UNIT) as u8;
        to[2 * i] = unit;
        if H::UNIT == 2 {
            to[2 * i + 1] = unit + 1;
        }
        i += 1;
    }
    to
}

/// Factors that move each field to bit 9.
const fn factors<H: HighBits>() -> [u16; 16] {
    let mut to = [0; 16];
    let mut i = 0;
    while i < 16 {
        to[i] = 1 << (9 - i % H::EACH * H::STEP);
        i += 1;
    }
    to
}

/// Each byte's lowest seven bits, with their parity above them; the highest bits are clear.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn with_parity(x: __m256i) -> [u64; 4] {
    // SAFETY: register arithmetic with a feature that the caller has; both are 32 plain bytes.
    unsafe {
        // Parity of four bits by their value, 0x80 for odd: the values 0 to 7, then 8 to 15.
        const ODD: i64 = 0x8000_0080_0080_8000_u64 as i64;
        const EVEN: i64 = 0x0080_8000_8000_0080;
        let parity = _mm256_setr_epi64x(ODD, EVEN, ODD, EVEN);
        let folded =
            _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi16::<4>(x)), _mm256_set1_epi8(15));
        std::mem::transmute(_mm256_or_si256(x, _mm256_shuffle_epi8(parity, folded)))
    }
}

/// Eight words at `p`, `stride` (4 or 8) bytes apart.
///
/// # Safety
/// The words exist, and where they are 8 bytes apart four bytes before them; the processor has
/// AVX2.
#[inline(always)]
unsafe fn words(p: *const u8, stride: usize) -> __m256i {
    // SAFETY: the caller's bytes and feature.
    unsafe {
        if stride == 4 {
            return _mm256_loadu_si256(p.cast());
        }
        debug_assert!(stride == 8);
        let (low, high) = (_mm256_loadu_ps(p.sub(4).cast()), _mm256_loadu_ps(p.add(28).cast()));
        let second = _mm256_shuffle_ps::<0b11_01_11_01>(low, high);
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(second))
    }
}

/// See [`QuantSimd::signs_of_words`](crate::generic::QuantSimd::signs_of_words).
///
/// # Safety
/// As there; the processor has AVX2.
#[inline(always)]
pub(super) unsafe fn signs_of_words(p: *const u8, stride: usize) -> [u64; 4] {
    // SAFETY: the caller's words and feature.
    unsafe {
        let x = words(p, stride);
        let first = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
        let second = _mm256_and_si256(_mm256_slli_epi32::<1>(x), _mm256_set1_epi32(0x7f << 8));
        let third = _mm256_and_si256(_mm256_slli_epi32::<2>(x), _mm256_set1_epi32(0x7f << 16));
        let fourth = _mm256_and_si256(_mm256_slli_epi32::<3>(x), _mm256_set1_epi32(0x7f << 24));
        with_parity(_mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth)))
    }
}

/// See [`QuantSimd::signs_of_halves`](crate::generic::QuantSimd::signs_of_halves).
///
/// # Safety
/// As there; the processor has AVX2.
#[inline(always)]
pub(super) unsafe fn signs_of_halves(p: *const u8) -> [u64; 4] {
    // SAFETY: the caller's words and feature.
    unsafe {
        let first = _mm256_srli_epi16::<9>(_mm256_loadu_si256(p.cast()));
        let second = _mm256_srli_epi16::<9>(_mm256_loadu_si256(p.add(32).cast()));
        let packed = _mm256_packus_epi16(first, second);
        with_parity(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
    }
}

/// The top four bits of eight words at `p`, `stride` bytes apart.
///
/// # Safety
/// As for [`words`].
#[inline(always)]
pub(super) unsafe fn tops(p: *const u8, stride: usize) -> __m256 {
    // SAFETY: the caller's words and feature.
    unsafe { _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(words(p, stride))) }
}

/// Each byte times its power of three, and of that the highest digit of base 3:
/// `3 · (x · power mod 256) / 256`.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn digits(x: __m256i, powers: __m256i) -> __m256i {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let low = _mm256_set1_epi16(0xff);
        let three = _mm256_set1_epi16(3);
        let even = _mm256_and_si256(_mm256_mullo_epi16(x, _mm256_and_si256(powers, low)), low);
        let odd = _mm256_mullo_epi16(_mm256_srli_epi16::<8>(x), _mm256_srli_epi16::<8>(powers));
        let even = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(even, three));
        let odd = _mm256_mullo_epi16(_mm256_and_si256(odd, low), three);
        _mm256_or_si256(even, _mm256_andnot_si256(low, odd))
    }
}
