//! Products of packed weights with few activation rows: bound by reading the weights, if
//! instructions are few.
//!
//! A chunk of 256 weights is unpacked and multiplied with up to eight activation rows. Integer sums
//! are converted and multiplied by (weight scale × activation scale), 16 per vector. Values that
//! depend on the activations alone are computed once per call ([`Activations`]).
//!
//! On x86 the sixteen sub-blocks of 16 weights of a chunk are lanes ([`Format::by_sub_blocks`]):
//! four products add up in each lane, and one vector of sums with one vector of scales serves the
//! whole chunk. In natural order, each 64 codes would need their own vector of sums, converted and
//! scaled for each activation row. Weights are reordered once for all rows, and activations are
//! stored in the same order. Sums start at the negative offset of the codes. The codes of rare
//! formats pass through memory ([`Memory`]), several chunks at a time, which keeps the number of
//! compiled variants small.

use std::mem::MaybeUninit;
use std::ops::Range;

use puna_quant::TensorType;

use super::quant::{CHUNK, CHUNKS_PER_BATCH, Codes, Packing, Unpacked};
use super::{Format, QuantSimd};
use crate::{Acts, OutMut, Q8Rows, Scratch, WeightRows};

/// Weight rows that are multiplied with all activation rows before the next rows. They stay in the
/// second-level cache.
const ROWS: usize = 16;
/// Weight rows that alternate, so that a part of the activations stays in the first-level cache.
const TURNS: usize = 4;
/// Chunks of activations ([`ActivationChunk`]: 24 KiB) that the first-level cache holds, with room
/// for other data.
const L1_CHUNKS: usize = 64;
/// Prefetch distance in bytes of weights, for up to three activation rows. It reaches beyond the
/// page of 4 KiB, where hardware prefetchers stop, and into the second-level cache, since the first
/// level tracks few outstanding lines.
const AHEAD: usize = 6 << 10;
/// Largest chunk in bytes of all formats with rows that may end inside a chunk, rounded up.
pub(crate) const CHUNK_BYTES: usize = 288;

/// Activation rows in the order of a format's codes, padded with zeros to whole chunks.
struct Activations<'a> {
    rows: usize,
    /// Chunks per row; the last one may be partial.
    chunks: usize,
    parts: &'a [ActivationChunk],
}

/// Activations of one chunk of one row, in the order of [`Format::by_sub_blocks`].
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
struct ActivationChunk {
    codes: [i8; CHUNK],
    /// A scale for each sub-block of 16.
    scales: [f32; 16],
    /// For codes with an offset: the negative product of the offset and each sub-block's sum, as
    /// i32. For minimums: sums of codes times their scale, for each `SUB` weights in natural order,
    /// then zeros. Otherwise undefined.
    fixes: [f32; 16],
}

/// Lanes of the vectors that a format's chunks are summed in.
struct Lanes<S, F>(std::marker::PhantomData<(S, F)>);

impl<S: QuantSimd, F: Format> Lanes<S, F> {
    /// The sub-block of 16 weights that each lane stands for.
    const SUB_BLOCKS: [u8; 16] = if S::SUB_BLOCKS_AS_LANES { F::SUB_BLOCKS } else { NATURAL };
    /// The pair of sub-blocks, 32 weights, that it lies in.
    const SUB_BLOCK_PAIRS: [u8; 16] = {
        let mut sub_blocks = Self::SUB_BLOCKS;
        let mut i = 0;
        while i < 16 {
            sub_blocks[i] /= 2;
            i += 1;
        }
        sub_blocks
    };
    /// Index of the sub-block's scale in a chunk.
    const SCALES: [u8; 16] = if F::SUB == 16 { Self::SUB_BLOCKS } else { Self::SUB_BLOCK_PAIRS };
}

const NATURAL: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

impl<'a> Activations<'a> {
    #[inline(always)]
    unsafe fn new<S: QuantSimd, F: Format>(x: Q8Rows<'_>, scratch: &'a mut Scratch) -> Self {
        let chunks = x.k.div_ceil(CHUNK);
        let parts: &mut [ActivationChunk] =
            bytemuck::cast_slice_mut(scratch.bytes(x.rows * chunks * size_of::<ActivationChunk>()));
        for (t, parts) in parts.chunks_exact_mut(chunks.max(1)).enumerate() {
            let codes = &x.codes[t * x.k..(t + 1) * x.k];
            let scales = &x.scales[t * x.k / 32..(t + 1) * x.k / 32];
            let sums = &x.sums[t * x.k / 16..(t + 1) * x.k / 16];
            for (c, part) in parts.iter_mut().enumerate() {
                let codes = &codes[c * CHUNK..];
                let (scales, sums) = (&scales[c * CHUNK / 32..], &sums[c * CHUNK / 16..]);
                // SAFETY: features by the module's contract.
                unsafe {
                    match (codes.first_chunk(), scales.first_chunk(), sums.first_chunk()) {
                        (Some(codes), Some(scales), Some(sums)) => {
                            part.fill::<S, F>(codes, scales, sums)
                        }
                        _ => part.fill::<S, F>(
                            &padded_to(codes),
                            &padded_to(scales),
                            &padded_to(sums),
                        ),
                    }
                }
            }
        }
        Self { rows: x.rows, chunks, parts }
    }

