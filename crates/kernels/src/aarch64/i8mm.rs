//! The level `i8mm`: as `dotprod`, with panels of packed weights by `smmla`.
//!
//! The instruction multiplies two rows of eight codes with two others: twice the products of
//! `sdot`. So panels hold eight neighbouring codes of each row instead of four, and tokens are
//! taken in pairs. Products of few rows of activations use `sdot`: with one weight row at a time
//! half of the instruction would be idle.

use std::arch::aarch64::*;
use std::arch::asm;

use puna_quant::TensorType;

use super::dotprod::sdot;
use super::dots::Dots;
use super::neon::{self, Neon};
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::{packed_wrappers, sweep_wrapper};
use crate::{Level, LinearKernel, OutMut};

/// Whether this processor runs the level, given that it runs `dotprod`.
pub(super) fn available() -> bool {
    std::arch::is_aarch64_feature_detected!("i8mm")
}

pub(super) const LEVEL: Level = Level { name: "i8mm", linear, vector: neon::LEVEL.vector };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    packed::kernel(ty).or_else(|| (neon::LEVEL.linear)(ty))
}

packed_wrappers!(Neon<Smmla>, "neon,dotprod,i8mm");
sweep_wrapper!(sweep, Neon<Smmla>, "neon,dotprod,i8mm", 128);

/// `smmla` for panels, `sdot` for the rest.
#[derive(Clone, Copy)]
pub(crate) struct Smmla;

/// Adds the products of the two rows of `a` and the two rows of `b`, eight values each: a0·b0,
/// a0·b1, a1·b0, a1·b1.
///
/// # Safety
/// The processor has the instruction.
#[inline(always)]
unsafe fn smmla(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: register arithmetic with a feature that the caller has. The intrinsic is not stable.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) a, in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Eight sums, as [`QuantSimd::I`](crate::generic::QuantSimd::I).
type Sums = [int32x4_t; 2];

/// The low halves of `a` and `b`, and the high ones.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vzip1q_s64(a, b), vzip2q_s64(a, b)].map(|x| vreinterpretq_s32_s64(x))
    }
}

/// The sums of two tokens as `smmla` adds to them: of rows 0 and 1 for both, 2 and 3; 4 and 5, 6
/// and 7.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn join(a: Sums, b: Sums) -> [Sums; 2] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe { [halves(a[0], b[0]), halves(a[1], b[1])] }
}

/// The sums of each token again.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn part([first, last]: [Sums; 2]) -> [Sums; 2] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let ([a0, b0], [a4, b4]) = (halves(first[0], first[1]), halves(last[0], last[1]));
        [[a0, a4], [b0, b4]]
    }
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Smmla {
    const PANEL_CODES: usize = 8;

    #[inline(always)]
    unsafe fn fours(acc: int32x4_t, c: int8x16_t, x: int8x16_t) -> int32x4_t {
        unsafe { sdot(acc, c, x) }
    }
    #[inline(always)]
    unsafe fn panel<const T: usize>(acc: &mut [Sums; T], w: *const u8, x: *const u8, n: usize) {
        unsafe {
            // Of each two tokens; a last one pairs with itself.
            let mut pairs = [[[vdupq_n_s32(0); 2]; 2]; T];
            for (p, pair) in pairs.iter_mut().enumerate().take(T.div_ceil(2)) {
                *pair = join(acc[2 * p], acc[(2 * p + 1).min(T - 1)]);
            }
            for s in 0..n / 16 {
                let w: [int8x16_t; 8] =
                    std::array::from_fn(|i| vld1q_s8(w.add(128 * s + 16 * i).cast()));
                for (p, pair) in pairs.iter_mut().enumerate().take(T.div_ceil(2)) {
                    let token = |t: usize| vld1q_s32(x.add(32 * t + 16 * s).cast());
                    let x = halves(token(2 * p), token((2 * p + 1).min(T - 1)));
                    for (i, x) in x.into_iter().enumerate() {
                        let x = vreinterpretq_s8_s32(x);
                        for (rows, sums) in pair.as_flattened_mut().iter_mut().enumerate() {
                            *sums = smmla(*sums, x, w[4 * i + rows]);
                        }
                    }
                }
            }
            for (t, acc) in acc.iter_mut().enumerate() {
                *acc = part(pairs[t / 2])[t % 2];
            }
        }
    }
    #[inline(always)]
    unsafe fn sweep<const SUB: usize, const MIN: bool>(
        panel: Panel<'_>,
        packed: &[u8],
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    ) {
        unsafe { sweep::<SUB, MIN>(panel, packed, tokens, out, block) }
    }
}
