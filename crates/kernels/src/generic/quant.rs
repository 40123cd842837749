//! Packed weight formats ([`Format`]) and the byte operations of a vector type that unpack them
//! ([`QuantSimd`]).
//!
//! Every format is read in *chunks* of 256 weights as `w = s · c - b`: 8-bit codes `c` in four
//! groups of 64 in file order, and scales `s` and minimums `b` for each 16 or 32 weights. Each
//! format implements its unpacking once. Products are integer sums of codes, converted to f32 once
//! per scale.

use puna_quant::TensorType;
use puna_quant::float::ue4m3_half;

use super::Simd;
use super::formats::fields::{self, HighBits};
use super::sweep::{OutBlock, Panel};
use crate::OutMut;

/// Weights per chunk.
pub(crate) const CHUNK: usize = 256;
/// Chunks that pass through memory together, so that loads do not wait for the stores right before
/// them.
pub(crate) const CHUNKS_PER_BATCH: usize = 8;

/// A packed weight format.
///
/// # Safety
/// For all methods: `p` is valid for the `BYTES` bytes of a chunk, and the processor has the
/// features of `S`.
pub(crate) trait Format: Copy + 'static {
    const TYPE: TensorType;
    /// Bytes of a chunk: one block, or several consecutive blocks.
    const BYTES: usize = CHUNK / Self::BLOCK.0 * Self::BLOCK.1;
    /// Weights and bytes per block.
    const BLOCK: (usize, usize);
    /// Weights that share a scale: 16 or 32.
    const SUB: usize;
    /// Meaning of codes.
    const CODES: Codes;

    /// Scales and, for [`Codes::Minimum`], minimums (undefined otherwise). If `SUB` is 32, lanes 8…
    /// are unused.
    unsafe fn scales<S: QuantSimd>(p: *const u8) -> (S::ScaleVec, S::ScaleVec);
    /// Codes of the chunk in file order, 64 per group.
    unsafe fn codes<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4];

    /// Whether codes are entries of a codebook, which the next three methods unpack.
    const USES_CODEBOOK: bool = false;
    /// Step 1: reads the indices of the entries.
    unsafe fn numbers<S: QuantSimd>(_p: *const u8, _to: &mut CodebookIndices) {}
    /// Step 2: copies the entries to `to`, which is aligned like [`Unpacked::codes`].
    unsafe fn rows(_numbers: &CodebookIndices, _to: &mut [u8; CHUNK]) {}
    /// Step 3: computes [`Format::codes`] from the entries.
    unsafe fn codes_of_entries<S: QuantSimd>(
        _p: *const u8,
        rows: [S::CodeVec; 4],
    ) -> [S::CodeVec; 4] {
        rows
    }

    /// Number of the sub-block of 16 weights in each lane of [`Format::by_sub_blocks`], on levels
    /// with sub-blocks as lanes.
    const SUB_BLOCKS: [u8; 16] = TRANSPOSED;

    /// All codes of the chunk in the order of [`QuantSimd::dot`]. On levels with sub-blocks as
    /// lanes, lane l of vector i has the codes `4 · i…` of sub-block `SUB_BLOCKS[l]`; on other
    /// levels, vector i has the codes `64 · i…`.
    #[inline(always)]
    unsafe fn by_sub_blocks<S: QuantSimd>(p: *const u8) -> [S::CodeVec; 4] {
        // SAFETY: the caller guarantees the chunk and the features.
        unsafe { transposed::<S, Self>(p) }
    }
}

/// Numbers of the codebook rows of a chunk: rows of 4 weights, or half as many rows of 8.
pub(crate) type CodebookIndices = [u16; CHUNK / 4];

/// [`Format::by_sub_blocks`] from codes in file order.
#[inline(always)]
pub(crate) unsafe fn transposed<S: QuantSimd, F: Format>(p: *const u8) -> [S::CodeVec; 4] {
    // SAFETY: the caller guarantees the chunk and the features.
    unsafe { S::by_sub_blocks(F::codes::<S>(p)) }
}

/// [`Format::SUB_BLOCKS`] of [`QuantSimd::by_sub_blocks`]: lane 4 · i + j gets sub-block 4 · j + i.
pub(crate) const TRANSPOSED: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// A chunk after unpacking, as [`Format`] describes it.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
pub(crate) struct Unpacked {
    /// Codes in the order of products.
    pub(crate) codes: [u8; CHUNK],
    /// Scales of 16 (or 8) groups of weights.
    pub(crate) scales: [f32; 16],
    /// Minimums, subtracted from `scale · code`; undefined for [`Codes::Signed`].
    pub(crate) minimums: [f32; 16],
}

