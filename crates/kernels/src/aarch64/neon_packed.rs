//! Packed weights in pairs of NEON registers, for all levels of AArch64: unpacking, scales, panels.
//!
//! The levels differ in the products of codes, which are the parameter [`Dots`].

use std::arch::aarch64::*;

use super::dots::Dots;
use super::neon::{Neon, transpose4, widen_f16};
use crate::OutMut;
use crate::generic::formats::kquants::six_bits;
use crate::generic::sweep::{OutBlock, Panel};
use crate::generic::{QuantSimd, Simd};

/// 0xff in each byte with a set bit.
#[inline(always)]
unsafe fn byte_mask(bits: u16) -> uint8x16_t {
    // SAFETY: register arithmetic with a feature that the caller has.
    unsafe {
        let bytes = vcombine_u8(vdup_n_u8(bits as u8), vdup_n_u8((bits >> 8) as u8));
        let one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        vtstq_u8(bytes, one)
    }
}

/// From 64 codes of each of eight rows to `[k/8][row][k%8]` at `dst`.
///
/// # Safety
/// The processor has NEON; `dst` is valid for 512 bytes.
#[inline(always)]
unsafe fn transpose_eights(rows: &[[uint8x16_t; 4]; 16], dst: *mut u8) {
    // SAFETY: the caller's bytes and feature.
    unsafe {
        for quarter in 0..4 {
            for pair in 0..4 {
                let row = |i: usize| vreinterpretq_u64_u8(rows[2 * pair + i][quarter]);
                let dst = dst.add(128 * quarter + 16 * pair);
                vst1q_u8(dst, vreinterpretq_u8_u64(vzip1q_u64(row(0), row(1))));
                vst1q_u8(dst.add(64), vreinterpretq_u8_u64(vzip2q_u64(row(0), row(1))));
            }
        }
    }
}

/// Sixteen f32 of the lanes.
#[inline(always)]
fn lanes(w: [float32x4_t; 4]) -> [f32; 16] {
    // SAFETY: both are 64 plain bytes.
    unsafe { std::mem::transmute(w) }
}

