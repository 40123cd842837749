//! The one thing in which levels of AArch64 differ: how they multiply codes.

use std::arch::aarch64::*;

use crate::OutMut;
use crate::generic::sweep::{OutBlock, Panel};

/// Products of codes with activations; everything else of packed weights is in
/// [`neon_packed`](super::neon_packed). Codes are signed bytes here: unsigned ones are below 128.
///
/// # Safety
/// This holds for every method: the processor has NEON and the instructions that the implementing
/// type is named after; pointers are valid for the bytes named at the method, at any alignment.
pub(crate) trait Dots: Copy + 'static {
    /// Neighbouring codes of a row in a panel: 4, or 8.
    const PANEL_CODES: usize = 4;

    /// Adds `Σ c · x` of each four neighbours.
    unsafe fn fours(acc: int32x4_t, c: int8x16_t, x: int8x16_t) -> int32x4_t;
    /// Adds `Σ c · x` of 16 codes, spread over four sums in any way.
    #[inline(always)]
    unsafe fn products(acc: int32x4_t, c: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: register arithmetic with features that the caller has.
        unsafe { Self::fours(acc, vreinterpretq_s8_u8(c), x) }
    }
    /// See [`QuantSimd::panel_dot`](crate::generic::QuantSimd::panel_dot); `n` is 16 or 32. This
    /// one is for panels of four codes.
    #[inline(always)]
    unsafe fn panel<const T: usize>(
        acc: &mut [[int32x4_t; 2]; T],
        w: *const u8,
        x: *const u8,
        n: usize,
    ) {
        // SAFETY: the caller's panel and activations; features by contract.
        unsafe {
            for s in 0..n / 4 {
                let w = [w.add(32 * s), w.add(32 * s + 16)].map(|p| vld1q_s8(p.cast()));
                for (t, acc) in acc.iter_mut().enumerate() {
                    let four = x.add(32 * t + 4 * s).cast::<i32>().read_unaligned();
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(four));
                    *acc = [Self::fours(acc[0], w[0], x), Self::fours(acc[1], w[1], x)];
                }
            }
        }
    }
    /// See [`QuantSimd::sweep`](crate::generic::QuantSimd::sweep); the class of codes is of no
    /// matter.
    unsafe fn sweep<const SUB: usize, const MIN: bool>(
        panel: Panel<'_>,
        packed: &[u8],
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    );
}
