//! Kernels by level: what one core computes, as tables of plain functions.
//!
//! A *level* (portable, AVX2, AVX-512, NEON) fills a [`Level`] with function pointers once a process. The
//! shape of the work (which rows, how many at once, on which thread) is decided by the caller; a kernel is a pure
//! function of slices. The portable level computes with dequantized weights and f32 activations and is
//! the oracle of every other one.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod generic;
pub mod huge_pages;
mod levels;
mod portable;
mod recurrent;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use levels::{KernelError, best, emulated, level, levels};

pub use portable::load_position;
#[cfg(target_arch = "x86_64")]
pub use x86::tile_peaks;

pub use recurrent::{DeltaStep, PoolStep, RecurrentKernels, ScanStep, Tap, Wkv7Step, WkvStep};
pub use tiles::{Interleave, SLICE, TILE_K, TILE_ROWS, TileForm, TileRows, slice_len};

pub use puna_graph::KvType;
use puna_quant::TensorType;

use huge_pages::{HUGE_PAGE, advise_huge};

/// How a kernel wants its activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// As they are.
    F32,
    /// Rounded to 8 bits, see [`Q8Rows`].
    Q8,
}

/// Rows of activations rounded to 8 bits in blocks of 32 values: `x ≈ scale · code`.
///
/// One form serves every weight format: scales every 32 values are at least as fine as those of any format, and the
/// sums of codes stand for offsets (in integers) and minimums (one multiply-add a block).
#[derive(Debug, Clone, Copy)]
pub struct Q8Rows<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Values a row; a multiple of 32.
    pub k: usize,
    /// `rows × k` codes in -127…127, in the natural order.
    pub codes: &'a [i8],
    /// `rows × k/32` scales.
    pub scales: &'a [f32],
    /// `rows × k/16` sums of the codes of 16 values.
    pub sums: &'a [i16],
}

/// Activations in the form that a kernel asked for.
#[derive(Debug, Clone, Copy)]
pub enum Acts<'a> {
    /// `rows × k` values.
    F32 {
        /// Number of rows.
        rows: usize,
        /// Values a row.
        k: usize,
        /// The values, rows contiguous.
        x: &'a [f32],
    },
    /// See [`Q8Rows`].
    Q8(Q8Rows<'a>),
    /// See [`TileRows`].
    Tiles(TileRows<'a>),
}

impl<'a> Q8Rows<'a> {
    /// Panics unless the slices have the lengths that `rows` and `k` ask for.
    fn check(&self) {
        let values = self.rows.checked_mul(self.k).expect("the activations exist");
        assert!(self.k.is_multiple_of(32) && self.codes.len() >= values);
        assert!(self.scales.len() >= values / 32 && self.sums.len() >= values / 16);
    }
}

impl<'a> Acts<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Acts::F32 { rows, .. } => *rows,
            Acts::Q8(x) => x.rows,
            Acts::Tiles(x) => x.rows,
        }
    }

    /// Values a row.
    pub fn k(&self) -> usize {
        match self {
            Acts::F32 { k, .. } => *k,
            Acts::Q8(x) => x.k,
            Acts::Tiles(x) => x.k,
        }
    }

    /// The rows as f32, checked to fit the weights and the result. Panics otherwise.
    fn expect_f32(self, w: &WeightRows<'_>, out: &OutMut<'_>) -> (usize, &'a [f32]) {
        let Acts::F32 { rows, k, x } = self else { panic!("a kernel for f32 activations got rounded ones") };
        assert!(k == w.k && x.len() >= rows.checked_mul(k).expect("the activations exist"));
        w.check(rows, out);
        (rows, x)
    }

    /// The rows in 8 bits, checked to fit the weights and the result. Panics otherwise.
    fn expect_q8(self, w: &WeightRows<'_>, out: &OutMut<'_>) -> Q8Rows<'a> {
        let Acts::Q8(x) = self else { panic!("a kernel for 8-bit activations got others") };
        assert_eq!(x.k, w.k);
        x.check();
        w.check(x.rows, out);
        x
    }
}

/// Some rows of a weight matrix in its file format.
#[derive(Debug, Clone, Copy)]
pub struct WeightRows<'a> {
    /// The format; fixed for the kernel, carried for checks.
    pub ty: TensorType,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Values a row (inputs).
    pub k: usize,
    /// `rows × ty.row_bytes(k)` bytes, unaligned.
    pub data: &'a [u8],
}