// SAFETY of the blocks below: the trait's contract gives the features and the bytes at each
// pointer.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: Dots> QuantSimd for Neon<D> {
    type CodeVec = [uint8x16_t; 4];
    type ScaleVec = [float32x4_t; 4];
    type SumVec = float32x4_t;
    type I = [int32x4_t; 2];
    // Products take signed codes.
    const BIAS: i32 = 0;
    const SUB_BLOCKS_AS_LANES: bool = false;
    const STREAM_TILE: usize = 8;

    #[inline(always)]
    fn panel_tokens(_: usize) -> usize {
        4
    }

    #[inline(always)]
    unsafe fn load64(p: *const u8) -> Self::CodeVec {
        unsafe { [vld1q_u8(p), vld1q_u8(p.add(16)), vld1q_u8(p.add(32)), vld1q_u8(p.add(48))] }
    }
    #[inline(always)]
    unsafe fn store64(p: *mut u8, c: Self::CodeVec) {
        unsafe { c.into_iter().enumerate().for_each(|(i, c)| vst1q_u8(p.add(16 * i), c)) }
    }
    #[inline(always)]
    unsafe fn broadcast32(p: *const u8) -> Self::CodeVec {
        unsafe { Self::pair(p, p) }
    }
    #[inline(always)]
    unsafe fn pair(a: *const u8, b: *const u8) -> Self::CodeVec {
        unsafe { [vld1q_u8(a), vld1q_u8(a.add(16)), vld1q_u8(b), vld1q_u8(b.add(16))] }
    }
    #[inline(always)]
    unsafe fn nibbles(a: *const u8, b: *const u8) -> Self::CodeVec {
        unsafe {
            let (a, b, low) = (vld1q_u8(a), vld1q_u8(b), vdupq_n_u8(15));
            [vandq_u8(a, low), vshrq_n_u8::<4>(a), vandq_u8(b, low), vshrq_n_u8::<4>(b)]
        }
    }
    #[inline(always)]
    unsafe fn nibbles_of_words(p: *const u8) -> Self::CodeVec {
        unsafe {
            let low = vdup_n_u8(15);
            std::array::from_fn(|i| {
                let word = vld1_u8(p.add(8 * i));
                vcombine_u8(vand_u8(word, low), vshr_n_u8::<4>(word))
            })
        }
    }
    #[inline(always)]
    unsafe fn pieces(p: *const u8, at: [usize; 4]) -> Self::CodeVec {
        unsafe { at.map(|at| vld1q_u8(p.add(at))) }
    }
    #[inline(always)]
    unsafe fn by_sub_blocks(c: [Self::CodeVec; 4]) -> [Self::CodeVec; 4] {
        c
    }
    #[inline(always)]
    unsafe fn nibbles_by_sub_blocks(_: Self::CodeVec, _: Self::CodeVec) -> [Self::CodeVec; 4] {
        unreachable!("sub-blocks are not lanes here")
    }
    #[inline(always)]
    unsafe fn unpack_2bit_by_lane(_: Self::CodeVec) -> [Self::CodeVec; 4] {
        unreachable!("sub-blocks are not lanes here")
    }
    #[inline(always)]
    unsafe fn digits(c: Self::CodeVec, powers: &[u8; 64]) -> Self::CodeVec {
        unsafe {
            let powers = Self::load64(powers.as_ptr());
            std::array::from_fn(|i| {
                let rest = vmulq_u8(c[i], powers[i]);
                let three = vdup_n_u8(3);
                let low = vshrn_n_u16::<8>(vmull_u8(vget_low_u8(rest), three));
                vcombine_u8(low, vshrn_n_u16::<8>(vmull_u8(vget_high_u8(rest), three)))
            })
        }
    }
    #[inline(always)]
    unsafe fn from_u64s(w: [u64; 8]) -> Self::CodeVec {
        unsafe { Self::load64(w.as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn fields(c: Self::CodeVec, a: i32, b: i32, mask: u8) -> Self::CodeVec {
        unsafe {
            let (a, b, mask) = (vdupq_n_s8(-a as i8), vdupq_n_s8(-b as i8), vdupq_n_u8(mask));
            let field = |c, n| vandq_u8(vshlq_u8(c, n), mask);
            [field(c[0], a), field(c[1], a), field(c[2], b), field(c[3], b)]
        }
    }
    #[inline(always)]
    unsafe fn or(a: Self::CodeVec, b: Self::CodeVec) -> Self::CodeVec {
        unsafe { std::array::from_fn(|i| vorrq_u8(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn or_where(c: Self::CodeVec, bits: u64, value: u8) -> Self::CodeVec {
        unsafe {
            let value = vdupq_n_u8(value);
            std::array::from_fn(|i| {
                vorrq_u8(c[i], vandq_u8(byte_mask((bits >> (16 * i)) as u16), value))
            })
        }
    }
    #[inline(always)]
    unsafe fn negate_where(c: Self::CodeVec, bits: u64) -> Self::CodeVec {
        unsafe {
            // -c = (c ^ -1) - -1.
            std::array::from_fn(|i| {
                let mask = byte_mask((bits >> (16 * i)) as u16);
                vsubq_u8(veorq_u8(c[i], mask), mask)
            })
        }
    }
    #[inline(always)]
    unsafe fn signed(c: Self::CodeVec) -> Self::CodeVec {
        c
    }
    #[inline(always)]
    unsafe fn lookup_unsigned(table: &[u8; 16], c: Self::CodeVec) -> Self::CodeVec {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            c.map(|c| vqtbl1q_u8(table, c))
        }
    }
    #[inline(always)]
    unsafe fn lookup_signed(table: &[i8; 16], c: Self::CodeVec) -> Self::CodeVec {
        unsafe {
            let table = vld1q_u8(table.as_ptr().cast());
            c.map(|c| vqtbl1q_u8(table, c))
        }
    }

    #[inline(always)]
    unsafe fn half_of(p: *const u8, upper: bool) -> f32 {
        unsafe { Self::half(p.add(2 * usize::from(upper)).cast::<u16>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn w_splat(x: f32) -> Self::ScaleVec {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn w_new(x: &[f32; 16]) -> Self::ScaleVec {
        unsafe { std::array::from_fn(|i| vld1q_f32(x.as_ptr().add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn w_store(x: &mut [f32; 16], w: Self::ScaleVec) {
        unsafe {
            w.into_iter().enumerate().for_each(|(i, w)| vst1q_f32(x.as_mut_ptr().add(4 * i), w))
        }
    }
    #[inline(always)]
    unsafe fn w_load8(p: *const f32) -> Self::ScaleVec {
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4)), vdupq_n_f32(0.0), vdupq_n_f32(0.0)] }
    }
    #[inline(always)]
    unsafe fn w_load16(p: *const f32) -> Self::ScaleVec {
        unsafe { std::array::from_fn(|i| vld1q_f32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn w_halves(p: *const u8, stride: usize) -> Self::ScaleVec {
        unsafe {
            let x: [u16; 8] =
                std::array::from_fn(|i| p.add(i * stride).cast::<u16>().read_unaligned());
            let x = vld1q_u16(x.as_ptr());
            let zero = vdupq_n_f32(0.0);
            [widen_f16(vget_low_u16(x)), widen_f16(vget_high_u16(x)), zero, zero]
        }
    }
    #[inline(always)]
    unsafe fn w_bytes8(x: u64) -> Self::ScaleVec {
        unsafe {
            let x = vmovl_u8(vcreate_u8(x));
            let wide = |half| vcvtq_f32_u32(vmovl_u16(half));
            let zero = vdupq_n_f32(0.0);
            [wide(vget_low_u16(x)), wide(vget_high_u16(x)), zero, zero]
        }
    }
    #[inline(always)]
    unsafe fn w_powers(x: u64) -> Self::ScaleVec {
        unsafe {
            let x = vmovl_u8(vcreate_u8(x));
            let powers = |half| {
                let x = vmovl_u16(half);
                let normal = vshlq_n_u32::<23>(vsubq_u32(x, vdupq_n_u32(1)));
                // The two smallest have no normal exponent.
                let small = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(x));
                vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(x, vdupq_n_u32(2)), small, normal))
            };
            let zero = vdupq_n_f32(0.0);
            [powers(vget_low_u16(x)), powers(vget_high_u16(x)), zero, zero]
        }
    }
    #[inline(always)]
    unsafe fn w_bytes16(low: u64, high: u64) -> Self::ScaleVec {
        unsafe {
            let wide = |half| vcvtq_f32_s32(vmovl_s16(half));
            let [a, b] = [low, high].map(|x| vmovl_s8(vcreate_s8(x)));
            [
                wide(vget_low_s16(a)),
                wide(vget_high_s16(a)),
                wide(vget_low_s16(b)),
                wide(vget_high_s16(b)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn w_six_bits(p: *const u8) -> (Self::ScaleVec, Self::ScaleVec) {
        unsafe {
            let (scales, minimums) = six_bits(p);
            (Self::w_bytes8(scales), Self::w_bytes8(minimums))
        }
    }
    #[inline(always)]
    unsafe fn w_order(w: Self::ScaleVec, order: &'static [u8; 16]) -> Self::ScaleVec {
        unsafe {
            let w = lanes(w);
            Self::w_new(&std::array::from_fn(|i| w[usize::from(order[i])]))
        }
    }
    #[inline(always)]
    unsafe fn w_mul(a: Self::ScaleVec, b: Self::ScaleVec) -> Self::ScaleVec {
        unsafe { std::array::from_fn(|i| vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn w_add(a: Self::ScaleVec, b: Self::ScaleVec) -> Self::ScaleVec {
        unsafe { std::array::from_fn(|i| vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn w_nfma(a: Self::ScaleVec, b: Self::ScaleVec, c: Self::ScaleVec) -> Self::ScaleVec {
        unsafe { std::array::from_fn(|i| vfmsq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn w_nfma8(a: Self::ScaleVec, b: Self::ScaleVec, c: Self::ScaleVec) -> Self::ScaleVec {
        unsafe { [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1]), c[2], c[3]] }
    }
    #[inline(always)]
    unsafe fn w_keep(w: Self::ScaleVec, n: usize) -> Self::ScaleVec {
        let lanes = lanes(w);
        unsafe { Self::w_new(&std::array::from_fn(|i| if i < n { lanes[i] } else { 0.0 })) }
    }
    #[inline(always)]
    unsafe fn w_sum(w: Self::ScaleVec, sub: usize) -> f32 {
        unsafe {
            let low = vaddq_f32(w[0], w[1]);
            vaddvq_f32(if sub == 16 { vaddq_f32(low, vaddq_f32(w[2], w[3])) } else { low })
        }
    }

    #[inline(always)]
    unsafe fn a_zero() -> float32x4_t {
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn dot(
        acc: float32x4_t,
        c: &[Self::CodeVec; 4],
        x: *const i8,
        start: Option<*const i32>,
        (w, x_scales): (Self::ScaleVec, *const f32),
        sub: usize,
        _: i32,
    ) -> float32x4_t {
        unsafe {
            let (mut acc, w) = (acc, lanes(Self::w_mul(w, Self::w_load16(x_scales))));
            let products = |sums, sub_block: usize| {
                D::products(sums, c[sub_block / 4][sub_block % 4], vld1q_s8(x.add(16 * sub_block)))
            };
            let none = vdup_n_s32(0);
            if sub == 16 {
                for (sub_block, w) in w.into_iter().enumerate() {
                    let start =
                        start.map_or(none, |start| vld1_lane_s32::<0>(start.add(sub_block), none));
                    let sums = products(vcombine_s32(start, none), sub_block);
                    acc = vfmaq_n_f32(acc, vcvtq_f32_s32(sums), w);
                }
                return acc;
            }
            for sub_block in (0..16).step_by(2) {
                let start = start.map_or(none, |start| vld1_s32(start.add(sub_block)));
                let sums = products(products(vcombine_s32(start, none), sub_block), sub_block + 1);
                acc = vfmaq_n_f32(acc, vcvtq_f32_s32(sums), w[sub_block]);
            }
            acc
        }
    }
    #[inline(always)]
    unsafe fn a_sum(a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }

    #[inline(always)]
    unsafe fn transpose_codes(rows: &[Self::CodeVec; 16], dst: *mut u8) {
        unsafe {
            if D::PANEL_CODES == 8 {
                return transpose_eights(rows, dst);
            }
            for quarter in 0..4 {
                for group in 0..2 {
                    let block =
                        std::array::from_fn(|i| vreinterpretq_u32_u8(rows[4 * group + i][quarter]));
                    for (i, column) in transpose4(block).into_iter().enumerate() {
                        vst1q_u8(
                            dst.add((4 * quarter + i) * 32 + 16 * group),
                            vreinterpretq_u8_u32(column),
                        );
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_scales(rows: &[Self::ScaleVec; 16], dst: *mut f32) {
        unsafe {
            for quarter in 0..4 {
                for group in 0..2 {
                    let block = std::array::from_fn(|i| {
                        vreinterpretq_u32_f32(rows[4 * group + i][quarter])
                    });
                    for (i, column) in transpose4(block).into_iter().enumerate() {
                        vst1q_f32(
                            dst.add((4 * quarter + i) * 8 + 4 * group),
                            vreinterpretq_f32_u32(column),
                        );
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn i_splat(x: i32) -> Self::I {
        unsafe { [vdupq_n_s32(x); 2] }
    }
    #[inline(always)]
    unsafe fn i_to_f32(x: Self::I) -> <Self as Simd>::F {
        unsafe { x.map(|x| vcvtq_f32_s32(x)) }
    }
    #[inline(always)]
    unsafe fn panel_dot<const T: usize, const V: usize>(
        acc: &mut [[Self::I; T]; V],
        w: [*const u8; V],
        x: *const u8,
        n: usize,
        _: i32,
    ) {
        unsafe {
            for (acc, w) in acc.iter_mut().zip(w) {
                D::panel::<T>(acc, w, x, n);
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
        unsafe { D::sweep::<SUB, MIN>(panel, packed, tokens, out, block) }
    }
}
