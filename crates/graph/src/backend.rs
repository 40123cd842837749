//! The [`Backend`] trait and the data that it exchanges with the engine.

use std::ops::Range;
use std::sync::Arc;

use puna_quant::TensorType;

use crate::adapter_scales::AdapterScales;
use crate::kv::{CacheLayer, KvType};
use crate::plan::Plan;
use crate::values::Rope;

/// Bytes of a tensor, usually a range of a mapped file.
pub trait Bytes: Send + Sync {
    /// Content in the storage type, row by row.
    fn bytes(&self) -> &[u8];

    /// Number of bytes, without making them.
    fn size(&self) -> usize {
        self.bytes().len()
    }
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A tensor of the model as a backend receives it.
#[derive(Clone)]
pub struct Weight {
    /// Name in the file, for messages.
    pub name: String,
    /// Storage type.
    pub ty: TensorType,
    /// Shape, fastest dimension first.
    pub shape: Vec<usize>,
    /// Content in the storage type, row by row.
    pub data: Arc<dyn Bytes>,
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.ty, self.shape)
    }
}

/// The paged KV cache of a model. A page holds `page_tokens` tokens of every layer. Layers with a
/// window have window pages of their own, which are released while their sequence runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// Layers, in the order of the graph.
    pub layers: Vec<CacheLayer>,
    /// Storage of keys.
    pub key_type: KvType,
    /// Storage of values.
    pub value_type: KvType,
    /// Tokens per page.
    pub page_tokens: usize,
    /// Number of pages. The system provides their memory at the first write.
    pub pages: usize,
    /// Number of window pages (see [`CacheLayer::has_window`]).
    pub window_pages: usize,
}

impl CacheSpec {
    /// Bytes of one page, over all layers without a window.
    pub fn page_bytes(&self) -> usize {
        self.bytes_of_layers(false)
    }

    /// Bytes of one window page.
    pub fn window_page_bytes(&self) -> usize {
        self.bytes_of_layers(true)
    }

    fn bytes_of_layers(&self, has_window: bool) -> usize {
        let layers = self.layers.iter().filter(|layer| layer.has_window() == has_window);
        let bytes = |l: &CacheLayer| {
            l.kv_heads * self.row_bytes(l).iter().sum::<usize>() * l.page_rows(self.page_tokens)
        };
        layers.map(bytes).sum()
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        let of = |pages: usize, bytes: usize| pages as u64 * bytes as u64;
        of(self.pages, self.page_bytes()) + of(self.window_pages, self.window_page_bytes())
    }

    /// Bytes of a key and of a value of a layer; 0 for values that are part of their keys.
    pub fn row_bytes(&self, layer: &CacheLayer) -> [usize; 2] {
        let value_dim = if layer.values_in_keys { 0 } else { layer.value_dim };
        [self.key_type.row_bytes(layer.key_dim), self.value_type.row_bytes(value_dim)]
    }
}

/// Recurrent states of a model. The states of one sequence fill one slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateSpec {
    /// Length of each state in f32, in the order of the graph.
    pub states: Vec<usize>,
    /// Number of slots. The system provides their memory at the first write.
    pub slots: usize,
}

impl StateSpec {
    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.states.iter().sum::<usize>() * size_of::<f32>()
    }
}

/// Consecutive rows of a step that belong to one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segment {
    /// First row in the step.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of tokens of the sequence in the cache; row i has position `cached_tokens + i`.
    pub cached_tokens: usize,
    /// Pages of the sequence, for at least `cached_tokens + rows` tokens. Empty for encoders.
    pub pages: Vec<u32>,
    /// Window pages of the sequence.
    pub window_pages: SegmentWindowPages,
    /// Positions of the media in the step, in order, whose rows may see each other
    /// ([`crate::AttentionSpec::sees_media_span`]).
    pub media_spans: Vec<Range<usize>>,
    /// Windows of rows, in order, for [`crate::Mask::RowWindow`].
    pub row_windows: Vec<RowWindow>,
    /// Number of first tokens that an encoder has read; their keys and values come from the
    /// encoder. 0 without an encoder.
    pub encoder_tokens: usize,
    /// Slot of the recurrent states: in, after `cached_tokens` tokens; out, after all rows. With
    /// `cached_tokens` 0 the states start from zero, whatever the slot holds. Unused without
    /// recurrent layers.
    pub state: u32,
}

