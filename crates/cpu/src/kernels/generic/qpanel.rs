//! Products of packed weights with many activation rows: a panel of unpacked codes in the first-level cache.
//!
//! A panel holds `LANES` weight rows over a slice of K: codes as `[k/4][row][4]`, so that one 32-bit lane multiplies
//! four codes of its row, and scales (and minimums) as `[k/SUB][row]`. The activations of the slice are packed as one
//! stream a block of tokens: for each 32 values of K the codes of each token, its scales, and what corrects for offsets
//! or minimums. A micro-kernel sums a block of tokens × one vector of rows in integers and converts once a scale.

use super::Quant;
use super::panel::{Place, Source, fetch_next, put};
use super::qstream::{CHUNK_BYTES, padded};
use super::quant::{CHUNK, Packing, Unpacked};
use crate::kernels::{Acts, OutMut, Q8Rows, Scratch, WeightRows};

/// Values of K in a panel: with 16 rows 8 KiB of codes, a quarter of the smallest first-level cache.
const SLICE: usize = 512;
/// Tokens whose slice of activations is packed at once: up to 216 KiB.
const TOKENS: usize = 384;

/// Unpacked weights of `LANES` rows.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f32],
    pub(crate) minimums: &'a [f32],
    /// Values of K: a multiple of 32.
    pub(crate) len: usize,
}

/// Products of weight rows with all activation rows.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Quant>(
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
    let mut room = Room::new::<S>(x.rows, packing.sub, scratch);
    for t0 in (0..x.rows).step_by(TOKENS) {
        let tokens = (x.rows - t0).min(TOKENS);
        for k0 in (0..w.k).step_by(SLICE) {
            let len = (w.k - k0).min(SLICE);
            pack::<S>(&x, t0, tokens, k0, len, packing, room.packed);
            for r0 in (0..w.rows).step_by(S::LANES) {
                let place = Place { t0, r0, cols: (w.rows - r0).min(S::LANES), add: k0 > 0 };
                // SAFETY: `expect_q8` checked that all rows exist; the packed tokens were just written.
                unsafe {
                    fetch_next::<S>(source, packing.block, r0, k0, SLICE);
                    expand::<S>(&w, r0, k0, len, packing, &mut room);
                    sweep::<S>(packing, room.panel(len), room.packed, tokens, &mut out, place);
                }
            }
        }
    }
}

/// Scratch memory, divided.
struct Room<'a> {
    chunks: &'a mut [Unpacked; 16],
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    minimums: &'a mut [f32],
    packed: &'a mut [u8],
}

impl<'a> Room<'a> {
    #[inline(always)]
    fn new<S: Quant>(tokens: usize, sub: usize, scratch: &'a mut Scratch) -> Self {
        // A chunk's scales are written as 16 lanes, also where only 8 count.
        let scales = (SLICE / sub + 8) * S::LANES * 4;
        let packed = tokens.min(TOKENS) * SLICE / 32 * record(sub);
        let codes = SLICE * S::LANES;
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

    #[inline(always)]
    fn panel(&self, len: usize) -> Panel<'_> {
        Panel { codes: self.codes, scales: self.scales, minimums: self.minimums, len }
    }
}

/// Packed bytes of one token for 32 values of K: codes, one scale, one correction for each weight scale.
const fn record(sub: usize) -> usize {
    36 + 4 * (32 / sub)
}

/// Size of the next block of tokens.
#[inline(always)]
fn block_of(left: usize, block: usize) -> usize {
    if left >= block {
        block
    } else if left >= 8 {
        8
    } else if left >= 4 {
        4
    } else if left >= 2 {
        2
    } else {
        1
    }
}

