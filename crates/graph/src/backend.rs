//! What a device must be able to do.

use std::sync::Arc;

use puna_quant::TensorType;

use crate::adapter_scales::AdapterScales;
use crate::kv::{CacheLayer, KvType};
use crate::plan::Plan;
use crate::values::Rope;

/// Bytes of a tensor, wherever they live: usually a window of a mapped file.
pub trait Bytes: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// How many they are, also of bytes that are yet to be made.
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
    /// Its name in the file, for messages.
    pub name: String,
    /// How values are stored.
    pub ty: TensorType,
    /// Fastest dimension first.
    pub shape: Vec<usize>,
    /// The values, `shape` times the type's size.
    pub data: Arc<dyn Bytes>,
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.ty, self.shape)
    }
}

/// The paged cache of a model: a page holds `page_tokens` tokens of every layer; those of layers in which tokens only see what
/// is near have pages of their own, since these come back while the sequence goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// The layers, in the graph's numbering.
    pub layers: Vec<CacheLayer>,
    /// Storage of keys.
    pub key_type: KvType,
    /// Storage of values.
    pub value_type: KvType,
    /// Tokens a page.
    pub page_tokens: usize,
    /// Pages in all. Memory is taken as pages are first written.
    pub pages: usize,
    /// Pages in all of layers that only keep what is near (see [`CacheLayer::is_recent`]).
    pub recent_pages: usize,
}

impl CacheSpec {
    /// Bytes of one page, over all layers that keep everything.
    pub fn page_bytes(&self) -> usize {
        self.bytes_of_layers(false)
    }

    /// Bytes of one page of those that keep what is near.
    pub fn recent_page_bytes(&self) -> usize {
        self.bytes_of_layers(true)
    }

    fn bytes_of_layers(&self, recent: bool) -> usize {
        let layers = self.layers.iter().filter(|layer| layer.is_recent() == recent);
        let bytes = |l: &CacheLayer| {
            l.kv_heads * self.row_bytes(l).iter().sum::<usize>() * l.page_rows(self.page_tokens)
        };
        layers.map(bytes).sum()
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        let of = |pages: usize, bytes: usize| pages as u64 * bytes as u64;
        of(self.pages, self.page_bytes()) + of(self.recent_pages, self.recent_page_bytes())
    }

    /// Bytes that a key and a value of a layer take; values that lie in keys take none.
    pub fn row_bytes(&self, layer: &CacheLayer) -> [usize; 2] {
        let value_dim = if layer.values_in_keys { 0 } else { layer.value_dim };
        [self.key_type.row_bytes(layer.key_dim), self.value_type.row_bytes(value_dim)]
    }
}

/// Recurrent states of a model: what a sequence of any length has of them fills one slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateSpec {
    /// Values of each state, in the graph's numbering.
    pub states: Vec<usize>,
    /// Slots in all. Memory is taken as slots are first written.
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
    /// First row of the step.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Tokens of the sequence that are in the cache already; row i has position `past + i`.
    pub past: usize,
    /// Pages of the sequence in order, with room for `past + rows` tokens. Empty for encoders.
    pub pages: Vec<u32>,
    /// Those of layers that only keep what is near.
    pub recent: RecentPages,
    /// The first tokens of the sequence that an encoder has read: their keys and values are what it made of them. Zero where models have
    /// none.
    pub encoded: usize,
    /// Slot of the sequence's recurrent states: those after `past` tokens become those after all. Without a past they begin
    /// anew, whatever the slot holds. Of no matter where a model has none.
    pub state: u32,
}

impl Segment {
    /// The sequence's page of that number, in layers that only keep what is near or in others.
    ///
    /// # Panics
    /// If it was given back, or is not there yet.
    pub fn page(&self, recent: bool, number: usize) -> u32 {
        if recent { self.recent.pages[number - self.recent.first] } else { self.pages[number] }
    }
}

/// A sequence's pages of layers that only keep what is near.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecentPages {
    /// The number of the first that is still there, at or before the first position that is seen.
    pub first: usize,
    /// It and those that follow, with room for all tokens of the step.
    pub pages: Vec<u32>,
}

/// What changes from step to step.
#[derive(Debug, Clone, Default)]
pub struct StepInput {
    /// Token ids, one a row.
    pub tokens: Vec<u32>,
    /// Positions, one a row.
    pub positions: Vec<u32>,
    /// The sequences; together they cover all rows in order.
    pub segments: Vec<Segment>,
    /// How much of the model's adapters each of them has; may be empty where all have these as they are.
    pub adapter_scales: Vec<AdapterScales>,
    /// Rows whose results are wanted, ascending.
    pub outputs: Vec<u32>,
    /// A row of numbers for each token, where the graph reads such ([`crate::Graph::given`]).
    pub given: Vec<f32>,
}