impl Unpacked {
    pub(crate) const ZERO: Self =
        Self { codes: [0; CHUNK], scales: [0.0; 16], minimums: [0.0; 16] };
}

/// A format as data, for kernels that unpack through memory.
#[derive(Clone, Copy)]
pub(crate) struct Packing {
    /// Weights and bytes per block.
    pub(crate) block: (usize, usize),
    /// Bytes per chunk.
    pub(crate) bytes: usize,
    /// Weights that share a scale.
    pub(crate) sub: usize,
    pub(crate) codes: Codes,
    /// [`unpack_each`], compiled for a level. Sound to call if `bytes` bytes are valid at each
    /// chunk and the processor runs the level.
    pub(crate) unpack: unsafe fn(p: *const u8, stride: usize, to: &mut [Unpacked]),
}

/// Unpacks the chunks at `p`, `p + stride`, …
///
/// # Safety
/// As for [`Format`], for each chunk.
#[inline(always)]
pub(crate) unsafe fn unpack_each<S: QuantSimd, F: Format>(
    p: *const u8,
    stride: usize,
    to: &mut [Unpacked],
) {
    let chunk = |i: usize| p.wrapping_add(i * stride);
    if F::USES_CODEBOOK {
        for (i, to) in to.chunks_mut(CHUNKS_PER_BATCH).enumerate() {
            // SAFETY: the caller guarantees the chunks and the features.
            unsafe { unpack_rows::<S, F>(chunk(i * CHUNKS_PER_BATCH), stride, to) };
        }
        return;
    }
    for (i, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the chunks and the features.
        unsafe { unpack::<S, F>(chunk(i), to, F::codes::<S>(chunk(i))) };
    }
}

/// [`unpack_each`] for at most [`CHUNKS_PER_BATCH`] chunks of a codebook format. Each step runs for
/// all chunks before the next step, so that loads of row vectors come long after the word-wise
/// stores.
#[inline(always)]
unsafe fn unpack_rows<S: QuantSimd, F: Format>(p: *const u8, stride: usize, to: &mut [Unpacked]) {
    let chunk = |i: usize| p.wrapping_add(i * stride);
    let mut numbers: [CodebookIndices; CHUNKS_PER_BATCH] = [[0; CHUNK / 4]; CHUNKS_PER_BATCH];
    // SAFETY: the caller guarantees the chunks and the features; the numbers are valid row numbers.
    unsafe {
        for (i, numbers) in numbers.iter_mut().enumerate().take(to.len()) {
            F::numbers::<S>(chunk(i), numbers);
        }
        for (to, numbers) in to.iter_mut().zip(std::hint::black_box(&mut numbers)) {
            F::rows(numbers, &mut to.codes);
        }
        for (i, to) in to.iter_mut().enumerate() {
            let rows = to.codes.as_ptr();
            let rows = [
                S::load64(rows),
                S::load64(rows.add(64)),
                S::load64(rows.add(128)),
                S::load64(rows.add(192)),
            ];
            let codes = F::codes_of_entries::<S>(chunk(i), rows);
            unpack::<S, F>(chunk(i), to, codes);
        }
    }
}

/// Unpacks the chunk at `p`, given its codes.
///
/// # Safety
/// As for [`Format`].
#[inline(always)]
unsafe fn unpack<S: QuantSimd, F: Format>(p: *const u8, to: &mut Unpacked, codes: [S::CodeVec; 4]) {
    // SAFETY: the caller's chunk is whole; the arrays hold a whole chunk.
    unsafe {
        let (scales, mut minimums) = F::scales::<S>(p);
        if let Codes::Offset(offset) = F::CODES {
            minimums = S::w_mul(scales, S::w_splat(offset as f32));
        }
        S::w_store(&mut to.scales, scales);
        S::w_store(&mut to.minimums, minimums);
        for (j, codes) in codes.into_iter().enumerate() {
            S::store64(to.codes.as_mut_ptr().add(64 * j), codes);
        }
    }
}

/// The meaning of a format's codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Unsigned, in `0..2 · offset` with an offset of at least 2: `w = s · (c - offset)`.
    Offset(i32),
    /// Signed, in −128…127, through [`QuantSimd::signed`]: `w = s · c`.
    Signed,
    /// Unsigned, at most this: `w = s · c - b`.
    Minimum(i32),
}

