//! Activations from rows of f32 to the B operand of `tdpbf16ps`.

use std::arch::x86_64::*;

use crate::x86::avx512::transpose16;
use crate::{AMX_SLICE, Q8Rows, TILE_K, TILE_ROWS};

/// See [`Interleave`](crate::Interleave).
pub(super) fn interleave(
    x: &[f32],
    stride: usize,
    rows: usize,
    len: usize,
    high: &mut [u16],
    low: &mut [u16],
) {
    assert!(rows >= 1 && (rows == 1 || stride >= len) && x.len() >= (rows - 1) * stride + len);
    // SAFETY: the rows' lengths were checked.
    unsafe { piece(Plain { x: x.as_ptr(), stride }, rows, len, high, low) }
}

/// Interleaves rows `first …` of 8-bit values, from value `k0` on.
pub(super) fn interleave_q8(
    x: &Q8Rows<'_>,
    (first, k0): (usize, usize),
    rows: usize,
    len: usize,
    high: &mut [u16],
    low: &mut [u16],
) {
    x.check();
    assert!(
        first + rows <= x.rows
            && k0 + len <= x.k
            && k0.is_multiple_of(32)
            && len.is_multiple_of(32)
    );
    let (codes, scales) = (&x.codes[first * x.k + k0..], &x.scales[(first * x.k + k0) / 32..]);
    let source = Codes { codes: codes.as_ptr(), scales: scales.as_ptr(), stride: x.k };
    // SAFETY: the rows' lengths were checked.
    unsafe { piece(source, rows, len, high, low) }
}

/// Rows that can be interleaved.
///
/// # Safety
/// For the method: the row exists and has `left` more values from `k`, a multiple of 32; the
/// processor has AVX-512 F.
trait Rows: Copy {
    /// Values `k … k + 16` and `k + 16 … k + 32` of row `r`, zeros after the end.
    unsafe fn pair(self, r: usize, k: usize, left: usize) -> [__m512; 2];
}

#[derive(Clone, Copy)]
struct Plain {
    x: *const f32,
    stride: usize,
}

impl Rows for Plain {
    #[inline(always)]
    unsafe fn pair(self, r: usize, k: usize, left: usize) -> [__m512; 2] {
        // SAFETY: masked to the row's values; features by the contract.
        unsafe {
            let p = self.x.add(r * self.stride + k);
            [load(p, left), load(p.wrapping_add(16), left.saturating_sub(16))]
        }
    }
}

#[derive(Clone, Copy)]
struct Codes {
    codes: *const i8,
    scales: *const f32,
    stride: usize,
}

impl Rows for Codes {
    #[inline(always)]
    unsafe fn pair(self, r: usize, k: usize, _: usize) -> [__m512; 2] {
        // SAFETY: the row has whole blocks of 32; features by the contract.
        unsafe {
            let at = r * self.stride + k;
            let scale = _mm512_set1_ps(*self.scales.add(at / 32));
            let sixteen = |p: *const i8| {
                let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast::<__m128i>()));
                _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale)
            };
            [sixteen(self.codes.add(at)), sixteen(self.codes.add(at + 16))]
        }
    }
}

/// # Safety
/// The source has `rows` rows of `len` values.
unsafe fn piece<S: Rows>(source: S, rows: usize, len: usize, high: &mut [u16], low: &mut [u16]) {
    assert!(rows <= TILE_ROWS && len <= AMX_SLICE);
    let values = TILE_ROWS * len.next_multiple_of(TILE_K);
    assert!(high.len() >= values && (low.is_empty() || low.len() >= values));
    // SAFETY: lengths were checked; the level was handed out after its features were found.
    unsafe {
        if low.is_empty() {
            piece_of::<1, S>(source, rows, len, [high.as_mut_ptr(); 2]);
        } else {
            piece_of::<2, S>(source, rows, len, [high.as_mut_ptr(), low.as_mut_ptr()]);
        }
    }
}

/// # Safety
/// The source has `rows` rows of `len` values, the parts have room for the piece.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn piece_of<const PARTS: usize, S: Rows>(
    source: S,
    rows: usize,
    len: usize,
    to: [*mut u16; 2],
) {
    let zero = _mm512_setzero_si512();
    for k in (0..len).step_by(TILE_K) {
        let mut parts = [[zero; 16]; PARTS];
        for r in 0..rows {
            // SAFETY: the caller's rows; this function has the features.
            let [a, b] = unsafe { source.pair(r, k, len - k) };
            for part in rounded::<PARTS>(a, b).into_iter().zip(&mut parts) {
                part.1[r] = part.0;
            }
        }
        for (part, to) in parts.into_iter().zip(to) {
            // SAFETY: the piece has 16 lines of 32 values for each 32 values of K; this function
            // has the features.
            unsafe {
                for (i, line) in transpose16(part).into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(TILE_ROWS * k + 32 * i).cast(), line);
                }
            }
        }
    }
}

/// The first `n` (at most 16) f32 at `p`, then zeros.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(p: *const f32, n: usize) -> __m512 {
    let mask = if n >= 16 { 0xffff } else { (1u32 << n) - 1 } as u16;
    // SAFETY: masked lanes are not accessed.
    unsafe { _mm512_maskz_loadu_ps(mask, p) }
}

/// 32 values as bf16, and with two parts the rounding errors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn rounded<const PARTS: usize>(a: __m512, b: __m512) -> [__m512i; PARTS] {
    let high = pack(a, b);
    let mut parts = [high; PARTS];
    if PARTS > 1 {
        let (even, odd) = (_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64::<1>(high));
        parts[1] = pack(_mm512_sub_ps(a, widened(even)), _mm512_sub_ps(b, widened(odd)));
    }
    parts
}

/// `a`, then `b`, rounded to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn pack(a: __m512, b: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain data.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a)) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widened(x: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
}
