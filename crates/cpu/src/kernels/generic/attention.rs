//! The inner loops of attention: query rows against cached keys, probabilities times cached values.
//!
//! Cached rows are read once: a few at a time are expanded to f32 into the first-level cache, where all query rows use
//! them. From eight query rows on, scores go through the panel kernel (keys as weights).

use puna_quant::float::f32_to_bf16;

use super::rows::{F32, RowFormat};
use super::{Simd, panel};
use crate::kernels::{KvRows, KvType, OutMut, Scratch, portable};

/// Query rows from which expanding pays.
const MANY: usize = 8;

/// Expands cached rows of a type to f32: `n` rows from `from`, contiguous.
pub(crate) type Expand = fn(rows: KvRows<'_>, from: usize, n: usize, to: &mut [f32]);

/// Cached rows expanded at once: few, to stay in the first-level cache; more where many query rows read them again.
#[inline(always)]
fn rows_at_once(g: usize) -> usize {
    if g < MANY { 16 } else { 64 }
}

/// See [`Expand`].
#[inline(always)]
pub(crate) unsafe fn expand<S: Simd, R: RowFormat>(rows: KvRows<'_>, from: usize, n: usize, to: &mut [f32]) {
    // SAFETY: the caller checked that the rows exist and that `to` has room; features by the module's contract.
    unsafe {
        for i in 0..n {
            let row = rows.data.as_ptr().add((from + i) * rows.stride);
            for line in (0..R::BYTES * rows.dim / R::BLOCK).step_by(64) {
                S::prefetch(row.wrapping_add(16 * rows.stride + line));
            }
            let to = to.as_mut_ptr().add(i * rows.dim);
            let mut d = 0;
            while d + S::LANES <= rows.dim {
                S::store(to.add(d), R::load::<S>(row, d));
                d += S::LANES;
            }
            while d < rows.dim {
                *to.add(d) = R::one(row, d);
                d += 1;
            }
        }
    }
}

/// `n` of `rows` from `from` as f32: themselves, or expanded into `values`.
#[inline(always)]
fn block<'a>(
    rows: KvRows<'a>,
    from: usize,
    n: usize,
    values: &'a mut [f32],
    expand: Option<Expand>,
) -> KvRows<'a> {
    let Some(expand) = expand else {
        return KvRows { rows: n, data: &rows.data[from * rows.stride..], ..rows };
    };
    expand(rows, from, n, values);
    let data = bytemuck::cast_slice(&values[..n * rows.dim]);
    KvRows { ty: KvType::F32, rows: n, stride: rows.dim * 4, dim: rows.dim, data }
}

/// Scores of `g` query rows against the keys: see `VectorKernels::scores`.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(
    q: &[f32],
    g: usize,
    k: KvRows<'_>,
    scores: &mut [f32],
    stride: usize,
    scratch: &mut Scratch,
    expand: Option<Expand>,
) {
    k.check(q.len(), g, scores.len(), stride);
    if g == 0 || k.rows == 0 {
        return;
    }
    let step = rows_at_once(g);
    let values = step * k.dim;
    let room: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes((values + panel::room::<S>(g)) * 4));
    let (values, room) = room.split_at_mut(values);
    for from in (0..k.rows).step_by(step) {
        let n = (k.rows - from).min(step);
        let keys = block(k, from, n, values, expand);
        let to = &mut scores[from..];
        // SAFETY: `check` found all rows of keys, queries and scores; features by the module's contract.
        unsafe {
            if g >= MANY && n >= S::LANES {
                let source =
                    panel::Source { data: keys.data.as_ptr(), stride: keys.stride, rows: n, k: k.dim };
                panel::multiply::<S, F32>(source, q, g, OutMut::new(to, stride, g, n), room);
            } else {
                score_block::<S>(q, g, keys, to, stride);
            }
        }
    }
}