impl WeightRows<'_> {
    /// Bytes a row. Panics where `k` is no multiple of the format's block.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.k).expect("a weight row has whole blocks")
    }

    /// Panics unless the data has all rows and `out` has a place for each product.
    fn check(&self, acts: usize, out: &OutMut<'_>) {
        let bytes = self.row_bytes().checked_mul(self.rows).expect("the weights exist");
        assert!(self.data.len() >= bytes, "{} bytes of weights, {bytes} needed", self.data.len());
        assert!(out.rows() >= acts && out.cols() >= self.rows);
    }
}

/// Whether a weight matrix can have this type: every float and packed format but those of activations and F64.
pub fn is_weight_type(ty: TensorType) -> bool {
    use TensorType::*;
    !matches!(ty, Q8_1 | Q8_K | I8 | I16 | I32 | I64 | F64)
}

/// Where products go: element (t, r) lies at `t · stride + r`.
///
/// Several threads fill disjoint columns of the same rows, so this is a raw window.
#[derive(Debug)]
pub struct OutMut<'a> {
    ptr: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    _lifetime: std::marker::PhantomData<&'a mut [f32]>,
}

impl<'a> OutMut<'a> {
    /// A window over a whole slice of `rows × stride` values, of which the first `cols` of each row are written.
    pub fn new(data: &'a mut [f32], stride: usize, rows: usize, cols: usize) -> Self {
        let end = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(cols));
        assert!(cols <= stride && end.is_some_and(|end| end <= data.len()));
        Self { ptr: data.as_mut_ptr(), stride, rows, cols, _lifetime: std::marker::PhantomData }
    }

    /// A window at `ptr`.
    ///
    /// # Safety
    /// For every `t < rows` the `cols` values at `ptr + t · stride` are valid for writes, and nobody else
    /// reads or writes them while the window lives.
    pub unsafe fn from_raw(ptr: *mut f32, stride: usize, rows: usize, cols: usize) -> Self {
        Self { ptr, stride, rows, cols, _lifetime: std::marker::PhantomData }
    }

    /// Rows (tokens) of the window.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns (weight rows) of the window.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The columns of row `t`.
    #[inline]
    pub fn row(&mut self, t: usize) -> &mut [f32] {
        assert!(t < self.rows);
        // SAFETY: the constructors guarantee `cols` writable values at each row, borrowed for the window's life.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(t * self.stride), self.cols) }
    }
}

/// Memory that a kernel may use between its lines; one a thread, kept across calls.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u64>,
}

impl Scratch {
    /// At least `len` bytes, 64-byte aligned, with any content. Much memory starts on a large page.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let align = if len >= Self::LARGE { HUGE_PAGE } else { 64 };
        let words = (len.next_multiple_of(align) + align) / 8;
        if self.bytes.len() < words {
            // Not resized: what was there need not be kept, and fresh memory is not touched.
            self.bytes = Vec::new();
            self.bytes = vec![0; words];
            advise_huge(self.bytes.as_mut_ptr().cast(), 8 * words);
        }
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.bytes);
        let skip = all.as_ptr().align_offset(align);
        &mut all[skip..skip + len]
    }

    /// Bytes that are worth a large page.
    const LARGE: usize = 256 << 10;
}

/// `out[t][r] = Σ_k w[r][k] · x[t][k]`.
pub type LinearFn = fn(w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch);

/// How one level multiplies by one weight format.
///
/// The regimes differ in the number of activation rows they are made for; each is correct for any number.
#[derive(Debug, Clone, Copy)]
pub struct LinearKernel {
    /// What both take.
    pub acts: ActKind,
    /// Few rows: bound by reading the weights. What a row gets does not depend on the others.
    pub stream: LinearFn,
    /// Rows up to which `stream` is the fastest, at least [`STREAM_ROWS`].
    pub stream_rows: usize,
    /// More: weight rows are expanded into a panel that stays in the cache, for all tokens.
    pub panel: LinearFn,
    /// Weight rows that the panel kernel handles best at once; work is split in multiples of it.
    pub panel_rows: usize,
    /// How many bf16 `panel` rounds each activation to, 0 for none; tests judge by it.
    pub bf16_parts: usize,
    /// How `panel` takes [`Acts::Tiles`] as well, without having to round and interleave at each call; `None` where it does not.
    pub tiles: Option<TileForm>,
}

