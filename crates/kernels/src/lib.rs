//! Kernels: functions that one core computes with, as a table of function pointers for each kernel
//! level.
//!
//! A *level* is a set of kernels for one instruction set: portable, AVX2, AVX-512, AMX, NEON.
//! [`levels`] detects which levels the processor runs. The caller decides which rows a kernel
//! computes and on which thread; a kernel is a pure function of slices. The portable level computes
//! with dequantized weights and f32 activations and is the reference for tests of all other levels.

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
pub use tiles::{AMX_SLICE, Interleave, TILE_K, TILE_ROWS, TileForm, TileRows, slice_len};

pub use puna_graph::KvType;
use puna_quant::TensorType;

use huge_pages::{HUGE_PAGE, advise_huge};

/// Form in which a kernel takes activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// f32.
    F32,
    /// Quantized to 8 bits, see [`Q8Rows`].
    Q8,
}

/// Rows of activations quantized to 8 bits in blocks of 32 values: `x ≈ scale · code`.
///
/// All weight formats use this form. Blocks of 32 values are at least as fine as the blocks of any
/// weight format. The sums of codes replace offsets of weights (in integers) and minimums (one
/// multiply-add per block).
#[derive(Debug, Clone, Copy)]
pub struct Q8Rows<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Values per row; a multiple of 32.
    pub k: usize,
    /// `rows × k` codes in -127…127, row by row.
    pub codes: &'a [i8],
    /// `rows × k/32` scales.
    pub scales: &'a [f32],
    /// `rows × k/16` sums of 16 codes each.
    pub sums: &'a [i16],
}

/// Activations in one of the forms that kernels take.
#[derive(Debug, Clone, Copy)]
pub enum Acts<'a> {
    /// `rows × k` values.
    F32 {
        /// Number of rows.
        rows: usize,
        /// Values per row.
        k: usize,
        /// The values, row by row.
        x: &'a [f32],
    },
    /// See [`Q8Rows`].
    Q8(Q8Rows<'a>),
    /// See [`TileRows`].
    Tiles(TileRows<'a>),
}

impl<'a> Q8Rows<'a> {
    /// Panics if a slice is shorter than `rows` and `k` require.
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

    /// Values per row.
    pub fn k(&self) -> usize {
        match self {
            Acts::F32 { k, .. } => *k,
            Acts::Q8(x) => x.k,
            Acts::Tiles(x) => x.k,
        }
    }

    /// The rows as f32. Panics if they have another form or do not match the weights and the
    /// result.
    fn expect_f32(self, w: &WeightRows<'_>, out: &OutMut<'_>) -> (usize, &'a [f32]) {
        let Acts::F32 { rows, k, x } = self else {
            panic!("a kernel for f32 activations got another form")
        };
        assert!(k == w.k && x.len() >= rows.checked_mul(k).expect("the activations exist"));
        w.check(rows, out);
        (rows, x)
    }

    /// The rows in 8 bits. Panics if they have another form or do not match the weights and the
    /// result.
    fn expect_q8(self, w: &WeightRows<'_>, out: &OutMut<'_>) -> Q8Rows<'a> {
        let Acts::Q8(x) = self else { panic!("a kernel for 8-bit activations got another form") };
        assert_eq!(x.k, w.k);
        x.check();
        w.check(x.rows, out);
        x
    }
}

/// Rows of a weight matrix in a block format.
#[derive(Debug, Clone, Copy)]
pub struct WeightRows<'a> {
    /// The block format, which the kernel checks.
    pub ty: TensorType,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Values per row (inputs).
    pub k: usize,
    /// `rows × ty.row_bytes(k)` bytes, unaligned.
    pub data: &'a [u8],
}

