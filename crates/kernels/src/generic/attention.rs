//! The inner loop of attention: query rows against a KV tile of cached positions, with a running
//! softmax.
//!
//! A KV tile is [`KV_TILE`] positions. Register tiles take keys with positions in vector lanes
//! (`[value][position]`, the layout of the cache where possible), so that a score needs no sum
//! across lanes. Tiles of a few query rows by four vectors stay in registers. For few query rows,
//! floats are converted as they are read, between the multiply-adds; for many rows, and from
//! blocks, they are expanded to f32 once.
//!
//! The result of a query row does not depend on the other rows of the call: every path adds in the
//! same order.

use puna_quant::float::f32_to_bf16;

use super::rows::{Bf16, F16, F32, RowFormat};
use super::{Simd, vector};
use crate::{
    AlibiBias, AttendTile, KV_TILE, KvLayout, KvRows, KvType, RunningSoftmax, ScoreTile, Scratch,
    portable,
};

/// Minimum number of query rows for expanding to f32. It is faster on processors that convert in
/// the multiplication pipes, and equally fast on others.
const MIN_ROWS_TO_EXPAND: usize = 48;
/// Vectors of lanes (positions or values) of a tile.
const TILE_VECTORS: usize = 4;

/// Expands rows of a type to f32, contiguous; columns of blocks to columns of [`KV_TILE`].
pub(crate) type Expand = fn(rows: KvRows<'_>, to: &mut [f32]);

/// See [`Expand`].
#[inline(always)]
pub(crate) unsafe fn expand<S: Simd, R: RowFormat>(rows: KvRows<'_>, to: &mut [f32]) {
    let blocks = rows.dim / R::BLOCK;
    // SAFETY: the caller checked that the rows exist and that `to` has room; features by the
    // module's contract.
    unsafe {
        if R::BLOCK > 1 && rows.layout == KvLayout::Columns {
            for b in 0..blocks {
                let (block, to) = (
                    rows.data.as_ptr().add(b * rows.stride),
                    to.as_mut_ptr().add(b * R::BLOCK * KV_TILE),
                );
                for i in (0..KV_TILE).step_by(S::LANES) {
                    R::columns::<S>(block, i, to.add(i));
                }
            }
            return;
        }
        for i in 0..rows.rows {
            let row = rows.data.as_ptr().add(i * rows.stride);
            let to = to.as_mut_ptr().add(i * rows.dim);
            if R::BLOCK > 1 {
                for b in 0..blocks {
                    R::block::<S>(row.add(b * R::BYTES), to.add(b * R::BLOCK));
                }
                continue;
            }
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

/// A matrix that tiles read: rows of floats.
#[derive(Clone, Copy)]
struct Matrix {
    ty: KvType,
    data: *const u8,
    stride: usize,
}

impl Matrix {
    fn floats(data: &[f32], cols: usize) -> Self {
        Self { ty: KvType::F32, data: data.as_ptr().cast(), stride: 4 * cols }
    }

    /// Rows in their storage type if tiles can read it fast enough, else expanded into `buffer`.
    fn of(rows: KvRows<'_>, queries: usize, buffer: &mut [f32], expand: Expand) -> Self {
        if rows.ty == KvType::F32 || rows.ty.block_values() == 1 && queries < MIN_ROWS_TO_EXPAND {
            return Self { ty: rows.ty, data: rows.data.as_ptr(), stride: rows.stride };
        }
        Self::expanded(rows, buffer, expand)
    }

    fn expanded(rows: KvRows<'_>, buffer: &mut [f32], expand: Expand) -> Self {
        expand(rows, buffer);
        Self::floats(buffer, rows.dim)
    }
}

/// See `VectorKernels::attend`; `expanders` expand the keys' and the values' type.
#[inline(always)]
pub(crate) unsafe fn attend<S: Simd>(
    tile: &AttendTile<'_>,
    state: &mut RunningSoftmax<'_>,
    scratch: &mut Scratch,
    expanders: [Expand; 2],
) {
    tile.check(state);
    let (g, keys, values) = (tile.visible.len(), tile.keys, tile.values);
    let sizes = [g * KV_TILE, keys.dim * KV_TILE, values.dim * KV_TILE, keys.dim * KV_TILE];
    let room: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(4 * sizes.iter().sum::<usize>()));
    let (scores, room) = room.split_at_mut(sizes[0]);
    let (transposed, room) = room.split_at_mut(sizes[1]);
    let (expanded, room) = room.split_at_mut(sizes[2]);
    // SAFETY: `check` found all rows of queries, keys and values; features by the module's
    // contract.
    unsafe {
        let columns = columns::<S>(keys, g, [transposed, room], expanders[0]);
        let rows = Matrix::of(values, g, expanded, expanders[1]);
        // A 16-bit KV tile fits in the first-level cache, so every `TILE_ROWS` query rows are
        // scored and accumulated together. A 32-bit one does not, so all query rows are scored
        // first.
        let each =
            if columns.ty == KvType::F32 || rows.ty == KvType::F32 { g } else { S::TILE_ROWS };
        // Hardware prefetchers do not find the next KV tile, so each half prefetches the following
        // one.
        let mut ahead = [values.data, tile.next];
        for h in (0..g).step_by(each.max(1)) {
            let n = each.min(g - h);
            let q = &tile.q[h * keys.dim..][..n * keys.dim];
            let scores = &mut scores[..n * KV_TILE];
            match columns.ty {
                KvType::F16 => score::<S, F16>(q, keys.dim, columns, scores, ahead[0]),
                KvType::Bf16 => score::<S, Bf16>(q, keys.dim, columns, scores, ahead[0]),
                _ => score::<S, F32>(q, keys.dim, columns, scores, ahead[0]),
            }
            for i in 0..n {
                update_softmax::<S>(tile, h + i, &mut scores[i * KV_TILE..][..KV_TILE], state);
            }
            let acc = &mut state.acc[h * values.dim..][..n * values.dim];
            match rows.ty {
                KvType::F16 => accumulate::<S, F16>(scores, rows, values, acc, ahead[1]),
                KvType::Bf16 => accumulate::<S, Bf16>(scores, rows, values, acc, ahead[1]),
                _ => accumulate::<S, F32>(scores, rows, values, acc, ahead[1]),
            }
            ahead = [&[][..]; 2];
        }
    }
}

/// Keys in columns (`[value][position]`), in the storage type or as f32, whichever suits this
/// number of query rows.
#[inline(always)]
unsafe fn columns<S: Simd>(
    keys: KvRows<'_>,
    queries: usize,
    [to, room]: [&mut [f32]; 2],
    expand: Expand,
) -> Matrix {
    match keys.layout {
        KvLayout::Columns if keys.ty.block_values() > 1 => {
            expand(keys, to);
            Matrix::floats(to, KV_TILE)
        }
        KvLayout::Columns => {
            let columns = KvRows { rows: keys.dim, dim: KV_TILE, layout: KvLayout::Rows, ..keys };
            Matrix::of(columns, queries, to, expand)
        }
        KvLayout::Rows => {
            let rows = Matrix::expanded(keys, room, expand);
            // SAFETY: the caller checked that the rows exist, and has room for all their columns;
            // features by the module's contract.
            unsafe { transpose::<S>(rows, keys.rows, keys.dim, to) };
            Matrix::floats(to, KV_TILE)
        }
    }
}

/// See `VectorKernels::score`.
#[inline(always)]
pub(crate) unsafe fn score_sums<S: Simd>(
    tile: &ScoreTile<'_>,
    sums: &mut [f32],
    scratch: &mut Scratch,
    expand: Expand,
) {
    tile.check(sums);
    let (rows, keys) = (tile.rows(), tile.keys);
    let sizes = [rows * KV_TILE, keys.dim * KV_TILE, keys.dim * KV_TILE];
    let room: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(4 * sizes.iter().sum::<usize>()));
    let (products, room) = room.split_at_mut(sizes[0]);
    let (to, room) = room.split_at_mut(sizes[1]);
    // SAFETY: `check` found all rows of queries and keys, and there is room for whole vectors of
    // sums; features by the module's contract.
    unsafe {
        let columns = columns::<S>(keys, rows, [to, room], expand);
        match columns.ty {
            KvType::F16 => score::<S, F16>(tile.q, keys.dim, columns, products, &[]),
            KvType::Bf16 => score::<S, Bf16>(tile.q, keys.dim, columns, products, &[]),
            _ => score::<S, F32>(tile.q, keys.dim, columns, products, &[]),
        }
        for (sum, (products, to)) in products
            .chunks_exact(tile.heads_per_sum * KV_TILE)
            .zip(sums.chunks_exact_mut(KV_TILE))
            .enumerate()
        {
            for i in (0..KV_TILE).step_by(S::LANES) {
                let mut total = S::splat(0.0);
                for (h, products) in products.chunks_exact(KV_TILE).enumerate() {
                    let product = S::load(products.as_ptr().add(i));
                    let product = if tile.relu { S::max(product, S::splat(0.0)) } else { product };
                    let weight =
                        tile.weights.get(sum * tile.heads_per_sum + h).copied().unwrap_or(1.0);
                    total = S::add(total, S::mul(product, S::splat(weight)));
                }
                S::store(to.as_mut_ptr().add(i), total);
            }
        }
    }
}

/// From `n` rows of `dim` f32 to `to[value][position]`; positions past the last hold zeros.
#[inline(always)]
unsafe fn transpose<S: Simd>(rows: Matrix, n: usize, dim: usize, to: &mut [f32]) {
    // SAFETY: the caller's rows exist and `to` has `KV_TILE` places for each value; tails read no
    // further than the row.
    unsafe {
        for d in (0..dim).step_by(S::LANES) {
            for i in (0..KV_TILE).step_by(S::LANES) {
                let mut block = [S::splat(0.0); 16];
                for (j, v) in block.iter_mut().enumerate().take(n.saturating_sub(i).min(S::LANES)) {
                    let row = rows.data.add((i + j) * rows.stride);
                    *v = if d + S::LANES <= dim {
                        F32::load::<S>(row, d)
                    } else {
                        F32::tail::<S>(row, d, dim)
                    };
                }
                let mut square = [0.0f32; 256];
                S::transpose(&block, square.as_mut_ptr());
                for j in 0..S::LANES.min(dim - d) {
                    let column = S::load(square.as_ptr().add(j * S::LANES));
                    S::store(to.as_mut_ptr().add((d + j) * KV_TILE + i), column);
                }
            }
        }
    }
}

/// Prefetches memory a few cache lines at a time.
struct Prefetcher {
    at: *const u8,
    /// Cache lines per call.
    lines: usize,
}

impl Prefetcher {
    /// Prefetches all of `bytes`, divided over `steps` calls of [`Self::fetch`].
    #[inline(always)]
    fn new(bytes: &[u8], steps: usize) -> Self {
        Self { at: bytes.as_ptr(), lines: bytes.len().div_ceil(64 * steps.max(1)) }
    }

    #[inline(always)]
    unsafe fn fetch<S: Simd>(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: features by the module's contract.
            unsafe { S::prefetch_far(self.at) }
            // Rounded up, this may pass the end: a hint may point anywhere.
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// `$body` for each `$i` below `$n`, four times per branch: a loop of 64 short iterations ends in a
/// branch misprediction.
macro_rules! in_fours {
    ($n:expr, $i:ident => $body:block) => {
        let (n, mut next) = ($n, 0);
        while next + 4 <= n {
            for $i in next..next + 4 $body
            next += 4;
        }
        for $i in next..n $body
    };
}

/// Scores of all query rows: `to[row · KV_TILE + position]`.
#[inline(always)]
unsafe fn score<S: Simd, R: RowFormat>(
    q: &[f32],
    dim: usize,
    keys: Matrix,
    to: &mut [f32],
    next: &[u8],
) {
    let rows = to.len() / KV_TILE;
    let mut ahead = Prefetcher::new(next, dim * KV_TILE / (TILE_VECTORS * S::LANES));
    let mut h = 0;
    while h < rows {
        let n = tile_rows::<S>(rows - h);
        for i in (0..KV_TILE).step_by(TILE_VECTORS * S::LANES) {
            // SAFETY: the caller's queries and keys have `dim` values, keys KV_TILE positions.
            unsafe {
                let (q, to) = (q.as_ptr().add(h * dim), to.as_mut_ptr().add(h * KV_TILE + i));
                match n {
                    6 => score_tile::<S, R, 6>(q, dim, keys, i, to, &mut ahead),
                    4 => score_tile::<S, R, 4>(q, dim, keys, i, to, &mut ahead),
                    2 => score_tile::<S, R, 2>(q, dim, keys, i, to, &mut ahead),
                    _ => score_tile::<S, R, 1>(q, dim, keys, i, to, &mut ahead),
                }
            }
        }
        ahead.lines = 0;
        h += n;
    }
}

/// Query rows of the next tile, of `left`.
#[inline(always)]
fn tile_rows<S: Simd>(left: usize) -> usize {
    if left >= S::TILE_ROWS {
        S::TILE_ROWS
    } else if left >= 4 && S::TILE_ROWS > 4 {
        4
    } else if left >= 2 {
        2
    } else {
        1
    }
}

#[inline(always)]
unsafe fn score_tile<S: Simd, R: RowFormat, const G: usize>(
    q: *const f32,
    dim: usize,
    keys: Matrix,
    i: usize,
    to: *mut f32,
    ahead: &mut Prefetcher,
) {
    // SAFETY: as for `score`.
    unsafe {
        let mut acc = [[S::splat(0.0); TILE_VECTORS]; G];
        in_fours!(dim, d => {
            ahead.fetch::<S>();
            let column = keys.data.add(d * keys.stride);
            let mut lanes = [S::splat(0.0); TILE_VECTORS];
            for (j, lanes) in lanes.iter_mut().enumerate() {
                *lanes = R::load::<S>(column, i + j * S::LANES);
            }
            for (h, acc) in acc.iter_mut().enumerate() {
                let q = S::splat(*q.add(h * dim + d));
                for j in 0..TILE_VECTORS {
                    acc[j] = S::fma(q, lanes[j], acc[j]);
                }
            }
        });
        for (h, acc) in acc.into_iter().enumerate() {
            for (j, acc) in acc.into_iter().enumerate() {
                S::store(to.add(h * KV_TILE + j * S::LANES), acc);
            }
        }
    }
}

/// Adds a row's scores to its running softmax, and turns them into the weights of the values.
#[inline(always)]
unsafe fn update_softmax<S: Simd>(
    tile: &AttendTile<'_>,
    row: usize,
    scores: &mut [f32],
    state: &mut RunningSoftmax<'_>,
) {
    let (from, to) = tile.visible[row];
    if from >= to {
        scores.fill(0.0);
        return;
    }
    // SAFETY: KV_TILE scores are whole vectors; features by the module's contract.
    unsafe {
        if let Some(cap) = tile.softcap {
            soft_cap::<S>(scores, cap);
        }
        if let Some(&bias) = tile.alibi.get(row) {
            subtract_alibi::<S>(scores, bias);
        }
        if let Some(position_bias) = tile.position_bias.get(row * KV_TILE..(row + 1) * KV_TILE) {
            vector::add::<S>(scores, position_bias);
        }
        if to - from < KV_TILE {
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to..].fill(f32::NEG_INFINITY);
        }
        let mut largest = S::load(scores.as_ptr());
        for i in (S::LANES..KV_TILE).step_by(S::LANES) {
            largest = S::max(S::load(scores.as_ptr().add(i)), largest);
        }
        let max = state.max[row];
        // Rare after the first KV tiles.
        if S::any_above(largest, max) {
            let largest = S::hmax(largest);
            let shrink = (max - largest).exp();
            state.sum[row] *= shrink;
            vector::scale::<S>(&mut state.acc[row * tile.values.dim..][..tile.values.dim], shrink);
            state.max[row] = largest;
        }
        // If the maximum is -∞, so is every score, and -∞ - -∞ would be NaN.
        let max = S::splat(if state.max[row] == f32::NEG_INFINITY { 0.0 } else { state.max[row] });
        let mut sum = S::splat(0.0);
        for i in (0..KV_TILE).step_by(S::LANES) {
            let p = scores.as_mut_ptr().add(i);
            let e = vector::exp_negative::<S>(S::sub(S::load(p), max));
            S::store(p, e);
            sum = S::add(sum, e);
        }
        state.sum[row] += S::sum(sum);
    }
}

/// `cap · tanh(x / cap)` for whole vectors of scores, as `cap - 2 · cap / (1 + e^(2x / cap))`.
#[inline(always)]
unsafe fn soft_cap<S: Simd>(x: &mut [f32], cap: f32) {
    for x in x.chunks_exact_mut(S::LANES) {
        // SAFETY: a vector of scores; features by the module's contract.
        unsafe {
            let e = vector::exp::<S>(S::mul(S::load(x.as_ptr()), S::splat(2.0 / cap)));
            let fraction = S::div(S::splat(2.0 * cap), S::add(S::splat(1.0), e));
            S::store(x.as_mut_ptr(), S::sub(S::splat(cap), fraction));
        }
    }
}

/// The positions of a KV tile.
const POSITIONS: [f32; KV_TILE] = {
    let mut positions = [0.0; KV_TILE];
    let mut i = 0;
    while i < KV_TILE {
        positions[i] = i as f32;
        i += 1;
    }
    positions
};

/// Subtracts the ALiBi bias from the scores of a KV tile.
#[inline(always)]
unsafe fn subtract_alibi<S: Simd>(scores: &mut [f32], bias: AlibiBias) {
    assert_eq!(scores.len(), KV_TILE);
    for i in (0..KV_TILE).step_by(S::LANES) {
        // SAFETY: there are KV_TILE scores and KV_TILE positions; features by the module's
        // contract.
        unsafe {
            let score = scores.as_mut_ptr().add(i);
            let distance = S::abs(S::sub(S::load(POSITIONS.as_ptr().add(i)), S::splat(bias.from)));
            S::store(score, S::fma(S::splat(-bias.slope), distance, S::load(score)));
        }
    }
}

/// Adds probabilities times values to `g` rows of sums.
#[inline(always)]
unsafe fn accumulate<S: Simd, R: RowFormat>(
    p: &[f32],
    v: Matrix,
    values: KvRows<'_>,
    acc: &mut [f32],
    next: &[u8],
) {
    let (n, dim, g) = (values.rows, values.dim, p.len() / KV_TILE);
    let wide = dim - dim % (TILE_VECTORS * S::LANES);
    let whole = dim - dim % S::LANES;
    // Only the tiles of the first rows prefetch, including tiles of a single vector.
    let tiles = wide / (TILE_VECTORS * S::LANES) + (whole - wide) / S::LANES;
    let mut ahead = Prefetcher::new(next, n * tiles);
    let mut h = 0;
    while h < g {
        let rows = tile_rows::<S>(g - h);
        // SAFETY: the caller's rows of probabilities, values and sums exist.
        unsafe {
            let p = p.as_ptr().add(h * KV_TILE);
            let acc = acc.as_mut_ptr().add(h * dim);
            for d in (0..wide).step_by(TILE_VECTORS * S::LANES) {
                match rows {
                    6 => value_tile::<S, R, 6, TILE_VECTORS>(p, v, n, acc, dim, d, &mut ahead),
                    4 => value_tile::<S, R, 4, TILE_VECTORS>(p, v, n, acc, dim, d, &mut ahead),
                    2 => value_tile::<S, R, 2, TILE_VECTORS>(p, v, n, acc, dim, d, &mut ahead),
                    _ => value_tile::<S, R, 1, TILE_VECTORS>(p, v, n, acc, dim, d, &mut ahead),
                }
            }
            for h in 0..rows {
                let (p, acc) = (p.add(h * KV_TILE), acc.add(h * dim));
                for d in (wide..whole).step_by(S::LANES) {
                    value_tile::<S, R, 1, 1>(p, v, n, acc, dim, d, &mut ahead);
                }
                for d in whole..dim {
                    for i in 0..n {
                        *acc.add(d) += *p.add(i) * R::one(v.data.add(i * v.stride), d);
                    }
                }
                ahead.lines = 0;
            }
        }
        h += rows;
    }
}

/// `G` rows of sums, `D` vectors from value `d`, over `n` cached rows.
#[inline(always)]
unsafe fn value_tile<S: Simd, R: RowFormat, const G: usize, const D: usize>(
    p: *const f32,
    v: Matrix,
    n: usize,
    acc: *mut f32,
    dim: usize,
    d: usize,
    ahead: &mut Prefetcher,
) {
    // SAFETY: the caller's rows have D vectors from d.
    unsafe {
        let mut sums = [[S::splat(0.0); D]; G];
        for (h, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = S::load(acc.add(h * dim + d + j * S::LANES));
            }
        }
        in_fours!(n, i => {
            ahead.fetch::<S>();
            let row = v.data.add(i * v.stride);
            let mut values = [S::splat(0.0); D];
            for (j, value) in values.iter_mut().enumerate() {
                *value = R::load::<S>(row, d + j * S::LANES);
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let p = S::splat(*p.add(h * KV_TILE + i));
                for j in 0..D {
                    sums[j] = S::fma(p, values[j], sums[j]);
                }
            }
        });
        for (h, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                S::store(acc.add(h * dim + d + j * S::LANES), sum);
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
        // A plain loop over integers, which the compiler vectorizes with the features of the
        // wrapper.
        KvType::Bf16 => {
            for (x, b) in x.iter().zip(row.as_chunks_mut::<2>().0) {
                *b = f32_to_bf16(*x).to_le_bytes();
            }
        }
        KvType::F32 | KvType::Q8_0 | KvType::Q4_0 => portable::store_kv(ty, x, row),
    }
}
