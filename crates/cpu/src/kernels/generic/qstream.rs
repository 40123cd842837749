//! Products of packed weights with few activation rows: bound by reading the weights, if instructions are few.
//! For one or two activation rows nothing is fetched ahead by hand: processors follow a row by themselves, and hints that miss
//! the translation cache cost up to a third of the speed on files mapped in pages of 4 KiB.
//!
//! A chunk of 256 weights is unpacked and multiplied with up to eight activation rows. Integer sums are converted and
//! multiplied by (weight scale × activation scale), of which one vector holds 16. What depends on the activations alone is
//! made once a call ([`Activations`]).
//!
//! Codes come in one of two orders. In the natural one each 64 codes make a vector of sums that is converted and scaled
//! by itself. Codes with a scale for 32 weights can come *by quarters* ([`Format::quarters`]): a scale then belongs to
//! four sums instead of eight, and one vector of sums stands for the whole chunk. The activations are brought into the
//! same order. Of codes below 32 eight products fit 16 bits, which saves an instruction more. The codes of rare formats pass through memory ([`Memory`]), which takes up
//! to twice the time and keeps the number of compiled variants small.

use std::ops::Range;

use puna_quant::TensorType;

use super::quant::{CHUNK, Codes, Packing, Unpacked};
use super::{Format, Quant};
use crate::kernels::{Acts, OutMut, Q8Rows, Scratch, WeightRows};

/// Weight rows that all activation rows see before the next ones: they stay in the second-level cache.
const ROWS: usize = 16;
/// Weight rows that take turns with activations that the first-level cache holds.
const TURNS: usize = 4;
/// Activations that the first-level cache holds beside other things.
const L1_VALUES: usize = 16 << 10;
/// Room for a chunk of any format whose rows may end inside of one.
pub(crate) const CHUNK_BYTES: usize = 288;

/// Activation rows as the weights of a format meet them, filled up with zeros to whole chunks.
struct Activations<'a> {
    rows: usize,
    /// Chunks a row, the last one perhaps not whole.
    chunks: usize,
    /// Chunks whose codes are read where they are.
    in_place: usize,
    /// Codes as they came, `k` a row.
    source: &'a [i8],
    k: usize,
    /// Codes of the other chunks of each row.
    codes: &'a [i8],
    /// Scales, `CHUNK / sub` a chunk.
    scales: &'a [f32],
    /// Sums of codes, times their scale.
    sums: &'a [f32],
}

/// Activations of one chunk of one row.
#[derive(Clone, Copy)]
struct Part {
    codes: *const i8,
    scales: *const f32,
    sums: *const f32,
}

impl<'a> Activations<'a> {
    /// `sub` weights share a scale: 16 or 32.
    #[inline(always)]
    fn new(x: Q8Rows<'a>, sub: usize, quarters: bool, scratch: &'a mut Scratch) -> Self {
        let chunks = x.k.div_ceil(CHUNK);
        let in_place = if quarters { 0 } else { x.k / CHUNK };
        let floats = x.rows * chunks * CHUNK / sub;
        let moved = x.rows * (chunks - in_place) * CHUNK;
        let (bytes, codes) = scratch.bytes(8 * floats + moved).split_at_mut(8 * floats);
        let (scales, sums) = bytemuck::cast_slice_mut::<_, f32>(bytes).split_at_mut(floats);
        let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
        scale(&x, sub, scales, sums);
        for (t, to) in codes.chunks_exact_mut(((chunks - in_place) * CHUNK).max(1)).enumerate() {
            let from = &x.codes[t * x.k + in_place * CHUNK..(t + 1) * x.k];
            let (to, rest) = to.split_at_mut(from.len() / CHUNK * CHUNK);
            let (from, end) = from.split_at(to.len());
            for (from, to) in from.as_chunks::<CHUNK>().0.iter().zip(to.as_chunks_mut::<CHUNK>().0) {
                place(from, to, quarters);
            }
            if let Some(rest) = rest.as_chunks_mut::<CHUNK>().0.first_mut() {
                let mut padded = [0; CHUNK];
                padded[..end.len()].copy_from_slice(end);
                place(&padded, rest, quarters);
            }
        }
        Self { rows: x.rows, chunks, in_place, source: x.codes, k: x.k, codes, scales, sums }
    }

