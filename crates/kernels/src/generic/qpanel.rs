//! Products of packed weights with many activation rows: a panel of unpacked codes in the
//! first-level cache.
//!
//! A panel holds one or two vectors of weight rows over a slice of K, each in a plane: codes as
//! `[k/4][row][4]` (`[k/8][row][8]` for `smmla`), so that one 32-bit lane multiplies four codes of
//! its row, and scales (and minimums) as `[k/SUB][row]`. The activations of the slice are packed as
//! one stream per block of tokens: for each 32 values of K the codes of each token, its scales, and
//! the corrections for offsets or minimums. A micro-kernel sums a block of tokens × all vectors of
//! rows in integers and converts once per scale. A second vector of rows halves the loads that
//! bring activation codes to all lanes. With one product per cycle, as with `vpdpbusd`, these loads
//! limit a kernel of one vector.

use super::QuantSimd;
use super::panel::{Source, fetch_next, put};
use super::qstream::{CHUNK_BYTES, padded};
use super::quant::{CHUNK, Packing, Unpacked};
use super::sweep::{OutBlock, Panel};
use crate::{Acts, OutMut, Q8Rows, Scratch, WeightRows};

/// Values of K in a panel: with 32 rows 16 KiB of codes, half of the smallest first-level cache.
const Q8_SLICE: usize = 512;
/// Tokens that are packed at once, for one slice: up to 352 KiB, read in order.
const TOKENS: usize = 512;

/// Scales in a plane: a chunk's scales are written as 16 lanes, also where only 8 count.
const fn scale_plane(lanes: usize, sub: usize) -> usize {
    (Q8_SLICE / sub + 8) * lanes
}

/// Products of weight rows with all activation rows.
#[inline(always)]
pub(crate) unsafe fn matmul_panel<S: QuantSimd>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
    scratch: &mut Scratch,
    packing: &Packing,
) {
    let x = x.expect_q8(&w, &out);
    if w.k == 0 {
        (0..x.rows).for_each(|t| out.row(t)[..w.rows].fill(0.0));
        return;
    }
    let source = Source { data: w.data.as_ptr(), stride: w.row_bytes(), rows: w.rows, k: w.k };
    let mut buffers = PanelScratch::new::<S>(x.rows, packing.sub, scratch);
    for t0 in (0..x.rows).step_by(TOKENS) {
        let tokens = (x.rows - t0).min(TOKENS);
        for k0 in (0..w.k).step_by(Q8_SLICE) {
            let len = (w.k - k0).min(Q8_SLICE);
            pack::<S>(&x, t0, tokens, k0, len, packing, buffers.packed);
            for r0 in (0..w.rows).step_by(S::PANEL_VECTORS * S::LANES) {
                let block = OutBlock {
                    t0,
                    r0,
                    cols: (w.rows - r0).min(S::PANEL_VECTORS * S::LANES),
                    add: k0 > 0,
                };
                // SAFETY: `expect_q8` checked that all rows exist; the packed tokens were just
                // written.
                unsafe {
                    fetch_next::<S>(
                        source,
                        packing.block,
                        S::PANEL_VECTORS * S::LANES,
                        r0,
                        k0,
                        Q8_SLICE,
                    );
                    for (v, r0) in (r0..r0 + block.cols).step_by(S::LANES).enumerate() {
                        expand::<S>(&w, r0, k0, len, packing, buffers.plane::<S>(v, packing.sub));
                    }
                    sweep::<S>(
                        packing,
                        buffers.panel(len),
                        buffers.packed,
                        tokens,
                        &mut out,
                        block,
                    );
                }
            }
        }
    }
}

/// Buffers of a product in the scratch memory of its thread.
struct PanelScratch<'a> {
    chunks: &'a mut [Unpacked; 16],
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    minimums: &'a mut [f32],
    packed: &'a mut [u8],
}

impl<'a> PanelScratch<'a> {
    #[inline(always)]
    fn new<S: QuantSimd>(tokens: usize, sub: usize, scratch: &'a mut Scratch) -> Self {
        let scales = 4 * S::PANEL_VECTORS * scale_plane(S::LANES, sub);
        let packed = tokens.min(TOKENS) * Q8_SLICE / 32 * record(sub);
        let codes = S::PANEL_VECTORS * Q8_SLICE * S::LANES;
        let chunks = size_of::<[Unpacked; 16]>();
        let all = scratch.bytes(chunks + codes + 2 * scales + packed);
        let (chunks, all) = all.split_at_mut(chunks);
        let chunks = bytemuck::cast_slice_mut(chunks).try_into().expect("sixteen chunks");
        let (codes, all) = all.split_at_mut(codes);
        let (a, all) = all.split_at_mut(scales);
        let (b, packed) = all.split_at_mut(scales);
        Self {
            chunks,
            codes,
            scales: bytemuck::cast_slice_mut(a),
            minimums: bytemuck::cast_slice_mut(b),
            packed,
        }
    }