    /// Chunk `c` of row `t`.
    #[inline(always)]
    unsafe fn part(&self, t: usize, c: usize) -> &ActivationChunk {
        // SAFETY: the caller's row has the chunk.
        unsafe { self.parts.get_unchecked(t * self.chunks + c) }
    }
}

/// The values, then zeros.
fn padded_to<T: Copy + Default, const N: usize>(values: &[T]) -> [T; N] {
    let mut to = [T::default(); N];
    to[..values.len()].copy_from_slice(values);
    to
}

impl ActivationChunk {
    #[inline(always)]
    unsafe fn fill<S: QuantSimd, F: Format>(
        &mut self,
        codes: &[i8; CHUNK],
        scales: &[f32; 8],
        sums: &[i16; 16],
    ) {
        let (sub_blocks, sub_block_pairs) =
            (&Lanes::<S, F>::SUB_BLOCKS, &Lanes::<S, F>::SUB_BLOCK_PAIRS);
        // SAFETY: sub-blocks are below 16; features by the module's contract.
        unsafe {
            // New position of lane i of vector j.
            let lane =
                |i: usize, j: usize| if S::SUB_BLOCKS_AS_LANES { 4 * i + j } else { 4 * j + i };
            let start = |i: usize, j: usize| 16 * usize::from(sub_blocks[lane(i, j)]);
            let piece = |j| {
                S::pieces(
                    codes.as_ptr().cast(),
                    [start(0, j), start(1, j), start(2, j), start(3, j)],
                )
            };
            for (i, codes) in
                S::by_sub_blocks([piece(0), piece(1), piece(2), piece(3)]).into_iter().enumerate()
            {
                S::store64(self.codes.as_mut_ptr().add(64 * i).cast(), codes);
            }
            S::w_store(&mut self.scales, S::w_order(S::w_load8(scales.as_ptr()), sub_block_pairs));
            let offset = F::CODES.offset::<S>();
            if offset != 0 {
                // Bits of integers, stored as f32 without arithmetic.
                let sums = sums.map(|sum| f32::from_bits((-offset * i32::from(sum)) as u32));
                S::w_store(&mut self.fixes, S::w_order(S::w_new(&sums), sub_blocks));
            } else if F::CODES.minimum() {
                self.fixes = std::array::from_fn(|i| match F::SUB {
                    16 => scales[i / 2] * f32::from(sums[i]),
                    _ if i < 8 => {
                        scales[i] * (i32::from(sums[2 * i]) + i32::from(sums[2 * i + 1])) as f32
                    }
                    _ => 0.0,
                });
            }
        }
    }
}

/// Products with any number of activation rows, in tiles of up to eight. The result of a row does
/// not depend on the other rows. Codes of the usual formats stay in registers; with `packing` (then
/// `F` is [`Memory`]) they pass through memory.
#[inline(always)]
pub(crate) unsafe fn dot_few_rows<S: QuantSimd, F: Format>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
    scratch: &mut Scratch,
    packing: Option<&Packing>,
) {
    // SAFETY: features by the module's contract.
    let x = unsafe { Activations::new::<S, F>(x.expect_q8(&w, &out), scratch) };
    for r in (0..w.rows).step_by(ROWS) {
        let rows = r..(r + ROWS).min(w.rows);
        let mut t = 0;
        while t < x.rows {
            // SAFETY: `expect_q8` checked that all rows exist; features by the module's contract.
            t += unsafe {
                match x.rows - t {
                    1 => tile::<S, F, 1>(&w, &x, rows.clone(), t, &mut out, packing),
                    2 | 3 => tile::<S, F, 2>(&w, &x, rows.clone(), t, &mut out, packing),
                    8.. if S::STREAM_TILE >= 8 => {
                        tile::<S, F, 8>(&w, &x, rows.clone(), t, &mut out, packing)
                    }
                    _ => tile::<S, F, 4>(&w, &x, rows.clone(), t, &mut out, packing),
                }
            };
        }
    }
}

/// A chunk in memory: [`Unpacked`].
#[derive(Clone, Copy)]
pub(crate) struct Memory<const SIGNED: bool, const SUB: usize>;