impl Codes {
    /// Offset of codes in the form of the vector type `S`.
    pub(crate) const fn offset<S: QuantSimd>(self) -> i32 {
        match self {
            Codes::Offset(offset) => offset,
            Codes::Signed => S::BIAS,
            Codes::Minimum(_) => 0,
        }
    }

    /// Class of the largest code: 15, 31, 63, or 128 for signed and larger ones.
    pub(crate) const fn code_limit(self) -> i32 {
        let largest = match self {
            Codes::Signed => return 128,
            Codes::Offset(offset) => 2 * offset - 1,
            Codes::Minimum(largest) => largest,
        };
        match largest {
            ..=15 => 15,
            16..=31 => 31,
            32..=63 => 63,
            _ => 128,
        }
    }

    /// Whether weights have minimums.
    pub(crate) const fn minimum(self) -> bool {
        matches!(self, Codes::Minimum(_))
    }
}

/// Vectors of codes, scales and integer sums.
///
/// # Safety
/// This holds for every method: the processor has the features that the implementing type is named
/// after; pointers are valid for the bytes named at the method, at any alignment.
pub(crate) trait QuantSimd: Simd {
    /// 64 codes.
    type CodeVec: Copy;
    /// 16 f32: one for every 16 (or the first 8: for every 32) weights of a chunk.
    type ScaleVec: Copy;
    /// f32 sums of products.
    type SumVec: Copy;
    /// Number that [`QuantSimd::signed`] adds to codes: 128 if products need unsigned codes, else
    /// 0.
    const BIAS: i32;
    /// Whether [`QuantSimd::dot`] sums sub-blocks of 16 weights in lanes of their own, see
    /// [`Format::by_sub_blocks`].
    const SUB_BLOCKS_AS_LANES: bool;
    /// Activation rows that stay in registers while weights are streamed: 4 or 8.
    const STREAM_TILE: usize;
    /// Vectors of weight rows of the panel kernel: 1 or 2.
    const PANEL_VECTORS: usize = 1;

    /// Activation rows that the panel kernel multiplies at once, at most 6, for weights that share
    /// a scale by `sub`.
    fn panel_tokens(sub: usize) -> usize;

