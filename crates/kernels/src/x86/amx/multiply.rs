//! Blocking of AMX products: the order of expanding, and the cache that holds each operand.
//!
//! *Many tokens*: activations of one slice of K and up to 1024 tokens (512 KiB) stay in the
//! second-level cache while weight rows pass: 64 rows of the slice are expanded into a panel (32
//! KiB, first-level cache) and multiplied with all of these tokens, 2 × 2 tiles at a time, two
//! blocks of rows for each 32 tokens so that these come from the first level the second time. Sums
//! (up to 1 MiB) wait in memory from one slice to the next.
//!
//! *Few tokens* (up to 32): sums stay in tiles over all of K while 32 rows are expanded slice by
//! slice.
//!
//! Both add in the same order, so that a product does not depend on the other rows of the step.

use std::arch::x86_64::*;

use super::expand::{Expander, Strip, TILE};
use super::interleave::{interleave, interleave_q8};
use super::unit::Unit;
use crate::x86::avx512::transpose16;
use crate::{AMX_SLICE, Acts, OutMut, Scratch, TILE_K, TILE_ROWS, TileRows, WeightRows, slice_len};

/// Weight rows of a panel.
pub(super) const PANEL_ROWS: usize = 64;
/// Bytes of a panel; with two parts it has half as many rows.
const PANEL: usize = PANEL_ROWS * AMX_SLICE * 2;
/// Bytes of 16 rows of a panel.
const STRIP: usize = TILE_ROWS * AMX_SLICE * 2;
/// Tiles of tokens that see a panel before the next rows are expanded.
const TOKEN_TILES: usize = 64;
/// Tiles of sums that wait for the next slice.
const SUM_TILES: usize = 1024;
/// Bytes of activations that are interleaved at once, where a call has to do that itself.
const OWN_TILES: usize = 2 << 20;
/// Rows that one block of tiles takes; also all rows that are expanded at once for few tokens.
const BLOCK_ROWS: usize = 2 * TILE_ROWS;

/// Products of weight rows with all activation rows.
///
/// # Safety
/// The expander is that of the weights' format; the processor has the features of the level and of
/// `U`.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c"
)]
pub(super) unsafe fn run<U: Unit>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
    scratch: &mut Scratch,
    expander: &Expander,
) {
    let tokens = x.rows();
    assert_eq!(x.k(), w.k);
    w.check(tokens, &out);
    if w.k == 0 || w.rows == 0 {
        (0..tokens).for_each(|t| out.row(t)[..w.rows].fill(0.0));
        return;
    }
    // SAFETY: the caller's; rows were checked.
    unsafe {
        if let Acts::Tiles(x) = x {
            x.check();
            assert!(x.parts >= expander.parts);
            let room = scratch.bytes(PANEL + sums(tokens));
            return Product { w, x, expander, first: 0 }.run::<U>(&mut out, room);
        }
        let each = OWN_TILES / (2 * expander.parts * w.k.next_multiple_of(TILE_K));
        let each = (each / BLOCK_ROWS * BLOCK_ROWS).max(BLOCK_ROWS);
        let values = expander.parts * TileRows::part(each.min(tokens), w.k);
        let (own, room) =
            scratch.bytes(2 * values + PANEL + sums(each.min(tokens))).split_at_mut(2 * values);
        let own: &mut [u16] = bytemuck::cast_slice_mut(own);
        for first in (0..tokens).step_by(each) {
            let rows = (tokens - first).min(each);
            tile(&x, first, rows, expander.parts, own);
            let x = TileRows { rows, k: w.k, parts: expander.parts, data: own };
            Product { w, x, expander, first }.run::<U>(&mut out, room);
        }
    }
}

/// Bytes of sums that wait, with this many tokens.
fn sums(tokens: usize) -> usize {
    let tiles = tokens.div_ceil(TILE_ROWS).min(TOKEN_TILES);
    TILE * if tiles <= 2 { 4 } else { tiles * strips_at_once(tiles) }
}

/// Tiles of rows with sums that wait for the next slice.
fn strips_at_once(token_tiles: usize) -> usize {
    let panel = PANEL_ROWS / TILE_ROWS;
    (SUM_TILES / token_tiles / panel * panel).max(panel)
}