impl WeightRows<'_> {
    /// Bytes per row. Panics if `k` is no multiple of the block size.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.k).expect("a weight row has whole blocks")
    }

    /// Panics if the data is too short or `out` too small.
    fn check(&self, acts: usize, out: &OutMut<'_>) {
        let bytes = self.row_bytes().checked_mul(self.rows).expect("the weights exist");
        assert!(self.data.len() >= bytes, "{} bytes of weights, {bytes} needed", self.data.len());
        assert!(out.rows() >= acts && out.cols() >= self.rows);
    }
}

/// Whether a weight matrix can have this type: all floats and block formats, except F64 and the
/// formats of activations.
pub fn is_weight_type(ty: TensorType) -> bool {
    use TensorType::*;
    !matches!(ty, Q8_1 | Q8_K | I8 | I16 | I32 | I64 | F64)
}

/// Output window of a product: element (t, r) is at index `t · stride + r`.
///
/// It is a raw pointer, since several threads write disjoint columns of the same rows.
#[derive(Debug)]
pub struct OutMut<'a> {
    ptr: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    _lifetime: std::marker::PhantomData<&'a mut [f32]>,
}

impl<'a> OutMut<'a> {
    /// A window over a slice of `rows × stride` values; kernels write the first `cols` of each row.
    pub fn new(data: &'a mut [f32], stride: usize, rows: usize, cols: usize) -> Self {
        let end =
            rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(cols));
        assert!(cols <= stride && end.is_some_and(|end| end <= data.len()));
        Self { ptr: data.as_mut_ptr(), stride, rows, cols, _lifetime: std::marker::PhantomData }
    }

    /// A window at `ptr`.
    ///
    /// # Safety
    /// For every `t < rows`, the `cols` values at `ptr + t · stride` are valid for writes, and no
    /// other code reads or writes them while the window lives.
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
        // SAFETY: the constructors guarantee `cols` writable values in each row for the lifetime of
        // the window.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(t * self.stride), self.cols) }
    }
}

/// Temporary memory of kernels: one per thread, kept between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u64>,
}

impl Scratch {
    /// Returns `len` bytes with undefined content, aligned to 64 bytes; large requests to a huge
    /// page.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        let align = if len >= Self::LARGE { HUGE_PAGE } else { 64 };
        let words = (len.next_multiple_of(align) + align) / 8;
        if self.bytes.len() < words {
            // A new buffer instead of `resize`: the content need not be copied, and zeroed memory
            // is not touched.
            self.bytes = Vec::new();
            self.bytes = vec![0; words];
            advise_huge(self.bytes.as_mut_ptr().cast(), 8 * words);
        }
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.bytes);
        let skip = all.as_ptr().align_offset(align);
        &mut all[skip..skip + len]
    }

    /// Requests of at least this many bytes are aligned to a huge page.
    const LARGE: usize = 256 << 10;
}

/// `out[t][r] = Σ_k w[r][k] · x[t][k]`.
pub type LinearFn = fn(w: WeightRows<'_>, x: Acts<'_>, out: OutMut<'_>, scratch: &mut Scratch);

/// The product kernels of one level for one weight format.
///
/// Both functions are correct for any number of activation rows; they differ in speed.
#[derive(Debug, Clone, Copy)]
pub struct LinearKernel {
    /// Form of activations that both functions take.
    pub acts: ActKind,
    /// For few rows: limited by the bandwidth of weights. The result of a row does not depend on
    /// other rows.
    pub stream: LinearFn,
    /// Largest number of rows for which `stream` is faster; at least [`STREAM_ROWS`].
    pub stream_rows: usize,
    /// For many rows: expands weight rows into a panel that stays in the processor cache for all
    /// activation rows.
    pub panel: LinearFn,
    /// Weight rows per panel. Tasks take a multiple of this number.
    pub panel_rows: usize,
    /// Number of bf16 parts to which `panel` rounds each activation, 0 for none; sets the tolerance
    /// of tests.
    pub bf16_parts: usize,
    /// Form of tiles ([`Acts::Tiles`]) that `panel` also takes, which saves it from interleaving at
    /// each call; `None` if it takes none.
    pub tiles: Option<TileForm>,
}

/// Up to this many activation rows, every format streams, so that each row gets the same bits as
/// alone.
pub const STREAM_ROWS: usize = 8;

impl LinearKernel {
    /// This kernel with one order of additions for any number of rows: it always streams.
    pub fn deterministic(self) -> Self {
        Self { panel: self.stream, stream_rows: usize::MAX, bf16_parts: 0, tiles: None, ..self }
    }

    /// The faster function for this many activation rows.
    pub fn for_rows(&self, rows: usize) -> LinearFn {
        if rows <= self.stream_rows { self.stream } else { self.panel }
    }
}

/// Largest number of cache positions that the attention kernel takes at once.
pub const KV_TILE: usize = 64;

/// Memory layout of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLayout {
    /// Position by position: position i starts at byte `i · stride`.
    Rows,
    /// Value by value: value d of [`KV_TILE`] positions starts at byte `d · stride`. Block types:
    /// block b starts at byte `b · stride` with the scales of [`KV_TILE`] positions; then, for each
    /// byte of codes, that byte of [`KV_TILE`] positions.
    Columns,
}