    /// Chunk `c` of row `t`.
    #[inline(always)]
    unsafe fn part(&self, t: usize, c: usize, sub: usize) -> Part {
        let at = (t * self.chunks + c) * (CHUNK / sub);
        // SAFETY: the caller's row has the chunk, and `new` made everything for it.
        unsafe {
            let codes = if c < self.in_place {
                self.source.as_ptr().add(t * self.k + c * CHUNK)
            } else {
                self.codes.as_ptr().add((t * (self.chunks - self.in_place) + c - self.in_place) * CHUNK)
            };
            Part { codes, scales: self.scales.as_ptr().add(at), sums: self.sums.as_ptr().add(at) }
        }
    }
}

/// One scale and one scaled sum of codes for every `sub` activations, zeros after the end of a row.
#[inline(always)]
fn scale(x: &Q8Rows<'_>, sub: usize, scales: &mut [f32], sums: &mut [f32]) {
    let each = x.k.next_multiple_of(CHUNK) / sub;
    for t in 0..x.rows {
        let (scales, sums) = (&mut scales[t * each..(t + 1) * each], &mut sums[t * each..(t + 1) * each]);
        scales[x.k / sub..].fill(0.0);
        sums[x.k / sub..].fill(0.0);
        let from = &x.scales[t * x.k / 32..(t + 1) * x.k / 32];
        let codes = &x.sums[t * x.k / 16..(t + 1) * x.k / 16];
        if sub == 32 {
            for (i, (&scale, codes)) in from.iter().zip(codes.as_chunks::<2>().0).enumerate() {
                scales[i] = scale;
                sums[i] = scale * (i32::from(codes[0]) + i32::from(codes[1])) as f32;
            }
        } else {
            for (i, &codes) in codes.iter().enumerate() {
                scales[i] = from[i / 2];
                sums[i] = from[i / 2] * f32::from(codes);
            }
        }
    }
}

/// A chunk of activation codes in the order that the weights' codes come in.
#[inline(always)]
fn place(from: &[i8; CHUNK], to: &mut [i8; CHUNK], quarters: bool) {
    if !quarters {
        *to = *from;
        return;
    }
    let (from, to) = (from.as_chunks::<16>().0, to.as_chunks_mut::<16>().0);
    for (i, from) in from.iter().enumerate() {
        // Half h of the run of 32 number r goes to quarter 2 · (r % 2) + h, place r / 2.
        let (r, h) = (i / 2, i % 2);
        to[4 * (2 * (r % 2) + h) + r / 2] = *from;
    }
}

/// Any number of activation rows, in tiles of up to eight: what a row gets does not depend on its company. Codes of the usual formats stay in registers; with `packing` (then
/// `F` is [`Memory`]) they pass through memory.
#[inline(always)]
pub(crate) unsafe fn stream<S: Quant, F: Format>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
    scratch: &mut Scratch,
    packing: Option<&Packing>,
) {
    let x = Activations::new(x.expect_q8(&w, &out), F::SUB, F::BY_QUARTERS, scratch);
    for r in (0..w.rows).step_by(ROWS) {
        let rows = r..(r + ROWS).min(w.rows);
        let mut t = 0;
        while t < x.rows {
            // SAFETY: `expect_q8` checked that all rows exist; features by the module's contract.
            t += unsafe {
                match x.rows - t {
                    1 => tile::<S, F, 1>(&w, &x, rows.clone(), t, &mut out, packing),
                    2 | 3 => tile::<S, F, 2>(&w, &x, rows.clone(), t, &mut out, packing),
                    8.. if F::BY_QUARTERS && S::STREAM_ROWS >= 8 => {
                        tile::<S, F, 8>(&w, &x, rows.clone(), t, &mut out, packing)
                    }
                    _ => tile::<S, F, 4>(&w, &x, rows.clone(), t, &mut out, packing),
                }
            };
        }
    }
}

/// A chunk in memory: [`Unpacked`] with 16 scales.
#[derive(Clone, Copy)]
pub(crate) struct Memory<const SIGNED: bool>;

impl<const SIGNED: bool> Format for Memory<SIGNED> {
    const TYPE: TensorType = TensorType::I8;
    const BLOCK: (usize, usize) = (CHUNK, size_of::<Unpacked>());
    const SUB: usize = 16;
    const CODES: Codes = if SIGNED { Codes::Signed } else { Codes::Minimum(127) };
    #[inline(always)]
    unsafe fn scales<S: Quant>(p: *const u8) -> (S::W, S::W) {
        // SAFETY: `p` is an `Unpacked`; features by the contract.
        unsafe {
            let chunk = &*p.cast::<Unpacked>();
            (S::w_new(&chunk.scales), S::w_new(&chunk.minimums))
        }
    }
    #[inline(always)]
    unsafe fn codes<S: Quant>(p: *const u8, j: usize) -> S::C {
        // SAFETY: `p` is an `Unpacked`; features by the contract.
        unsafe { S::load64((*p.cast::<Unpacked>()).codes.as_ptr().add(64 * j)) }
    }
}

