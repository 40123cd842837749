//! Products with many activation rows and f32 sums: weights are expanded into a panel in the
//! first-level cache.
//!
//! Both sides are words of 32 bits: an f32 ([`Floats`]), or a pair of bf16 where a processor
//! multiplies pairs. A panel holds one or two vectors of weight rows over a slice of K, each in a
//! plane and transposed (`[word][row]`). The activations of the slice are packed so that a block of
//! tokens is one stream (`[token block][word/16][token][16]`), which avoids the conflicts that rows
//! a power of two apart cause in a cache. A micro-kernel keeps a block of tokens × all vectors of
//! rows in registers. If a block has few tokens, a second vector halves the loads that bring an
//! activation to all lanes.

use std::marker::PhantomData;

use super::Simd;
use super::rows::RowFormat;
use super::sweep::OutBlock;
use crate::OutMut;

/// Words of K in a panel: 16 rows take half of a 32 KiB cache.
const F32_SLICE: usize = 256;
/// Tokens that are packed at once, for one slice: 240 KiB.
const TOKENS: usize = 240;
/// Consecutive words of one token in packed activations (a pack).
const PACK_WORDS: usize = 16;

/// Words of weights and activations, and their multiplication.
///
/// # Safety
/// For all methods: rows have all values that are named, and the processor has the features that
/// the implementing type needs.
pub(crate) trait Product {
    /// The vectors.
    type S: Simd;
    /// Values and bytes of a block of weights.
    const BLOCK: (usize, usize);
    /// Values of a word.
    const VALUES: usize;

    /// `LANES` words of a weight row from value `i` on.
    unsafe fn weights(row: *const u8, i: usize) -> <Self::S as Simd>::F;
    /// The words of values `i … n`, fewer than `LANES`, then zeros.
    unsafe fn last_weights(row: *const u8, i: usize, n: usize) -> <Self::S as Simd>::F;
    /// The words of up to [`PACK_WORDS`]` · VALUES` activations, then zeros.
    unsafe fn activations(x: &[f32], to: &mut [f32; PACK_WORDS]);
    /// `acc` and the products of the words' values.
    unsafe fn fma(
        x: <Self::S as Simd>::F,
        w: <Self::S as Simd>::F,
        acc: <Self::S as Simd>::F,
    ) -> <Self::S as Simd>::F;
    /// [`sweep`], compiled once for a level.
    unsafe fn sweep(
        panel: &[f32],
        packed: &[f32],
        len: usize,
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    );
}

/// Weights of a format as f32, and activations as they are.
pub(crate) struct Floats<S, R>(PhantomData<(S, R)>);

impl<S: Simd, R: RowFormat> Product for Floats<S, R> {
    type S = S;
    const BLOCK: (usize, usize) = (R::BLOCK, R::BYTES);
    const VALUES: usize = 1;

    #[inline(always)]
    unsafe fn weights(row: *const u8, i: usize) -> S::F {
        // SAFETY: the contract.
        unsafe { R::load::<S>(row, i) }
    }
    #[inline(always)]
    unsafe fn last_weights(row: *const u8, i: usize, n: usize) -> S::F {
        // SAFETY: the contract.
        unsafe { R::tail::<S>(row, i, n) }
    }
    #[inline(always)]
    unsafe fn activations(x: &[f32], to: &mut [f32; PACK_WORDS]) {
        match x.first_chunk() {
            // The length is a constant, so that the copy is inlined.
            Some(whole) => *to = *whole,
            None => {
                *to = [0.0; PACK_WORDS];
                to[..x.len()].copy_from_slice(x);
            }
        }
    }
    #[inline(always)]
    unsafe fn fma(x: S::F, w: S::F, acc: S::F) -> S::F {
        // SAFETY: the contract.
        unsafe { S::fma(x, w, acc) }
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
        // SAFETY: the contract.
        unsafe { S::sweep_f32(panel, packed, len, tokens, out, block) }
    }
}

/// Rows to expand: row r starts `r · stride` bytes after `data`.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) data: *const u8,
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) k: usize,
}

/// Words that [`multiply`] needs as room for `m` rows of activations.
#[inline(always)]
pub(crate) fn scratch_len<S: Simd>(m: usize) -> usize {
    (S::F32_PANEL_VECTORS * S::LANES + m.min(TOKENS)) * F32_SLICE
}

