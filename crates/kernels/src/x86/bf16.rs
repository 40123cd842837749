//! Products of BF16 weights with many activation rows by `vdpbf16ps`, which multiplies twice as
//! many numbers as `vfmadd`.
//!
//! Activations are rounded to bf16, as in llama.cpp. Products with few activation rows are bound by
//! reading the weights, and so take activations as they are.

use std::arch::x86_64::*;

use puna_quant::TensorType;

use super::avx512::{self, Avx512};
use crate::generic::linear;
use crate::generic::panel::{self, Product};
use crate::generic::sweep::OutBlock;
use crate::generic::target_feature_wrappers::target_feature_fn;
use crate::{Acts, LinearKernel, OutMut, Scratch, WeightRows};

/// Whether this processor has the instruction, given that it runs `avx512vnni`.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// The kernel of BF16, given that the instruction is available.
pub(super) fn kernel(ty: TensorType) -> Option<LinearKernel> {
    let base = (avx512::LEVEL.linear)(ty).filter(|_| ty == TensorType::BF16)?;
    Some(LinearKernel { panel: many, bf16_parts: 1, ..base })
}

target_feature_fn!("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c", fn many(
    w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch
), {
    assert_eq!(w.ty, TensorType::BF16);
}, linear::many::<Pairs>(w, x, out, scratch));
target_feature_fn!("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c", fn sweep(
    panel: &[f32], packed: &[f32], len: usize, tokens: usize, out: &mut OutMut<'_>, block: OutBlock
), {}, panel::sweep::<Pairs>(panel, packed, len, tokens, out, block));

/// Pairs of bf16.
struct Pairs;

// SAFETY of the blocks below: the trait's contract gives the features and the values.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Product for Pairs {
    type S = Avx512;
    const BLOCK: (usize, usize) = (1, 2);
    const VALUES: usize = 2;

    #[inline(always)]
    unsafe fn weights(row: *const u8, i: usize) -> __m512 {
        unsafe { _mm512_loadu_ps(row.add(2 * i).cast()) }
    }
    #[inline(always)]
    unsafe fn last_weights(row: *const u8, i: usize, n: usize) -> __m512 {
        let present = (1u32 << (n - i)) - 1;
        unsafe { _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(present, row.add(2 * i).cast())) }
    }
    #[inline(always)]
    unsafe fn activations(x: &[f32], to: &mut [f32; 16]) {
        let present = ((1u64 << x.len()) - 1) as u32;
        unsafe {
            let low = _mm512_maskz_loadu_ps(present as u16, x.as_ptr());
            let high = _mm512_maskz_loadu_ps((present >> 16) as u16, x.as_ptr().wrapping_add(16));
            let pairs = _mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_ps(to.as_mut_ptr(), std::mem::transmute::<__m512bh, __m512>(pairs));
        }
    }
    #[inline(always)]
    unsafe fn fma(x: __m512, w: __m512, acc: __m512) -> __m512 {
        unsafe {
            let [x, w] = [x, w].map(|words| std::mem::transmute::<__m512, __m512bh>(words));
            _mm512_dpbf16_ps(acc, w, x)
        }
    }
    #[inline(always)]
    unsafe fn sweep(
        panel: &[f32],
        packed: &[f32],
        len: usize,
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    ) {
        sweep(panel, packed, len, tokens, out, block);
    }
}