/// A program that a backend made of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProgramId(pub usize);

/// What a backend says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `cpu`, `cuda0`, …
    pub name: String,
    /// The processor's or card's name.
    pub device: String,
    /// Kernel level.
    pub kernels: String,
    /// Threads that compute.
    pub threads: usize,
}

/// Time that one kind of operation took.
#[derive(Debug, Clone, PartialEq)]
pub struct OpTime {
    /// The kind, as [`crate::Op::name`] has it, or a part of it.
    pub op: &'static str,
    /// Seconds.
    pub seconds: f64,
    /// Bytes of weights or cache that were read.
    pub bytes: u64,
    /// Multiply-adds.
    pub macs: u64,
}

/// What the products with a weight have read.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The weight's name.
    pub name: String,
    /// Sums of squares of every column, for each matrix of a stack one row.
    pub squares: Vec<f32>,
    /// Over how many rows, for each matrix.
    pub counts: Vec<u64>,
}

/// Why a backend could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A weight's type has no kernel here.
    #[error("tensor `{name}`: the {backend} backend cannot compute with type {ty}")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
        /// The backend.
        backend: &'static str,
    },
    /// The experts' two input matrices are of kinds that need the input in different forms.
    #[error(
        "tensors `{gate}` ({gate_ty}) and `{up}` ({up_ty}): the {backend} backend wants both quantized or neither; \
         quantize the file anew with one type for both"
    )]
    MixedExperts {
        /// The gate's tensor.
        gate: String,
        /// Its type.
        gate_ty: TensorType,
        /// The tensor beside it.
        up: String,
        /// Its type.
        up_ty: TensorType,
        /// The backend.
        backend: &'static str,
    },
    /// A tensor's bytes are not as many as its shape says.
    #[error("tensor `{name}` has {found} bytes; its shape and type say {expected}")]
    WeightSize {
        /// The tensor.
        name: String,
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// A cache of this type cannot hold these heads.
    #[error("a {ty} cache needs head sizes that are a multiple of {multiple}, not {dim}; use f16")]
    CacheType {
        /// The type.
        ty: KvType,
        /// What head sizes must be a multiple of.
        multiple: usize,
        /// The head size.
        dim: usize,
    },
    /// Not enough memory.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// What for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
}

/// A device that runs planned graphs: adopts a model's weights once, compiles plans, runs steps.
pub trait Backend: Send {
    /// Name, device, kernel level, threads.
    fn describe(&self) -> Description;

    /// Takes the model's tensors and rotary tables; ids in graphs are positions in these lists.
    fn adopt(&mut self, weights: Vec<Weight>, ropes: Vec<Rope>) -> Result<(), BackendError>;

    /// Makes the paged cache, replacing an earlier one.
    fn create_cache(&mut self, spec: CacheSpec) -> Result<(), BackendError>;

    /// Makes the slots of recurrent states, replacing earlier ones.
    fn create_states(&mut self, spec: StateSpec) -> Result<(), BackendError>;

    /// Turns a plan into a program.
    fn compile(&mut self, plan: Plan) -> Result<ProgramId, BackendError>;

    /// Runs a step. The result stays until the next one.
    fn run(&mut self, program: ProgramId, input: &StepInput);

    /// The result of the last step: one row a wanted token (or a token, if the graph's result has those rows).
    fn result(&self) -> &[f32];

    /// What the last step's graph hands out beside its result ([`crate::Graph::add_extra_output`]), by its place in that list.
    fn extra_output(&self, _at: usize) -> &[f32] {
        &[]
    }

    /// Rows of a step up to which each row's result has the very bits that it has in a step of its own, however they are
    /// spread over sequences. Steps that check guesses have no more rows: so speculation never changes an answer. 1, which
    /// switches it off, where nothing is promised.
    fn max_bit_exact_rows(&self) -> usize {
        1
    }

    /// Makes the page `to` a copy of `from`, all layers that keep everything.
    fn copy_page(&mut self, from: u32, to: u32);

    /// The same of a page of layers that only keep what is near.
    fn copy_recent_page(&mut self, from: u32, to: u32);

    /// Makes the slot `to` a copy of `from`, all states.
    fn copy_state(&mut self, from: u32, to: u32);

    /// Bytes that the backend allocated itself, beyond weights, cache and states.
    fn scratch_bytes(&self) -> usize;

    /// Starts or stops measuring operations.
    fn measure(&mut self, on: bool);

    /// What was measured since [`Backend::measure`].
    fn measured(&self) -> Vec<OpTime>;

    /// What products have read, by weight, where the backend was made to look at it.
    fn observed(&self) -> Vec<Observed> {
        Vec::new()
    }
}