/// `out[t][r] = Σ_k source[r][k] · x[t · k + k]` for `m` rows of `x`.
///
/// # Safety
/// The source's rows exist in the format of `P`, `x` has `m · k` values, `scratch` the length that
/// [`scratch_len`] says, `out` at least `m` rows of `source.rows` columns; the processor has the
/// features of `P`.
#[inline(always)]
pub(crate) unsafe fn matmul_panel<P: Product>(
    source: Source,
    x: &[f32],
    m: usize,
    mut out: OutMut<'_>,
    scratch: &mut [f32],
) {
    let Source { rows, k, .. } = source;
    if k == 0 {
        (0..m).for_each(|t| out.row(t)[..rows].fill(0.0));
        return;
    }
    let (lanes, rows_at_once) = (P::S::LANES, P::S::F32_PANEL_VECTORS * P::S::LANES);
    let (panel, packed) = scratch.split_at_mut(F32_SLICE * rows_at_once);
    for t0 in (0..m).step_by(TOKENS) {
        let tokens = (m - t0).min(TOKENS);
        for k0 in (0..k).step_by(F32_SLICE * P::VALUES) {
            let len = (k - k0).min(F32_SLICE * P::VALUES);
            let words = len.div_ceil(P::VALUES);
            // SAFETY: features by the contract.
            unsafe { pack::<P>(&x[t0 * k..], k, k0, len, tokens, packed) };
            for r0 in (0..rows).step_by(rows_at_once) {
                let block = OutBlock { t0, r0, cols: (rows - r0).min(rows_at_once), add: k0 > 0 };
                // SAFETY: rows r0… exist and the slice lies inside them; the packed tokens were
                // just written.
                unsafe {
                    fetch_next::<P::S>(
                        source,
                        P::BLOCK,
                        rows_at_once,
                        r0,
                        k0,
                        F32_SLICE * P::VALUES,
                    );
                    for (plane, r0) in
                        panel.chunks_exact_mut(F32_SLICE * lanes).zip((r0..rows).step_by(lanes))
                    {
                        expand::<P>(source, r0, k0, len, plane);
                    }
                    P::sweep(panel, packed, words, tokens, &mut out, block);
                }
            }
        }
    }
}

/// Packs `len` values from `k0` of `tokens` rows, block by block of tokens.
#[inline(always)]
unsafe fn pack<P: Product>(
    x: &[f32],
    k: usize,
    k0: usize,
    len: usize,
    tokens: usize,
    packed: &mut [f32],
) {
    let padded = len.div_ceil(P::VALUES).next_multiple_of(PACK_WORDS);
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, P::S::F32_PANEL_TOKENS);
        let (to, _) = packed[t * padded..][..n * padded].as_chunks_mut();
        for j in 0..n {
            let packs = x[(t + j) * k + k0..][..len].chunks(PACK_WORDS * P::VALUES);
            for (pack, to) in packs.zip(to[j..].iter_mut().step_by(n)) {
                // SAFETY: features by the contract.
                unsafe { P::activations(pack, to) };
            }
        }
        t += n;
    }
}

/// Size of the next block of tokens.
#[inline(always)]
fn block_of(left: usize, block: usize) -> usize {
    if left >= block {
        block
    } else if left >= 4 {
        4
    } else {
        1
    }
}

/// Prefetches the weights of the panel after (`r0`, `k0`): the next rows, the next slice of K, or
/// the memory behind these rows, which the next call probably reads. `block`: values and bytes of a
/// block.
#[inline(always)]
pub(super) unsafe fn fetch_next<S: Simd>(
    source: Source,
    block: (usize, usize),
    panel_rows: usize,
    r0: usize,
    k0: usize,
    slice: usize,
) {
    let (r0, k0) = if r0 + panel_rows < source.rows {
        (r0 + panel_rows, k0)
    } else if k0 + slice < source.k {
        (0, k0 + slice)
    } else {
        (source.rows, 0)
    };
    let from = k0 / block.0 * block.1;
    let bytes = (source.k - k0).min(slice) / block.0 * block.1;
    for r in r0..r0 + panel_rows {
        for line in (0..bytes + 63).step_by(64) {
            // SAFETY: a hint, harmless at any address; features by the module's contract.
            unsafe { S::prefetch(source.data.wrapping_add(r * source.stride + from + line)) }
        }
    }
}

/// Expands `len` values from `k0` of `LANES` rows from `r0` into `panel[word][row]`; rows past the
/// end become zero.
#[inline(always)]
unsafe fn expand<P: Product>(source: Source, r0: usize, k0: usize, len: usize, panel: &mut [f32]) {
    let lanes = P::S::LANES;
    // SAFETY: row pointers are clamped to rows that exist; `panel` has room for F32_SLICE × LANES
    // words.
    unsafe {
        for (i, values) in (0..len).step_by(lanes * P::VALUES).enumerate() {
            let mut block = [P::S::splat(0.0); 16];
            for (j, v) in block.iter_mut().enumerate().take((source.rows - r0).min(lanes)) {
                let row = source.data.add((r0 + j) * source.stride);
                *v = if values + lanes * P::VALUES <= len {
                    P::weights(row, k0 + values)
                } else {
                    P::last_weights(row, k0 + values, k0 + len)
                };
            }
            P::S::transpose(&block, panel.as_mut_ptr().add(i * lanes * lanes));
        }
    }
}

