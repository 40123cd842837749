//! The inner loops of attention: query rows against cached keys, probabilities times cached values.
//!
//! Each cached row is read once for all query rows that registers hold; from eight query rows on, scores go
//! through the panel kernel (keys as weights) and values are first expanded to f32.

use puna_quant::float::f32_to_bf16;

use super::rows::{F32, RowFormat};
use super::{Simd, panel};
use crate::kernels::{KvRows, KvType, OutMut, Scratch, portable};

/// Query rows from which expanding pays.
const MANY: usize = 8;

/// Scores of `g` query rows against the keys: see `VectorKernels::scores`.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd, R: RowFormat>(
    q: &[f32],
    g: usize,
    k: KvRows<'_>,
    scores: &mut [f32],
    stride: usize,
    scratch: &mut Scratch,
) {
    k.check(q.len(), g, scores.len(), stride);
    if g == 0 || k.rows == 0 {
        return;
    }
    // SAFETY: `check` found all rows of keys, queries and scores; features by the module's contract.
    unsafe {
        if g >= MANY && k.rows >= S::LANES {
            let source = panel::Source { data: k.data.as_ptr(), stride: k.stride, rows: k.rows, k: k.dim };
            panel::multiply::<S, R>(source, q, g, OutMut::new(scores, stride, g, k.rows), scratch);
            return;
        }
        let mut i = 0;
        while i < k.rows {
            let keys = k.data.as_ptr().add(i * k.stride);
            let n = (k.rows - i).min(4);
            S::prefetch(keys.wrapping_add(8 * k.stride));
            S::prefetch(keys.wrapping_add(9 * k.stride));
            let mut h = 0;
            while h < g {
                let rows = if g - h >= S::SCORE_ROWS { S::SCORE_ROWS } else { 1 };
                let at = q.as_ptr().add(h * k.dim);
                let to = &mut scores[h * stride + i..];
                match rows {
                    4 => score_tile::<S, R, 4>(at, keys, k.stride, n, k.dim, to, stride),
                    2 => score_tile::<S, R, 2>(at, keys, k.stride, n, k.dim, to, stride),
                    _ => score_tile::<S, R, 1>(at, keys, k.stride, n, k.dim, to, stride),
                }
                h += rows;
            }
            i += n;
        }
    }
}

/// `G` query rows against `n ≤ 4` keys.
#[inline(always)]
unsafe fn score_tile<S: Simd, R: RowFormat, const G: usize>(
    q: *const f32,
    keys: *const u8,
    key_stride: usize,
    n: usize,
    dim: usize,
    to: &mut [f32],
    stride: usize,
) {
    // SAFETY: the caller's n keys and G queries have `dim` values; a missing key is replaced by the first.
    unsafe {
        let key = |j: usize| keys.add(if j < n { j * key_stride } else { 0 });
        let key = [key(0), key(1), key(2), key(3)];
        let mut acc = [[S::splat(0.0); 4]; G];
        let mut d = 0;
        while d < dim {
            let full = d + S::LANES <= dim;
            let kv = key.map(|p| if full { R::load::<S>(p, d) } else { R::tail::<S>(p, d, dim) });
            for (h, acc) in acc.iter_mut().enumerate() {
                let q = q.add(h * dim).cast();
                let q = if full { F32::load::<S>(q, d) } else { F32::tail::<S>(q, d, dim) };
                for j in 0..4 {
                    acc[j] = S::fma(q, kv[j], acc[j]);
                }
            }
            d += S::LANES;
        }
        for (h, acc) in acc.into_iter().enumerate() {
            to[h * stride..][..n].copy_from_slice(&S::sum4(acc)[..n]);
        }
    }
}

/// Adds probabilities times values: see `VectorKernels::accumulate`.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd, R: RowFormat>(
    p: &[f32],
    stride: usize,
    g: usize,
    v: KvRows<'_>,
    acc: &mut [f32],
    scratch: &mut Scratch,
) {
    /// Cached rows expanded at once: with 128 values a row, half of a 64 KiB share of the second-level cache.
    const ROWS: usize = 64;
    v.check(acc.len(), g, p.len(), stride);
    if g == 0 || v.rows == 0 {
        return;
    }
    // SAFETY: `check` found all rows of values, probabilities and sums; features by the module's contract.
    unsafe {
        if g < MANY {
            accumulate_rows::<S, R>(p, stride, g, v, acc);
            return;
        }
        let values: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(ROWS.min(v.rows) * v.dim * 4));
        for i0 in (0..v.rows).step_by(ROWS) {
            let n = (v.rows - i0).min(ROWS);
            for i in 0..n {
                let row = v.data.as_ptr().add((i0 + i) * v.stride);
                let to = &mut values[i * v.dim..][..v.dim];
                let mut d = 0;
                while d + S::LANES <= v.dim {
                    S::store(to.as_mut_ptr().add(d), R::load::<S>(row, d));
                    d += S::LANES;
                }
                for (d, to) in to.iter_mut().enumerate().skip(d) {
                    *to = R::one(row, d);
                }
            }
            let data = bytemuck::cast_slice(&values[..n * v.dim]);
            let rows = KvRows { ty: KvType::F32, rows: n, stride: v.dim * 4, dim: v.dim, data };
            accumulate_rows::<S, F32>(&p[i0..], stride, g, rows, acc);
        }
    }
}