impl<const SIGNED: bool, const SUB: usize> Format for Memory<SIGNED, SUB> {
    const TYPE: TensorType = TensorType::I8;
    const BLOCK: (usize, usize) = (CHUNK, size_of::<Unpacked>());
    const SUB: usize = SUB;
    const CODES: Codes = if SIGNED { Codes::Signed } else { Codes::Minimum(31) };
    #[inline(always)]
    unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec) {
        // SAFETY: `p` is an `Unpacked`; features by the contract.
        unsafe {
            let chunk = &*p.cast::<Unpacked>();
            (S::w_new(&chunk.scales), S::w_new(&chunk.minimums))
        }
    }
    #[inline(always)]
    unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
        // SAFETY: `p` is an `Unpacked`; features by the contract.
        unsafe {
            let p = (*p.cast::<Unpacked>()).codes.as_ptr();
            [S::load64(p), S::load64(p.add(64)), S::load64(p.add(128)), S::load64(p.add(192))]
        }
    }
}

/// Some weight rows times `M` activation rows from `t`; returns `M`. With `packing` through memory.
#[inline(always)]
unsafe fn tile<S: QuantSimd, F: Format, const M: usize>(
    w: &WeightRows<'_>,
    x: &Activations<'_>,
    rows: Range<usize>,
    t: usize,
    out: &mut OutMut<'_>,
    packing: Option<&Packing>,
) -> usize {
    let (block, bytes) =
        packing.map_or((F::BLOCK.0, F::BYTES), |packing| (packing.block.0, packing.bytes));
    // Buffer for unpacked chunks, made once.
    let mut unpacked = [Unpacked::ZERO; CHUNKS_PER_BATCH];
    // SAFETY: rows and activation rows exist. A row's last chunk may reach into the next row, but
    // these weights get the scale zero; bytes beyond the data are replaced by a copy. Sums that
    // wait were written in the previous round, as not all chunks were done.
    unsafe {
        let (whole, rest) = (w.k / CHUNK, if block < CHUNK { w.k % CHUNK } else { 0 });
        let (end, row_bytes) = (w.data.as_ptr_range().end, w.row_bytes());
        let row = |r: usize| w.data.as_ptr().add(r * row_bytes);
        let last_parts = std::array::from_fn(|j| x.part(t + j, if rest > 0 { whole } else { 0 }));
        // Many activations leave the first-level cache before the next weight row reads them, so a
        // few rows alternate.
        let each = L1_CHUNKS / M;
        let mut waiting = [MaybeUninit::<Sums<S, M>>::uninit(); TURNS];
        for r0 in rows.clone().step_by(TURNS) {
            for c0 in (0..whole.max(1)).step_by(each) {
                for (r, waiting) in (r0..rows.end).zip(&mut waiting) {
                    let mut sums = if c0 == 0 { Sums::zero() } else { waiting.assume_init() };
                    let chunks = c0..(c0 + each).min(whole);
                    let unpacking = (packing, &mut unpacked);
                    whole_chunks::<S, F, M>(row(r), row_bytes, chunks, x, t, unpacking, &mut sums);
                    if c0 + each < whole {
                        waiting.write(sums);
                        continue;
                    }
                    if rest > 0 {
                        last::<S, F, M>(
                            row(r).add(whole * bytes),
                            end,
                            rest,
                            &last_parts,
                            packing,
                            &mut sums,
                        );
                    }
                    sums.finish::<F>(t, r, out);
                }
            }
        }
    }
    M
}

/// Adds the products of some chunks of a weight row with the activation rows from `t`.
#[inline(always)]
unsafe fn whole_chunks<S: QuantSimd, F: Format, const M: usize>(
    row: *const u8,
    row_bytes: usize,
    chunks: Range<usize>,
    x: &Activations<'_>,
    t: usize,
    (packing, unpacked): (Option<&Packing>, &mut [Unpacked; CHUNKS_PER_BATCH]),
    sums: &mut Sums<S, M>,
) {
    // SAFETY: the caller's row and activation rows have the chunks; features by the module's
    // contract.
    unsafe {
        let Some(packing) = packing else {
            for c in chunks {
                let p = row.add(c * F::BYTES);
                ask::<S, M>(p, F::BYTES, row_bytes);
                let parts = std::array::from_fn(|j| x.part(t + j, c));
                chunk::<S, F, M>(p, &parts, CHUNK, sums);
            }
            return;
        };
        for first in chunks.clone().step_by(CHUNKS_PER_BATCH) {
            let unpacked = &mut unpacked[..(chunks.end - first).min(CHUNKS_PER_BATCH)];
            let p = row.add(first * packing.bytes);
            ask::<S, M>(p, unpacked.len() * packing.bytes, row_bytes);
            (packing.unpack)(p, packing.bytes, unpacked);
            for (i, unpacked) in unpacked.iter().enumerate() {
                let parts = std::array::from_fn(|j| x.part(t + j, first + i));
                chunk::<S, F, M>(std::ptr::from_ref(unpacked).cast(), &parts, CHUNK, sums);
            }
        }
    }
}

