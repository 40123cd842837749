//! The level `dotprod`: as `neon`, with products of packed weights by `sdot`.

use std::arch::aarch64::*;
use std::arch::asm;

use puna_quant::TensorType;

use super::dots::Dots;
use super::neon::{self, Neon};
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::{packed_wrappers, sweep_wrapper};
use crate::{Level, LinearKernel, OutMut};

pub(super) const LEVEL: Level = Level { name: "dotprod", linear, vector: neon::LEVEL.vector };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    packed::kernel(ty).or_else(|| (neon::LEVEL.linear)(ty))
}

packed_wrappers!(Neon<Sdot>, "neon,dotprod");
sweep_wrapper!(sweep, Neon<Sdot>, "neon,dotprod", 128);

/// `sdot`: sums of four products in 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Sdot;

/// Adds the products of four neighbours to each of four sums.
///
/// # Safety
/// The processor has the instruction.
#[inline(always)]
pub(super) unsafe fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: register arithmetic with a feature that the caller has. The intrinsic is not stable.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) acc, in(vreg) a, in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Sdot {
    #[inline(always)]
    unsafe fn fours(acc: int32x4_t, c: int8x16_t, x: int8x16_t) -> int32x4_t {
        unsafe { sdot(acc, c, x) }
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
