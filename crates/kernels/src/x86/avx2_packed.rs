//! Packed weights in vectors of 256 bits, for the levels `avx2` and `avxvnni`: unpacking, scales,
//! panels.
//!
//! The levels differ in the products of codes, which are the parameter [`Dots`].

use std::arch::x86_64::*;

use super::avx2_vectors::{Avx2, transpose8};
use super::dots::{Dots, Pairs};
use super::fields;
use crate::OutMut;
use crate::generic::QuantSimd;
use crate::generic::formats::fields::HighBits;
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::packed_wrappers;

packed_wrappers!(Avx2<Pairs>, "avx2,fma,f16c");
pub(super) use packed::kernel;

/// Every byte of `v` shifted right (negative: left) by `n` inside of 32-bit words.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn shift(v: __m256i, n: i32) -> __m256i {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        if n >= 0 {
            _mm256_srlv_epi32(v, _mm256_set1_epi32(n))
        } else {
            _mm256_sllv_epi32(v, _mm256_set1_epi32(-n))
        }
    }
}

/// 0xff in each byte with a set bit.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn byte_mask(bits: u32) -> __m256i {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let which = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), which);
        let one = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, one), one)
    }
}

/// Eight lanes of 16. `order` is a constant, and often only one of the two permutations remains.
///
/// # Safety
/// The processor has AVX2; `order` has eight bytes.
#[inline(always)]
unsafe fn order8(w: [__m256; 2], order: &'static [u8]) -> __m256 {
    // SAFETY: the caller's bytes and feature.
    unsafe {
        let lanes = _mm256_cvtepu8_epi32(_mm_loadu_si64(order.as_ptr()));
        let low = _mm256_permutevar8x32_ps(w[0], lanes);
        if order.iter().all(|&lane| lane < 8) {
            return low;
        }
        let upper = _mm256_castsi256_ps(_mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(7)));
        _mm256_blendv_ps(low, _mm256_permutevar8x32_ps(w[1], lanes), upper)
    }
}

/// See [`QuantSimd::half_of`].
///
/// A 32-bit load has no dependency on the register's old value, unlike an inserted word.
///
/// # Safety
/// The processor has F16C; `p` is valid for four bytes.
#[inline(always)]
pub(super) unsafe fn half_of(p: *const u8, upper: bool) -> f32 {
    // SAFETY: the caller's bytes and feature.
    unsafe {
        let both = _mm_loadu_si32(p);
        _mm_cvtss_f32(_mm_cvtph_ps(if upper { _mm_srli_epi32::<16>(both) } else { both }))
    }
}

/// The words at `p`, `p + stride`, …; loaded as in [`half_of`].
///
/// # Safety
/// The processor has AVX2; four bytes can be read at each of the eight places.
#[inline(always)]
pub(super) unsafe fn halves8(p: *const u8, stride: usize) -> __m128i {
    // SAFETY: the caller's bytes and feature.
    unsafe {
        let a = _mm_unpacklo_epi16(_mm_loadu_si32(p), _mm_loadu_si32(p.add(stride)));
        let b = _mm_unpacklo_epi16(
            _mm_loadu_si32(p.add(2 * stride)),
            _mm_loadu_si32(p.add(3 * stride)),
        );
        let c = _mm_unpacklo_epi16(
            _mm_loadu_si32(p.add(4 * stride)),
            _mm_loadu_si32(p.add(5 * stride)),
        );
        let d = _mm_unpacklo_epi16(
            _mm_loadu_si32(p.add(6 * stride)),
            _mm_loadu_si32(p.add(7 * stride)),
        );
        _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d))
    }
}

