//! Weights from the file's formats to the A operand of `tdpbf16ps`: 16 rows of 32 bf16.
//!
//! Each weight is rounded once, to the nearest bf16 of its exact value. Formats with few codes use
//! a table: up to 32 possible values of a sub-block of weights with one scale are computed in one
//! or two multiplications and rounded. `vpermw` then looks up 32 weights per instruction. Other
//! formats are converted and multiplied, 16 weights per vector.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use puna_quant::TensorType;
use puna_quant::tables::{FP4_VALUES, IQ4NL_VALUES};

use super::interleave::{pack, rounded};
use crate::generic::Format;
use crate::generic::formats::{blocks, kquants};
use crate::generic::qstream::{CHUNK_BYTES, padded};
use crate::generic::quant::Codes;
use crate::x86::avx512::Avx512;
use crate::{AMX_SLICE, TILE_K};

/// Bytes of a tile.
pub(super) const TILE: usize = 1024;

/// A weight format, as this level expands it.
///
/// # Safety
/// For the method: the processor has the features of the level.
pub(super) trait Expand: 'static {
    const TYPE: TensorType;
    /// Weights and bytes of a block.
    const BLOCK: (usize, usize);
    /// bf16 a weight.
    const PARTS: usize = 1;
    /// Whether rows are bf16 as they are.
    const DIRECT: bool = false;
    /// Bytes that are read for a slice, even if the row has fewer; 0 for a format that reads only
    /// bytes of the row.
    const BYTES: usize = AMX_SLICE / Self::BLOCK.0 * Self::BLOCK.1;

    /// Expands `len` weights of one row: 32 each to `to`, `to + TILE`…, the second part `low` bytes
    /// after. `p` is valid for the weights, and for `BYTES`; `to` for eight sub-blocks of each
    /// part, with anything in those after `len`.
    unsafe fn row(p: *const u8, len: usize, to: *mut u8, low: usize);
}

/// Some rows, at most 16, over some weights, at most a slice.
pub(super) struct Strip {
    /// First weight of the first row.
    pub data: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    pub rows: usize,
    pub len: usize,
    /// End of the matrix.
    pub end: *const u8,
    /// Bytes from the first part of the panel to the second.
    pub low: usize,
}

/// A format as data.
pub(super) struct Expander {
    pub block: (usize, usize),
    pub parts: usize,
    pub direct: bool,
    /// Expands a strip to tiles at the pointer, which has room for eight (twice, with two parts).
    pub strip: unsafe fn(&Strip, *mut u8),
}

impl Expander {
    pub(super) fn of<E: Expand>() -> Self {
        Self { block: E::BLOCK, parts: E::PARTS, direct: E::DIRECT, strip: strip::<E> }
    }
}

/// # Safety
/// The strip's rows exist, `to` has room; the processor has the features of the level.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c"
)]
unsafe fn strip<E: Expand>(s: &Strip, to: *mut u8) {
    let mut copy = [0; CHUNK_BYTES];
    for r in 0..s.rows {
        // SAFETY: the caller's rows; a chunk that the data ends in is copied.
        unsafe {
            let p = s.data.add(r * s.stride);
            let p = if E::BYTES > 0 { padded(p, s.end, E::BYTES, &mut copy) } else { p };
            E::row(p, s.len, to.add(64 * r), s.low);
        }
    }
}

/// Scales of a chunk, to be read one by one.
#[repr(C, align(64))]
struct Lanes([f32; 16]);

impl Lanes {
    #[inline(always)]
    unsafe fn new(x: __m512) -> Self {
        let mut lanes = Lanes([0.0; 16]);
        // SAFETY: features by the contract of the callers. Through memory, out of the compiler's
        // sight: it would move lanes by shuffles, for which there is one port, where loads that
        // broadcast cost nothing.
        unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), x) };
        std::hint::black_box(&mut lanes);
        lanes
    }

    #[inline(always)]
    unsafe fn splat(&self, i: usize) -> __m512 {
        // SAFETY: features by the contract of the callers.
        unsafe { _mm512_set1_ps(self.0[i]) }
    }
}

/// Values of up to 16 codes: `codes · scale - minimum`.
struct Values {
    codes: __m512,
    scales: Lanes,
    minimums: Option<Lanes>,
}

impl Values {
    #[inline(always)]
    unsafe fn new<F: Format>(p: *const u8, codes: &[f32; 16]) -> Self {
        // SAFETY: the chunk is whole; features by the contract of the callers.
        unsafe {
            let (scales, minimums) = F::scales::<Avx512>(p);
            let minimums = if F::CODES.minimum() { Some(Lanes::new(minimums)) } else { None };
            Self { codes: _mm512_loadu_ps(codes.as_ptr()), scales: Lanes::new(scales), minimums }
        }
    }

