//! Operations: few and meaningful. What they compute is defined here in words; backends implement them.
//!
//! Every value is a matrix of f32 whose rows belong to the tokens of a step (or to those tokens whose result is
//! wanted) and whose columns are features. A backend may fuse operations and round activations
//! within the bounds that it states.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::backend::CacheLayer;
use crate::recurrent::Recurrence;

/// A value of a graph: an operation's result or a window of columns of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// The position in the graph's list of values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A weight of the model: its position in the list of tensors that the backend adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl WeightId {
    /// The position in the model's list of tensors.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rotary table of the model: its position in the list of [`Rope`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u32);

/// What a value's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row for each token of the step.
    Tokens,
    /// One row for each token whose result is wanted.
    Outputs,
}

/// Which row of a table a token takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index {
    /// Its id.
    Token,
    /// Its position in the sequence.
    Position,
    /// Always this one.
    Fixed(u32),
}

/// How features are paired for rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Neighbours: (2j, 2j+1).
    Norm,
    /// Halves: (j, j + n/2).
    Neox,
}

/// A rotary embedding: feature pair j of a token at position p turns by `p · frequencies[j]` and is scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// How features are paired.
    pub kind: RopeKind,
    /// Radians a position, one for each pair; the first `2 · frequencies.len()` features of a head turn.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
}

/// Which earlier tokens a token sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All tokens at or before its position.
    Causal,
    /// The last `n` tokens up to and with itself.
    Window(u32),
    /// The tokens of its own chunk of `n` positions up to and with itself.
    Chunk(u32),
    /// Every token of its sequence: encoders. Nothing is cached.
    Full,
    /// Tokens of its sequence up to `n` positions before or behind it: encoders. Nothing is cached.
    Around(u32),
}

impl Mask {
    /// Whether keys and values are kept for later steps, in which tokens see what came before.
    pub fn is_cached(self) -> bool {
        !matches!(self, Mask::Full | Mask::Around(_))
    }
}

/// The form of an attention operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h · kv_heads / heads`.
    pub kv_heads: usize,
    /// Features of a query or key head.
    pub key_dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Whether a value is the first features of its key, so that the cache keeps both once.
    pub values_in_keys: bool,
    /// Whether keys and values are those that an earlier operation has put into the layer of the cache.
    pub only_reads: bool,
    /// Multiplies scores.
    pub scale: f32,
    /// `s ← c · tanh(s / c)` on scaled scores.
    pub softcap: Option<f32>,
    /// Which tokens are seen.
    pub mask: Mask,
    /// One logit a query head that joins the softmax and contributes no value.
    pub sinks: Option<WeightId>,
    /// Scores fall with the distance of key and query, in each head by another slope: the largest exponent of two
    /// (Press et al., 2021). After the softcap.
    pub alibi: Option<f32>,
    /// What is added to scores by the distance of key and query. After the softcap.
    pub shifts: Option<Shifts>,
}

impl AttentionSpec {
    /// Causal attention of so many query heads on so many key heads of these features, with scores over their root.
    pub fn causal(heads: usize, kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let scale = 1.0 / (key_dim as f32).sqrt();
        let (mask, softcap, sinks, alibi, shifts) = (Mask::Causal, None, None, None, None);
        let (values_in_keys, only_reads) = (false, false);
        Self {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            values_in_keys,
            only_reads,
            scale,
            softcap,
            mask,
            sinks,
            alibi,
            shifts,
        }
    }

    /// By how much a score falls with each position of distance, for each query head; nothing without `alibi`.
    pub fn slopes(&self) -> Vec<f32> {
        let Some(most) = self.alibi else { return Vec::new() };
        let whole = 1 << self.heads.max(1).ilog2();
        let slope = |head: usize| match head.checked_sub(whole) {
            None => -most * (head + 1) as f32 / whole as f32,
            Some(more) => -most / 2.0 * (2 * more + 1) as f32 / whole as f32,
        };
        (0..self.heads).map(|head| slope(head).exp2()).collect()
    }