/// See [`QuantSimd::w_six_bits`].
///
/// # Safety
/// The processor has AVX2; `p` is valid for 16 bytes.
#[inline(always)]
pub(super) unsafe fn six_bits(p: *const u8) -> (__m256, __m256) {
    // Masks of fields in each byte.
    const LOW6: i32 = 0x3f3f_3f3f;
    const LOW4: i32 = 0x0f0f_0f0f;
    // SAFETY: the caller's bytes and feature.
    unsafe {
        let block = _mm_loadu_si128(p.cast());
        // Words a, b, c of four fields each: scales 0…3 are a's low six bits, minimums 0…3 b's; 4…7
        // have their low four bits in c (minimums above the scales) and their top two in the top of
        // a and b.
        let low = _mm_shuffle_epi8(
            block,
            _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15),
        );
        let low = _mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4));
        let low = _mm_and_si128(low, _mm_setr_epi32(LOW6, LOW4, LOW6, LOW4));
        let top = _mm_shuffle_epi8(
            block,
            _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11),
        );
        let top = _mm_and_si128(_mm_srli_epi32::<2>(top), _mm_set1_epi8(0x30));
        let fields = _mm_or_si128(low, top);
        let minimums = _mm_unpackhi_epi64(fields, fields);
        (
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(fields)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(minimums)),
        )
    }
}

/// 8 powers of two as half of E8M0 numbers: 2^(x − 128).
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn powers8(x: u64) -> __m256 {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let x = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x as i64));
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(x, _mm256_set1_epi32(1)));
        // The two smallest have no normal exponent.
        let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), x);
        let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), x);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small))
    }
}

