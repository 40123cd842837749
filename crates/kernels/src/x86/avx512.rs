//! The level `avx512`: AVX-512 F, BW, VL and DQ, vectors of sixteen f32.

use std::arch::x86_64::*;

use puna_quant::TensorType;

use super::avx2;
use crate::generic::Simd;
use crate::generic::sweep::OutBlock;
use crate::generic::target_feature_wrappers::{float_wrappers, vector_wrappers};
use crate::{Level, LinearKernel, OutMut};

/// Whether this processor runs the level.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

pub(super) const LEVEL: Level = Level { name: "avx512", linear, vector: vector::VECTOR };

/// Float products of this level; packed formats use the level below, which is as fast without VNNI.
fn linear(ty: TensorType) -> Option<LinearKernel> {
    float::kernel(ty).or_else(|| (avx2::LEVEL.linear)(ty))
}

vector_wrappers!(Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");
float_wrappers!(Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");

/// Vectors of sixteen f32.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    // 512-bit vectors, 32 registers.
    const LANES: usize = 16;
    const TILE_ROWS: usize = 6;
    const F32_PANEL_VECTORS: usize = 1;
    const F32_PANEL_TOKENS: usize = 24;
    type F = __m512;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }
    #[inline(always)]
    unsafe fn select_below(x: __m512, bound: __m512, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, bound), b, a) }
    }
    #[inline(always)]
    unsafe fn scale_pow2(a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn any_above(x: __m512, bound: f32) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(bound)) != 0 }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    unsafe fn hmax(a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8, high: bool) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let shifted = if high { _mm512_srli_epi32::<4>(wide) } else { wide };
            let codes = _mm512_and_si512(shifted, _mm512_set1_epi32(15));
            _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(8)))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m512) {
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[__m512; 16], dst: *mut f32) {
        unsafe {
            let mut block = [_mm512_castps_si512(rows[0]); 16];
            for (to, row) in block.iter_mut().zip(rows) {
                *to = _mm512_castps_si512(*row);
            }
            let columns = transpose16(block);
            for (i, column) in columns.into_iter().enumerate() {
                _mm512_storeu_ps(dst.add(i * 16), _mm512_castsi512_ps(column));
            }
        }
    }
    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }
    #[inline(always)]
    unsafe fn sweep_f32(
        panel: &[f32],
        packed: &[f32],
        len: usize,
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    ) {
        float::sweep(panel, packed, len, tokens, out, block);
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

/// Transposes 16 × 16 words of 32 bits.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn transpose16(r: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        // Within 128-bit lanes: words, then pairs of words of four rows.
        let mut a = r;
        for i in (0..16).step_by(2) {
            a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        let mut b = a;
        for i in (0..16).step_by(4) {
            b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
            b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
            b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
            b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
        }
        // b[4g + j] holds, in lane l, column 4l + j of rows 4g…4g+3: transpose the 4 × 4 lanes for
        // each j.
        let mut out = b;
        for j in 0..4 {
            let low01 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[j], b[4 + j]);
            let high01 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[j], b[4 + j]);
            let low23 = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[8 + j], b[12 + j]);
            let high23 = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[8 + j], b[12 + j]);
            out[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low01, low23);
            out[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low01, low23);
            out[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high01, high23);
            out[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high01, high23);
        }
        out
    }
}
