//! Vectors of eight f32 by AVX2, FMA and F16C.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use puna_quant::TensorType;

use super::dots::{Dots, Pairs};
use crate::generic::Simd;
use crate::generic::sweep::OutBlock;
use crate::generic::target_feature_wrappers::{float_wrappers, vector_wrappers};
use crate::{LinearKernel, OutMut, VectorKernels};

/// Vector kernels of the level `avx2`.
pub(super) const VECTOR: VectorKernels = vector::VECTOR;

/// Products of weights stored as floats.
pub(super) fn float_kernel(ty: TensorType) -> Option<LinearKernel> {
    float::kernel(ty)
}

vector_wrappers!(Avx2<Pairs>, "avx2,fma,f16c");
float_wrappers!(Avx2<Pairs>, "avx2,fma,f16c");

/// Vectors of eight f32; `D`: how codes of packed weights are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(PhantomData<D>);

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> Simd for Avx2<D> {
    // 256-bit vectors, 16 registers.
    const LANES: usize = 8;
    const TILE_ROWS: usize = 2;
    const F32_PANEL_VECTORS: usize = 2;
    const F32_PANEL_TOKENS: usize = 6;
    type F = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m256) -> __m256 {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn select_below(x: __m256, bound: __m256, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(b, a, _mm256_cmp_ps::<_CMP_LT_OQ>(x, bound)) }
    }
    #[inline(always)]
    unsafe fn any_above(x: __m256, bound: f32) -> bool {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(bound))) != 0 }
    }
    #[inline(always)]
    unsafe fn sum(a: __m256) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(a: __m256) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8, high: bool) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let shifted = if high { _mm256_srli_epi32::<4>(wide) } else { wide };
            let codes = _mm256_and_si256(shifted, _mm256_set1_epi32(15));
            _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(8)))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: __m256) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m256) {
        unsafe {
            let wide = _mm256_cvtps_epi32(v);
            let narrow =
                _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(narrow, narrow));
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[__m256; 16], dst: *mut f32) {
        unsafe {
            let mut block = [_mm256_castps_si256(rows[0]); 8];
            for (to, row) in block.iter_mut().zip(rows) {
                *to = _mm256_castps_si256(*row);
            }
            let columns = transpose8(block);
            for (i, column) in columns.into_iter().enumerate() {
                _mm256_storeu_ps(dst.add(i * 8), _mm256_castsi256_ps(column));
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

/// Transposes 8 × 8 words of 32 bits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose8(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let mut a = r;
        for i in (0..8).step_by(2) {
            a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
            a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
        }
        let mut b = a;
        for i in (0..8).step_by(4) {
            b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
            b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
            b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
            b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
        }
        let mut out = b;
        for i in 0..4 {
            out[i] = _mm256_permute2x128_si256::<0x20>(b[i], b[i + 4]);
            out[i + 4] = _mm256_permute2x128_si256::<0x31>(b[i], b[i + 4]);
        }
        out
    }
}
