//! The level `avx512vnni`: products of packed weights by `vpdpbusd`, sixteen rows or 64 codes at a
//! time. If the processor has `vdpbf16ps`, that instruction multiplies BF16 weights.

use std::arch::x86_64::*;

use puna_quant::TensorType;

use super::avx2_packed::{half_of, halves8, powers8, six_bits, ue4m3};
use super::avx512::{self, Avx512, transpose16};
use super::{bf16, fields};
use crate::generic::formats::fields::HighBits;
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::{packed_wrappers, sweep_wrapper};
use crate::generic::{QuantSimd, Simd};
use crate::{Level, LinearKernel, OutMut};

/// Whether this processor runs the level, given that it runs `avx512`.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

pub(super) const LEVEL: Level = Level { name: "avx512vnni", linear, vector: avx512::LEVEL.vector };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    let pairs = || bf16::available().then(|| bf16::kernel(ty)).flatten();
    packed::kernel(ty).or_else(pairs).or_else(|| (avx512::LEVEL.linear)(ty))
}

packed_wrappers!(Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");

sweep_wrapper!(sweep, Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c", 255);

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl QuantSimd for Avx512 {
    type CodeVec = __m512i;
    type ScaleVec = __m512;
    type SumVec = __m512;
    type I = __m512i;
    // `vpdpbusd` takes unsigned codes.
    const BIAS: i32 = 128;
    const SUB_BLOCKS_AS_LANES: bool = true;
    const STREAM_TILE: usize = 8;
    const PANEL_VECTORS: usize = 2;

    #[inline(always)]
    fn panel_tokens(sub: usize) -> usize {
        // Weights with two scales for 32 keep a third sum for each pair of vectors.
        if sub == 16 { 4 } else { 6 }
    }

    #[inline(always)]
    unsafe fn load64(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut u8, c: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), c) }
    }
    #[inline(always)]
    unsafe fn broadcast32(p: *const u8) -> __m512i {
        unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn pair(a: *const u8, b: *const u8) -> __m512i {
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(b.cast()))
        }
    }
    #[inline(always)]
    unsafe fn nibbles(a: *const u8, b: *const u8) -> __m512i {
        unsafe {
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(a.cast()));
            let both = _mm512_mask_broadcast_i32x4(low, 0xff00, _mm_loadu_si128(b.cast()));
            let shifted = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
            _mm512_and_si512(shifted, _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn nibbles_of_words(p: *const u8) -> __m512i {
        unsafe {
            let words = _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
            let twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), words);
            let shifted = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
            _mm512_and_si512(shifted, _mm512_set1_epi8(15))
        }
    }
    #[inline(always)]
    unsafe fn pieces(p: *const u8, at: [usize; 4]) -> __m512i {
        unsafe {
            let low = _mm256_loadu2_m128i(p.add(at[1]).cast(), p.add(at[0]).cast());
            let high = _mm256_loadu2_m128i(p.add(at[3]).cast(), p.add(at[2]).cast());
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn by_sub_blocks([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        unsafe {
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }
    #[inline(always)]
    unsafe fn nibbles_by_sub_blocks(a: __m512i, b: __m512i) -> [__m512i; 4] {
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let (first, second) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let high1 = _mm512_and_si512(_mm512_srli_epi16::<4>(first), mask);
            let high2 = _mm512_and_si512(_mm512_srli_epi16::<4>(second), mask);
            let (low1, low2) = (_mm512_and_si512(first, mask), _mm512_and_si512(second, mask));
            [
                _mm512_unpacklo_epi64(low1, high1),
                _mm512_unpackhi_epi64(low1, high1),
                _mm512_unpacklo_epi64(low2, high2),
                _mm512_unpackhi_epi64(low2, high2),
            ]
        }
    }
    #[inline(always)]
    unsafe fn unpack_2bit_by_lane(c: __m512i) -> [__m512i; 4] {
        unsafe {
            let shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 2, 4, 6));
            let mask = _mm512_set1_epi8(3);
            [
                _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_epi32::<0x00>(c), shifts), mask),
                _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_epi32::<0x55>(c), shifts), mask),
                _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_epi32::<0xaa>(c), shifts), mask),
                _mm512_and_si512(_mm512_srlv_epi32(_mm512_shuffle_epi32::<0xff>(c), shifts), mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn from_u32s(w: [u32; 16]) -> __m512i {
        unsafe {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = w.map(|w| w as i32);
            _mm512_setr_epi32(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
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
    unsafe fn digits(c: __m512i, powers: &[u8; 64]) -> __m512i {
        unsafe {
            let (low, three) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(3));
            let powers = _mm512_loadu_si512(powers.as_ptr().cast());
            let even = _mm512_and_si512(_mm512_mullo_epi16(c, _mm512_and_si512(powers, low)), low);
            let odd = _mm512_mullo_epi16(_mm512_srli_epi16::<8>(c), _mm512_srli_epi16::<8>(powers));
            let even = _mm512_srli_epi16::<8>(_mm512_mullo_epi16(even, three));
            let odd = _mm512_mullo_epi16(_mm512_and_si512(odd, low), three);
            _mm512_or_si512(even, _mm512_andnot_si512(low, odd))
        }
    }
    #[inline(always)]
    unsafe fn from_u64s(w: [u64; 8]) -> __m512i {
        unsafe {
            let [a, b, c, d, e, f, g, h] = w.map(|w| w as i64);
            _mm512_setr_epi64(a, b, c, d, e, f, g, h)
        }
    }
    #[inline(always)]
    unsafe fn fields(c: __m512i, a: i32, b: i32, mask: u8) -> __m512i {
        unsafe {
            // A rotation shifts either way; the mask drops what crosses a byte.
            let (a, b) = (i64::from(a & 63), i64::from(b & 63));
            let turned = _mm512_rorv_epi64(c, _mm512_setr_epi64(a, a, a, a, b, b, b, b));
            _mm512_and_si512(turned, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or_where(c: __m512i, bits: u64, value: u8) -> __m512i {
        // The bits of `value` are clear in `c`, so that a sum is an or; there is no masked or of
        // bytes.
        unsafe { _mm512_mask_add_epi8(c, bits, c, _mm512_set1_epi8(value as i8)) }
    }
    #[inline(always)]
    unsafe fn negate_where(c: __m512i, bits: u64) -> __m512i {
        unsafe { _mm512_mask_sub_epi8(c, bits, _mm512_setzero_si512(), c) }
    }
    #[inline(always)]
    unsafe fn signed(c: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(c, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn lookup_unsigned(table: &[u8; 16], c: __m512i) -> __m512i {
        unsafe {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), c)
        }
    }
    #[inline(always)]
    unsafe fn lookup_signed(table: &[i8; 16], c: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(_mm512_xor_si512(table, _mm512_set1_epi8(-128)), c)
        }
    }

    #[inline(always)]
    unsafe fn half_of(p: *const u8, upper: bool) -> f32 {
        unsafe { half_of(p, upper) }
    }
    #[inline(always)]
    unsafe fn w_splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn w_new(x: &[f32; 16]) -> __m512 {
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn w_store(x: &mut [f32; 16], w: __m512) {
        unsafe { _mm512_storeu_ps(x.as_mut_ptr(), w) }
    }
    #[inline(always)]
    unsafe fn w_load8(p: *const f32) -> __m512 {
        unsafe { _mm512_zextps256_ps512(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn w_load16(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn w_halves(p: *const u8, stride: usize) -> __m512 {
        unsafe { _mm512_zextps256_ps512(_mm256_cvtph_ps(halves8(p, stride))) }
    }
    #[inline(always)]
    unsafe fn w_bytes8(x: u64) -> __m512 {
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x as i64));
            _mm512_zextps256_ps512(_mm256_cvtepi32_ps(wide))
        }
    }
    #[inline(always)]
    unsafe fn w_tops(p: *const u8, stride: usize) -> __m512 {
        unsafe { _mm512_zextps256_ps512(fields::tops(p, stride)) }
    }
    #[inline(always)]
    unsafe fn w_powers(x: u64) -> __m512 {
        unsafe { _mm512_zextps256_ps512(powers8(x)) }
    }
    #[inline(always)]
    unsafe fn w_ue4m3(bytes: [u32; 4]) -> __m512 {
        unsafe {
            let [low, high] = ue4m3(bytes);
            _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn w_bytes16(low: u64, high: u64) -> __m512 {
        unsafe {
            let bytes = _mm_set_epi64x(high as i64, low as i64);
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
    }
    #[inline(always)]
    unsafe fn w_six_bits(p: *const u8) -> (__m512, __m512) {
        unsafe {
            let (scales, minimums) = six_bits(p);
            (_mm512_zextps256_ps512(scales), _mm512_zextps256_ps512(minimums))
        }
    }
    #[inline(always)]
    unsafe fn w_order(w: __m512, order: &'static [u8; 16]) -> __m512 {
        unsafe {
            _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(order.as_ptr().cast())), w)
        }
    }
    #[inline(always)]
    unsafe fn w_mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn w_add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn w_nfma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn w_nfma8(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe {
            let [a, b, c] = [a, b, c].map(|w| _mm512_castps512_ps256(w));
            _mm512_zextps256_ps512(_mm256_fnmadd_ps(a, b, c))
        }
    }
    #[inline(always)]
    unsafe fn w_keep(w: __m512, n: usize) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(((1u32 << n) - 1) as u16, w) }
    }
    #[inline(always)]
    unsafe fn w_sum(w: __m512, _sub: usize) -> f32 {
        unsafe { _mm512_reduce_add_ps(w) }
    }

    #[inline(always)]
    unsafe fn a_zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn dot(
        acc: __m512,
        c: &[__m512i; 4],
        x: *const i8,
        start: Option<*const i32>,
        (w, x_scales): (__m512, *const f32),
        _: usize,
        _: i32,
    ) -> __m512 {
        unsafe {
            let mut sums = match start {
                Some(start) => _mm512_loadu_si512(start.cast()),
                None => _mm512_setzero_si512(),
            };
            for (i, &c) in c.iter().enumerate() {
                sums = _mm512_dpbusd_epi32(sums, c, _mm512_loadu_si512(x.add(64 * i).cast()));
            }
            // In this order, only the sums stay in registers.
            let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), w);
            _mm512_fmadd_ps(sums, _mm512_loadu_ps(x_scales), acc)
        }
    }
    #[inline(always)]
    unsafe fn a_sum(a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    unsafe fn transpose_codes(rows: &[__m512i; 16], dst: *mut u8) {
        unsafe {
            for (i, column) in transpose16(*rows).into_iter().enumerate() {
                _mm512_storeu_si512(dst.add(64 * i).cast(), column);
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_scales(rows: &[__m512; 16], dst: *mut f32) {
        unsafe { <Self as Simd>::transpose(rows, dst) }
    }

    #[inline(always)]
    unsafe fn i_splat(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn i_to_f32(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn panel_dot<const T: usize, const V: usize>(
        acc: &mut [[__m512i; T]; V],
        w: [*const u8; V],
        x: *const u8,
        n: usize,
        _: i32,
    ) {
        unsafe {
            for s in 0..n / 4 {
                let w = w.map(|w| _mm512_loadu_si512(w.add(64 * s).cast()));
                for t in 0..T {
                    let x = _mm512_set1_epi32(x.add(32 * t + 4 * s).cast::<i32>().read_unaligned());
                    for (acc, w) in acc.iter_mut().zip(w) {
                        acc[t] = _mm512_dpbusd_epi32(acc[t], w, x);
                    }
                }
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
        unsafe { sweep::<SUB, MIN>(panel, packed, tokens, out, block) }
    }
}