/// Prefetches weights at a distance behind the `bytes` at `p`, which are now multiplied with `M`
/// activation rows.
#[inline(always)]
unsafe fn ask<S: QuantSimd, const M: usize>(p: *const u8, bytes: usize, row_bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: hints, harmless at any address; features by the module's contract.
        unsafe {
            if M < 4 {
                S::prefetch_far(p.wrapping_add(AHEAD + line));
            } else {
                // A row takes long enough that prefetching the next rows suffices.
                S::prefetch(p.wrapping_add(TURNS * row_bytes + line));
            }
        }
    }
}

/// Adds the last chunk of a row, which is not whole and may be the end of the data.
#[inline(always)]
unsafe fn last<S: QuantSimd, F: Format, const M: usize>(
    p: *const u8,
    end: *const u8,
    values: usize,
    parts: &[&ActivationChunk; M],
    packing: Option<&Packing>,
    sums: &mut Sums<S, M>,
) {
    let (mut copy, mut unpacked) = ([0u8; CHUNK_BYTES], [Unpacked::ZERO]);
    // SAFETY: the caller's row has the chunk; bytes beyond the data are replaced by a copy.
    unsafe {
        let mut p = padded(p, end, packing.map_or(F::BYTES, |packing| packing.bytes), &mut copy);
        if let Some(packing) = packing {
            (packing.unpack)(p, 0, &mut unpacked);
            p = unpacked.as_ptr().cast();
        }
        chunk::<S, F, M>(p, parts, values, sums);
    }
}

/// Returns `p`, or a padded copy if fewer than `bytes` bytes follow.
#[inline(always)]
pub(crate) unsafe fn padded(
    p: *const u8,
    end: *const u8,
    bytes: usize,
    copy: &mut [u8; CHUNK_BYTES],
) -> *const u8 {
    let left = end as usize - p as usize;
    if left >= bytes {
        return p;
    }
    // SAFETY: `left` bytes follow `p`, fewer than the copy has.
    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(p, left.min(CHUNK_BYTES)) };
    copy.as_ptr()
}

/// Sums of a weight row and `M` activation rows: products, and minimums times sums of codes.
#[derive(Clone, Copy)]
struct Sums<S: QuantSimd, const M: usize> {
    acc: [S::SumVec; M],
    bias: [S::ScaleVec; M],
}

impl<S: QuantSimd, const M: usize> Sums<S, M> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: features by the module's contract.
        unsafe { Self { acc: [S::a_zero(); M], bias: [S::w_splat(0.0); M] } }
    }

    /// Writes the products of weight row `r` with the activation rows from `t`.
    #[inline(always)]
    unsafe fn finish<F: Format>(&self, t: usize, r: usize, out: &mut OutMut<'_>) {
        for j in 0..M {
            // SAFETY: features by the module's contract.
            unsafe {
                let mut total = S::a_sum(self.acc[j]);
                if F::CODES.minimum() {
                    total += S::w_sum(self.bias[j], F::SUB);
                }
                out.row(t + j)[r] = total;
            }
        }
    }
}

/// Adds the products of one chunk, of which the first `values` weights count.
#[inline(always)]
unsafe fn chunk<S: QuantSimd, F: Format, const M: usize>(
    p: *const u8,
    x: &[&ActivationChunk; M],
    values: usize,
    sums: &mut Sums<S, M>,
) {
    // SAFETY: the caller's chunk and parts are whole; features by the module's contract.
    unsafe {
        let (mut s, mut b) = F::scales::<S>(p);
        if values < CHUNK {
            (s, b) = (S::w_keep(s, values / F::SUB), S::w_keep(b, values / F::SUB));
        }
        let s = S::w_order(s, &Lanes::<S, F>::SCALES);
        let codes = F::by_sub_blocks::<S>(p);
        for j in 0..M {
            let x = x[j];
            let start = (F::CODES.offset::<S>() != 0).then_some(x.fixes.as_ptr().cast());
            sums.acc[j] = S::dot(
                sums.acc[j],
                &codes,
                x.codes.as_ptr(),
                start,
                (s, x.scales.as_ptr()),
                F::SUB,
                F::CODES.code_limit(),
            );
            if F::CODES.minimum() {
                let (fixes, bias) = (S::w_load16(x.fixes.as_ptr()), &mut sums.bias[j]);
                *bias = if F::SUB == 16 {
                    S::w_nfma(b, fixes, *bias)
                } else {
                    S::w_nfma8(b, fixes, *bias)
                };
            }
        }
    }
}