#[inline(always)]
unsafe fn accumulate_rows<S: Simd, R: RowFormat>(
    p: &[f32],
    stride: usize,
    g: usize,
    v: KvRows<'_>,
    acc: &mut [f32],
) {
    // SAFETY: the caller checked all rows.
    unsafe {
        let wide = v.dim - v.dim % (4 * S::LANES);
        let whole = v.dim - v.dim % S::LANES;
        let mut h = 0;
        while h < g {
            let rows = if g - h >= 4 && S::ACCUMULATORS >= 16 { 4 } else { (g - h).min(2) };
            let p = p.as_ptr().add(h * stride);
            let acc = acc.as_mut_ptr().add(h * v.dim);
            for d in (0..wide).step_by(4 * S::LANES) {
                match rows {
                    4 => value_tile::<S, R, 4, 4>(p, stride, v, acc, d),
                    2 => value_tile::<S, R, 2, 4>(p, stride, v, acc, d),
                    _ => value_tile::<S, R, 1, 4>(p, stride, v, acc, d),
                }
            }
            for d in (wide..whole).step_by(S::LANES) {
                match rows {
                    4 => value_tile::<S, R, 4, 1>(p, stride, v, acc, d),
                    2 => value_tile::<S, R, 2, 1>(p, stride, v, acc, d),
                    _ => value_tile::<S, R, 1, 1>(p, stride, v, acc, d),
                }
            }
            for d in whole..v.dim {
                for h in 0..rows {
                    for i in 0..v.rows {
                        let value = R::one(v.data.as_ptr().add(i * v.stride), d);
                        *acc.add(h * v.dim + d) += *p.add(h * stride + i) * value;
                    }
                }
            }
            h += rows;
        }
    }
}

/// `G` rows of sums, `D` vectors from value `d`, over all cached rows.
#[inline(always)]
unsafe fn value_tile<S: Simd, R: RowFormat, const G: usize, const D: usize>(
    p: *const f32,
    stride: usize,
    v: KvRows<'_>,
    acc: *mut f32,
    d: usize,
) {
    // SAFETY: the caller's rows have D vectors from d.
    unsafe {
        let mut sums = [[S::splat(0.0); D]; G];
        for (h, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = S::load(acc.add(h * v.dim + d + j * S::LANES));
            }
        }
        for i in 0..v.rows {
            let row = v.data.as_ptr().add(i * v.stride);
            S::prefetch(row.wrapping_add(8 * v.stride));
            let mut values = [S::splat(0.0); D];
            for (j, value) in values.iter_mut().enumerate() {
                *value = R::load::<S>(row, d + j * S::LANES);
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let p = S::splat(*p.add(h * stride + i));
                for j in 0..D {
                    sums[j] = S::fma(p, values[j], sums[j]);
                }
            }
        }
        for (h, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                S::store(acc.add(h * v.dim + d + j * S::LANES), sum);
            }
        }
    }
}

/// Rounds values to a cached row: see `VectorKernels::store_kv`.
#[inline(always)]
pub(crate) unsafe fn store_kv<S: Simd>(ty: KvType, x: &[f32], row: &mut [u8]) {
    assert!(row.len() >= ty.row_bytes(x.len()));
    match ty {
        KvType::F16 => {
            let whole = x.len() - x.len() % S::LANES;
            for i in (0..whole).step_by(S::LANES) {
                // SAFETY: the row has two bytes for each value; features by the module's contract.
                unsafe { S::store_f16(row.as_mut_ptr().add(i * 2), S::load(x.as_ptr().add(i))) }
            }
            portable::store_kv(ty, &x[whole..], &mut row[whole * 2..]);
        }
        // A plain loop over integers, which the compiler vectorises with the features of the shell.
        KvType::Bf16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
        KvType::F32 | KvType::Q8_0 | KvType::Q4_0 => portable::store_kv(ty, x, row),
    }
}