    /// The plane of vector `v`.
    #[inline(always)]
    fn plane<S: QuantSimd>(&mut self, v: usize, sub: usize) -> Plane<'_> {
        let (codes, scales) = (Q8_SLICE * S::LANES, scale_plane(S::LANES, sub));
        Plane {
            chunks: self.chunks,
            codes: &mut self.codes[v * codes..][..codes],
            scales: &mut self.scales[v * scales..][..scales],
            minimums: &mut self.minimums[v * scales..][..scales],
        }
    }

    #[inline(always)]
    fn panel(&self, len: usize) -> Panel<'_> {
        Panel { codes: self.codes, scales: self.scales, minimums: self.minimums, len }
    }
}

/// Memory for the unpacked weights of one vector of rows.
struct Plane<'a> {
    chunks: &'a mut [Unpacked; 16],
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    minimums: &'a mut [f32],
}

/// Packed bytes of one token for 32 values of K: codes, one scale, one correction for each weight
/// scale.
const fn record(sub: usize) -> usize {
    36 + 4 * (32 / sub)
}

/// Size of the next block of tokens: blocks are as even as `left` allows.
#[inline(always)]
fn block_of(left: usize, block: usize) -> usize {
    left.div_ceil(left.div_ceil(block))
}

/// Packs `len` values from `k0` of `tokens` rows from `t0`, block by block of tokens.
#[inline(always)]
fn pack<S: QuantSimd>(
    x: &Q8Rows<'_>,
    t0: usize,
    tokens: usize,
    k0: usize,
    len: usize,
    packing: &Packing,
    packed: &mut [u8],
) {
    let (sub, kind) = (packing.sub, packing.codes);
    let groups = len / 32;
    let parts = 32 / sub;
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, S::panel_tokens(sub));
        for g in 0..groups {
            let to = &mut packed[(t * groups + g * n) * record(sub)..][..n * record(sub)];
            let (codes, rest) = to.split_at_mut(32 * n);
            let (scales, fixes) = rest.split_at_mut(4 * n);
            for j in 0..n {
                let at = (t0 + t + j) * x.k + k0 + 32 * g;
                let from: &[u8; 32] =
                    bytemuck::cast_slice(&x.codes[at..at + 32]).try_into().expect("32 codes");
                codes[32 * j..][..32].copy_from_slice(from);
                let scale = x.scales[at / 32];
                scales[4 * j..][..4].copy_from_slice(&scale.to_ne_bytes());
                let sums = [i32::from(x.sums[at / 16]), i32::from(x.sums[at / 16 + 1])];
                let sums = if parts == 1 { [sums[0] + sums[1], 0] } else { sums };
                for (i, sum) in sums.into_iter().enumerate().take(parts) {
                    let fix = if kind.minimum() {
                        (-scale * sum as f32).to_ne_bytes()
                    } else {
                        (-kind.offset::<S>() * sum).to_ne_bytes()
                    };
                    fixes[4 * (i * n + j)..][..4].copy_from_slice(&fix);
                }
            }
        }
        t += n;
    }
}

