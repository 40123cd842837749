//! Products with few activation rows for weights stored as floats: bound by reading the weights.

use super::Simd;
use super::panel::{self, Product};
use super::rows::RowFormat;
use crate::{Acts, OutMut, Scratch, WeightRows};

/// Chains of sums of a product.
const CHAINS: usize = 4;

/// Products of each weight row with tiles of a few activation rows. Each product has the same
/// number of chains, so that a row gets the same bits in a tile as alone.
#[inline(always)]
pub(crate) unsafe fn stream<S: Simd, R: RowFormat>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
) {
    let (m, x) = x.expect_f32(&w, &out);
    let (k, row_bytes) = (w.k, w.row_bytes());
    for r in 0..w.rows {
        // SAFETY: `expect_f32` checked that rows r < w.rows and activation rows t < m exist;
        // features by contract.
        unsafe {
            let row = w.data.as_ptr().add(r * row_bytes);
            let mut t = 0;
            while t < m {
                let x = x.as_ptr().add(t * k);
                t += match m - t {
                    1 => store(&mut out, t, r, dot::<S, R, 1, CHAINS>(row, x, k)),
                    2 | 3 => store(&mut out, t, r, dot::<S, R, 2, CHAINS>(row, x, k)),
                    _ if S::TILE_ROWS > 2 => {
                        store(&mut out, t, r, dot::<S, R, 4, CHAINS>(row, x, k))
                    }
                    _ => store(&mut out, t, r, dot::<S, R, 2, CHAINS>(row, x, k)),
                };
            }
        }
    }
}

/// Writes the products of weight row `r` with `M` activation rows from `t`; returns `M`.
#[inline(always)]
fn store<const M: usize>(out: &mut OutMut<'_>, t: usize, r: usize, products: [f32; M]) -> usize {
    for (j, product) in products.into_iter().enumerate() {
        out.row(t + j)[r] = product;
    }
    M
}

/// A weight row times `M` activation rows of `k` values each, `C` chains of sums for each product.
#[inline(always)]
unsafe fn dot<S: Simd, R: RowFormat, const M: usize, const C: usize>(
    row: *const u8,
    x: *const f32,
    k: usize,
) -> [f32; M] {
    // SAFETY: the caller's rows have k values; the tail reads only the remaining values.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; M];
        let step = C * S::LANES;
        let mut i = 0;
        while i + step <= k {
            for c in 0..C {
                let w = R::load::<S>(row, i + c * S::LANES);
                for (j, acc) in acc.iter_mut().enumerate() {
                    acc[c] = S::fma(w, S::load(x.add(j * k + i + c * S::LANES)), acc[c]);
                }
            }
            i += step;
        }
        while i < k {
            let n = (k - i).min(S::LANES);
            let w = if n == S::LANES { R::load::<S>(row, i) } else { R::tail::<S>(row, i, k) };
            for (j, acc) in acc.iter_mut().enumerate() {
                let x = x.add(j * k).cast::<u8>();
                let x = if n == S::LANES {
                    super::rows::F32::load::<S>(x, i)
                } else {
                    super::rows::F32::tail::<S>(x, i, k)
                };
                acc[0] = S::fma(w, x, acc[0]);
            }
            i += n;
        }
        let mut products = [0.0; M];
        for (product, chains) in products.iter_mut().zip(acc) {
            let mut total = chains[0];
            for &chain in &chains[1..] {
                total = S::add(total, chain);
            }
            *product = S::sum(total);
        }
        products
    }
}

/// Many activation rows: see [`panel`].
#[inline(always)]
pub(crate) unsafe fn many<P: Product>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    out: OutMut<'_>,
    scratch: &mut Scratch,
) {
    let (m, x) = x.expect_f32(&w, &out);
    let source =
        panel::Source { data: w.data.as_ptr(), stride: w.row_bytes(), rows: w.rows, k: w.k };
    // SAFETY: `expect_f32` checked that all rows exist and that the products have a place; features
    // by contract.
    unsafe {
        let scratch = bytemuck::cast_slice_mut(scratch.bytes(panel::scratch_len::<P::S>(m) * 4));
        panel::matmul_panel::<P>(source, x, m, out, scratch);
    }
}
