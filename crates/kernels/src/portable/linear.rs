//! Products with dequantized weights: one function for every format.

use puna_quant::{TensorType, dequantize, dequantizer};

use crate::{
    ActKind, Acts, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows, is_weight_type,
};

/// The portable kernel of a format: the same function in all three regimes.
pub(super) fn kernel(ty: TensorType) -> Option<LinearKernel> {
    (is_weight_type(ty) && dequantizer(ty).is_some()).then_some(LinearKernel {
        acts: ActKind::F32,
        stream: linear,
        stream_rows: STREAM_ROWS,
        panel: linear,
        panel_rows: 16,
        bf16_parts: 0,
        tiles: None,
    })
}

/// Dequantized weights that are multiplied with all activations at once, in bytes: half of a
/// second-level cache.
const BLOCK: usize = 128 << 10;

/// Dequantizes up to 16 weight rows at a time and multiplies each with every activation row, two at
/// a time. The block of rows keeps activations from being read from memory once per weight row.
fn linear(w: WeightRows<'_>, x: Acts<'_>, mut out: OutMut<'_>, scratch: &mut Scratch) {
    let (tokens, x) = x.expect_f32(&w, &out);
    let (row_bytes, k) = (w.row_bytes(), w.k);
    let many = if tokens > 2 { (BLOCK / 4 / k.max(1)).clamp(1, 16) } else { 1 };
    let block: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(many * k * 4));
    for first in (0..w.rows).step_by(many) {
        let rows = many.min(w.rows - first);
        for r in 0..rows {
            let row = &w.data[(first + r) * row_bytes..][..row_bytes];
            dequantize(w.ty, row, &mut block[r * k..][..k]).expect("the row has whole blocks");
        }
        let activations = |t: usize| &x[t * k..][..k];
        for t in (1..tokens).step_by(2) {
            for r in 0..rows {
                let pair = dots(&block[r * k..][..k], [activations(t - 1), activations(t)]);
                (out.row(t - 1)[first + r], out.row(t)[first + r]) = (pair[0], pair[1]);
            }
        }
        if tokens % 2 == 1 {
            let last = tokens - 1;
            for r in 0..rows {
                out.row(last)[first + r] = dot(&block[r * k..][..k], activations(last));
            }
        }
    }
}

/// `Σ a · b`, in sixteen interleaved partial sums: closer to the exact sum than one chain, and it
/// vectorizes.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dots(a, [b])[0]
}

type Lanes = [f32; 16];

/// The [`dot`] of `a` with each of `b`, bit for bit.
fn dots<const N: usize>(a: &[f32], b: [&[f32]; N]) -> [f32; N] {
    let mut sums = [Lanes::default(); N];
    let (whole, rest) = a.as_chunks();
    add_products(whole, b.map(|b| b.as_chunks().0), &mut sums);
    for (sums, b) in sums.iter_mut().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(rest).zip(&b[whole.len() * 16..]) {
            *sum += a * b;
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// The inner loop of [`dots`] as a function that is not inlined: inlined, the compiler shuffles
/// lanes between registers, which takes three times as long.
#[inline(never)]
fn add_products<const N: usize>(a: &[Lanes], b: [&[Lanes]; N], sums: &mut [Lanes; N]) {
    let mut local = *sums;
    let b = b.map(|b| &b[..a.len()]);
    for (i, a) in a.iter().enumerate() {
        for (sums, b) in local.iter_mut().zip(b) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                *sum += a[lane] * b[i][lane];
            }
        }
    }
    *sums = local;
}