/// Multiplies the panel with all packed tokens.
#[inline(always)]
pub(crate) unsafe fn sweep<P: Product>(
    panel: &[f32],
    packed: &[f32],
    len: usize,
    tokens: usize,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    let padded = len.next_multiple_of(PACK_WORDS);
    assert!(len <= F32_SLICE && panel.len() >= F32_SLICE * P::S::F32_PANEL_VECTORS * P::S::LANES);
    assert!(packed.len() >= tokens * padded);
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, P::S::F32_PANEL_TOKENS);
        // SAFETY: the block of n tokens was packed at t · padded; the panel holds `len` words of K.
        unsafe {
            let (p, x) = (panel.as_ptr(), packed.as_ptr().add(t * padded));
            let at = OutBlock { t0: block.t0 + t, ..block };
            match n {
                1 => rows::<P, 1>(p, x, len, out, at),
                4 => rows::<P, 4>(p, x, len, out, at),
                6 if P::S::F32_PANEL_TOKENS == 6 => rows::<P, 6>(p, x, len, out, at),
                12 if P::S::F32_PANEL_TOKENS == 12 => rows::<P, 12>(p, x, len, out, at),
                24 if P::S::F32_PANEL_TOKENS == 24 => rows::<P, 24>(p, x, len, out, at),
                _ => unreachable!("blocks have 6, 12 or 24 tokens, 4 or 1"),
            }
        }
        t += n;
    }
}

/// Multiplies `T` tokens with all vectors of rows of the panel and writes the products.
#[inline(always)]
unsafe fn rows<P: Product, const T: usize>(
    panel: *const f32,
    x: *const f32,
    len: usize,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    // SAFETY: as for the caller.
    unsafe {
        if P::S::F32_PANEL_VECTORS == 1 || block.cols <= P::S::LANES {
            let [sums] = micro::<P, T, 1>(panel, x, len);
            return put::<P::S, T>(sums, out, block);
        }
        let [first, second] = micro::<P, T, 2>(panel, x, len);
        let lanes = P::S::LANES;
        put::<P::S, T>(first, out, OutBlock { cols: lanes, ..block });
        put::<P::S, T>(
            second,
            out,
            OutBlock { r0: block.r0 + lanes, cols: block.cols - lanes, ..block },
        );
    }
}

/// `T` tokens times `V` vectors of `LANES` rows.
#[inline(always)]
unsafe fn micro<P: Product, const T: usize, const V: usize>(
    panel: *const f32,
    x: *const f32,
    len: usize,
) -> [[<P::S as Simd>::F; T]; V] {
    let lanes = P::S::LANES;
    // SAFETY: the caller's planes have len × LANES words, its tokens len words each, in packs.
    unsafe {
        let mut acc = [[P::S::splat(0.0); T]; V];
        for c in 0..len / PACK_WORDS {
            for j in 0..PACK_WORDS {
                step::<P, T, V>(
                    panel.add((c * PACK_WORDS + j) * lanes),
                    x.add(c * PACK_WORDS * T + j),
                    &mut acc,
                );
            }
        }
        let done = len / PACK_WORDS * PACK_WORDS;
        for j in 0..len % PACK_WORDS {
            step::<P, T, V>(panel.add((done + j) * lanes), x.add(done * T + j), &mut acc);
        }
        acc
    }
}

/// Adds the products of one word of K.
#[inline(always)]
unsafe fn step<P: Product, const T: usize, const V: usize>(
    p: *const f32,
    x: *const f32,
    acc: &mut [[<P::S as Simd>::F; T]; V],
) {
    // SAFETY: as for `micro`.
    unsafe {
        let mut w = [P::S::splat(0.0); V];
        for (v, w) in w.iter_mut().enumerate() {
            *w = P::S::load(p.add(v * F32_SLICE * P::S::LANES));
        }
        for t in 0..T {
            let x = P::S::splat(*x.add(t * PACK_WORDS));
            for (acc, w) in acc.iter_mut().zip(w) {
                acc[t] = P::fma(x, w, acc[t]);
            }
        }
    }
}

/// Writes (or adds) a block of products.
#[inline(always)]
pub(super) unsafe fn put<S: Simd, const T: usize>(
    acc: [S::F; T],
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    for (t, acc) in acc.into_iter().enumerate() {
        let row = &mut out.row(block.t0 + t)[block.r0..block.r0 + block.cols];
        // SAFETY: a full vector is stored only where the row has LANES columns left; features by
        // contract.
        unsafe {
            if block.cols == S::LANES {
                let p = row.as_mut_ptr();
                S::store(p, if block.add { S::add(S::load(p), acc) } else { acc });
            } else {
                let mut padded = [0.0f32; 16];
                S::store(padded.as_mut_ptr(), acc);
                for (to, from) in row.iter_mut().zip(padded) {
                    *to = if block.add { *to + from } else { from };
                }
            }
        }
    }
}