/// A KV tile: up to [`KV_TILE`] cached positions of one KV head.
#[derive(Debug, Clone, Copy)]
pub struct KvRows<'a> {
    /// Storage type.
    pub ty: KvType,
    /// Memory layout.
    pub layout: KvLayout,
    /// Number of positions.
    pub rows: usize,
    /// Bytes from one position to the next; in columns, from one value or block to the next.
    pub stride: usize,
    /// Values per position.
    pub dim: usize,
    /// The bytes, from the first value of the first position to the last value of the last; in
    /// columns, of whole KV tiles.
    pub data: &'a [u8],
}

impl KvRows<'_> {
    /// Panics if the data is too short.
    fn check(&self) {
        assert!(self.dim.is_multiple_of(self.ty.block_values()), "a cache row has whole blocks");
        let (count, bytes) = match self.layout {
            KvLayout::Rows => (self.rows, self.ty.row_bytes(self.dim)),
            KvLayout::Columns => {
                assert!(self.rows <= KV_TILE);
                let block = self.ty.block_values();
                (self.dim / block, self.ty.row_bytes(block) * KV_TILE)
            }
        };
        let end = count
            .checked_sub(1)
            .map_or(Some(0), |last| last.checked_mul(self.stride)?.checked_add(bytes));
        assert!(end.is_some_and(|end| end <= self.data.len()), "the cached rows exist");
    }
}

/// Attention of query rows to one KV tile.
#[derive(Debug, Clone, Copy)]
pub struct AttendTile<'a> {
    /// Scaled query rows, contiguous.
    pub q: &'a [f32],
    /// Keys of the KV tile.
    pub keys: KvRows<'a>,
    /// Values of the KV tile, in layout [`KvLayout::Rows`].
    pub values: KvRows<'a>,
    /// For each query row, the range of positions that it sees, relative to the KV tile.
    pub visible: &'a [(usize, usize)],
    /// ALiBi bias of each query row, added after the softcap; empty without ALiBi.
    pub alibi: &'a [AlibiBias],
    /// Position bias of each query row, [`KV_TILE`] values per row, added after the softcap; empty
    /// without.
    pub position_bias: &'a [f32],
    /// Keys of the next KV tile, to prefetch; may be empty.
    pub next: &'a [u8],
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// ALiBi: subtracts `slope · |key − query position|` from a score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlibiBias {
    /// Slope of the head.
    pub slope: f32,
    /// Position of the query relative to the first key of the KV tile; may lie outside of the KV
    /// tile.
    pub from: f32,
}

