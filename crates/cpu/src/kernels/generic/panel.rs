//! Products with many activation rows in f32: weights are expanded into a panel in the first-level cache.
//!
//! A panel holds `LANES` weight rows over a slice of K, transposed (`[k][row]`, f32); the activations of the slice are
//! packed so that a block of tokens is one stream (`[token block][k/16][token][16]`), which avoids the conflicts that
//! rows a power of two apart cause in a cache. A micro-kernel keeps a block of tokens × one vector of rows in registers.

use super::Simd;
use super::rows::RowFormat;
use crate::kernels::OutMut;

/// Values of K in a panel: 16 rows of it are half of a 32 KiB cache.
const SLICE: usize = 256;
/// Tokens whose slice of activations is packed at once: 240 KiB.
const TOKENS: usize = 240;
/// Consecutive values of one token in packed activations.
const RUN: usize = 16;

/// Rows to expand: row r starts `r · stride` bytes after `data`.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) data: *const u8,
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) k: usize,
}

/// f32 that [`multiply`] needs as room for `m` rows of activations.
#[inline(always)]
pub(crate) fn room<S: Simd>(m: usize) -> usize {
    SLICE * S::LANES + m.min(TOKENS) * SLICE
}

/// `out[t][r] = Σ_k source[r][k] · x[t · k + k]` for `m` rows of `x`.
///
/// # Safety
/// The source's rows exist in format `R`, `x` has `m · k` values, `room` the length that [`room`] says, `out` at least `m` rows of `source.rows` columns;
/// the processor has the features of `S`.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, R: RowFormat>(
    source: Source,
    x: &[f32],
    m: usize,
    mut out: OutMut<'_>,
    room: &mut [f32],
) {
    let Source { rows, k, .. } = source;
    if k == 0 {
        (0..m).for_each(|t| out.row(t)[..rows].fill(0.0));
        return;
    }
    let (panel, packed) = room.split_at_mut(SLICE * S::LANES);
    for t0 in (0..m).step_by(TOKENS) {
        let tokens = (m - t0).min(TOKENS);
        for k0 in (0..k).step_by(SLICE) {
            let len = (k - k0).min(SLICE);
            pack(&x[t0 * k..], k, k0, len, tokens, S::PANEL_TOKENS, packed);
            for r0 in (0..rows).step_by(S::LANES) {
                // SAFETY: rows r0… exist and the slice lies inside them; the packed tokens were just written.
                unsafe {
                    fetch_next::<S>(source, (R::BLOCK, R::BYTES), S::LANES, r0, k0, SLICE);
                    expand::<S, R>(source, r0, k0, len, panel);
                    let place = Place { t0, r0, cols: (rows - r0).min(S::LANES), add: k0 > 0 };
                    S::sweep_f32(panel, packed, len, tokens, &mut out, place);
                }
            }
        }
    }
}