/// Unpacks `len` values from `k0` of `LANES` rows from `r0`; rows past the end are undefined.
#[inline(always)]
unsafe fn expand<S: QuantSimd>(
    w: &WeightRows<'_>,
    r0: usize,
    k0: usize,
    len: usize,
    packing: &Packing,
    plane: Plane<'_>,
) {
    let row_bytes = w.row_bytes();
    let end = w.data.as_ptr_range().end;
    let rows = (w.rows - r0).min(S::LANES);
    let mut copy = [0; CHUNK_BYTES];
    let Plane { chunks, codes: to_codes, scales: to_scales, minimums: to_minimums } = plane;
    // SAFETY: the rows exist, chunks that the data ends in are copied; the buffers are large
    // enough.
    unsafe {
        for c in 0..len.div_ceil(CHUNK) {
            let first = w
                .data
                .as_ptr()
                .add(r0 * row_bytes + (k0 + c * CHUNK) / packing.block.0 * packing.block.1);
            // With short rows, the data may end inside the chunks of several rows.
            let left = end as usize - first as usize;
            let whole =
                left.checked_sub(packing.bytes).map_or(0, |spare| rows.min(spare / row_bytes + 1));
            (packing.unpack)(first, row_bytes, &mut chunks[..whole]);
            for (i, chunk) in chunks.iter_mut().enumerate().take(rows).skip(whole) {
                let p = padded(first.add(i * row_bytes), end, packing.bytes, &mut copy);
                (packing.unpack)(p, 0, std::slice::from_mut(chunk));
            }
            let at = c * CHUNK / packing.sub * S::LANES;
            let mut scales = [S::w_splat(0.0); 16];
            for (scale, chunk) in scales.iter_mut().zip(&*chunks).take(S::LANES) {
                *scale = S::w_new(&chunk.scales);
            }
            S::transpose_scales(&scales, to_scales.as_mut_ptr().add(at));
            if packing.codes.minimum() {
                for (minimum, chunk) in scales.iter_mut().zip(&*chunks).take(S::LANES) {
                    *minimum = S::w_new(&chunk.minimums);
                }
                S::transpose_scales(&scales, to_minimums.as_mut_ptr().add(at));
            }
            let codes = to_codes.as_mut_ptr().add(c * CHUNK * S::LANES);
            // Not unrolled: four transpositions are a lot of code.
            for j in 0..std::hint::black_box(4) {
                let mut group = [S::load64(chunks[0].codes.as_ptr().add(64 * j)); 16];
                for (codes, chunk) in group.iter_mut().zip(&*chunks).take(S::LANES) {
                    *codes = S::load64(chunk.codes.as_ptr().add(64 * j));
                }
                S::transpose_codes(&group, codes.add(64 * j * S::LANES));
            }
        }
    }
}

/// Enters the level's compiled sweep for the format's kind of scales and codes.
#[inline(always)]
unsafe fn sweep<S: QuantSimd>(
    packing: &Packing,
    panel: Panel<'_>,
    packed: &[u8],
    tokens: usize,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    // SAFETY: as for the caller.
    unsafe {
        match (packing.sub, packing.codes.minimum(), packing.codes.code_limit()) {
            (32, false, 15) => S::sweep::<32, false, 15>(panel, packed, tokens, out, block),
            (32, false, 31) => S::sweep::<32, false, 31>(panel, packed, tokens, out, block),
            (32, false, _) => S::sweep::<32, false, 128>(panel, packed, tokens, out, block),
            (32, true, 15) => S::sweep::<32, true, 15>(panel, packed, tokens, out, block),
            (32, true, 31) => S::sweep::<32, true, 31>(panel, packed, tokens, out, block),
            (_, false, 15) => S::sweep::<16, false, 15>(panel, packed, tokens, out, block),
            (_, false, 31 | 63) => S::sweep::<16, false, 63>(panel, packed, tokens, out, block),
            (_, false, _) => S::sweep::<16, false, 128>(panel, packed, tokens, out, block),
            (_, true, 15) => S::sweep::<16, true, 15>(panel, packed, tokens, out, block),
            (_, true, _) => unreachable!("no format has such minimums"),
        }
    }
}

/// Multiplies the panel with all packed tokens. Levels compile it separately, see
/// [`QuantSimd::sweep`].
#[inline(always)]
pub(crate) unsafe fn sweep_body<
    S: QuantSimd,
    // Weights per scale, whether there are minimums, largest code.
    const SUB: usize,
    const MIN: bool,
    const CODE_LIMIT: i32,
>(
    panel: Panel<'_>,
    packed: &[u8],
    tokens: usize,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    let groups = panel.len / 32;
    let scales = S::PANEL_VECTORS * scale_plane(S::LANES, SUB);
    assert!(panel.len <= Q8_SLICE && panel.codes.len() >= S::PANEL_VECTORS * Q8_SLICE * S::LANES);
    assert!(panel.scales.len() >= scales && (!MIN || panel.minimums.len() >= scales));
    assert!(packed.len() >= tokens * groups * record(SUB));
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, S::panel_tokens(SUB));
        let at = OutBlock { t0: block.t0 + t, ..block };
        // SAFETY: the block of n tokens was packed at this place; the panel holds `len` values of
        // K.
        unsafe {
            let x = packed[t * groups * record(SUB)..].as_ptr();
            match n {
                1 => rows::<S, 1, SUB, MIN, CODE_LIMIT>(panel, x, out, at),
                2 => rows::<S, 2, SUB, MIN, CODE_LIMIT>(panel, x, out, at),
                3 => rows::<S, 3, SUB, MIN, CODE_LIMIT>(panel, x, out, at),
                4 => rows::<S, 4, SUB, MIN, CODE_LIMIT>(panel, x, out, at),
                5 if S::panel_tokens(SUB) > 4 => {
                    rows::<S, 5, SUB, MIN, CODE_LIMIT>(panel, x, out, at)
                }
                6 if S::panel_tokens(SUB) > 4 => {
                    rows::<S, 6, SUB, MIN, CODE_LIMIT>(panel, x, out, at)
                }
                _ => unreachable!("blocks have at most as many tokens as registers hold"),
            }
        }
        t += n;
    }
}