    /// With scale `i`.
    #[inline(always)]
    unsafe fn of(&self, codes: __m512, i: usize) -> __m512 {
        // SAFETY: features by the contract of the callers.
        unsafe {
            match &self.minimums {
                Some(minimums) => _mm512_fmsub_ps(codes, self.scales.splat(i), minimums.splat(i)),
                None => _mm512_mul_ps(codes, self.scales.splat(i)),
            }
        }
    }

    /// A table of the codes with scale `i`, then with scale `i + 1`: rounding two tables at once
    /// costs what one does.
    #[inline(always)]
    unsafe fn two(&self, i: usize) -> __m512i {
        // SAFETY: features by the contract of the callers.
        unsafe { pack(self.of(self.codes, i), self.of(self.codes, i + 1)) }
    }
}

/// Writes the weights `32 · i …`.
#[inline(always)]
unsafe fn put(to: *mut u8, i: usize, weights: __m512i) {
    // SAFETY: the caller's sub-block has room.
    unsafe { _mm512_storeu_si512(to.add(TILE * i).cast(), weights) }
}

/// Values in nibbles: sub-blocks of 32 weights in 16 bytes, the first 16 in the low halves.
pub(super) struct Nibbles<F>(PhantomData<F>);

/// Location of the nibbles in a chunk, and their values before scaling.
pub(super) trait NibbleFormat: Format {
    const VALUES: [f32; 16];
    /// Bytes before the nibbles of the first sub-block, and from one sub-block to the next.
    const AT: (usize, usize);
}

const fn floats(values: &[i8; 16]) -> [f32; 16] {
    let mut floats = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        floats[i] = values[i] as f32;
        i += 1;
    }
    floats
}

/// 0, 1, 2…
const COUNT: [f32; 16] = floats(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

impl NibbleFormat for blocks::Q4_0 {
    const VALUES: [f32; 16] = floats(&[-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]);
    const AT: (usize, usize) = (2, 18);
}
impl NibbleFormat for blocks::Q4_1 {
    const VALUES: [f32; 16] = COUNT;
    const AT: (usize, usize) = (4, 20);
}
impl NibbleFormat for blocks::IQ4_NL {
    const VALUES: [f32; 16] = floats(&IQ4NL_VALUES);
    const AT: (usize, usize) = (2, 18);
}
impl NibbleFormat for blocks::MXFP4 {
    const VALUES: [f32; 16] = floats(&FP4_VALUES);
    const AT: (usize, usize) = (1, 17);
}
impl NibbleFormat for kquants::IQ4_XS {
    const VALUES: [f32; 16] = floats(&IQ4NL_VALUES);
    const AT: (usize, usize) = (8, 16);
}

impl<F: NibbleFormat> Expand for Nibbles<F> {
    const TYPE: TensorType = F::TYPE;
    const BLOCK: (usize, usize) = F::BLOCK;

    #[inline(always)]
    unsafe fn row(p: *const u8, _: usize, to: *mut u8, _: usize) {
        // SAFETY: the chunk is whole; features by the contract.
        unsafe {
            let values = Values::new::<F>(p, &F::VALUES);
            // Bytes 0…7 and 8…15 as words, twice.
            let spread = _mm512_broadcast_i64x4(_mm256_cvtepu8_epi16(_mm_setr_epi8(
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
            )));
            let spread = _mm512_or_si512(spread, _mm512_set1_epi16(-0x8000));
            let shifts = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
            let (low, sixteen) = (_mm512_set1_epi16(15), _mm512_set1_epi16(16));
            let words = |i: usize| {
                let bytes = _mm_loadu_si128(p.add(F::AT.0 + F::AT.1 * i).cast());
                let words = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), spread);
                _mm512_srlv_epi16(words, shifts)
            };
            for i in (0..8).step_by(2) {
                let table = values.two(i);
                let first = _mm512_and_si512(words(i), low);
                put(to, i, _mm512_permutexvar_epi16(first, table));
                // (words & low) | sixteen
                let second = _mm512_ternarylogic_epi32::<0xea>(words(i + 1), low, sixteen);
                put(to, i + 1, _mm512_permutexvar_epi16(second, table));
            }
        }
    }
}

/// Q4_K: 32 bytes hold one sub-block in their low halves and the next in their high ones.
pub(super) struct Q4K;

impl Expand for Q4K {
    const TYPE: TensorType = TensorType::Q4_K;
    const BLOCK: (usize, usize) = (256, 144);