    /// What the cache keeps for a layer of this form.
    pub fn cache_layer(&self) -> CacheLayer {
        let Self { kv_heads, key_dim, value_dim, values_in_keys, .. } = *self;
        CacheLayer { kv_heads, key_dim, value_dim, values_in_keys }
    }
}

/// Amounts that are added to scores, one for each bucket of distances and each query head (Raffel et al., 2020): half of the
/// buckets are for keys behind the query. Near distances have a bucket each, farther ones share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shifts {
    /// `[heads, buckets]`.
    pub table: WeightId,
    /// How many there are, see [`Self::BUCKETS`].
    pub buckets: usize,
}

impl Shifts {
    /// As many as the distances make sense of.
    pub const BUCKETS: RangeInclusive<usize> = 4..=256;
    /// All distances from this one on share a bucket.
    pub const FAR: usize = 128;

    /// The bucket of a key that lies so many positions behind the query.
    pub fn bucket(self, behind: i64) -> usize {
        let half = self.buckets / 2;
        let near = half / 2;
        let distance = usize::try_from(behind.unsigned_abs()).unwrap_or(usize::MAX);
        let side = if behind > 0 { half } else { 0 };
        if distance < near {
            return side + distance;
        }
        let log = |n: usize| (n as f32 / near as f32).ln();
        let more = log(distance) / log(Self::FAR) * (half - near) as f32;
        side + (near + more as usize).min(half - 1)
    }
}

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
    /// `x` within `±limit`.
    Clamp {
        /// Bound.
        limit: f32,
    },
    /// `alpha_p · x² + beta · x` above zero, else `(e^min(x, eps) - 1 - x) · alpha_n + beta · x` (Huang, 2024).
    Xielu {
        /// Of the square.
        alpha_p: f32,
        /// Of the exponential.
        alpha_n: f32,
        /// Slope at zero.
        beta: f32,
        /// Where the exponential is cut.
        eps: f32,
    },
}

/// Gated units: a function of the gate times the other half.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Glu {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up`, tanh form.
    Gelu,
    /// `max(gate, 0) · up`.
    Relu,
    /// `gelu(gate)`, erf form: of experts without a gate, which name one matrix as both.
    GeluAlone,
    /// `max(gate, 0)²`: of experts without a gate, which name one matrix as both.
    ReluSquared,
    /// With g = min(gate, limit), u = clamp(up, ±limit): `(u + 1) · g · σ(alpha · g)`.
    Clamped {
        /// Slope of the sigmoid.
        alpha: f32,
        /// Bound of both halves.
        limit: f32,
    },
}

impl Glu {
    /// Whether there is a gate beside the other half.
    pub fn has_gate(self) -> bool {
        !matches!(self, Self::GeluAlone | Self::ReluSquared)
    }
}

/// How a router's logits become the weights of the chosen experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts; the chosen keep their probabilities.
    Softmax,
    /// Softmax over the logits of the chosen only.
    SoftmaxOfChosen,
    /// Each logit's own sigmoid.
    Sigmoid,
}

/// Experts in groups of the same size, of which only the best are looked at: a group is as good as its two best experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many a token may choose from.
    pub used: usize,
}

/// A change of a matrix by the product of two thin ones: `W + scale · up · down`. `W` itself stays as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowRank {
    /// `[in, rank]`; of experts `[in, rank, experts]`.
    pub down: WeightId,
    /// `[rank, out]`; of experts `[rank, out, experts]`.
    pub up: WeightId,
    /// `down` with rows and columns exchanged, `[rank, in]`, where `W` is a table whose rows are taken by number.
    pub back: Option<WeightId>,
    /// Columns between the two.
    pub rank: usize,
    /// Multiplies their product.
    pub scale: f32,
    /// The adapter that it is of, whose dose multiplies it, too.
    pub adapter: usize,
}

