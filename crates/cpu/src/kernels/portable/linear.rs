//! Products with dequantized weights: one function for every format.

use puna_quant::{TensorType, dequantize, dequantizer};

use crate::kernels::{ActKind, Acts, LinearKernel, OutMut, STREAM_ROWS, Scratch, WeightRows, is_weight_type};

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

/// Dequantizes each weight row and multiplies it with every activation row.
fn linear(w: WeightRows<'_>, x: Acts<'_>, mut out: OutMut<'_>, scratch: &mut Scratch) {
    let (rows, x) = x.expect_f32(&w, &out);
    let row_bytes = w.row_bytes();
    let row: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(w.k * 4));
    for r in 0..w.rows {
        dequantize(w.ty, &w.data[r * row_bytes..][..row_bytes], row).expect("the row has whole blocks");
        for t in 0..rows {
            out.row(t)[r] = dot(row, &x[t * w.k..][..w.k]);
        }
    }
}

/// `Σ a · b`, in sixteen interleaved partial sums: closer to the exact sum than one chain, and it vectorises.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += a * b;
    }
    sums.iter().sum()
}