impl Segment {
    /// End of the media span with this position; the position itself is the last one without.
    pub fn media_span_end(&self, position: usize) -> usize {
        let span = self.media_spans.iter().find(|span| span.contains(&position));
        span.map_or(position + 1, |span| span.end)
    }

    /// Rows that a row sees with [`crate::Mask::RowWindow`], both relative to the segment. A row
    /// outside of all windows sees all rows.
    pub fn row_window(&self, row: usize) -> Range<usize> {
        let at = self.row_windows.partition_point(|window| window.rows.end <= row);
        match self.row_windows.get(at).filter(|window| window.rows.contains(&row)) {
            Some(RowWindow { sees, .. }) => sees.start.min(self.rows)..sees.end.min(self.rows),
            None => 0..self.rows,
        }
    }

    /// The page, or window page, with this number in the sequence.
    ///
    /// # Panics
    /// If the sequence does not have it.
    pub fn page(&self, is_window_page: bool, number: usize) -> u32 {
        match is_window_page {
            true => self.window_pages.pages[number - self.window_pages.first],
            false => self.pages[number],
        }
    }
}

/// Consecutive rows of a segment that see the same rows. All numbers are relative to the segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowWindow {
    /// Rows of the window.
    pub rows: Range<usize>,
    /// Rows that they see.
    pub sees: Range<usize>,
}

/// Window pages of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentWindowPages {
    /// Number of the first page; at or before the first visible position.
    pub first: usize,
    /// Consecutive pages, for all tokens of the step.
    pub pages: Vec<u32>,
}

/// Largest number of axes of positions: time, height and width.
pub const AXES: usize = 3;

/// Input of a step.
#[derive(Debug, Clone, Default)]
pub struct StepInput {
    /// Token id of each row; [`StepInput::NO_TOKEN`] for a row of a medium.
    pub tokens: Vec<u32>,
    /// Position of each row.
    pub positions: Vec<u32>,
    /// Segments, one per sequence, that cover all rows in order.
    pub segments: Vec<Segment>,
    /// Adapter scales of each segment; empty if all scales are 1.
    pub adapter_scales: Vec<AdapterScales>,
    /// Rows for which the step returns logits, in ascending order.
    pub outputs: Vec<u32>,
    /// Coordinates of each row on the axes of [`Rope::axes`]; empty if all equal `positions`.
    pub axis_positions: Vec<[u32; AXES]>,
    /// Rows of each [`crate::Graph::input_rows`], in the order in which the graph has them.
    pub inputs: Vec<Vec<f32>>,
}

impl StepInput {
    /// Token id of rows without a token. Their rows of [`crate::Index::Token`] are zeros.
    pub const NO_TOKEN: u32 = u32::MAX;
}

/// A program that a backend compiled from a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProgramId(pub usize);

/// Description of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `cpu`, `cuda0`, …
    pub name: String,
    /// Name of the processor or graphics card.
    pub device: String,
    /// Kernel level.
    pub kernels: String,
    /// Number of compute threads.
    pub threads: usize,
}

/// Time that one kind of operation took.
#[derive(Debug, Clone, PartialEq)]
pub struct OpTime {
    /// Name of the operation ([`crate::Op::name`]), or of a part of the operation.
    pub op: &'static str,
    /// Seconds.
    pub seconds: f64,
    /// Bytes of weights or cache that were read.
    pub bytes: u64,
    /// Multiply-adds.
    pub macs: u64,
}

/// Statistics of the activations that a weight multiplies, for the importance matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivationStats {
    /// Name of the weight.
    pub name: String,
    /// Sum of squares of each column, one row per matrix (expert).
    pub squares: Vec<f32>,
    /// Number of rows, for each matrix.
    pub counts: Vec<u64>,
}