/// A vector that is added to what a layer hands on: a direction in which the model is steered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Direction {
    /// `[features]`.
    pub vector: WeightId,
    /// The adapter that it is of, whose dose multiplies it.
    pub adapter: usize,
}

/// What a model's adapters change.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Of each matrix that is changed.
    pub products: BTreeMap<WeightId, Vec<LowRank>>,
    /// Behind each layer that is steered.
    pub directions: BTreeMap<usize, Vec<Direction>>,
}

impl Changes {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty() && self.directions.is_empty()
    }
}

/// What changes the matrices of experts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpertChanges {
    /// Of `gate`.
    pub gate: Vec<LowRank>,
    /// Of `up`.
    pub up: Vec<LowRank>,
    /// Of `down`.
    pub down: Vec<LowRank>,
}

/// A mixture of experts: `Σ weight_e · down_e(glu(gate_e x, up_e x))` over the `used` best of `experts`.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeSpec {
    /// Number of experts.
    pub experts: usize,
    /// Experts a token uses.
    pub used: usize,
    /// How weights come from the router's logits.
    pub gating: Gating,
    /// Whether the chosen ones' weights are scaled to sum to one.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// `[experts]`: multiplies each expert's weight.
    pub factors: Option<WeightId>,
    /// `[experts]`: added to the weights for choosing, and for that alone.
    pub favour: Option<WeightId>,
    /// Groups that limit the choice.
    pub groups: Option<Groups>,
    /// Whether the weight multiplies what the expert reads instead of its result.
    pub weighs_input: bool,
    /// The experts' unit.
    pub glu: Glu,
    /// Width of an expert's hidden layer.
    pub hidden: usize,
    /// `[in, hidden, experts]`.
    pub gate: WeightId,
    /// `[in, hidden, experts]`.
    pub up: WeightId,
    /// Whether `gate` and `up` are one tensor, `[in, 2 · hidden, experts]`, with the gate's rows first for each expert.
    pub is_joined: bool,
    /// `[hidden, in, experts]`.
    pub down: WeightId,
    /// `[hidden, experts]` each; added to the products of the chosen expert.
    pub gate_bias: Option<WeightId>,
    /// See `gate_bias`.
    pub up_bias: Option<WeightId>,
    /// `[in, experts]`, see `gate_bias`.
    pub down_bias: Option<WeightId>,
    /// Filled in when the mixture is recorded.
    pub changes: ExpertChanges,
}

/// Attention that becomes sharper with the position, see [`Op::Temper`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// Multiplies the logarithm.
    pub scale: f32,
    /// Positions of a stair.
    pub floor: u32,
    /// Added to the position.
    pub offset: u32,
}