/// Rounds `rows` rows from `first` on to tiles.
fn tile(x: &Acts<'_>, first: usize, rows: usize, parts: usize, to: &mut [u16]) {
    let k = x.k();
    let (high, low) = to.split_at_mut(TileRows::part(rows, k));
    for slice in 0..k.div_ceil(AMX_SLICE) {
        let len = slice_len(k, slice);
        for tile in 0..rows.div_ceil(TILE_ROWS) {
            let t = first + tile * TILE_ROWS;
            let count = (first + rows - t).min(TILE_ROWS);
            let piece = TileRows::piece(rows, k, tile, slice);
            let high = &mut high[piece.clone()];
            let low = if parts > 1 { &mut low[piece] } else { &mut [] };
            match x {
                Acts::F32 { x, .. } => {
                    let x = &x[t * k + slice * AMX_SLICE..][..(count - 1) * k + len];
                    interleave(x, k, count, len, high, low);
                }
                Acts::Q8(x) => interleave_q8(x, (t, slice * AMX_SLICE), count, len, high, low),
                Acts::Tiles(_) => unreachable!("they are tiles already"),
            }
        }
    }
}

/// One product with activations in tiles; row 0 is token `first`.
struct Product<'a> {
    w: WeightRows<'a>,
    x: TileRows<'a>,
    expander: &'a Expander,
    first: usize,
}

/// Tiles of weights in memory.
#[derive(Clone, Copy)]
struct Weights {
    p: *const u8,
    /// Bytes from one row to the next, from one tile of K to the next, from 16 rows to the next 16,
    /// and from the first part to the second.
    row: usize,
    step: usize,
    strip: usize,
    low: usize,
}

/// Tiles of activations in memory, for one slice.
#[derive(Clone, Copy)]
struct Activations {
    p: *const u8,
    /// Bytes from 16 tokens to the next 16, and from the first part to the second.
    tile: usize,
    low: usize,
    /// Tiles of K.
    steps: usize,
}