impl AttendTile<'_> {
    /// Panics if the lengths of queries, keys, values and sums do not match.
    fn check(&self, state: &RunningSoftmax<'_>) {
        let (g, n) = (self.visible.len(), self.keys.rows);
        self.keys.check();
        self.values.check();
        assert!(n <= KV_TILE && self.values.rows == n && self.values.layout == KvLayout::Rows);
        assert!(Some(self.q.len()) == g.checked_mul(self.keys.dim));
        assert!(Some(state.acc.len()) == g.checked_mul(self.values.dim));
        assert!(state.max.len() == g && state.sum.len() == g);
        assert!(self.alibi.is_empty() || self.alibi.len() == g);
        assert!(self.position_bias.is_empty() || self.position_bias.len() == g * KV_TILE);
        assert!(self.visible.iter().all(|&(from, to)| from <= n && to <= n));
    }
}

/// Indexer scores: products of query rows with the keys of one KV tile, summed over groups of
/// consecutive query rows.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTile<'a> {
    /// The query rows, contiguous.
    pub q: &'a [f32],
    /// Keys of the KV tile.
    pub keys: KvRows<'a>,
    /// Weight of each query row; empty without.
    pub weights: &'a [f32],
    /// Query rows per group.
    pub heads_per_sum: usize,
    /// Whether ReLU is applied to each product before the weight.
    pub relu: bool,
}

impl ScoreTile<'_> {
    /// Query rows.
    fn rows(&self) -> usize {
        self.q.len() / self.keys.dim
    }

    /// Panics if the lengths of queries, keys, weights and sums do not match.
    fn check(&self, sums: &[f32]) {
        self.keys.check();
        let rows = self.rows();
        assert!(self.keys.rows <= KV_TILE && Some(self.q.len()) == rows.checked_mul(self.keys.dim));
        assert!(self.weights.is_empty() || self.weights.len() == rows);
        assert!(
            rows.is_multiple_of(self.heads_per_sum)
                && sums.len() == rows / self.heads_per_sum * KV_TILE
        );
    }
}

/// Running softmax of some query rows (online softmax): the result is `acc / sum`.
#[derive(Debug)]
pub struct RunningSoftmax<'a> {
    /// Largest score of each row so far; -∞ at first.
    pub max: &'a mut [f32],
    /// Sum of `e^(score - max)` of each row.
    pub sum: &'a mut [f32],
    /// Sum of `e^(score - max) · value` of each row.
    pub acc: &'a mut [f32],
}

/// Kernels on rows of f32 and on the KV cache.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::type_complexity)] // the signatures are the documentation
pub struct VectorKernels {
    /// Quantizes `rows × k` f32 (k a multiple of 32) to 8 bits: codes, scales and sums of
    /// [`Q8Rows`].
    pub quantize_q8: fn(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]),
    /// `y = x / √(mean(x²) + eps) · w`; an empty `w` means 1.
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
    /// Converts values to a cache row of type `ty`.
    pub store_kv: fn(ty: KvType, x: &[f32], row: &mut [u8]),
    /// Adds a KV tile to the running softmax of its query rows.
    pub attend: fn(tile: &AttendTile<'_>, state: &mut RunningSoftmax<'_>, scratch: &mut Scratch),
    /// Indexer scores of a KV tile: `sums[group · KV_TILE + position]`, undefined behind the last
    /// key.
    pub score: fn(tile: &ScoreTile<'_>, sums: &mut [f32], scratch: &mut Scratch),
    /// Kernels of recurrent layers.
    pub recurrent: RecurrentKernels,
}

/// A kernel level: a name and its functions. Levels are constants, not statics, so that the
/// compiler leaves out the functions of a level that a program does not use.
#[derive(Debug)]
pub struct Level {
    /// `portable`, `avx2`, `avxvnni`, `avx512`, `avx512vnni`, `amx`, `neon`, `dotprod`, `i8mm`.
    pub name: &'static str,
    /// The product kernels for a weight format; `None` if no weight can have the format.
    pub linear: fn(TensorType) -> Option<LinearKernel>,
    /// All other kernels.
    pub vector: VectorKernels,
}