    /// 64 bytes at `p`.
    unsafe fn load64(p: *const u8) -> Self::CodeVec;
    /// To 64 bytes at `p`.
    unsafe fn store64(p: *mut u8, c: Self::CodeVec);
    /// 32 bytes at `p`, twice.
    unsafe fn broadcast32(p: *const u8) -> Self::CodeVec;
    /// 32 bytes at `a`, then 32 at `b`.
    unsafe fn pair(a: *const u8, b: *const u8) -> Self::CodeVec;
    /// The low, then the high halves of 16 bytes at `a`, then of 16 at `b`.
    unsafe fn nibbles(a: *const u8, b: *const u8) -> Self::CodeVec;
    /// For each 8 of the 32 bytes at `p`: the low nibbles, then the high nibbles.
    unsafe fn nibbles_of_words(p: *const u8) -> Self::CodeVec;
    /// 16 bytes at each of four distances from `p`.
    unsafe fn pieces(p: *const u8, at: [usize; 4]) -> Self::CodeVec;
    /// From natural order to sub-blocks as lanes, see [`Format::by_sub_blocks`] and [`TRANSPOSED`];
    /// unchanged if sub-blocks are not lanes.
    unsafe fn by_sub_blocks(c: [Self::CodeVec; 4]) -> [Self::CodeVec; 4];
    /// Low and high nibbles of four pieces in `a` and four in `b`, each a sub-block of 16 codes, as
    /// lanes: lane 4 · i + j gets the low nibbles of piece i of `a` and of `b`, then their high
    /// nibbles. Only for levels that have sub-blocks as lanes.
    unsafe fn nibbles_by_sub_blocks(a: Self::CodeVec, b: Self::CodeVec) -> [Self::CodeVec; 4];
    /// The four 2-bit fields of 64 bytes, lowest first, as sub-blocks of 16 codes: lane 4 · i + j
    /// gets field j of piece i of 16 bytes. Only for levels that have sub-blocks as lanes.
    unsafe fn unpack_2bit_by_lane(c: Self::CodeVec) -> [Self::CodeVec; 4];
    /// Eight words, lowest byte first.
    unsafe fn from_u64s(words: [u64; 8]) -> Self::CodeVec;
    /// Sixteen words, lowest byte first.
    #[inline(always)]
    unsafe fn from_u32s(words: [u32; 16]) -> Self::CodeVec {
        let pair = |i: usize| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32;
        // SAFETY: the contract.
        unsafe { Self::from_u64s(std::array::from_fn(pair)) }
    }
    /// See [`fields::indices`]; `N` is 32 or 64.
    #[inline(always)]
    unsafe fn indices<H: HighBits, const N: usize>(low: *const u8, high: *const u8) -> [u16; N] {
        // SAFETY: the contract.
        unsafe { fields::indices::<H, N>(low, high) }
    }
    /// Sign bits of 256 weights, 64 a word: eight words at `p`, `stride` (4 or 8) bytes apart, have
    /// four fields of seven bits in their low 28, each for eight weights of which an even number is
    /// negative. If words are 8 bytes apart, four bytes before the first can be read.
    #[inline(always)]
    unsafe fn signs_of_words(p: *const u8, stride: usize) -> [u64; 4] {
        // SAFETY: the contract.
        unsafe { fields::signs_of_words(p, stride) }
    }
    /// Signs from the top seven bits of 32 words of 16 bits at `p`.
    #[inline(always)]
    unsafe fn signs_of_halves(p: *const u8) -> [u64; 4] {
        // SAFETY: the contract.
        unsafe { fields::signs_of_halves(p) }
    }
    /// The highest digit of base 3 that each byte has after it was multiplied by its power of
    /// three, modulo 256.
    unsafe fn digits(c: Self::CodeVec, powers: &[u8; 64]) -> Self::CodeVec;
    /// The first 32 bytes shifted right by `a` bits, the others by `b` (negative: left), then the
    /// bits in `mask`. `mask` keeps only bits that come from the same byte.
    unsafe fn fields(c: Self::CodeVec, a: i32, b: i32, mask: u8) -> Self::CodeVec;
    unsafe fn or(a: Self::CodeVec, b: Self::CodeVec) -> Self::CodeVec;
    /// `c | value` where the bit of a code is set.
    unsafe fn or_where(c: Self::CodeVec, bits: u64, value: u8) -> Self::CodeVec;
    /// `-c` where the bit of a code is set.
    unsafe fn negate_where(c: Self::CodeVec, bits: u64) -> Self::CodeVec;
    /// Signed codes in the operand form of [`QuantSimd::dot`].
    unsafe fn signed(c: Self::CodeVec) -> Self::CodeVec;
    /// `table[c]`, codes below 16.
    unsafe fn lookup_unsigned(table: &[u8; 16], c: Self::CodeVec) -> Self::CodeVec;
    /// `signed(table[c])`, codes below 16.
    unsafe fn lookup_signed(table: &[i8; 16], c: Self::CodeVec) -> Self::CodeVec;

