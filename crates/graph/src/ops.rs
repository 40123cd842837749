//! Operations of a graph and their definitions; backends implement them.
//!
//! Every value is a matrix of f32. Rows are the tokens of a step, or the tokens for which the step
//! returns logits; columns are features. A backend may fuse operations and round activations within
//! its stated bounds.

mod inputs;

use crate::adapter_updates::{ControlVector, ExpertLoraUpdates};
use crate::attention::AttentionSpec;
use crate::recurrent::Recurrence;
use crate::streams::StreamSpec;
use crate::top_k_positions::TopKPositionsSpec;
use crate::values::{Index, InputId, RopeId, ValueId, WeightId};

/// Element-wise functions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x · σ(x)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x/2 · (1 + erf(x/√2))`.
    GeluErf,
    /// `tanh(x)`.
    Tanh,
    /// `σ(x)`.
    Sigmoid,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `x` clamped to `min ..= max`, which must be in this order.
    Clamp {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// `alpha_p · x² + beta · x` above zero, else `(e^min(x, eps) - 1 - x) · alpha_n + beta · x`
    /// (xIELU; Huang, 2024).
    Xielu {
        /// Factor of the square.
        alpha_p: f32,
        /// Factor of the exponential.
        alpha_n: f32,
        /// Slope at zero.
        beta: f32,
        /// Largest argument of the exponential.
        eps: f32,
    },
}

/// Gated linear units: a function of `gate`, times `up`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Glu {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up`, tanh form.
    Gelu,
    /// `max(gate, 0) · up`.
    Relu,
    /// `max(gate, 0)² · up`.
    GatedReluSquared,
    /// `gelu(gate)`, erf form, for experts without a gate: `gate` and `up` are the same matrix.
    UngatedGelu,
    /// `max(gate, 0)²`, for experts without a gate: `gate` and `up` are the same matrix.
    ReluSquared,
    /// `gate`, for experts of two matrices without an activation: `gate` and `up` are the same
    /// matrix.
    Identity,
    /// With g = min(gate, limit), u = clamp(up, ±limit): `(u + 1) · g · σ(alpha · g)`.
    Clamped {
        /// Slope of the sigmoid.
        alpha: f32,
        /// Bound of `gate` and `up`.
        limit: f32,
    },
    /// `silu(min(gate, limit)) · clamp(up, ±limit)`.
    SiluOfClamped {
        /// Bound of `gate` and `up`.
        limit: f32,
    },
    /// `min(silu(gate), limit) · clamp(up, ±limit)`.
    ClampedSilu {
        /// Bound of `gate` and `up`.
        limit: f32,
    },
    /// `bound · tanh(gate / bound) · σ(gate) · up`, or with `limit · tanh(up / limit)` for `up`.
    BoundedSilu {
        /// Bound of the gate.
        bound: f32,
        /// Bound of `up`, if any.
        limit: Option<f32>,
    },
}

impl Glu {
    /// Whether `gate` and `up` are different matrices.
    pub fn has_gate(self) -> bool {
        !matches!(self, Self::UngatedGelu | Self::ReluSquared | Self::Identity)
    }
}

/// Gating function: from router logits to the weights of the selected experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts; selected experts keep their probabilities.
    Softmax,
    /// Softmax over the logits of the selected experts.
    SoftmaxOfSelected,
    /// Sigmoid of each logit.
    Sigmoid,
    /// `√(ln(1 + eˣ))` of each logit.
    SqrtSoftplus,
    /// Sparse mixer (Liu et al., 2024): softmax of each selected logit over the logits that are not
    /// selected earlier and less than 2 % below it.
    SparseMixer,
}

/// Group-limited routing: experts are selected from the best groups of equal size. The score of a
/// group is the sum of its two best experts, or the best one if the gating function is a softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups per token.
    pub top_k: usize,
}

/// A mixture of experts: `Σ weight_e · down_e(glu(gate_e x, up_e x))` over the `top_k` best of
/// `experts`.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeSpec {
    /// Number of experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Gating function.
    pub gating: Gating,
    /// Whether the weights of selected experts are normalized to sum 1.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// `[experts]`: factor of each expert's weight.
    pub factors: Option<WeightId>,
    /// `[experts]`: bias of the selection only (`e_score_correction_bias`).
    pub selection_bias: Option<WeightId>,
    /// Groups that limit the selection.
    pub groups: Option<Groups>,
    /// `[top_k, vocabulary]` of 32-bit integers: the experts of each token id, in place of a
    /// selection.
    pub experts_by_token: Option<WeightId>,
    /// Whether weights multiply the input of experts instead of their result.
    pub weighs_input: bool,
    /// Activation of the experts.
    pub glu: Glu,
    /// Hidden dimension of an expert.
    pub hidden: usize,
    /// Columns of the result.
    pub out: usize,
    /// Number of consecutive experts that share their matrices.
    pub experts_per_matrix: usize,
    /// `[in, hidden, experts]`.
    pub gate: WeightId,
    /// `[in, hidden, experts]`.
    pub up: WeightId,
    /// Whether `gate` and `up` are one tensor, `[in, 2 · hidden, experts]`, with the rows of the
    /// gate first for each expert.
    pub is_joined: bool,
    /// `[hidden, out, experts]`.
    pub down: WeightId,
    /// `[hidden, experts]`: bias of each expert.
    pub gate_bias: Option<WeightId>,
    /// See `gate_bias`.
    pub up_bias: Option<WeightId>,
    /// `[out, experts]`, see `gate_bias`.
    pub down_bias: Option<WeightId>,
    /// Low-rank updates, which the graph builder fills in.
    pub lora_updates: ExpertLoraUpdates,
}