/// See [`QuantSimd::w_ue4m3`]. Shifted to the position of binary16 fields, the number is a binary16
/// with another exponent bias.
///
/// # Safety
/// The processor has AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn ue4m3(bytes: [u32; 4]) -> [__m256; 2] {
    // SAFETY: register arithmetic with features that the caller has.
    unsafe {
        let [a, b, c, d] = bytes.map(|bytes| bytes as i32);
        let bytes = _mm256_cvtepu8_epi16(_mm_setr_epi32(a, b, c, d));
        let numbers =
            _mm256_andnot_si256(_mm256_cmpeq_epi16(bytes, _mm256_set1_epi16(0x7f)), bytes);
        let halves = _mm256_slli_epi16::<7>(_mm256_and_si256(numbers, _mm256_set1_epi16(0x7f)));
        // 2^15 for the bias of binary16, 2^-7 for UE4M3's, and the half.
        let scale = _mm256_set1_ps(128.0);
        [
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), scale),
            _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)), scale),
        ]
    }
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> QuantSimd for Avx2<D> {
    type CodeVec = [__m256i; 2];
    type ScaleVec = [__m256; 2];
    type SumVec = __m256;
    type I = __m256i;
    // The products of the level define the bias.
    const BIAS: i32 = D::BIAS;
    const SUB_BLOCKS_AS_LANES: bool = true;
    const STREAM_TILE: usize = 4;

    #[inline(always)]
    fn panel_tokens(sub: usize) -> usize {
        D::panel_tokens(sub)
    }

    #[inline(always)]
    unsafe fn load64(p: *const u8) -> [__m256i; 2] {
        unsafe { Self::pair(p, p.add(32)) }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut u8, c: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(p.cast(), c[0]);
            _mm256_storeu_si256(p.add(32).cast(), c[1]);
        }
    }
    #[inline(always)]
    unsafe fn broadcast32(p: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(p.cast()); 2] }
    }
    #[inline(always)]
    unsafe fn pair(a: *const u8, b: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast())] }
    }
    #[inline(always)]
    unsafe fn nibbles(a: *const u8, b: *const u8) -> [__m256i; 2] {
        unsafe {
            let (shift, low) = (_mm256_setr_epi64x(0, 0, 4, 4), _mm256_set1_epi8(15));
            let a = _mm256_broadcastsi128_si256(_mm_loadu_si128(a.cast()));
            let b = _mm256_broadcastsi128_si256(_mm_loadu_si128(b.cast()));
            [
                _mm256_and_si256(_mm256_srlv_epi64(a, shift), low),
                _mm256_and_si256(_mm256_srlv_epi64(b, shift), low),
            ]
        }
    }
    #[inline(always)]
    unsafe fn nibbles_of_words(p: *const u8) -> [__m256i; 2] {
        unsafe {
            let (shift, low) = (_mm256_setr_epi64x(0, 4, 0, 4), _mm256_set1_epi8(15));
            let words = _mm256_loadu_si256(p.cast());
            [
                _mm256_and_si256(
                    _mm256_srlv_epi64(_mm256_permute4x64_epi64::<0x50>(words), shift),
                    low,
                ),
                _mm256_and_si256(
                    _mm256_srlv_epi64(_mm256_permute4x64_epi64::<0xfa>(words), shift),
                    low,
                ),
            ]
        }
    }
    #[inline(always)]
    unsafe fn pieces(p: *const u8, at: [usize; 4]) -> [__m256i; 2] {
        unsafe {
            [
                _mm256_loadu2_m128i(p.add(at[1]).cast(), p.add(at[0]).cast()),
                _mm256_loadu2_m128i(p.add(at[3]).cast(), p.add(at[2]).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn by_sub_blocks([a, b, c, d]: [[__m256i; 2]; 4]) -> [[__m256i; 2]; 4] {
        unsafe {
            let mut to = [a; 4];
            for half in 0..2 {
                let (a, b, c, d) = (a[half], b[half], c[half], d[half]);
                let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                to[0][half] = _mm256_unpacklo_epi64(ab, cd);
                to[1][half] = _mm256_unpackhi_epi64(ab, cd);
                to[2][half] = _mm256_unpacklo_epi64(ab_high, cd_high);
                to[3][half] = _mm256_unpackhi_epi64(ab_high, cd_high);
            }
            to
        }
    }
    #[inline(always)]
    unsafe fn nibbles_by_sub_blocks(a: [__m256i; 2], b: [__m256i; 2]) -> [[__m256i; 2]; 4] {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let mut to = [a; 4];
            for half in 0..2 {
                let pairs = [
                    _mm256_unpacklo_epi32(a[half], b[half]),
                    _mm256_unpackhi_epi32(a[half], b[half]),
                ];
                for (i, both) in pairs.into_iter().enumerate() {
                    let low = _mm256_and_si256(both, mask);
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask);
                    to[2 * i][half] = _mm256_unpacklo_epi64(low, high);
                    to[2 * i + 1][half] = _mm256_unpackhi_epi64(low, high);
                }
            }
            to
        }
    }
    #[inline(always)]
    unsafe fn unpack_2bit_by_lane(c: [__m256i; 2]) -> [[__m256i; 2]; 4] {
        unsafe {
            let shifts = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
            let mask = _mm256_set1_epi8(3);
            let mut to = [c; 4];
            for half in 0..2 {
                let words = [
                    _mm256_shuffle_epi32::<0x00>(c[half]),
                    _mm256_shuffle_epi32::<0x55>(c[half]),
                    _mm256_shuffle_epi32::<0xaa>(c[half]),
                    _mm256_shuffle_epi32::<0xff>(c[half]),
                ];
                for (to, word) in to.iter_mut().zip(words) {
                    to[half] = _mm256_and_si256(_mm256_srlv_epi32(word, shifts), mask);
                }
            }
            to
        }
    }
    #[inline(always)]
    unsafe fn indices<H: HighBits, const N: usize>(low: *const u8, high: *const u8) -> [u16; N] {
        unsafe { fields::indices::<H, N>(low, high) }
    }
    #[inline(always)]
    unsafe fn signs_of_words(p: *const u8, stride: usize) -> [u64; 4] {
        unsafe { fields::signs_of_words(p, stride) }
    }
    #[inline(always)]
    unsafe fn signs_of_halves(p: *const u8) -> [u64; 4] {
        unsafe { fields::signs_of_halves(p) }
    }
    #[inline(always)]
    unsafe fn digits(c: [__m256i; 2], powers: &[u8; 64]) -> [__m256i; 2] {
        unsafe {
            let powers = Self::load64(powers.as_ptr());
            [fields::digits(c[0], powers[0]), fields::digits(c[1], powers[1])]
        }
    }
    #[inline(always)]
    unsafe fn from_u64s(w: [u64; 8]) -> [__m256i; 2] {
        unsafe {
            let [a, b, c, d, e, f, g, h] = w.map(|w| w as i64);
            [_mm256_setr_epi64x(a, b, c, d), _mm256_setr_epi64x(e, f, g, h)]
        }
    }
    #[inline(always)]
    unsafe fn fields(c: [__m256i; 2], a: i32, b: i32, mask: u8) -> [__m256i; 2] {
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            [_mm256_and_si256(shift(c[0], a), mask), _mm256_and_si256(shift(c[1], b), mask)]
        }
    }
    #[inline(always)]
    unsafe fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn or_where(c: [__m256i; 2], bits: u64, value: u8) -> [__m256i; 2] {
        unsafe {
            let value = _mm256_set1_epi8(value as i8);
            let low = _mm256_and_si256(byte_mask(bits as u32), value);
            let high = _mm256_and_si256(byte_mask((bits >> 32) as u32), value);
            Self::or(c, [low, high])
        }
    }
    #[inline(always)]
    unsafe fn negate_where(c: [__m256i; 2], bits: u64) -> [__m256i; 2] {
        unsafe {
            // -c = (c ^ -1) - -1.
            let (a, b) = (byte_mask(bits as u32), byte_mask((bits >> 32) as u32));
            [
                _mm256_sub_epi8(_mm256_xor_si256(c[0], a), a),
                _mm256_sub_epi8(_mm256_xor_si256(c[1], b), b),
            ]
        }
    }
    #[inline(always)]
    unsafe fn signed(c: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { c.map(|c| _mm256_xor_si256(c, _mm256_set1_epi8(D::BIAS as i8))) }
    }
    #[inline(always)]
    unsafe fn lookup_unsigned(table: &[u8; 16], c: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, c[0]), _mm256_shuffle_epi8(table, c[1])]
        }
    }
    #[inline(always)]
    unsafe fn lookup_signed(table: &[i8; 16], c: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let table = _mm256_xor_si256(table, _mm256_set1_epi8(D::BIAS as i8));
            [_mm256_shuffle_epi8(table, c[0]), _mm256_shuffle_epi8(table, c[1])]
        }
    }

    #[inline(always)]
    unsafe fn half_of(p: *const u8, upper: bool) -> f32 {
        unsafe { half_of(p, upper) }
    }
    #[inline(always)]
    unsafe fn w_splat(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn w_new(x: &[f32; 16]) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    unsafe fn w_store(x: &mut [f32; 16], w: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(x.as_mut_ptr(), w[0]);
            _mm256_storeu_ps(x.as_mut_ptr().add(8), w[1]);
        }
    }
    #[inline(always)]
    unsafe fn w_load8(p: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(p), _mm256_setzero_ps()] }
    }
    #[inline(always)]
    unsafe fn w_load16(p: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn w_halves(p: *const u8, stride: usize) -> [__m256; 2] {
        unsafe { [_mm256_cvtph_ps(halves8(p, stride)), _mm256_setzero_ps()] }
    }
    #[inline(always)]
    unsafe fn w_bytes8(x: u64) -> [__m256; 2] {
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x as i64));
            [_mm256_cvtepi32_ps(wide), _mm256_setzero_ps()]
        }
    }
    #[inline(always)]
    unsafe fn w_tops(p: *const u8, stride: usize) -> [__m256; 2] {
        unsafe { [fields::tops(p, stride), _mm256_setzero_ps()] }
    }
    #[inline(always)]
    unsafe fn w_powers(x: u64) -> [__m256; 2] {
        unsafe { [powers8(x), _mm256_setzero_ps()] }
    }
    #[inline(always)]
    unsafe fn w_ue4m3(bytes: [u32; 4]) -> [__m256; 2] {
        unsafe { ue4m3(bytes) }
    }
    #[inline(always)]
    unsafe fn w_bytes16(low: u64, high: u64) -> [__m256; 2] {
        unsafe {
            let (low, high) = (_mm_cvtsi64_si128(low as i64), _mm_cvtsi64_si128(high as i64));
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn w_six_bits(p: *const u8) -> ([__m256; 2], [__m256; 2]) {
        unsafe {
            let (scales, minimums) = six_bits(p);
            ([scales, _mm256_setzero_ps()], [minimums, _mm256_setzero_ps()])
        }
    }
    #[inline(always)]
    unsafe fn w_order(w: [__m256; 2], order: &'static [u8; 16]) -> [__m256; 2] {
        unsafe { [order8(w, &order[..8]), order8(w, &order[8..])] }
    }
    #[inline(always)]
    unsafe fn w_mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn w_add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn w_nfma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fnmadd_ps(a[0], b[0], c[0]), _mm256_fnmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn w_nfma8(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fnmadd_ps(a[0], b[0], c[0]), c[1]] }
    }
    #[inline(always)]
    unsafe fn w_keep(w: [__m256; 2], n: usize) -> [__m256; 2] {
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            let low = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            [
                _mm256_and_ps(w[0], _mm256_castsi256_ps(low)),
                _mm256_and_ps(w[1], _mm256_castsi256_ps(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn w_sum(w: [__m256; 2], sub: usize) -> f32 {
        unsafe { Self::a_sum(if sub == 16 { _mm256_add_ps(w[0], w[1]) } else { w[0] }) }
    }

    #[inline(always)]
    unsafe fn a_zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn dot(
        acc: __m256,
        c: &[[__m256i; 2]; 4],
        x: *const i8,
        start: Option<*const i32>,
        (w, x_scales): ([__m256; 2], *const f32),
        _: usize,
        code_limit: i32,
    ) -> __m256 {
        unsafe {
            let mut acc = acc;
            for half in 0..2 {
                let start = match start {
                    Some(start) => _mm256_loadu_si256(start.cast::<__m256i>().add(half)),
                    None => _mm256_setzero_si256(),
                };
                let sums = D::sub_blocks(
                    start,
                    c.map(|c| c[half]),
                    x.cast::<__m256i>().add(half),
                    code_limit,
                );
                let sums = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), w[half]);
                acc = _mm256_fmadd_ps(sums, _mm256_loadu_ps(x_scales.add(8 * half)), acc);
            }
            acc
        }
    }
    #[inline(always)]
    unsafe fn a_sum(a: __m256) -> f32 {
        unsafe { <Self as crate::generic::Simd>::sum(a) }
    }

    #[inline(always)]
    unsafe fn transpose_codes(rows: &[[__m256i; 2]; 16], dst: *mut u8) {
        unsafe {
            for half in 0..2 {
                let mut block = [rows[0][half]; 8];
                for (to, row) in block.iter_mut().zip(rows) {
                    *to = row[half];
                }
                let columns = transpose8(block);
                for (i, column) in columns.into_iter().enumerate() {
                    _mm256_storeu_si256(dst.add(256 * half + 32 * i).cast(), column);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_scales(rows: &[[__m256; 2]; 16], dst: *mut f32) {
        unsafe {
            for half in 0..2 {
                let mut block = [_mm256_castps_si256(rows[0][half]); 8];
                for (to, row) in block.iter_mut().zip(rows) {
                    *to = _mm256_castps_si256(row[half]);
                }
                let columns = transpose8(block);
                for (i, column) in columns.into_iter().enumerate() {
                    _mm256_storeu_si256(dst.add(64 * half + 8 * i).cast(), column);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn i_splat(x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn i_to_f32(x: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn panel_dot<const T: usize, const V: usize>(
        acc: &mut [[__m256i; T]; V],
        w: [*const u8; V],
        x: *const u8,
        n: usize,
        code_limit: i32,
    ) {
        unsafe {
            for (acc, w) in acc.iter_mut().zip(w) {
                D::panel::<T>(acc, w, x, n, code_limit);
            }
        }
    }

    #[inline(always)]
    unsafe fn sweep<const SUB: usize, const MIN: bool, const CODE_LIMIT: i32>(
        panel: Panel<'_>,
        packed: &[u8],
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    ) {
        unsafe { D::sweep::<SUB, MIN, CODE_LIMIT>(panel, packed, tokens, out, block) }
    }
}