    #[inline(always)]
    unsafe fn row(p: *const u8, _: usize, to: *mut u8, _: usize) {
        // SAFETY: the chunk is whole; features by the contract.
        unsafe {
            let values = Values::new::<kquants::Q4_K>(p, &COUNT);
            for j in 0..4 {
                let table = values.two(2 * j);
                let words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.add(16 + 32 * j).cast()));
                // The ninth bit becomes the fifth: the second table.
                let words = _mm512_or_si512(words, _mm512_set1_epi16(0x100));
                let first = _mm512_and_si512(words, _mm512_set1_epi16(15));
                put(to, 2 * j, _mm512_permutexvar_epi16(first, table));
                let second = _mm512_srli_epi16::<4>(words);
                put(to, 2 * j + 1, _mm512_permutexvar_epi16(second, table));
            }
        }
    }
}

/// Formats with codes below 32, or below 16 with a scale for 16 weights.
pub(super) struct Tables<F>(PhantomData<F>);

impl<F: Format> Expand for Tables<F> {
    const TYPE: TensorType = F::TYPE;
    const BLOCK: (usize, usize) = F::BLOCK;

    #[inline(always)]
    unsafe fn row(p: *const u8, _: usize, to: *mut u8, _: usize) {
        const { assert!(F::CODES.code_limit() <= if F::SUB == 32 { 31 } else { 15 }) };
        // SAFETY: the chunk is whole; features by the contract.
        unsafe {
            let mut values = Values::new::<F>(p, &COUNT);
            if let Codes::Offset(offset) = F::CODES {
                values.codes = _mm512_sub_ps(values.codes, _mm512_set1_ps(offset as f32));
            }
            let above = _mm512_add_ps(values.codes, _mm512_set1_ps(16.0));
            let mut codes = [0u8; AMX_SLICE];
            for (j, group) in F::codes::<Avx512>(p).into_iter().enumerate() {
                _mm512_storeu_si512(codes.as_mut_ptr().add(64 * j).cast(), group);
            }
            // Through memory as well: loads extend bytes to words.
            std::hint::black_box(&mut codes);
            let index = |i: usize| {
                _mm512_cvtepu8_epi16(_mm256_loadu_si256(
                    codes.as_ptr().add(32 * i).cast::<__m256i>(),
                ))
            };
            let sixteen = _mm512_set1_epi16(16);
            for i in 0..8 {
                let weights = if F::SUB == 16 {
                    let half = _mm512_inserti64x4::<0>(sixteen, _mm256_setzero_si256());
                    _mm512_permutexvar_epi16(_mm512_or_si512(index(i), half), values.two(2 * i))
                } else if F::CODES.code_limit() > 15 {
                    let table = pack(values.of(values.codes, i), values.of(above, i));
                    _mm512_permutexvar_epi16(index(i), table)
                } else if i % 2 == 0 {
                    let table = values.two(i);
                    let second = _mm512_or_si512(index(i + 1), sixteen);
                    put(to, i + 1, _mm512_permutexvar_epi16(second, table));
                    _mm512_permutexvar_epi16(index(i), table)
                } else {
                    continue;
                };
                put(to, i, weights);
            }
        }
    }
}

/// 32 weights of signed codes at `p`, the second half with another scale.
#[inline(always)]
unsafe fn products(p: *const i8, scales: &Lanes, [a, b]: [usize; 2]) -> __m512i {
    // SAFETY: the caller's codes; features by the contract of the callers.
    unsafe {
        let [x, y] = [p, p.add(16)].map(|p| {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast::<__m128i>())))
        });
        pack(_mm512_mul_ps(x, scales.splat(a)), _mm512_mul_ps(y, scales.splat(b)))
    }
}

/// Any format without minimums: codes times scales.
pub(super) struct Products<F>(PhantomData<F>);

impl<F: Format> Expand for Products<F> {
    const TYPE: TensorType = F::TYPE;
    const BLOCK: (usize, usize) = F::BLOCK;

    #[inline(always)]
    unsafe fn row(p: *const u8, _: usize, to: *mut u8, _: usize) {
        const { assert!(!F::CODES.minimum()) };
        // SAFETY: the chunk is whole; features by the contract.
        unsafe {
            let scales = Lanes::new(F::scales::<Avx512>(p).0);
            let offset = _mm512_set1_epi8(F::CODES.offset::<Avx512>() as i8);
            let mut codes = [0i8; AMX_SLICE];
            for (j, group) in F::codes::<Avx512>(p).into_iter().enumerate() {
                let signed = _mm512_sub_epi8(group, offset);
                _mm512_storeu_si512(codes.as_mut_ptr().add(64 * j).cast(), signed);
            }
            std::hint::black_box(&mut codes);
            for i in 0..8 {
                let at = if F::SUB == 16 { [2 * i, 2 * i + 1] } else { [i, i] };
                put(to, i, products(codes.as_ptr().add(32 * i), &scales, at));
            }
        }
    }
}

