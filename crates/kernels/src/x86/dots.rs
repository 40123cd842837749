//! Products of codes, in which levels with vectors of 256 bits differ.

use std::arch::x86_64::*;

use crate::OutMut;
use crate::generic::qpanel::sweep_body;
use crate::generic::sweep::{OutBlock, Panel};

use super::avx2_vectors::Avx2;

/// Products of codes with activations; all other operations on packed weights are in
/// [`avx2_packed`](super::avx2_packed).
///
/// # Safety
/// This holds for every method: the processor has AVX2 and the instructions that the implementing
/// type is named after; pointers are valid for the bytes named at the method, at any alignment.
pub(crate) trait Dots: Copy + 'static {
    /// See [`QuantSimd::BIAS`](crate::generic::QuantSimd::BIAS).
    const BIAS: i32;

    /// See [`QuantSimd::panel_tokens`](crate::generic::QuantSimd::panel_tokens).
    fn panel_tokens(sub: usize) -> usize;

    /// Adds the products of half a chunk, `c` by sub-blocks, with activations at `x` in the same
    /// order, 64 bytes between two vectors: sums of 16 products, each of one sub-block.
    /// `code_limit` is the largest code, or 128 for signed ones (with [`Dots::BIAS`] added).
    unsafe fn sub_blocks(
        acc: __m256i,
        c: [__m256i; 4],
        x: *const __m256i,
        code_limit: i32,
    ) -> __m256i;
    /// See [`QuantSimd::panel_dot`](crate::generic::QuantSimd::panel_dot).
    unsafe fn panel<const T: usize>(
        acc: &mut [__m256i; T],
        w: *const u8,
        x: *const u8,
        n: usize,
        code_limit: i32,
    );
    /// See [`QuantSimd::sweep`](crate::generic::QuantSimd::sweep).
    unsafe fn sweep<const SUB: usize, const MIN: bool, const CODE_LIMIT: i32>(
        panel: Panel<'_>,
        packed: &[u8],
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    );
}

/// `vpmaddubsw`, which AVX2 has: it adds two products into 16 bits, with saturation.
///
/// Codes up to 127 times ±127 fit. Signed codes move their sign to the activation first
/// (`|w| · sign(x, w)`), which keeps −128 as 128.
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

/// `Σ c · x` of each two neighbours; see [`Pairs`] on signs.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pairs(c: __m256i, x: __m256i, signed: bool) -> __m256i {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        if signed {
            _mm256_maddubs_epi16(_mm256_abs_epi8(c), _mm256_sign_epi8(x, c))
        } else {
            _mm256_maddubs_epi16(c, x)
        }
    }
}

/// The sweep over tokens, compiled once for each kind of scales and codes.
#[target_feature(enable = "avx2,fma,f16c")]
fn sweep<const SUB: usize, const MIN: bool, const CODE_LIMIT: i32>(
    panel: Panel<'_>,
    packed: &[u8],
    tokens: usize,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    // SAFETY: this function has the features; the panel and the tokens were packed for each other
    // by `multiply`.
    unsafe { sweep_body::<Avx2<Pairs>, SUB, MIN, CODE_LIMIT>(panel, packed, tokens, out, block) }
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Pairs {
    // `Pairs` takes signed codes.
    const BIAS: i32 = 0;

    #[inline(always)]
    fn panel_tokens(_: usize) -> usize {
        4
    }

    #[inline(always)]
    unsafe fn sub_blocks(
        acc: __m256i,
        c: [__m256i; 4],
        x: *const __m256i,
        code_limit: i32,
    ) -> __m256i {
        unsafe {
            // Number of products with a 16-bit sum that cannot overflow: each is at most 2 ·
            // code_limit · 127.
            let steps_per_sum = match code_limit {
                15 | 31 => 4,
                63 => 2,
                _ => 1,
            };
            let (mut acc, one) = (acc, _mm256_set1_epi16(1));
            let mut words = _mm256_setzero_si256();
            for (i, c) in c.into_iter().enumerate() {
                words = _mm256_add_epi16(
                    words,
                    pairs(c, _mm256_loadu_si256(x.add(2 * i)), code_limit == 128),
                );
                if (i + 1) % steps_per_sum == 0 {
                    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(words, one));
                    words = _mm256_setzero_si256();
                }
            }
            acc
        }
    }
    #[inline(always)]
    unsafe fn panel<const T: usize>(
        acc: &mut [__m256i; T],
        w: *const u8,
        x: *const u8,
        n: usize,
        code_limit: i32,
    ) {
        unsafe {
            // Number of steps with a 16-bit sum that cannot overflow: each adds at most 2 ·
            // code_limit · 127.
            let steps_per_sum = match code_limit {
                15 => 8,
                31 => 4,
                63 => 2,
                _ => 1,
            };
            let steps = n / 4;
            let mut s = 0;
            while s < steps {
                let mut words = [_mm256_setzero_si256(); T];
                for s in s..(s + steps_per_sum).min(steps) {
                    let w = _mm256_loadu_si256(w.add(32 * s).cast());
                    for (t, word) in words.iter_mut().enumerate() {
                        let x = x.add(32 * t + 4 * s).cast::<i32>().read_unaligned();
                        *word = _mm256_add_epi16(
                            *word,
                            pairs(w, _mm256_set1_epi32(x), code_limit == 128),
                        );
                    }
                }
                for (acc, word) in acc.iter_mut().zip(words) {
                    *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(word, _mm256_set1_epi16(1)));
                }
                s += steps_per_sum;
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
        unsafe { sweep::<SUB, MIN, CODE_LIMIT>(panel, packed, tokens, out, block) }
    }
}