/// Parameters of [`Op::AttnTemperature`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnTemperatureSpec {
    /// Factor of the logarithm.
    pub scale: f32,
    /// Positions per temperature step.
    pub floor: u32,
    /// Added to the position.
    pub offset: u32,
}

/// An operation with its inputs.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Embedding: one table row per token.
    Embed {
        /// `[features, rows]`, any weight type.
        table: WeightId,
        /// Row of each token.
        index: Index,
    },
    /// Embedding of several rows per token: each column of `numbers` has the bits of a row number
    /// ([`crate::SelectedPositions::entry`]).
    EmbedRows {
        /// `[features, rows]`, any weight type.
        table: WeightId,
        /// Row numbers.
        numbers: ValueId,
    },
    /// Rows that the caller provides with the step, see [`crate::StepInput::inputs`].
    InputRows {
        /// Index of the input.
        input: InputId,
    },
    /// `scale · x · wᵀ + bias`, for `w` of shape `[in, out]`.
    Linear {
        /// `[in, out]`.
        w: WeightId,
        /// Scale of the tensor; 1 for formats without.
        scale: f32,
        /// `[out]`.
        bias: Option<WeightId>,
        /// `in` columns.
        x: ValueId,
    },
    /// Per-head product: the first `in` columns of each head times the matrix of the head; other
    /// columns are passed through.
    PerHeadLinear {
        /// `[in, out, heads]`, or `[in, out]` for all heads.
        w: WeightId,
        /// Input; each head has at least `in` columns.
        x: ValueId,
        /// Number of heads.
        heads: usize,
    },
    /// `x / √(mean(x²) + eps) · w` over groups of columns (a head, or the whole row).
    RmsNorm {
        /// A whole number of groups per row.
        x: ValueId,
        /// Length of a group, or of a row; 1 if absent.
        w: Option<WeightId>,
        /// Added to the mean square.
        eps: f32,
        /// Columns per group.
        group: usize,
    },
    /// `(x - mean) / √(variance + eps) · w + b` over groups of columns (a head, or the whole row).
    LayerNorm {
        /// A whole number of groups per row.
        x: ValueId,
        /// Length of a group, or of a row; 1 if absent.
        w: Option<WeightId>,
        /// Same length as `w`.
        b: Option<WeightId>,
        /// Added to the biased variance.
        eps: f32,
        /// Columns per group.
        group: usize,
    },
    /// Rotary embedding.
    Rope {
        /// A whole number of heads per row.
        x: ValueId,
        /// Dimensions of a head.
        head_dim: usize,
        /// First rotated dimension of a head.
        start: usize,
        /// Frequencies and pairing of dimensions.
        rope: RopeId,
    },
    /// Attention. Stores the keys and values of the step in the cache first, unless
    /// `spec.only_reads`.
    Attention {
        /// `heads · key_dim` columns.
        q: ValueId,
        /// `kv_heads · key_dim` columns; equals `q` if the attention only reads the cache.
        k: ValueId,
        /// `kv_heads · value_dim` columns; equals `k` if the values are columns of the keys.
        v: ValueId,
        /// Layer of the cache; ignored for [`crate::Mask::Full`].
        layer: usize,
        /// Lists of selected positions, for sparse attention ([`crate::SelectedPositions`]).
        selected: Option<ValueId>,
        /// Partial result of attention of the same queries to other positions, which this one
        /// completes.
        partial_input: Option<ValueId>,
        /// Heads, dimensions, mask and biases.
        spec: AttentionSpec,
    },
    /// Top-k selection of sparse attention: stores the indexer's keys in the cache and selects, for
    /// each token, the blocks of positions with the largest scores; of equal scores the first. The
    /// score of a block is the largest score of its positions up to the token's own. The score of a
    /// position is `Σ weight · (q · k)` over the heads of a list. The nearest blocks can be
    /// selected regardless of their scores. The result holds lists of blocks
    /// ([`crate::SelectedPositions`]).
    TopKPositions {
        /// `heads · dim` columns.
        q: ValueId,
        /// `dim` columns.
        k: ValueId,
        /// Weight of each query head, one column each; 1 if absent.
        weights: Option<ValueId>,
        /// Layer of the cache.
        layer: usize,
        /// Heads, mask and shape of the lists.
        spec: TopKPositionsSpec,
    },
    /// Stores keys and values in the cache for attention of later steps. Has no result.
    StoreKv {
        /// `kv_heads · key_dim` columns.
        k: ValueId,
        /// `kv_heads · value_dim` columns.
        v: ValueId,
        /// Layer of the cache.
        layer: usize,
        /// Specification of the attention that reads them.
        spec: AttentionSpec,
    },
    /// Gated linear unit of two values of the same shape.
    Glu {
        /// Function of the gate.
        kind: Glu,
        /// Gate.
        gate: ValueId,
        /// Value that the gate multiplies.
        up: ValueId,
    },
    /// An element-wise function.
    Activate {
        /// Function of one element.
        kind: Activation,
        /// Value of any shape.
        x: ValueId,
    },
    /// A mixture of experts.
    Moe {
        /// `in` columns.
        x: ValueId,
        /// Router logits, one column per expert.
        router: ValueId,
        /// Experts, routing and weights.
        spec: Box<MoeSpec>,
    },
    /// `a + b`.
    Add {
        /// Value of any shape.
        a: ValueId,
        /// Value of the same shape.
        b: ValueId,
    },
    /// The columns of `a`, then the columns of `b`.
    Concat {
        /// Left columns of the result.
        a: ValueId,
        /// Right columns of the result; the same rows as `a`.
        b: ValueId,
    },
    /// `x · by`. If `by` has fewer columns, each column multiplies a group of consecutive columns
    /// of `x`.
    Mul {
        /// Value of any shape.
        x: ValueId,
        /// Columns of `x`, or a divisor of their number.
        by: ValueId,
    },
    /// `x · (1 + scale · ln(1 + ⌊(position + offset) / floor⌋))`: attention temperature, which
    /// sharpens attention in long contexts (Llama 4).
    AttnTemperature {
        /// Query heads.
        x: ValueId,
        /// `scale`, `floor` and `offset`.
        by: AttnTemperatureSpec,
    },
    /// `by · x`.
    Scale {
        /// Value of any shape.
        x: ValueId,
        /// Factor.
        by: f32,
    },
    /// `scale · x`, with the adapter scale of the sequence of each row ([`crate::AdapterScales`]).
    ScaleAdapter {
        /// Low-rank product or update of the adapter.
        x: ValueId,
        /// Number of the adapter.
        adapter: usize,
    },
    /// Control vector: `x + scale · vector`, with the adapter scale of the sequence of each row,
    /// for each residual stream of `x`. See [`ControlVector`].
    AddControlVector {
        /// Residual streams, in consecutive columns.
        x: ValueId,
        /// `vector`, with the number of its adapter.
        control_vector: ControlVector,
    },
    /// `cap · tanh(x / cap)`.
    Softcap {
        /// Value of any shape.
        x: ValueId,
        /// Bound.
        cap: f32,
    },
    /// `x · |like| / |x|`, row by row: gives `x` the norm of `like` (Gemma 3n).
    MatchNorm {
        /// Value that is scaled.
        x: ValueId,
        /// Value with the norm that the result gets.
        like: ValueId,
    },
    /// Depth attention (Kimi K3): `Σ pᵢ xᵢ` over a token's values `xᵢ` at several depths of the
    /// network, where `p` is the softmax over depths of `Σ w · xᵢ / √(mean(xᵢ²) + eps)`.
    DepthAttention {
        /// `xᵢ`, of the same shape.
        depths: Vec<ValueId>,
        /// `[features]`.
        w: WeightId,
        /// Added to the mean square.
        eps: f32,
    },
    /// Gaussian top-k (Gemma 3n): `max(x - mean - deviations · σ, 0)` with mean and standard
    /// deviation of each row.
    GaussianTopK {
        /// Value of any shape.
        x: ValueId,
        /// Cut-off above the mean, in standard deviations.
        deviations: f32,
    },
    /// Takes `width` columns of each `period` columns.
    StridedColumns {
        /// A whole number of periods per row.
        x: ValueId,
        /// First column within a period.
        start: usize,
        /// Columns taken of each period.
        width: usize,
        /// Length of a period in columns.
        period: usize,
    },
    /// Dynamic convolution: `Σ (fixedᵢ + dynamicᵢ) · xᵢ`, where `xᵢ` is the row `i` tokens earlier
    /// in the same sequence and step, and `dynamicᵢ` has one column per group of consecutive
    /// features.
    DynamicConv {
        /// Input, one row per token.
        x: ValueId,
        /// Taps that depend on the token: for each tap, one column per group.
        dynamic_taps: ValueId,
        /// `[features, taps]`.
        fixed_taps: WeightId,
        /// Number of taps.
        taps: usize,
    },
    /// Unfold (im2col) for a convolution over tokens (WavTokenizer): for each column, the values of
    /// `taps` neighbouring tokens of the same sequence and step, with the token itself in the
    /// middle; zeros outside of the sequence.
    Unfold {
        /// Input, one row per token.
        x: ValueId,
        /// Number of taps, odd.
        taps: usize,
    },
    /// `(x - mean) / √(variance + eps) · w + b` with mean and variance over all tokens of a
    /// sequence and a group of columns.
    GroupNorm {
        /// Input, one row per token.
        x: ValueId,
        /// One value per column.
        w: WeightId,
        /// One value per column.
        b: WeightId,
        /// Added to the biased variance.
        eps: f32,
        /// Number of groups.
        groups: usize,
    },
    /// Read and write weights of hyper-connections.
    StreamWeights {
        /// Projected numbers of each kind of weights.
        x: ValueId,
        /// Scales, bases and floors of the weights.
        spec: Box<StreamSpec>,
    },
    /// `Σ weight_s · stream_s`.
    ReadStreams {
        /// Residual streams, in consecutive columns.
        streams: ValueId,
        /// One column per stream.
        weights: ValueId,
    },
    /// For each stream `t`: `weight_t · x + Σ mix_st · stream_s`, or without `mix`
    /// `weight_t · x + stream_t`.
    WriteStreams {
        /// Residual streams, in consecutive columns.
        streams: ValueId,
        /// Value to add.
        x: ValueId,
        /// One column per stream.
        weights: ValueId,
        /// For each stream `s`, one column for each stream `t`.
        mix: Option<ValueId>,
    },
    /// Gate of each stream by the similarity of `a` and `b`: `σ(sign(s) · √max(|s|, 10⁻⁶))` with
    /// `s = a · b / √n` over the `n` features of a stream. The result has one column per stream.
    StreamSimilarityGate {
        /// Residual streams, in consecutive columns.
        a: ValueId,
        /// Residual streams, as many as in `a`.
        b: ValueId,
        /// Number of streams.
        streams: usize,
    },
    /// Recurrent layer: carries a state of fixed size from token to token.
    Recur(Box<Recurrence>),
    /// For each row whose logits the step returns, the columns of the `rows` rows up to it, side by
    /// side: patches of a picture that become one token.
    ConcatRows {
        /// Input.
        x: ValueId,
        /// Number of rows that become one.
        rows: usize,
    },
    /// For each row whose logits the step returns, the mean of the `rows` rows up to it.
    MeanRows {
        /// Input.
        x: ValueId,
        /// Number of rows that become one.
        rows: usize,
    },
    /// Takes the rows of the tokens for which the step returns logits.
    GatherOutputs {
        /// Input, one row per token.
        x: ValueId,
    },
}