/// One operation and what it reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of a table.
    Embed {
        /// `[features, rows]`, any weight type.
        table: WeightId,
        /// Which row.
        index: Index,
    },
    /// `scale · x · wᵀ + bias`, for `w` of shape `[in, out]`.
    Linear {
        /// `[in, out]`.
        w: WeightId,
        /// One but for formats with a scale a tensor.
        scale: f32,
        /// `[out]`.
        bias: Option<WeightId>,
        /// Input.
        x: ValueId,
    },
    /// For each head its first `in` columns times the head's own matrix, and behind that the rest of the head as it is.
    LinearOfHeads {
        /// `[in, out, heads]`.
        w: WeightId,
        /// Input; heads of `in` columns or more.
        x: ValueId,
        /// Number of heads.
        heads: usize,
    },
    /// `x / √(mean(x²) + eps) · w` over groups of columns (a head, or the whole row).
    RmsNorm {
        /// Input.
        x: ValueId,
        /// As long as a group, or as all of a row's groups together; ones if absent.
        w: Option<WeightId>,
        /// Added to the mean square.
        eps: f32,
        /// Columns that are normalised together.
        group: usize,
    },
    /// `(x - mean) / √(variance + eps) · w + b` over groups of columns (a head, or the whole row).
    LayerNorm {
        /// Input.
        x: ValueId,
        /// As long as a group, or as all of a row's groups together; ones if absent.
        w: Option<WeightId>,
        /// As long as `w`.
        b: Option<WeightId>,
        /// Added to the biased variance.
        eps: f32,
        /// Columns that are normalised together.
        group: usize,
    },
    /// Rotates each head by the token's position.
    Rope {
        /// Input.
        x: ValueId,
        /// Features a head.
        head_dim: usize,
        /// The first feature of a head that turns.
        start: usize,
        /// The table.
        rope: RopeId,
    },
    /// Appends keys and values to the cache, unless they are there, and attends.
    Attention {
        /// `heads · key_dim` columns.
        q: ValueId,
        /// `kv_heads · key_dim` columns; `q` once more where the cache is only read.
        k: ValueId,
        /// `kv_heads · value_dim` columns; `k` itself where values lie in keys.
        v: ValueId,
        /// Layer of the cache; ignored for [`Mask::Full`].
        layer: usize,
        /// The form.
        spec: AttentionSpec,
    },
    /// A gated unit of two values of the same shape.
    Glu {
        /// The unit.
        kind: Glu,
        /// Gate.
        gate: ValueId,
        /// The other half.
        up: ValueId,
    },
    /// An element-wise function.
    Activate {
        /// The function.
        kind: Activation,
        /// Input.
        x: ValueId,
    },
    /// A mixture of experts.
    Moe {
        /// Input.
        x: ValueId,
        /// The router's logits, one column an expert.
        router: ValueId,
        /// The form.
        spec: Box<MoeSpec>,
    },
    /// `a + b`.
    Add {
        /// One.
        a: ValueId,
        /// Other.
        b: ValueId,
    },
    /// The columns of `a`, then those of `b`.
    Concat {
        /// First.
        a: ValueId,
        /// Second.
        b: ValueId,
    },
    /// `x · by`, of the same shape, or where `by` has fewer columns with each for so many of `x`, that lie together.
    Mul {
        /// Input.
        x: ValueId,
        /// Factors.
        by: ValueId,
    },
    /// `x · (1 + scale · ln(1 + ⌊(position + offset) / floor⌋))`: sharper attention far into a context.
    Temper {
        /// Input.
        x: ValueId,
        /// How.
        by: Temperature,
    },
    /// `by · x`.
    Scale {
        /// Input.
        x: ValueId,
        /// Factor.
        by: f32,
    },
    /// `dose · x`, with the dose that the row's sequence has of an adapter.
    Dose {
        /// Input.
        x: ValueId,
        /// Which adapter.
        adapter: usize,
    },
    /// `x + dose · vector`, see [`Direction`].
    Steer {
        /// Input.
        x: ValueId,
        /// Where to.
        direction: Direction,
    },
    /// `cap · tanh(x / cap)`.
    Softcap {
        /// Input.
        x: ValueId,
        /// Bound.
        cap: f32,
    },
    /// `x · |like| / |x|`, row by row.
    Resize {
        /// Input.
        x: ValueId,
        /// What has the length.
        like: ValueId,
    },
    /// `max(x - mean - deviations · σ, 0)` with mean and standard deviation of each row.
    Sparsify {
        /// Input.
        x: ValueId,
        /// How far above the mean something must lie.
        deviations: f32,
    },
    /// Some columns of each period of columns, side by side.
    Pick {
        /// Input.
        x: ValueId,
        /// The first one within a period.
        start: usize,
        /// How many of a period.
        width: usize,
        /// Columns of a period.
        period: usize,
    },
    /// What carries a state of fixed size from token to token.
    Recur(Box<Recurrence>),
    /// The rows of the tokens whose results are wanted.
    GatherOutputs {
        /// Input, a row a token.
        x: ValueId,
    },
}

