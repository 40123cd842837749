//! The level `neon`: vectors of eight f32 in two registers.
//!
//! Pairs of registers give the panels eight rows, which halves the loads of activations for each
//! product.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use puna_quant::TensorType;

use super::dots::Dots;
use crate::generic::Simd;
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::target_feature_wrappers::{
    float_wrappers, packed_wrappers, sweep_wrapper, vector_wrappers,
};
use crate::{Level, LinearKernel, OutMut};

pub(super) const LEVEL: Level = Level { name: "neon", linear, vector: vector::VECTOR };

fn linear(ty: TensorType) -> Option<LinearKernel> {
    float::kernel(ty).or_else(|| packed::kernel(ty))
}

vector_wrappers!(Neon<Widening>, "neon");
float_wrappers!(Neon<Widening>, "neon");
packed_wrappers!(Neon<Widening>, "neon");
sweep_wrapper!(sweep, Neon<Widening>, "neon", 128);

/// Vectors of eight f32; `D`: how codes of packed weights are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Neon<D>(PhantomData<D>);

/// Multiplications that widen: two products of a code and an activation fit 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Widening;

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Dots for Widening {
    #[inline(always)]
    unsafe fn fours(acc: int32x4_t, c: int8x16_t, x: int8x16_t) -> int32x4_t {
        unsafe {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(c), vget_low_s8(x)));
            let high = vpaddlq_s16(vmull_s8(vget_high_s8(c), vget_high_s8(x)));
            vaddq_s32(acc, vpaddq_s32(low, high))
        }
    }
    #[inline(always)]
    unsafe fn products(acc: int32x4_t, c: uint8x16_t, x: int8x16_t) -> int32x4_t {
        unsafe {
            let c = vreinterpretq_s8_u8(c);
            let low = vmull_s8(vget_low_s8(c), vget_low_s8(x));
            vpadalq_s16(acc, vmlal_s8(low, vget_high_s8(c), vget_high_s8(x)))
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

/// Four binary16 as f32. The intrinsic's type is not stable; the instruction is part of NEON.
#[inline(always)]
pub(super) unsafe fn widen_f16(x: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) x,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
unsafe fn narrow_f16(x: float32x4_t) -> uint16x4_t {
    let narrow: uint16x4_t;
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) narrow, in(vreg) x,
             options(pure, nomem, nostack, preserves_flags));
    }
    narrow
}

/// Transposes 4 × 4 words of 32 bits.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
pub(super) unsafe fn transpose4(r: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let (a, b) = (vtrn1q_u32(r[0], r[1]), vtrn2q_u32(r[0], r[1]));
        let (c, d) = (vtrn1q_u32(r[2], r[3]), vtrn2q_u32(r[2], r[3]));
        let low = |x, y| {
            vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)))
        };
        let high = |x, y| {
            vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(x), vreinterpretq_u64_u32(y)))
        };
        [low(a, c), low(b, d), high(a, c), high(b, d)]
    }
}

/// Applies a function of four lanes to both halves.
macro_rules! both {
    ($f:ident($($arg:expr),+)) => {
        [$f($($arg[0]),+), $f($($arg[1]),+)]
    };
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> Simd for Neon<D> {
    // Two 128-bit vectors of 32 registers.
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const F32_PANEL_VECTORS: usize = 1;
    const F32_PANEL_TOKENS: usize = 12;
    type F = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [vdupq_n_f32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both!(vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both!(vsubq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both!(vmulq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { both!(vdivq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { both!(vfmaq_f32(c, a, b)) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe {
            // `fmin` would return NaN for either.
            let min = |a, b| vbslq_f32(vcltq_f32(a, b), a, b);
            [min(a[0], b[0]), min(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe {
            let max = |a, b| vbslq_f32(vcgtq_f32(a, b), a, b);
            [max(a[0], b[0]), max(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        unsafe { both!(vabsq_f32(a)) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        unsafe { both!(vrndnq_f32(a)) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        unsafe {
            let pow2 = |n| {
                let biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
            };
            [pow2(n[0]), pow2(n[1])]
        }
    }
    #[inline(always)]
    unsafe fn select_below(x: Self::F, bound: Self::F, a: Self::F, b: Self::F) -> Self::F {
        unsafe {
            let select = |i: usize| vbslq_f32(vcltq_f32(x[i], bound[i]), a[i], b[i]);
            [select(0), select(1)]
        }
    }
    #[inline(always)]
    unsafe fn sum(a: Self::F) -> f32 {
        unsafe { vaddvq_f32(vaddq_f32(a[0], a[1])) }
    }
    #[inline(always)]
    unsafe fn hmax(a: Self::F) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(a[0], a[1])) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        unsafe {
            let x = vreinterpretq_u16_u8(vld1q_u8(p));
            [widen_f16(vget_low_u16(x)), widen_f16(vget_high_u16(x))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::F {
        unsafe {
            let x = vreinterpretq_u16_u8(vld1q_u8(p));
            [vget_low_u16(x), vget_high_u16(x)].map(|x| vreinterpretq_f32_u32(vshll_n_u16::<16>(x)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::F {
        unsafe {
            let x = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
            [vget_low_s16(x), vget_high_s16(x)].map(|x| vcvtq_f32_s32(vmovl_s16(x)))
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8, high: bool) -> Self::F {
        unsafe {
            let bytes = vld1_u8(p);
            let codes = if high { vshr_n_u8::<4>(bytes) } else { vand_u8(bytes, vdup_n_u8(15)) };
            let x = vmovl_s8(vsub_s8(vreinterpret_s8_u8(codes), vdup_n_s8(8)));
            [vget_low_s16(x), vget_high_s16(x)].map(|x| vcvtq_f32_s32(vmovl_s16(x)))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u8, v: Self::F) {
        unsafe {
            vst1q_u8(p, vreinterpretq_u8_u16(vcombine_u16(narrow_f16(v[0]), narrow_f16(v[1]))))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::F) {
        unsafe {
            let [a, b] = v.map(|v| vmovn_s32(vcvtnq_s32_f32(v)));
            vst1_s8(p, vmovn_s16(vcombine_s16(a, b)));
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &[Self::F; 16], dst: *mut f32) {
        unsafe {
            for half in 0..2 {
                for group in 0..2 {
                    let block =
                        std::array::from_fn(|i| vreinterpretq_u32_f32(rows[4 * group + i][half]));
                    for (i, column) in transpose4(block).into_iter().enumerate() {
                        vst1q_f32(
                            dst.add((4 * half + i) * 8 + 4 * group),
                            vreinterpretq_f32_u32(column),
                        );
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        unsafe { vgetq_lane_f32::<0>(widen_f16(vdup_n_u16(bits))) }
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
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags))
        }
    }
}