/// The chunk at `p` as it is, or unpacked with each scale standing for 16 weights.
#[inline(always)]
unsafe fn feed<S: Quant>(packing: Option<&Packing>, p: *const u8, to: &mut Unpacked) -> *const u8 {
    let Some(packing) = packing else { return p };
    // SAFETY: the caller's chunk is whole; features by the module's contract.
    unsafe {
        (packing.unpack)(p, to);
        if packing.sub == 32 {
            let (s, m) = (S::w_double(S::w_new(&to.scales)), S::w_double(S::w_new(&to.minimums)));
            S::w_store(&mut to.scales, s);
            S::w_store(&mut to.minimums, m);
        }
    }
    std::ptr::from_ref(to).cast()
}

/// Some weight rows times `M` activation rows from `t`; returns `M`. With `packing` through memory.
#[inline(always)]
unsafe fn tile<S: Quant, F: Format, const M: usize>(
    w: &WeightRows<'_>,
    x: &Activations<'_>,
    rows: Range<usize>,
    t: usize,
    out: &mut OutMut<'_>,
    packing: Option<&Packing>,
) -> usize {
    let (block, bytes) = packing.map_or((F::BLOCK.0, F::BYTES), |packing| (packing.block.0, packing.bytes));
    let mut unpacked = Unpacked::ZERO;
    // SAFETY: rows and activation rows exist; a chunk that the row or the data ends in is read from copies.
    unsafe {
        let (whole, rest) = (w.k / CHUNK, if block < CHUNK { w.k % CHUNK } else { 0 });
        let (end, row_bytes) = (w.data.as_ptr_range().end, w.row_bytes());
        let row = |r: usize| w.data.as_ptr().add(r * row_bytes);
        let last_parts = std::array::from_fn(|j| x.part(t + j, if rest > 0 { whole } else { 0 }, F::SUB));
        if M < 4 {
            for r in rows {
                let mut sums = Sums::<S, M>::zero();
                for c in 0..whole {
                    let parts = std::array::from_fn(|j| x.part(t + j, c, F::SUB));
                    let p = feed::<S>(packing, row(r).add(c * bytes), &mut unpacked);
                    chunk::<S, F, M>(p, &parts, CHUNK, &mut sums);
                }
                if rest > 0 {
                    last::<S, F, M>(row(r).add(whole * bytes), end, rest, &last_parts, packing, &mut sums);
                }
                sums.finish::<F>(t, r, out);
            }
            return M;
        }
        // Many activations leave the first-level cache before the next weight row wants them: a few rows take turns.
        let each = L1_VALUES / CHUNK / M;
        for r0 in rows.clone().step_by(TURNS) {
            let turns = TURNS.min(rows.end - r0);
            let mut sums = [Sums::<S, M>::zero(); TURNS];
            for c0 in (0..whole).step_by(each) {
                for (i, sums) in sums[..turns].iter_mut().enumerate() {
                    // A copy, so that it stays in registers.
                    let mut now = *sums;
                    for c in c0..(c0 + each).min(whole) {
                        let p = row(r0 + i).add(c * bytes);
                        // So much is done with a row that nothing else asks for the next ones in time.
                        for line in (0..bytes).step_by(64) {
                            S::prefetch(p.wrapping_add(TURNS * row_bytes + line));
                        }
                        let parts = std::array::from_fn(|j| x.part(t + j, c, F::SUB));
                        chunk::<S, F, M>(feed::<S>(packing, p, &mut unpacked), &parts, CHUNK, &mut now);
                    }
                    *sums = now;
                }
            }
            for (i, sums) in sums[..turns].iter_mut().enumerate() {
                if rest > 0 {
                    last::<S, F, M>(row(r0 + i).add(whole * bytes), end, rest, &last_parts, packing, sums);
                }
                sums.finish::<F>(t, r0 + i, out);
            }
        }
    }
    M
}