/// Scores in tiles of registers: a few query rows against four keys.
#[inline(always)]
unsafe fn score_block<S: Simd>(q: &[f32], g: usize, k: KvRows<'_>, to: &mut [f32], stride: usize) {
    for i in (0..k.rows).step_by(4) {
        let n = (k.rows - i).min(4);
        let mut h = 0;
        while h < g {
            let rows = if g - h >= S::SCORE_ROWS { S::SCORE_ROWS } else { 1 };
            let to = &mut to[h * stride + i..];
            // SAFETY: the caller checked all rows.
            unsafe {
                let keys = k.data.as_ptr().add(i * k.stride);
                let q = q.as_ptr().add(h * k.dim);
                match rows {
                    4 => score_tile::<S, 4>(q, keys, k.stride, n, k.dim, to, stride),
                    2 => score_tile::<S, 2>(q, keys, k.stride, n, k.dim, to, stride),
                    _ => score_tile::<S, 1>(q, keys, k.stride, n, k.dim, to, stride),
                }
            }
            h += rows;
        }
    }
}

/// `G` query rows against `n ≤ 4` keys.
#[inline(always)]
unsafe fn score_tile<S: Simd, const G: usize>(
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
            let mut kv = [S::splat(0.0); 4];
            for j in 0..4 {
                kv[j] = if full { F32::load::<S>(key[j], d) } else { F32::tail::<S>(key[j], d, dim) };
            }
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
pub(crate) unsafe fn accumulate<S: Simd>(
    p: &[f32],
    stride: usize,
    g: usize,
    v: KvRows<'_>,
    acc: &mut [f32],
    scratch: &mut Scratch,
    expand: Option<Expand>,
) {
    v.check(acc.len(), g, p.len(), stride);
    if g == 0 || v.rows == 0 {
        return;
    }
    let step = rows_at_once(g);
    let values: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(step * v.dim * 4));
    for from in (0..v.rows).step_by(step) {
        let rows = block(v, from, (v.rows - from).min(step), values, expand);
        // SAFETY: `check` found all rows of values, probabilities and sums; features by the module's contract.
        unsafe { accumulate_block::<S>(&p[from..], stride, g, rows, acc) }
    }
}

#[inline(always)]
unsafe fn accumulate_block<S: Simd>(p: &[f32], stride: usize, g: usize, v: KvRows<'_>, acc: &mut [f32]) {
    let wide = v.dim - v.dim % (4 * S::LANES);
    let whole = v.dim - v.dim % S::LANES;
    let mut h = 0;
    while h < g {
        let rows = if g - h >= 4 && S::ACCUMULATORS >= 16 { 4 } else { (g - h).min(2) };
        // SAFETY: the caller checked all rows.
        unsafe {
            let p = p.as_ptr().add(h * stride);
            let acc = acc.as_mut_ptr().add(h * v.dim);
            for d in (0..wide).step_by(4 * S::LANES) {
                match rows {
                    4 => value_tile::<S, 4, 4>(p, stride, v, acc, d),
                    2 => value_tile::<S, 2, 4>(p, stride, v, acc, d),
                    _ => value_tile::<S, 1, 4>(p, stride, v, acc, d),
                }
            }
            for d in (wide..whole).step_by(S::LANES) {
                for h in 0..rows {
                    value_tile::<S, 1, 1>(p.add(h * stride), stride, v, acc.add(h * v.dim), d);
                }
            }
            for d in whole..v.dim {
                for h in 0..rows {
                    for i in 0..v.rows {
                        let value = F32::one(v.data.as_ptr().add(i * v.stride), d);
                        *acc.add(h * v.dim + d) += *p.add(h * stride + i) * value;
                    }
                }
            }
        }
        h += rows;
    }
}

/// `G` rows of sums, `D` vectors from value `d`, over all cached rows.
#[inline(always)]
unsafe fn value_tile<S: Simd, const G: usize, const D: usize>(
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
            let mut values = [S::splat(0.0); D];
            for (j, value) in values.iter_mut().enumerate() {
                *value = F32::load::<S>(row, d + j * S::LANES);
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