impl Op {
    /// The operation's name in listings and measurements.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } | Op::EmbedRows { .. } => "embed",
            Op::InputRows { .. } => "input_rows",
            Op::Linear { .. } | Op::PerHeadLinear { .. } => "linear",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } | Op::StoreKv { .. } => "attention",
            Op::TopKPositions { .. } => "top_k_positions",
            Op::Glu { .. } => "glu",
            Op::Activate { .. } => "activate",
            Op::Moe { .. } => "moe",
            Op::Add { .. } => "add",
            Op::Concat { .. } => "concat",
            Op::Mul { .. } => "mul",
            Op::AttnTemperature { .. } => "attn_temperature",
            Op::Scale { .. } => "scale",
            Op::ScaleAdapter { .. } => "scale_adapter",
            Op::AddControlVector { .. } => "add_control_vector",
            Op::Softcap { .. } => "softcap",
            Op::MatchNorm { .. } => "match_norm",
            Op::DepthAttention { .. } => "depth_attention",
            Op::GaussianTopK { .. } => "gaussian_top_k",
            Op::StridedColumns { .. } => "strided_columns",
            Op::DynamicConv { .. } => "dynamic_conv",
            Op::Unfold { .. } => "unfold",
            Op::GroupNorm { .. } => "group_norm",
            Op::StreamWeights { .. }
            | Op::ReadStreams { .. }
            | Op::WriteStreams { .. }
            | Op::StreamSimilarityGate { .. } => "streams",
            Op::Recur(recurrence) => recurrence.name(),
            Op::ConcatRows { .. } => "concat_rows",
            Op::MeanRows { .. } => "mean_rows",
            Op::GatherOutputs { .. } => "gather_outputs",
        }
    }
}