/// Multiplies `T` tokens with all vectors of rows of the panel and writes the products.
#[inline(always)]
unsafe fn rows<
    S: QuantSimd,
    // Tokens, weights per scale, whether there are minimums, largest code.
    const T: usize,
    const SUB: usize,
    const MIN: bool,
    const CODE_LIMIT: i32,
>(
    panel: Panel<'_>,
    x: *const u8,
    out: &mut OutMut<'_>,
    block: OutBlock,
) {
    // SAFETY: as for the caller.
    unsafe {
        if S::PANEL_VECTORS == 1 {
            let [sums] = micro::<S, T, 1, SUB, MIN, CODE_LIMIT>(panel, x);
            return put::<S, T>(sums, out, block);
        }
        let [first, second] = micro::<S, T, 2, SUB, MIN, CODE_LIMIT>(panel, x);
        put::<S, T>(first, out, OutBlock { cols: block.cols.min(S::LANES), ..block });
        if block.cols > S::LANES {
            put::<S, T>(
                second,
                out,
                OutBlock { r0: block.r0 + S::LANES, cols: block.cols - S::LANES, ..block },
            );
        }
    }
}

/// `T` tokens times `V` vectors of `LANES` rows.
#[inline(always)]
unsafe fn micro<
    S: QuantSimd,
    // Tokens, vectors of rows, weights per scale, whether there are minimums, largest code.
    const T: usize,
    const V: usize,
    const SUB: usize,
    const MIN: bool,
    const CODE_LIMIT: i32,
>(
    panel: Panel<'_>,
    x: *const u8,
) -> [[S::F; T]; V] {
    let parts = 32 / SUB;
    let plane = scale_plane(S::LANES, SUB);
    // SAFETY: the caller's panel has `len` values of K and the block of tokens as many.
    unsafe {
        let mut sums = [[S::splat(0.0); T]; V];
        for g in 0..panel.len / 32 {
            let record = x.add(g * T * record(SUB));
            let scales = record.add(32 * T).cast::<f32>();
            let fixes = scales.add(T);
            let mut part = [[S::splat(0.0); T]; V];
            for n in 0..parts {
                let mut acc = [[S::i_splat(0); T]; V];
                if !MIN {
                    for t in 0..T {
                        let fix = S::i_splat(*fixes.add(n * T + t).cast::<i32>());
                        acc.iter_mut().for_each(|acc| acc[t] = fix);
                    }
                }
                let codes = panel.codes.as_ptr().add((g * 32 + n * SUB) * S::LANES);
                let codes = std::array::from_fn(|v| codes.add(v * Q8_SLICE * S::LANES));
                S::panel_dot::<T, V>(&mut acc, codes, record.add(n * SUB), SUB, CODE_LIMIT);
                let lane = (g * parts + n) * S::LANES;
                for v in 0..V {
                    let scale = S::load(panel.scales.as_ptr().add(v * plane + lane));
                    for (part, &acc) in part[v].iter_mut().zip(&acc[v]) {
                        let sum = S::i_to_f32(acc);
                        *part = if n == 0 { S::mul(sum, scale) } else { S::fma(sum, scale, *part) };
                    }
                    if MIN {
                        let minimum = S::load(panel.minimums.as_ptr().add(v * plane + lane));
                        for (t, sum) in sums[v].iter_mut().enumerate() {
                            *sum = S::fma(S::splat(*fixes.add(n * T + t)), minimum, *sum);
                        }
                    }
                }
            }
            for (sums, part) in sums.iter_mut().zip(part) {
                for (t, (sum, part)) in sums.iter_mut().zip(part).enumerate() {
                    *sum = S::fma(part, S::splat(*scales.add(t)), *sum);
                }
            }
        }
        sums
    }
}