impl Op {
    /// The operation's name in listings and measurements.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Linear { .. } | Op::LinearOfHeads { .. } => "linear",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::Glu { .. } => "glu",
            Op::Activate { .. } => "activate",
            Op::Moe { .. } => "moe",
            Op::Add { .. } => "add",
            Op::Concat { .. } => "concat",
            Op::Mul { .. } => "mul",
            Op::Temper { .. } => "temper",
            Op::Scale { .. } => "scale",
            Op::Dose { .. } => "dose",
            Op::Steer { .. } => "steer",
            Op::Softcap { .. } => "softcap",
            Op::Resize { .. } => "resize",
            Op::Sparsify { .. } => "sparsify",
            Op::Pick { .. } => "pick",
            Op::Recur(recurrence) => recurrence.name(),
            Op::GatherOutputs { .. } => "gather_outputs",
        }
    }

    /// The values that the operation reads.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        let list: [Option<ValueId>; 3] = match *self {
            Op::Embed { .. } | Op::Recur(_) => [None, None, None],
            Op::Linear { x, .. }
            | Op::LinearOfHeads { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Activate { x, .. }
            | Op::Temper { x, .. }
            | Op::Scale { x, .. }
            | Op::Dose { x, .. }
            | Op::Steer { x, .. }
            | Op::Softcap { x, .. }
            | Op::Sparsify { x, .. }
            | Op::Pick { x, .. }
            | Op::GatherOutputs { x } => [Some(x), None, None],
            Op::Resize { x, like } => [Some(x), Some(like), None],
            Op::Attention { q, k, v, .. } => [Some(q), Some(k), Some(v)],
            Op::Glu { gate, up, .. } => [Some(gate), Some(up), None],
            Op::Moe { x, router, .. } => [Some(x), Some(router), None],
            Op::Add { a, b } | Op::Concat { a, b } => [Some(a), Some(b), None],
            Op::Mul { x, by } => [Some(x), Some(by), None],
        };
        let recurrence = if let Op::Recur(recurrence) = self { recurrence.inputs() } else { Vec::new() };
        list.into_iter().flatten().chain(recurrence)
    }

    /// The input whose memory the result may take over, element by element.
    pub fn in_place_input(&self) -> Option<ValueId> {
        match *self {
            Op::Rope { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Activate { x, .. }
            | Op::Mul { x, .. }
            | Op::Temper { x, .. }
            | Op::Scale { x, .. }
            | Op::Dose { x, .. }
            | Op::Steer { x, .. }
            | Op::Softcap { x, .. }
            | Op::Resize { x, .. }
            | Op::Sparsify { x, .. } => Some(x),
            Op::Add { a, .. } => Some(a),
            Op::Glu { gate, .. } => Some(gate),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper_also_where_heads_are_no_power_of_two() {
        let slopes =
            |heads| AttentionSpec { alibi: Some(8.0), ..AttentionSpec::causal(heads, heads, 4, 4) }.slopes();
        assert_eq!(slopes(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|n| (-(n as f32)).exp2()));
        // Every other one of twice as many comes behind.
        assert_eq!(slopes(3), [-4.0, -8.0, -2.0].map(f32::exp2));
        assert!(AttentionSpec::causal(8, 8, 4, 4).slopes().is_empty());
    }

    #[test]
    fn near_keys_have_a_bucket_each_and_far_ones_share() {
        let bucket = |behind| Shifts { table: WeightId(0), buckets: 32 }.bucket(behind);
        assert_eq!([0, -1, -7, -8, -9, -12, -16, -32].map(bucket), [0, 1, 7, 8, 8, 9, 10, 12]);
        assert_eq!([1, 7, 8, 127, 128, i64::MAX].map(bucket), [17, 23, 24, 31, 31, 31]);
        assert_eq!((bucket(-127), bucket(-128), bucket(i64::MIN)), (15, 15, 15));
        for buckets in Shifts::BUCKETS {
            let all = (-300..300).map(|behind| Shifts { table: WeightId(0), buckets }.bucket(behind));
            assert!(all.max().unwrap() < buckets);
        }
    }
}