/// Error of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend has no kernel for the type of a weight.
    #[error("tensor `{name}`: the {backend} backend cannot compute with type {ty}")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
        /// The backend.
        backend: &'static str,
    },
    /// The gate and up matrices of experts need their input in different forms.
    #[error(
        "tensors `{gate}` ({gate_ty}) and `{up}` ({up_ty}): the {backend} backend needs both quantized, or neither; quantize the file again with one type for both"
    )]
    MixedExperts {
        /// Name of the gate tensor.
        gate: String,
        /// Its type.
        gate_ty: TensorType,
        /// Name of the up tensor.
        up: String,
        /// Its type.
        up_ty: TensorType,
        /// The backend.
        backend: &'static str,
    },
    /// The size of a tensor does not match its shape.
    #[error("tensor `{name}` has {found} bytes, but its shape and type require {expected}")]
    WeightSize {
        /// The tensor.
        name: String,
        /// Bytes in the file.
        found: usize,
        /// Bytes by shape and type.
        expected: usize,
    },
    /// The dimension of a head is no multiple of the block of the cache type.
    #[error("a {ty} cache needs head sizes that are a multiple of {multiple}, not {dim}; use f16")]
    CacheType {
        /// The type.
        ty: KvType,
        /// Block size.
        multiple: usize,
        /// Dimension of the head.
        dim: usize,
    },
    /// Not enough memory.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Purpose.
        what: &'static str,
        /// Requested bytes.
        bytes: usize,
    },
}

/// A device that runs planned graphs. It loads the weights of a model once, compiles plans to
/// programs, and runs steps.
pub trait Backend: Send {
    /// Name, device, kernel level, threads.
    fn describe(&self) -> Description;

    /// Takes the tensors and rotary tables of the model; ids in graphs are indices in these lists.
    fn load_weights(&mut self, weights: Vec<Weight>, ropes: Vec<Rope>) -> Result<(), BackendError>;

    /// Makes the paged cache; replaces an earlier one.
    fn create_cache(&mut self, spec: CacheSpec) -> Result<(), BackendError>;

    /// Makes the slots of recurrent states; replaces earlier ones.
    fn create_states(&mut self, spec: StateSpec) -> Result<(), BackendError>;

    /// Selects kernels and buffers for a plan. The program serves steps up to the plan's capacity.
    fn compile(&mut self, plan: Plan) -> Result<ProgramId, BackendError>;

    /// Runs a step. Its results are valid until the next step.
    fn run(&mut self, program: ProgramId, input: &StepInput);

    /// Result of the last step: one row per entry of [`StepInput::outputs`], or per token, as the
    /// graph defines.
    fn result(&self) -> &[f32];

    /// Extra output of the last step, by its index ([`crate::Graph::add_extra_output`]).
    fn extra_output(&self, _at: usize) -> &[f32] {
        &[]
    }

    /// Largest batch for which each row's result is bit-identical to running that row alone. Steps
    /// that verify draft tokens have at most this many rows, so that speculative decoding never
    /// changes an answer. 1 disables speculative decoding.
    fn max_bit_exact_rows(&self) -> usize {
        1
    }

    /// Copies page `from` to page `to`.
    fn copy_page(&mut self, from: u32, to: u32);

    /// Copies window page `from` to window page `to`.
    fn copy_window_page(&mut self, from: u32, to: u32);

    /// Copies all states of slot `from` to slot `to`.
    fn copy_state(&mut self, from: u32, to: u32);

    /// Bytes allocated by the backend besides weights, cache and states.
    fn scratch_bytes(&self) -> usize;

    /// Starts or stops the measurement of operations.
    fn measure(&mut self, on: bool);

    /// Measurements since [`Backend::measure`].
    fn op_times(&self) -> Vec<OpTime>;

    /// Input statistics by weight, if the backend was made to collect them.
    fn activation_stats(&self) -> Vec<ActivationStats> {
        Vec::new()
    }
}