/// Packs `len` values from `k0` of `tokens` rows from `t0`, block by block of tokens.
#[inline(always)]
fn pack<S: Quant>(
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
        let n = block_of(tokens - t, S::TOKENS);
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

/// Unpacks `len` values from `k0` of `LANES` rows from `r0`; rows past the end hold anything.
#[inline(always)]
unsafe fn expand<S: Quant>(
    w: &WeightRows<'_>,
    r0: usize,
    k0: usize,
    len: usize,
    packing: &Packing,
    room: &mut Room<'_>,
) {
    let row_bytes = w.row_bytes();
    let end = w.data.as_ptr_range().end;
    let rows = (w.rows - r0).min(S::LANES);
    let mut copy = [0; CHUNK_BYTES];
    let chunks: &mut [Unpacked; 16] = room.chunks;
    // SAFETY: the rows exist, chunks that the data ends in are copied; the room is large enough.
    unsafe {
        for c in 0..len.div_ceil(CHUNK) {
            for (i, chunk) in chunks.iter_mut().enumerate().take(rows) {
                let row = w.data.as_ptr().add((r0 + i) * row_bytes);
                let p = row.add((k0 + c * CHUNK) / packing.block.0 * packing.block.1);
                (packing.unpack)(padded(p, end, packing.bytes, &mut copy), chunk);
            }
            let at = c * CHUNK / packing.sub * S::LANES;
            let mut scales = [S::w_splat(0.0); 16];
            for (scale, chunk) in scales.iter_mut().zip(&*chunks).take(S::LANES) {
                *scale = S::w_new(&chunk.scales);
            }
            S::transpose_scales(&scales, room.scales.as_mut_ptr().add(at));
            if packing.codes.minimum() {
                for (minimum, chunk) in scales.iter_mut().zip(&*chunks).take(S::LANES) {
                    *minimum = S::w_new(&chunk.minimums);
                }
                S::transpose_scales(&scales, room.minimums.as_mut_ptr().add(at));
            }
            let codes = room.codes.as_mut_ptr().add(c * CHUNK * S::LANES);
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
unsafe fn sweep<S: Quant>(
    packing: &Packing,
    panel: Panel<'_>,
    packed: &[u8],
    tokens: usize,
    out: &mut OutMut<'_>,
    place: Place,
) {
    // SAFETY: as for the caller.
    unsafe {
        match (packing.sub, packing.codes.minimum(), packing.codes.top()) {
            (32, false, 15) => S::sweep::<32, false, 15>(panel, packed, tokens, out, place),
            (32, false, 31) => S::sweep::<32, false, 31>(panel, packed, tokens, out, place),
            (32, false, _) => S::sweep::<32, false, 128>(panel, packed, tokens, out, place),
            (32, true, 15) => S::sweep::<32, true, 15>(panel, packed, tokens, out, place),
            (32, true, _) => S::sweep::<32, true, 31>(panel, packed, tokens, out, place),
            (_, false, 15) => S::sweep::<16, false, 15>(panel, packed, tokens, out, place),
            (_, false, 63) => S::sweep::<16, false, 63>(panel, packed, tokens, out, place),
            (_, false, _) => S::sweep::<16, false, 128>(panel, packed, tokens, out, place),
            (_, true, _) => S::sweep::<16, true, 15>(panel, packed, tokens, out, place),
        }
    }
}

/// Multiplies the panel with all packed tokens. Levels compile this apart, see [`Quant::sweep`].
#[inline(always)]
pub(crate) unsafe fn sweep_body<S: Quant, const SUB: usize, const MIN: bool, const TOP: i32>(
    panel: Panel<'_>,
    packed: &[u8],
    tokens: usize,
    out: &mut OutMut<'_>,
    place: Place,
) {
    let groups = panel.len / 32;
    let scales = panel.len / SUB * S::LANES;
    assert!(panel.codes.len() >= panel.len * S::LANES && panel.scales.len() >= scales);
    assert!(!MIN || panel.minimums.len() >= scales);
    assert!(packed.len() >= tokens * groups * record(SUB));
    let mut t = 0;
    while t < tokens {
        let n = block_of(tokens - t, S::TOKENS);
        let at = Place { t0: place.t0 + t, ..place };
        // SAFETY: the block of n tokens was packed at this place; the panel holds `len` values of K.
        unsafe {
            let x = packed[t * groups * record(SUB)..].as_ptr();
            match n {
                1 => put::<S, 1>(micro::<S, 1, SUB, MIN, TOP>(panel, x), out, at),
                2 => put::<S, 2>(micro::<S, 2, SUB, MIN, TOP>(panel, x), out, at),
                4 => put::<S, 4>(micro::<S, 4, SUB, MIN, TOP>(panel, x), out, at),
                8 if S::TOKENS >= 8 => put::<S, 8>(micro::<S, 8, SUB, MIN, TOP>(panel, x), out, at),
                _ if S::TOKENS >= 12 => put::<S, 12>(micro::<S, 12, SUB, MIN, TOP>(panel, x), out, at),
                _ => unreachable!("blocks have at most as many tokens as registers hold"),
            }
        }
        t += n;
    }
}

/// `T` tokens times `LANES` rows.
#[inline(always)]
unsafe fn micro<S: Quant, const T: usize, const SUB: usize, const MIN: bool, const TOP: i32>(
    panel: Panel<'_>,
    x: *const u8,
) -> [S::F; T] {
    let parts = 32 / SUB;
    // SAFETY: the caller's panel has `len` values of K and the block of tokens as many.
    unsafe {
        let mut sums = [S::splat(0.0); T];
        for g in 0..panel.len / 32 {
            let record = x.add(g * T * record(SUB));
            let scales = record.add(32 * T).cast::<f32>();
            let fixes = scales.add(T);
            let mut part = [S::splat(0.0); T];
            for n in 0..parts {
                let mut acc = [S::i_splat(0); T];
                if !MIN {
                    for (t, acc) in acc.iter_mut().enumerate() {
                        *acc = S::i_splat(*fixes.add(n * T + t).cast::<i32>());
                    }
                }
                let codes = panel.codes.as_ptr().add((g * 32 + n * SUB) * S::LANES);
                S::panel_dot::<T>(&mut acc, codes, record.add(n * SUB), SUB, TOP);
                let lane = (g * parts + n) * S::LANES;
                let scale = S::load(panel.scales.as_ptr().add(lane));
                for t in 0..T {
                    let v = S::i_to_f32(acc[t]);
                    part[t] = if n == 0 { S::mul(v, scale) } else { S::fma(v, scale, part[t]) };
                }
                if MIN {
                    let minimum = S::load(panel.minimums.as_ptr().add(lane));
                    for (t, sum) in sums.iter_mut().enumerate() {
                        *sum = S::fma(S::splat(*fixes.add(n * T + t)), minimum, *sum);
                    }
                }
            }
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(part[t], S::splat(*scales.add(t)), *sum);
            }
        }
        sums
    }
}
