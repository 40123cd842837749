//! Products of packed weights with few activation rows: bound by reading the weights.
//!
//! A chunk of 256 weights is unpacked and multiplied with up to four activation rows. Integer sums are converted once a
//! scale and multiplied by (weight scale × activation scale), which one vector holds for a chunk. The codes of the usual
//! formats stay in registers; those of rare formats pass through memory ([`Memory`]), which takes up to twice the time
//! and keeps the number of compiled variants small.

use puna_quant::TensorType;

use super::linear::AHEAD;
use super::quant::{CHUNK, Codes, Packing, Unpacked};
use super::{Format, Quant};
use crate::kernels::{Acts, OutMut, Q8Rows, WeightRows};

/// Weight rows that all activation rows see before the next ones: they stay in the second-level cache.
const ROWS: usize = 16;
/// Room for a chunk of any format whose rows may end inside of one.
pub(super) const CHUNK_BYTES: usize = 288;

/// The end of an activation row, filled up with zeros to a chunk.
struct Tail {
    codes: [i8; CHUNK],
    scales: [f32; CHUNK / 32],
    sums: [i16; CHUNK / 16],
}

/// Activations of one chunk of one row.
#[derive(Clone, Copy)]
struct Part {
    codes: *const i8,
    scales: *const f32,
    sums: *const i16,
}

/// Any number of activation rows, in tiles of four. Codes of the usual formats stay in registers; with `packing` (then
/// `F` is [`Memory`]) they pass through memory.
#[inline(always)]
pub(crate) unsafe fn stream<S: Quant, F: Format>(
    w: WeightRows<'_>,
    x: Acts<'_>,
    mut out: OutMut<'_>,
    packing: Option<&Packing>,
) {
    let x = x.expect_q8(&w, &out);
    for r in (0..w.rows).step_by(ROWS) {
        let rows = r..(r + ROWS).min(w.rows);
        let mut t = 0;
        while t < x.rows {
            // SAFETY: `expect_q8` checked that all rows exist; features by the module's contract.
            t += unsafe {
                match x.rows - t {
                    1 => tile::<S, F, 1>(&w, &x, rows.clone(), t, &mut out, packing),
                    2 | 3 => tile::<S, F, 2>(&w, &x, rows.clone(), t, &mut out, packing),
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
    x: &Q8Rows<'_>,
    rows: std::ops::Range<usize>,
    t: usize,
    out: &mut OutMut<'_>,
    packing: Option<&Packing>,
) -> usize {
    let (block, bytes) = packing.map_or((F::BLOCK.0, F::BYTES), |packing| (packing.block.0, packing.bytes));
    let mut unpacked = Unpacked::ZERO;
    // SAFETY: rows and activation rows exist; a chunk that the row or the data ends in is read from copies.
    unsafe {
        let (k, row_bytes) = (w.k, w.row_bytes());
        let (whole, rest) = (k / CHUNK, if block < CHUNK { k % CHUNK } else { 0 });
        let tails: [Tail; M] = std::array::from_fn(|j| tail(x, t + j, whole * CHUNK, rest));
        let end = w.data.as_ptr_range().end;
        for r in rows {
            let row = w.data.as_ptr().add(r * row_bytes);
            let mut sums = Sums { acc: [[S::a_zero(); 2]; M], bias: [S::w_splat(0.0); M] };
            for c in 0..whole {
                let p = row.add(c * bytes);
                for line in (0..bytes).step_by(64) {
                    S::prefetch(p.wrapping_add(AHEAD + line));
                }
                let parts: [Part; M] = std::array::from_fn(|j| Part {
                    codes: x.codes.as_ptr().add((t + j) * k + c * CHUNK),
                    scales: x.scales.as_ptr().add(((t + j) * k + c * CHUNK) / 32),
                    sums: x.sums.as_ptr().add(((t + j) * k + c * CHUNK) / 16),
                });
                chunk::<S, F, M>(feed::<S>(packing, p, &mut unpacked), &parts, CHUNK, &mut sums);
            }
            if rest > 0 {
                let mut copy = [0u8; CHUNK_BYTES];
                let p = padded(row.add(whole * bytes), end, bytes, &mut copy);
                let part = |tail: &Tail| Part {
                    codes: tail.codes.as_ptr(),
                    scales: tail.scales.as_ptr(),
                    sums: tail.sums.as_ptr(),
                };
                let p = feed::<S>(packing, p, &mut unpacked);
                chunk::<S, F, M>(p, &tails.each_ref().map(part), rest, &mut sums);
            }
            let factor = if F::CODES.minimum() { 1.0 } else { F::CODES.offset::<S>() as f32 };
            for j in 0..M {
                let [a, b] = sums.acc[j];
                let mut total = S::a_sum(S::a_add(a, b));
                if factor != 0.0 {
                    total += factor * S::w_sum(sums.bias[j], F::SUB);
                }
                out.row(t + j)[r] = total;
            }
        }
    }
    M
}

/// The last `rest` values of activation row `t`.
#[inline(always)]
fn tail(x: &Q8Rows<'_>, t: usize, from: usize, rest: usize) -> Tail {
    let mut tail = Tail { codes: [0; CHUNK], scales: [0.0; CHUNK / 32], sums: [0; CHUNK / 16] };
    if rest > 0 {
        let at = t * x.k + from;
        tail.codes[..rest].copy_from_slice(&x.codes[at..at + rest]);
        tail.scales[..rest / 32].copy_from_slice(&x.scales[at / 32..][..rest / 32]);
        tail.sums[..rest / 16].copy_from_slice(&x.sums[at / 16..][..rest / 16]);
    }
    tail
}

/// `p`, or where fewer than the `bytes` of a chunk follow a copy of them.
#[inline(always)]
pub(super) unsafe fn padded(
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
struct Sums<S: Quant, const M: usize> {
    acc: [[S::A; 2]; M],
    bias: [S::W; M],
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
            let xs = S::w_load8(x[j].scales);
            let xs = if F::SUB == 16 { S::w_double(xs) } else { xs };
            scales[j] = S::w_mul(s, xs);
            if F::CODES.minimum() {
                let codes = S::w_mul(S::w_sums(x[j].sums, F::SUB), xs);
                sums.bias[j] = S::w_nfma(b, codes, sums.bias[j]);
            } else if F::CODES.offset::<S>() != 0 {
                sums.bias[j] = S::w_nfma(scales[j], S::w_sums(x[j].sums, F::SUB), sums.bias[j]);
            }
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