    /// The first (or `upper`: the second) binary16 of the four bytes at `p`.
    unsafe fn half_of(p: *const u8, upper: bool) -> f32;
    /// All lanes `x`.
    unsafe fn w_splat(x: f32) -> Self::ScaleVec;
    /// 16 f32.
    unsafe fn w_new(x: &[f32; 16]) -> Self::ScaleVec;
    unsafe fn w_store(x: &mut [f32; 16], w: Self::ScaleVec);
    /// 8 f32 at `p`, then zeros.
    unsafe fn w_load8(p: *const f32) -> Self::ScaleVec;
    /// 16 f32 at `p`.
    unsafe fn w_load16(p: *const f32) -> Self::ScaleVec;
    /// 8 binary16 at `p`, `p + stride`, …, then zeros; four bytes are read at each place.
    unsafe fn w_halves(p: *const u8, stride: usize) -> Self::ScaleVec;
    /// 8 unsigned bytes, lowest first, then zeros.
    unsafe fn w_bytes8(x: u64) -> Self::ScaleVec;
    /// The top four bits of eight words, as for [`QuantSimd::signs_of_words`]; other lanes are
    /// undefined.
    #[inline(always)]
    unsafe fn w_tops(p: *const u8, stride: usize) -> Self::ScaleVec {
        // SAFETY: the contract.
        unsafe { Self::w_bytes8(fields::tops(p, stride)) }
    }
    /// 8 powers of two as half of E8M0 numbers, lowest byte first; other lanes are undefined.
    unsafe fn w_powers(x: u64) -> Self::ScaleVec;
    /// [`ue4m3_half`] of four bytes at each of four places, lowest byte first.
    #[inline(always)]
    unsafe fn w_ue4m3(bytes: [u32; 4]) -> Self::ScaleVec {
        let half = |i: usize| ue4m3_half(bytes[i / 4].to_le_bytes()[i % 4]);
        // SAFETY: the contract.
        unsafe { Self::w_new(&std::array::from_fn(half)) }
    }
    /// 16 signed bytes.
    unsafe fn w_bytes16(low: u64, high: u64) -> Self::ScaleVec;
    /// The scales and minimums of the 6-bit fields in the bytes 4…15 of a Q4_K block at `p`, as 8
    /// lanes.
    unsafe fn w_six_bits(p: *const u8) -> (Self::ScaleVec, Self::ScaleVec);
    /// Lane `order[i]` for each lane i.
    unsafe fn w_order(w: Self::ScaleVec, order: &'static [u8; 16]) -> Self::ScaleVec;
    unsafe fn w_mul(a: Self::ScaleVec, b: Self::ScaleVec) -> Self::ScaleVec;
    unsafe fn w_add(a: Self::ScaleVec, b: Self::ScaleVec) -> Self::ScaleVec;
    /// `c - a · b`.
    unsafe fn w_nfma(a: Self::ScaleVec, b: Self::ScaleVec, c: Self::ScaleVec) -> Self::ScaleVec;
    /// `c - a · b` in the first 8 lanes. `c` has zeros after them, and so has the result.
    unsafe fn w_nfma8(a: Self::ScaleVec, b: Self::ScaleVec, c: Self::ScaleVec) -> Self::ScaleVec;
    /// Zero in lanes `n…`.
    unsafe fn w_keep(w: Self::ScaleVec, n: usize) -> Self::ScaleVec;
    /// Sum of all lanes, or with `sub` 32 of the first 8.
    unsafe fn w_sum(w: Self::ScaleVec, sub: usize) -> f32;

    unsafe fn a_zero() -> Self::SumVec;
    /// Adds `scale · (start + codes · x)` of the sub-blocks of a chunk: codes and 256 activation
    /// codes at `x` in the order of [`Format::by_sub_blocks`], sums that 16 products start from,
    /// and for each sub-block the weights' scale and at 16 places the activations' (with `sub` 32
    /// two sub-blocks have the same); `code_limit` is the largest code, or 128 for signed ones.
    unsafe fn dot(
        acc: Self::SumVec,
        c: &[Self::CodeVec; 4],
        x: *const i8,
        start: Option<*const i32>,
        scales: (Self::ScaleVec, *const f32),
        sub: usize,
        code_limit: i32,
    ) -> Self::SumVec;
    unsafe fn a_sum(a: Self::SumVec) -> f32;

    /// From 64 codes of each of `LANES` rows to `[k/4][row][k%4]` at `dst`: `64 · LANES` bytes.
    /// Another divisor of 16 in place of 4 is allowed if [`QuantSimd::panel_dot`] uses it, too.
    unsafe fn transpose_codes(rows: &[Self::CodeVec; 16], dst: *mut u8);
    /// From the scales of `LANES` rows to `[lane][row]` at `dst`: `16 · LANES` f32.
    unsafe fn transpose_scales(rows: &[Self::ScaleVec; 16], dst: *mut f32);

    /// i32 sums of `LANES` rows.
    type I: Copy;
    unsafe fn i_splat(x: i32) -> Self::I;
    unsafe fn i_to_f32(x: Self::I) -> Self::F;
    /// For `T` tokens: adds the products of `n` activation codes (token `t` at `x + 32 · t`) with
    /// the panel's `V` planes at `w`; `code_limit` is the largest code of the panel, or 128 for
    /// signed ones.
    unsafe fn panel_dot<const T: usize, const V: usize>(
        acc: &mut [[Self::I; T]; V],
        w: [*const u8; V],
        x: *const u8,
        n: usize,
        code_limit: i32,
    );

    /// [`super::qpanel::sweep`], compiled once for each kind of scale.
    unsafe fn sweep<const SUB: usize, const MIN: bool, const CODE_LIMIT: i32>(
        panel: Panel<'_>,
        packed: &[u8],
        tokens: usize,
        out: &mut OutMut<'_>,
        block: OutBlock,
    );
}