// Methods are inlined into `run`, which carries the features.
// SAFETY of the blocks below: `run` checked all lengths; features by its contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Product<'_> {
    #[inline(always)]
    unsafe fn run<U: Unit>(&self, out: &mut OutMut<'_>, room: &mut [u8]) {
        if self.x.rows == 0 {
            return;
        }
        unsafe {
            let mut unit = U::configure();
            match (self.expander.parts, self.x.rows.div_ceil(TILE_ROWS)) {
                (1, 1) => self.few::<U, 1, 1>(&mut unit, out, room),
                (1, 2) => self.few::<U, 1, 2>(&mut unit, out, room),
                (1, _) => self.many::<U, 1>(&mut unit, out, room),
                (_, 1) => self.few::<U, 2, 1>(&mut unit, out, room),
                (_, 2) => self.few::<U, 2, 2>(&mut unit, out, room),
                (_, _) => self.many::<U, 2>(&mut unit, out, room),
            }
        }
    }

    /// Up to 32 tokens.
    #[inline(always)]
    unsafe fn few<U: Unit, const PARTS: usize, const T: usize>(
        &self,
        unit: &mut U,
        out: &mut OutMut<'_>,
        room: &mut [u8],
    ) {
        let (panel, sums) = room.split_at_mut(PANEL);
        let sums = sums.as_mut_ptr();
        for r0 in (0..self.w.rows).step_by(BLOCK_ROWS) {
            let strips = (self.w.rows - r0).min(BLOCK_ROWS).div_ceil(TILE_ROWS);
            unsafe {
                if strips == 1 {
                    self.whole::<U, PARTS, 1, T>(unit, r0, panel);
                    end::<U, 1, T>(unit, sums, 2 * TILE);
                } else {
                    self.whole::<U, PARTS, 2, T>(unit, r0, panel);
                    end::<U, 2, T>(unit, sums, 2 * TILE);
                }
                for strip in 0..strips {
                    for tile in 0..T {
                        self.put(
                            out,
                            sums.add((2 * strip + tile) * TILE),
                            r0 + strip * TILE_ROWS,
                            tile,
                        );
                    }
                }
            }
        }
    }

    /// `R` tiles of rows times `T` of tokens over all of K.
    #[inline(always)]
    unsafe fn whole<U: Unit, const PARTS: usize, const R: usize, const T: usize>(
        &self,
        unit: &mut U,
        r0: usize,
        panel: &mut [u8],
    ) {
        unsafe {
            begin::<U, R, T>(unit, None, 0);
            let slices = self.w.k.div_ceil(AMX_SLICE);
            for slice in 0..slices {
                let next = if slice + 1 < slices { (r0, slice + 1) } else { (r0 + BLOCK_ROWS, 0) };
                self.fetch::<{ _MM_HINT_T0 }>(next.0, BLOCK_ROWS, next.1);
                let x = self.slice(0, slice);
                let rows = (self.w.rows - r0).min(BLOCK_ROWS);
                let weights = if self.expander.direct
                    && rows == R * TILE_ROWS
                    && slice_len(self.w.k, slice).is_multiple_of(TILE_K)
                {
                    let row = self.w.row_bytes();
                    let p = self.w.data.as_ptr().add(r0 * row + 2 * slice * AMX_SLICE);
                    Weights { p, row, step: 64, strip: TILE_ROWS * row, low: 0 }
                } else {
                    self.expand(r0, rows, slice, panel)
                };
                accumulate::<U, PARTS, R, T>(unit, weights, x);
            }
        }
    }

    /// More tokens.
    #[inline(always)]
    unsafe fn many<U: Unit, const PARTS: usize>(
        &self,
        unit: &mut U,
        out: &mut OutMut<'_>,
        room: &mut [u8],
    ) {
        let (panel, sums) = room.split_at_mut(PANEL);
        let token_tiles = self.x.rows.div_ceil(TILE_ROWS);
        for t0 in (0..token_tiles).step_by(TOKEN_TILES) {
            let tiles = (token_tiles - t0).min(TOKEN_TILES);
            let rows = strips_at_once(tiles) * TILE_ROWS;
            assert!(sums.len() >= strips_at_once(tiles) * tiles * TILE);
            for r0 in (0..self.w.rows).step_by(rows) {
                let end = (r0 + rows).min(self.w.rows);
                for slice in 0..self.w.k.div_ceil(AMX_SLICE) {
                    unsafe {
                        self.sweep::<U, PARTS>(unit, out, (t0, tiles), r0..end, slice, panel, sums)
                    }
                }
            }
        }
    }

    /// Some rows times some tiles of tokens over one slice.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // a loop body of `many`
    unsafe fn sweep<U: Unit, const PARTS: usize>(
        &self,
        unit: &mut U,
        out: &mut OutMut<'_>,
        (t0, tiles): (usize, usize),
        rows: std::ops::Range<usize>,
        slice: usize,
        panel: &mut [u8],
        sums: &mut [u8],
    ) {
        let each = PANEL_ROWS / PARTS;
        let last = slice + 1 == self.w.k.div_ceil(AMX_SLICE);
        for r0 in rows.clone().step_by(each) {
            unsafe {
                let next = if r0 + each < rows.end {
                    (r0 + each, slice)
                } else if last {
                    (rows.end, 0)
                } else {
                    (rows.start, slice + 1)
                };
                self.fetch::<{ _MM_HINT_T1 }>(next.0, each, next.1);
                let count = (rows.end - r0).min(each);
                let weights = self.expand(r0, count, slice, panel);
                let strips = count.div_ceil(TILE_ROWS);
                for t in (0..tiles).step_by(2) {
                    let x = self.slice(t0 + t, slice);
                    for s in (0..strips).step_by(2) {
                        let weights = Weights { p: weights.p.add(s * weights.strip), ..weights };
                        let strip = (r0 - rows.start) / TILE_ROWS + s;
                        let sums = sums.as_mut_ptr().add((strip * tiles + t) * TILE);
                        let from = (slice > 0).then_some(sums.cast_const());
                        let (r, n) = ((strips - s).min(2), (tiles - t).min(2));
                        let stride = tiles * TILE;
                        match (r, n) {
                            (2, 2) => block::<U, PARTS, 2, 2>(unit, weights, x, from, sums, stride),
                            (2, _) => block::<U, PARTS, 2, 1>(unit, weights, x, from, sums, stride),
                            (_, 2) => block::<U, PARTS, 1, 2>(unit, weights, x, from, sums, stride),
                            (_, _) => block::<U, PARTS, 1, 1>(unit, weights, x, from, sums, stride),
                        }
                        if last {
                            for i in 0..r * n {
                                let (i, j) = (i / n, i % n);
                                let row = r0 + (s + i) * TILE_ROWS;
                                self.put(out, sums.add(i * stride + j * TILE), row, t0 + t + j);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Expands rows of a slice into the panel.
    #[inline(always)]
    unsafe fn expand(&self, r0: usize, rows: usize, slice: usize, panel: &mut [u8]) -> Weights {
        let (stride, end) = (self.w.row_bytes(), self.w.data.as_ptr_range().end);
        let low = PANEL / 2;
        assert!(panel.len() >= PANEL && rows * self.expander.parts <= PANEL_ROWS);
        for strip in 0..rows.div_ceil(TILE_ROWS) {
            let row = r0 + strip * TILE_ROWS;
            unsafe {
                let data = self.w.data.as_ptr().add(row * stride + self.bytes(slice));
                let (rows, len) = ((r0 + rows - row).min(TILE_ROWS), slice_len(self.w.k, slice));
                let strip_of = Strip { data, stride, rows, len, end, low };
                (self.expander.strip)(&strip_of, panel.as_mut_ptr().add(strip * STRIP));
            }
        }
        Weights { p: panel.as_ptr(), row: 64, step: TILE, strip: STRIP, low }
    }

    /// Start of a slice in a row.
    #[inline(always)]
    fn bytes(&self, slice: usize) -> usize {
        slice * AMX_SLICE / self.expander.block.0 * self.expander.block.1
    }

    /// Asks for a slice of rows that will be expanded next; they need not exist.
    #[inline(always)]
    unsafe fn fetch<const HINT: i32>(&self, r0: usize, rows: usize, slice: usize) {
        let stride = self.w.row_bytes();
        let (from, to) = (self.bytes(slice), stride.min(self.bytes(slice + 1)));
        for row in r0..(r0 + rows).min(self.w.rows) {
            for line in (from..to + 63).step_by(64) {
                let p = self.w.data.as_ptr().wrapping_add(row * stride + line);
                unsafe { _mm_prefetch::<HINT>(p.cast()) }
            }
        }
    }

    /// The activations of a slice from a tile of tokens on.
    #[inline(always)]
    unsafe fn slice(&self, tile: usize, slice: usize) -> Activations {
        let TileRows { rows, k, data, .. } = self.x;
        let piece = TileRows::piece(rows, k, tile, slice);
        let steps = slice_len(k, slice).div_ceil(TILE_K);
        let p = data[piece.start..].as_ptr().cast();
        Activations { p, tile: steps * TILE, low: 2 * TileRows::part(rows, k), steps }
    }

    /// Writes a tile of sums (16 rows × 16 tokens) to its place.
    #[inline(always)]
    unsafe fn put(&self, out: &mut OutMut<'_>, sums: *const u8, row: usize, tile: usize) {
        let rows = (self.w.rows - row).min(TILE_ROWS);
        let tokens = (self.x.rows - tile * TILE_ROWS).min(TILE_ROWS);
        let mask = ((1u32 << rows) - 1) as u16;
        unsafe {
            let lines =
                transpose16(std::array::from_fn(|i| _mm512_loadu_si512(sums.add(64 * i).cast())));
            for (t, line) in lines.into_iter().enumerate().take(tokens) {
                let to = &mut out.row(self.first + tile * TILE_ROWS + t)[row..row + rows];
                _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, _mm512_castsi512_ps(line));
            }
        }
    }
}

/// Sums of one block over one slice, from memory (or zero) to memory.
#[inline(always)]
unsafe fn block<U: Unit, const PARTS: usize, const R: usize, const T: usize>(
    unit: &mut U,
    w: Weights,
    x: Activations,
    from: Option<*const u8>,
    sums: *mut u8,
    stride: usize,
) {
    // SAFETY: the caller's tiles.
    unsafe {
        begin::<U, R, T>(unit, from, stride);
        accumulate::<U, PARTS, R, T>(unit, w, x);
        end::<U, R, T>(unit, sums, stride);
    }
}

/// Loads or clears sums: tiles 0 and 1 hold the first 16 rows, 2 and 3 the next 16; `stride` bytes
/// lie between them in memory.
#[inline(always)]
unsafe fn begin<U: Unit, const R: usize, const T: usize>(
    unit: &mut U,
    from: Option<*const u8>,
    stride: usize,
) {
    // SAFETY: the caller's tiles.
    unsafe {
        let Some(from) = from else {
            unit.zero::<0>();
            if T > 1 {
                unit.zero::<1>();
            }
            if R > 1 {
                unit.zero::<2>();
            }
            if R > 1 && T > 1 {
                unit.zero::<3>();
            }
            return;
        };
        unit.load::<0>(from, 64);
        if T > 1 {
            unit.load::<1>(from.add(TILE), 64);
        }
        if R > 1 {
            unit.load::<2>(from.add(stride), 64);
        }
        if R > 1 && T > 1 {
            unit.load::<3>(from.add(stride + TILE), 64);
        }
    }
}

#[inline(always)]
unsafe fn end<U: Unit, const R: usize, const T: usize>(unit: &mut U, to: *mut u8, stride: usize) {
    // SAFETY: the caller's tiles.
    unsafe {
        unit.store::<0>(to, 64);
        if T > 1 {
            unit.store::<1>(to.add(TILE), 64);
        }
        if R > 1 {
            unit.store::<2>(to.add(stride), 64);
        }
        if R > 1 && T > 1 {
            unit.store::<3>(to.add(stride + TILE), 64);
        }
    }
}

/// Adds `R` tiles of rows (tiles 4 and 5) times `T` of tokens (6 and 7), for all tiles of K of a
/// slice.
///
/// With two parts a product is high · low + high · high + low · high; the omitted product low · low
/// is 2⁻¹⁶ of the whole.
#[inline(always)]
unsafe fn accumulate<U: Unit, const PARTS: usize, const R: usize, const T: usize>(
    unit: &mut U,
    w: Weights,
    x: Activations,
) {
    // SAFETY: the caller's tiles.
    unsafe {
        let (mut a, mut b) = (w.p, x.p);
        for _ in 0..x.steps {
            if PARTS > 1 {
                load_x::<U, T>(unit, b.add(x.low), x);
                load_w::<U, R>(unit, a, w);
                dots::<U, R, T>(unit);
            } else {
                load_w::<U, R>(unit, a, w);
            }
            load_x::<U, T>(unit, b, x);
            dots::<U, R, T>(unit);
            if PARTS > 1 {
                load_w::<U, R>(unit, a.add(w.low), w);
                dots::<U, R, T>(unit);
            }
            a = a.add(w.step);
            b = b.add(TILE);
        }
    }
}

#[inline(always)]
unsafe fn load_w<U: Unit, const R: usize>(unit: &mut U, p: *const u8, w: Weights) {
    // SAFETY: the caller's tiles.
    unsafe {
        unit.load::<4>(p, w.row);
        if R > 1 {
            unit.load::<5>(p.add(w.strip), w.row);
        }
    }
}

#[inline(always)]
unsafe fn load_x<U: Unit, const T: usize>(unit: &mut U, p: *const u8, x: Activations) {
    // SAFETY: the caller's tiles.
    unsafe {
        unit.load::<6>(p, 64);
        if T > 1 {
            unit.load::<7>(p.add(x.tile), 64);
        }
    }
}

#[inline(always)]
unsafe fn dots<U: Unit, const R: usize, const T: usize>(unit: &mut U) {
    // SAFETY: the unit's features, by the caller's contract.
    unsafe {
        unit.dot_bf16::<0, 4, 6>();
        if T > 1 {
            unit.dot_bf16::<1, 4, 7>();
        }
        if R > 1 {
            unit.dot_bf16::<2, 5, 6>();
        }
        if R > 1 && T > 1 {
            unit.dot_bf16::<3, 5, 7>();
        }
    }
}
