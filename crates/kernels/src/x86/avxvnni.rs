//! The level `avxvnni`: as `avx2`, with products of packed weights by `vpdpbusd` on 256 bits.
//!
//! The instruction multiplies unsigned codes with signed activations and adds four products to 32
//! bits at once, without an overflow on the way. Signed codes get 128 added, which the sums of
//! activations take back ([`QuantSimd::BIAS`]).
//!
//! AVX-VNNI is the short (VEX) encoding of an instruction that AVX-512 VNNI has in its own (EVEX).
//! Tests on machines with the latter run the level `avxvnni-evex`: the same source, compiled for
//! AVX2 like this level, with the one instruction in the other encoding. These tests do not cover
//! the decoding of the short encoding, but everything else.
//!
//! [`QuantSimd::BIAS`]: crate::generic::QuantSimd::BIAS

use std::arch::x86_64::*;

use puna_quant::TensorType;

use super::avx2;
use super::avx2_vectors::Avx2;
use super::dots::Dots;
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::{packed_wrappers, sweep_wrapper};
use crate::{Level, LinearKernel, OutMut};

/// Whether this processor runs the level, given that it runs `avx2`.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avxvnni")
}

pub(super) const LEVEL: Level = Level { name: "avxvnni", linear, vector: avx2::LEVEL.vector };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    packed::kernel(ty).or_else(|| (avx2::LEVEL.linear)(ty))
}

packed_wrappers!(Avx2<Vnni<false>>, "avx2,fma,f16c,avxvnni");

sweep_wrapper!(sweep, Avx2<Vnni<false>>, "avx2,fma,f16c,avxvnni", 255);

/// The level `avxvnni-evex`, see the module.
#[cfg(any(test, feature = "emulated"))]
pub(super) mod evex {
    use super::*;

    /// Given that the processor runs `avx2`. The level is for tests and is never selected for
    /// speed.
    pub(in crate::x86) fn available() -> bool {
        is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
    }

    pub(in crate::x86) const LEVEL: Level =
        Level { name: "avxvnni-evex", linear, vector: avx2::LEVEL.vector };

    fn linear(ty: TensorType) -> Option<LinearKernel> {
        packed::kernel(ty).or_else(|| (avx2::LEVEL.linear)(ty))
    }

    packed_wrappers!(Avx2<Vnni<true>>, "avx2,fma,f16c");

    sweep_wrapper!(pub(super) sweep, Avx2<Vnni<true>>, "avx2,fma,f16c", 255);

    /// `vpdpbusd` in AVX-512's encoding. With the intrinsic, the surrounding code would be compiled
    /// for AVX-512.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn dpbusd(acc: __m256i, c: __m256i, x: __m256i) -> __m256i {
        let mut acc = acc;
        // SAFETY: register arithmetic; the level is handed out where there is the instruction.
        unsafe {
            std::arch::asm!("{{evex}} vpdpbusd {0}, {1}, {2}", inout(ymm_reg) acc, in(ymm_reg) c, in(ymm_reg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        acc
    }
}

/// `vpdpbusd`, in AVX-512's encoding or not.
#[derive(Clone, Copy)]
pub(crate) struct Vnni<const EVEX: bool>;

/// Adds `Σ c · x` of each four neighbours.
///
/// # Safety
/// The processor has AVX-VNNI, or AVX-512 VNNI with `EVEX`.
#[inline(always)]
unsafe fn dpbusd<const EVEX: bool>(acc: __m256i, c: __m256i, x: __m256i) -> __m256i {
    // SAFETY: register arithmetic with features that the caller has.
    unsafe {
        #[cfg(any(test, feature = "emulated"))]
        if EVEX {
            return evex::dpbusd(acc, c, x);
        }
        _mm256_dpbusd_avx_epi32(acc, c, x)
    }
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const EVEX: bool> Dots for Vnni<EVEX> {
    // `vpdpbusd` takes unsigned codes.
    const BIAS: i32 = 128;

    #[inline(always)]
    fn panel_tokens(sub: usize) -> usize {
        // Weights with two scales for 32 keep a third sum a token.
        if sub == 16 { 4 } else { 6 }
    }

    #[inline(always)]
    unsafe fn sub_blocks(acc: __m256i, c: [__m256i; 4], x: *const __m256i, _: i32) -> __m256i {
        unsafe {
            let mut acc = acc;
            for (i, c) in c.into_iter().enumerate() {
                acc = dpbusd::<EVEX>(acc, c, _mm256_loadu_si256(x.add(2 * i)));
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
        _: i32,
    ) {
        unsafe {
            for s in 0..n / 4 {
                let w = _mm256_loadu_si256(w.add(32 * s).cast());
                for (t, acc) in acc.iter_mut().enumerate() {
                    let x = x.add(32 * t + 4 * s).cast::<i32>().read_unaligned();
                    *acc = dpbusd::<EVEX>(*acc, w, _mm256_set1_epi32(x));
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
        unsafe {
            #[cfg(any(test, feature = "emulated"))]
            if EVEX {
                return evex::sweep::<SUB, MIN>(panel, packed, tokens, out, block);
            }
            sweep::<SUB, MIN>(panel, packed, tokens, out, block);
        }
    }
}