/// Q8_0: signed codes as they are.
pub(super) struct Q8;

impl Expand for Q8 {
    const TYPE: TensorType = TensorType::Q8_0;
    const BLOCK: (usize, usize) = (32, 34);

    #[inline(always)]
    unsafe fn row(p: *const u8, _: usize, to: *mut u8, _: usize) {
        // SAFETY: the chunk is whole; features by the contract.
        unsafe {
            let scales = Lanes::new(blocks::Q8_0::scales::<Avx512>(p).0);
            for i in 0..8 {
                put(to, i, products(p.add(34 * i + 2).cast(), &scales, [i; 2]));
            }
        }
    }
}

/// The mask of sub-block `i`: of 32 values those before `len`.
#[inline(always)]
fn mask(len: usize, i: usize) -> u32 {
    let left = len.saturating_sub(TILE_K * i);
    if left >= TILE_K { u32::MAX } else { (1 << left) - 1 }
}

/// bf16 as it is.
pub(super) struct Bf16;

impl Expand for Bf16 {
    const TYPE: TensorType = TensorType::BF16;
    const BLOCK: (usize, usize) = (1, 2);
    const DIRECT: bool = true;
    const BYTES: usize = 0;

    #[inline(always)]
    unsafe fn row(p: *const u8, len: usize, to: *mut u8, _: usize) {
        for i in 0..len.div_ceil(TILE_K) {
            // SAFETY: masked to the row's weights; features by the contract.
            unsafe { put(to, i, _mm512_maskz_loadu_epi16(mask(len, i), p.add(64 * i).cast())) }
        }
    }
}

/// binary16 as the sum of two bf16: exact, for 8 and 3 bits of mantissa are its 11, where the
/// exponent is in range.
pub(super) struct F16;

impl Expand for F16 {
    const TYPE: TensorType = TensorType::F16;
    const BLOCK: (usize, usize) = (1, 2);
    const PARTS: usize = 2;
    const BYTES: usize = 0;

    #[inline(always)]
    unsafe fn row(p: *const u8, len: usize, to: *mut u8, low: usize) {
        for i in 0..len.div_ceil(TILE_K) {
            // SAFETY: masked to the row's weights; features by the contract.
            unsafe {
                let x = _mm512_maskz_loadu_epi16(mask(len, i), p.add(64 * i).cast());
                let a = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
                let b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(x));
                let [high, rest] = rounded::<2>(a, b);
                put(to, i, high);
                put(to.add(low), i, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::generic::formats::codebook;

    /// Measures the expansion of weights in the first-level cache on one thread:
    /// `cargo test --release -p puna-kernels --lib expanded -- --ignored --nocapture`
    #[test]
    #[ignore = "measures"]
    fn expanded_weights_per_second_are_measured() {
        fn rate<E: Expand>() {
            if !(crate::x86::avx512::available() && super::super::vectors()) {
                return;
            }
            let bytes = AMX_SLICE / E::BLOCK.0 * E::BLOCK.1;
            let data = vec![0x35u8; 16 * bytes + 64];
            let mut panel = vec![0u64; 4 * TILE];
            let to = panel.as_mut_ptr().cast::<u8>();
            let to = to.wrapping_add(to.align_offset(64));
            let strip = Strip {
                data: data.as_ptr(),
                stride: bytes,
                rows: 16,
                len: AMX_SLICE,
                end: data.as_ptr_range().end,
                low: 8 * TILE,
            };
            let expander = Expander::of::<E>();
            let mut best = f64::MAX;
            for _ in 0..200 {
                let start = Instant::now();
                for _ in 0..100 {
                    // SAFETY: the strip's rows exist, the panel has room for 16 tiles, the features
                    // were found.
                    unsafe { (expander.strip)(black_box(&strip), to) };
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!(
                "{:8} {:6.1} G weights/s",
                E::TYPE.name(),
                (100 * 16 * AMX_SLICE) as f64 / best / 1e9
            );
        }
        rate::<Nibbles<blocks::Q4_0>>();
        rate::<Nibbles<blocks::Q4_1>>();
        rate::<Nibbles<blocks::MXFP4>>();
        rate::<Nibbles<kquants::IQ4_XS>>();
        rate::<Q4K>();
        rate::<Q8>();
        rate::<Tables<blocks::Q5_0>>();
        rate::<Tables<kquants::Q5_K>>();
        rate::<Tables<kquants::Q2_K>>();
        rate::<Tables<kquants::Q3_K>>();
        rate::<Products<kquants::Q6_K>>();
        rate::<Products<codebook::IQ3_S>>();
        rate::<Products<codebook::IQ2_XXS>>();
        rate::<Bf16>();
        rate::<F16>();
    }
}