/// Activation rows up to which products of every format are streamed, and so have the same bits as those of one row.
pub const STREAM_ROWS: usize = 8;

impl LinearKernel {
    /// The same products with one order of adding, whatever the number of rows: every step streams.
    pub fn one_order(self) -> Self {
        Self { panel: self.stream, stream_rows: usize::MAX, bf16_parts: 0, tiles: None, ..self }
    }

    /// The function made for this many rows of activations.
    pub fn for_rows(&self, rows: usize) -> LinearFn {
        if rows <= self.stream_rows { self.stream } else { self.panel }
    }
}

/// Positions that attention's kernel takes at once.
pub const RUN: usize = 64;

/// How cached values lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLayout {
    /// The values of a position follow each other; position i starts at byte `i · stride`.
    Rows,
    /// One value of all positions follows another: value d starts at byte `d · stride`, with room for [`RUN`] positions. Types
    /// with blocks: block b starts at byte `b · stride` with the scales of [`RUN`] positions, then its bytes of codes, one after
    /// the other for as many positions.
    Columns,
}

/// A run of cached positions of one KV head.
#[derive(Debug, Clone, Copy)]
pub struct KvRows<'a> {
    /// Storage type.
    pub ty: KvType,
    /// How they lie.
    pub layout: KvLayout,
    /// Number of positions.
    pub rows: usize,
    /// Bytes from one position (in columns: value or block) to the next.
    pub stride: usize,
    /// Values a position.
    pub dim: usize,
    /// From the first value of the first position to the last of the last, in columns with room for whole runs.
    pub data: &'a [u8],
}

impl KvRows<'_> {
    /// Panics unless the data has everything.
    fn check(&self) {
        assert!(self.dim.is_multiple_of(self.ty.block_values()), "a cache row has whole blocks");
        let (count, bytes) = match self.layout {
            KvLayout::Rows => (self.rows, self.ty.row_bytes(self.dim)),
            KvLayout::Columns => {
                assert!(self.rows <= RUN);
                let block = self.ty.block_values();
                (self.dim / block, self.ty.row_bytes(block) * RUN)
            }
        };
        let end =
            count.checked_sub(1).map_or(Some(0), |last| last.checked_mul(self.stride)?.checked_add(bytes));
        assert!(end.is_some_and(|end| end <= self.data.len()), "the cached rows exist");
    }
}

/// Query rows that meet a run of at most [`RUN`] positions.
#[derive(Debug, Clone, Copy)]
pub struct AttendRun<'a> {
    /// The query rows, contiguous and already scaled.
    pub q: &'a [f32],
    /// Keys of the run.
    pub keys: KvRows<'a>,
    /// Values of the run, in rows.
    pub values: KvRows<'a>,
    /// For each query row the first position that it sees and one past the last, counted from the run's first.
    pub visible: &'a [(usize, usize)],
    /// ALiBi bias of each query row, added after the softcap; empty without ALiBi.
    pub alibi: &'a [AlibiBias],
    /// What is added to each query row's scores (after the softcap), [`RUN`] numbers a row, or nothing.
    pub shifts: &'a [f32],
    /// The keys that come next, or nothing: a hint.
    pub next: &'a [u8],
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// ALiBi: subtracts `slope · |key − query position|` from a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlibiBias {
    /// Slope of the head.
    pub slope: f32,
    /// Position of the query relative to the first key of the run; may lie outside of the run.
    pub from: f32,
}

impl AttendRun<'_> {
    /// Panics unless queries, keys, values and sums belong together.
    fn check(&self, state: &RunningSoftmax<'_>) {
        let (g, n) = (self.visible.len(), self.keys.rows);
        self.keys.check();
        self.values.check();
        assert!(n <= RUN && self.values.rows == n && self.values.layout == KvLayout::Rows);
        assert!(Some(self.q.len()) == g.checked_mul(self.keys.dim));
        assert!(Some(state.acc.len()) == g.checked_mul(self.values.dim));
        assert!(state.max.len() == g && state.sum.len() == g);
        assert!(self.alibi.is_empty() || self.alibi.len() == g);
        assert!(self.shifts.is_empty() || self.shifts.len() == g * RUN);
        assert!(self.visible.iter().all(|&(from, to)| from <= n && to <= n));
    }
}