/// Adds the last chunk of a row, which is not whole and may be the end of the data.
#[inline(always)]
unsafe fn last<S: Quant, F: Format, const M: usize>(
    p: *const u8,
    end: *const u8,
    values: usize,
    parts: &[Part; M],
    packing: Option<&Packing>,
    sums: &mut Sums<S, M>,
) {
    let (mut copy, mut unpacked) = ([0u8; CHUNK_BYTES], Unpacked::ZERO);
    // SAFETY: the caller's row has the chunk; what the data lacks of it is copied.
    unsafe {
        let p = padded(p, end, packing.map_or(F::BYTES, |packing| packing.bytes), &mut copy);
        chunk::<S, F, M>(feed::<S>(packing, p, &mut unpacked), parts, values, sums);
    }
}

/// `p`, or where fewer than the `bytes` of a chunk follow a copy of them.
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

/// What a weight row and `M` activation rows sum up to: products, and scales times sums of codes.
#[derive(Clone, Copy)]
struct Sums<S: Quant, const M: usize> {
    acc: [[S::A; 2]; M],
    bias: [S::W; M],
}

impl<S: Quant, const M: usize> Sums<S, M> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: features by the module's contract.
        unsafe { Self { acc: [[S::a_zero(); 2]; M], bias: [S::w_splat(0.0); M] } }
    }

    /// Writes the products of weight row `r` with the activation rows from `t`.
    #[inline(always)]
    unsafe fn finish<F: Format>(&self, t: usize, r: usize, out: &mut OutMut<'_>) {
        let factor = if F::CODES.minimum() { 1.0 } else { F::CODES.offset::<S>() as f32 };
        for j in 0..M {
            let [a, b] = self.acc[j];
            // SAFETY: features by the module's contract.
            unsafe {
                let mut total = S::a_sum(S::a_add(a, b));
                if factor != 0.0 {
                    total += factor * S::w_sum(self.bias[j], F::SUB);
                }
                out.row(t + j)[r] = total;
            }
        }
    }
}

/// Adds the products of one chunk, of which the first `values` weights count.
#[inline(always)]
unsafe fn chunk<S: Quant, F: Format, const M: usize>(
    p: *const u8,
    x: &[Part; M],
    values: usize,
    sums: &mut Sums<S, M>,
) {
    // SAFETY: the caller's chunk and parts are whole; features by the module's contract.
    unsafe {
        let (mut s, mut b) = F::scales::<S>(p);
        if values < CHUNK {
            (s, b) = (S::w_keep(s, values / F::SUB), S::w_keep(b, values / F::SUB));
        }
        let mut scales = [s; M];
        for j in 0..M {
            scales[j] = S::w_mul(s, load::<S, F>(x[j].scales));
            if F::CODES.minimum() {
                sums.bias[j] = S::w_nfma(b, load::<S, F>(x[j].sums), sums.bias[j]);
            } else if F::CODES.offset::<S>() != 0 {
                sums.bias[j] = S::w_nfma(s, load::<S, F>(x[j].sums), sums.bias[j]);
            }
        }
        if F::BY_QUARTERS {
            let quarters = F::quarters::<S>(p);
            for j in 0..M {
                let acc = &mut sums.acc[j][0];
                *acc =
                    S::dot_quarters(*acc, &quarters, x[j].codes, S::w_double(scales[j]), F::CODES.top() > 31);
            }
            return;
        }
        group::<S, F, M>(p, x, &scales, 0, sums);
        if values > 64 {
            group::<S, F, M>(p, x, &scales, 1, sums);
        }
        if values > 128 {
            group::<S, F, M>(p, x, &scales, 2, sums);
        }
        if values > 192 {
            group::<S, F, M>(p, x, &scales, 3, sums);
        }
    }
}

/// The scales or sums of a chunk of activations.
#[inline(always)]
unsafe fn load<S: Quant, F: Format>(p: *const f32) -> S::W {
    // SAFETY: the caller's part has as many; features by the module's contract.
    unsafe { if F::SUB == 32 { S::w_load8(p) } else { S::w_load16(p) } }
}

/// Adds the products of weights `64 · j…` of a chunk, in natural order.
#[inline(always)]
unsafe fn group<S: Quant, F: Format, const M: usize>(
    p: *const u8,
    x: &[Part; M],
    scales: &[S::W; M],
    j: usize,
    sums: &mut Sums<S, M>,
) {
    // SAFETY: as for `chunk`.
    unsafe {
        let codes = F::codes::<S>(p, j);
        let signed = F::CODES.top() == 128;
        for m in 0..M {
            let acc = &mut sums.acc[m][j % 2];
            *acc = S::dot(*acc, codes, x[m].codes.add(64 * j), scales[m], j, F::SUB, signed);
        }
    }
}