/// Packs `len` values from `k0` of `tokens` rows: blocks of `block` tokens (then 4, then 1).
#[inline(always)]
fn pack(x: &[f32], k: usize, k0: usize, len: usize, tokens: usize, block: usize, packed: &mut [f32]) {
    let padded = len.next_multiple_of(RUN);
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, block);
        for j in 0..n {
            let row = &x[(t + j) * k + k0..][..len];
            let to = &mut packed[t * padded..][..n * padded];
            // Of a length that is known: copies without calls.
            let (whole, rest) = row.as_chunks::<RUN>();
            for (to, run) in to.chunks_exact_mut(RUN).skip(j).step_by(n).zip(whole) {
                to.copy_from_slice(run);
            }
            if !rest.is_empty() {
                to[(whole.len() * n + j) * RUN..][..rest.len()].copy_from_slice(rest);
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

/// Asks for the weights of the panel after the one at (`r0`, `k0`): the next rows, the next slice of K, or what follows
/// these rows in memory, which the next call is likely to get. `block` is values and bytes of a block.
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

/// Expands `len` values from `k0` of `LANES` rows from `r0` into `panel[k][row]`; rows past the end become zero.
#[inline(always)]
unsafe fn expand<S: Simd, R: RowFormat>(source: Source, r0: usize, k0: usize, len: usize, panel: &mut [f32]) {
    // SAFETY: row pointers are clamped to rows that exist; `panel` has room for SLICE × LANES values.
    unsafe {
        for i in (0..len).step_by(S::LANES) {
            let mut block = [S::splat(0.0); 16];
            for (j, v) in block.iter_mut().enumerate().take((source.rows - r0).min(S::LANES)) {
                let row = source.data.add((r0 + j) * source.stride);
                *v = if i + S::LANES <= len {
                    R::load::<S>(row, k0 + i)
                } else {
                    R::tail::<S>(row, k0 + i, k0 + len)
                };
            }
            S::transpose(&block, panel.as_mut_ptr().add(i * S::LANES));
        }
    }
}

/// Where the products of a panel go.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// First token.
    pub(crate) t0: usize,
    /// First weight row.
    pub(crate) r0: usize,
    /// Weight rows, at most those of the panel.
    pub(crate) cols: usize,
    /// Whether to add to what is there.
    pub(crate) add: bool,
}

/// Multiplies the panel with all packed tokens.
#[inline(always)]
pub(crate) unsafe fn sweep<S: Simd>(
    panel: &[f32],
    packed: &[f32],
    len: usize,
    tokens: usize,
    out: &mut OutMut<'_>,
    place: Place,
) {
    let padded = len.next_multiple_of(RUN);
    assert!(panel.len() >= len * S::LANES && packed.len() >= tokens * padded);
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, S::PANEL_TOKENS);
        // SAFETY: the block of n tokens was packed at t · padded; the panel holds `len` values of K.
        unsafe {
            let (p, x) = (panel.as_ptr(), packed.as_ptr().add(t * padded));
            let at = Place { t0: place.t0 + t, ..place };
            match n {
                1 => put::<S, 1>(micro::<S, 1>(p, x, len), out, at),
                4 => put::<S, 4>(micro::<S, 4>(p, x, len), out, at),
                12 => put::<S, 12>(micro::<S, 12>(p, x, len), out, at),
                _ => put::<S, 24>(micro::<S, 24>(p, x, len), out, at),
            }
        }
        t += n;
    }
}

/// `T` tokens times `LANES` rows.
#[inline(always)]
unsafe fn micro<S: Simd, const T: usize>(panel: *const f32, x: *const f32, len: usize) -> [S::F; T] {
    // SAFETY: the caller's panel has len × LANES values, its tokens len values each, in runs.
    unsafe {
        let mut acc = [S::splat(0.0); T];
        for c in 0..len / RUN {
            let (p, x) = (panel.add(c * RUN * S::LANES), x.add(c * RUN * T));
            for j in 0..RUN {
                step::<S, T>(p, x, j, &mut acc);
            }
        }
        let done = len / RUN;
        for j in 0..len % RUN {
            step::<S, T>(panel.add(done * RUN * S::LANES), x.add(done * RUN * T), j, &mut acc);
        }
        acc
    }
}

#[inline(always)]
unsafe fn step<S: Simd, const T: usize>(p: *const f32, x: *const f32, j: usize, acc: &mut [S::F; T]) {
    // SAFETY: as for `micro`.
    unsafe {
        let w = S::load(p.add(j * S::LANES));
        for (t, acc) in acc.iter_mut().enumerate() {
            *acc = S::fma(S::splat(*x.add(t * RUN + j)), w, *acc);
        }
    }
}

/// Writes (or adds) a block of products.
#[inline(always)]
pub(super) unsafe fn put<S: Simd, const T: usize>(acc: [S::F; T], out: &mut OutMut<'_>, place: Place) {
    for (t, acc) in acc.into_iter().enumerate() {
        let row = &mut out.row(place.t0 + t)[place.r0..place.r0 + place.cols];
        // SAFETY: a full vector is stored only where the row has LANES columns left; features by contract.
        unsafe {
            if place.cols == S::LANES {
                let p = row.as_mut_ptr();
                S::store(p, if place.add { S::add(S::load(p), acc) } else { acc });
            } else {
                let mut padded = [0.0f32; 16];
                S::store(padded.as_mut_ptr(), acc);
                for (to, from) in row.iter_mut().zip(padded) {
                    *to = if place.add { *to + from } else { from };
                }
            }
        }
    }
}