/// Query rows whose products with a run of at most [`RUN`] keys are summed, so many that follow each other at a time.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRun<'a> {
    /// The query rows, contiguous.
    pub q: &'a [f32],
    /// Keys of the run.
    pub keys: KvRows<'a>,
    /// What each query row's products are multiplied by, or nothing.
    pub weights: &'a [f32],
    /// Rows of a sum.
    pub summed: usize,
    /// Whether products below zero count as zero.
    pub rectified: bool,
}

impl ScoreRun<'_> {
    /// Query rows.
    fn rows(&self) -> usize {
        self.q.len() / self.keys.dim
    }

    /// Panics unless queries, keys, weights and sums belong together.
    fn check(&self, sums: &[f32]) {
        self.keys.check();
        let rows = self.rows();
        assert!(self.keys.rows <= RUN && Some(self.q.len()) == rows.checked_mul(self.keys.dim));
        assert!(self.weights.is_empty() || self.weights.len() == rows);
        assert!(rows.is_multiple_of(self.summed) && sums.len() == rows / self.summed * RUN);
    }
}

/// A softmax-weighted sum of values that is not finished, for some query rows: `acc / sum` once it is.
#[derive(Debug)]
pub struct RunningSoftmax<'a> {
    /// Largest score so far, a row; -∞ before the first.
    pub max: &'a mut [f32],
    /// Sum of `e^(score - max)`, a row.
    pub sum: &'a mut [f32],
    /// Sum of `e^(score - max) · value`, a row of values each.
    pub acc: &'a mut [f32],
}

/// Arithmetic on rows of f32 and on cached rows.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::type_complexity)] // the signatures are the documentation
pub struct VectorKernels {
    /// Rounds rows of f32 (`rows × k`, k a multiple of 32) to 8 bits: codes, scales, sums as in [`Q8Rows`].
    pub quantize_q8: fn(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]),
    /// `y = x / √(mean(x²) + eps) · w`; `w` empty means 1.
    pub rms_norm: fn(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]),
    /// `y = (x - mean) / √(var + eps) · w + b`, biased variance; `w`, `b` empty mean 1, 0.
    pub layer_norm: fn(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]),
    /// `y += x`.
    pub add: fn(y: &mut [f32], x: &[f32]),
    /// `gate = silu(gate) · up`.
    pub swiglu: fn(gate: &mut [f32], up: &[f32]),
    /// `gate = gelu_tanh(gate) · up`.
    pub geglu: fn(gate: &mut [f32], up: &[f32]),
    /// `x = gelu_tanh(x)`.
    pub gelu: fn(x: &mut [f32]),
    /// `x = x/2 · (1 + erf(x/√2))`.
    pub gelu_erf: fn(x: &mut [f32]),
    /// `x = exp(x - max)`; returns the sum. -∞ gives 0.
    pub exp_sum: fn(x: &mut [f32], max: f32) -> f32,
    /// Largest value; -∞ for none.
    pub max: fn(x: &[f32]) -> f32,
    /// Rounds values to a cached row.
    pub store_kv: fn(ty: KvType, x: &[f32], row: &mut [u8]),
    /// Takes a run of positions into the running softmax of its query rows.
    pub attend: fn(run: &AttendRun<'_>, state: &mut RunningSoftmax<'_>, scratch: &mut Scratch),
    /// Sums of products with the keys of a run: `sums[sum · RUN + position]`, of no meaning past the last key.
    pub score: fn(run: &ScoreRun<'_>, sums: &mut [f32], scratch: &mut Scratch),
    /// What recurrent layers compute.
    pub recurrent: RecurrentKernels,
}

/// One kernel level: a name and its functions. Levels are constants: a compiler leaves out the functions of a level that a program
/// does not name.
#[derive(Debug)]
pub struct Level {
    /// `portable`, `avx2`, `avxvnni`, `avx512`, `avx512vnni`, `amx`, `neon`, `dotprod`, `i8mm`.
    pub name: &'static str,
    /// The product for a weight format, where the format can be a weight.
    pub linear: fn(TensorType) -> Option<LinearKernel>,
    /// Everything else.
    pub vector: VectorKernels,
}
