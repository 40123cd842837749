//! Operations of recurrent layers, which carry a state of fixed size from token to token.
//!
//! A step updates the states of each sequence ([`crate::Segment::state`]) token by token; a new
//! sequence starts from zero. The layout of a state is private to the backend.

use std::sync::Arc;

use crate::values::{ValueId, WeightId};

/// A recurrent operation with its inputs. Each has its own state, by its index in
/// [`crate::StateSpec::states`].
#[derive(Debug, Clone, PartialEq)]
pub enum Recurrence {
    /// Depthwise causal convolution: for each column, the weighted sum of a token's row and earlier
    /// rows.
    Conv {
        /// Input.
        x: ValueId,
        /// Specification.
        spec: ConvSpec,
    },
    /// Selective scan (Mamba; Gu and Dao, 2023; Dao and Gu, 2024). For each head, with the step
    /// size `δ = softplus(dt + dt_bias)`: `S ← exp(δ a) · S + δ x bᵀ`, and the result is
    /// `S c + d x`.
    Scan {
        /// `heads · head_dim` columns.
        x: ValueId,
        /// One column per head.
        dt: ValueId,
        /// `groups · state_dim` columns: input weights.
        b: ValueId,
        /// `groups · state_dim` columns: output weights.
        c: ValueId,
        /// Specification.
        spec: ScanSpec,
    },
    /// Gated delta rule (DeltaNet; Yang et al., 2024). For each value head, with `g` of
    /// [`DecayKind`] and `β = σ(beta)`: `S ← exp(g) S`, then `S ← S + k (β (v - Sᵀ k))ᵀ`, and the
    /// result is `Sᵀ q`. Queries and keys are multiplied by `spec.scales` before.
    Delta {
        /// `key_heads · key_dim` columns.
        q: ValueId,
        /// `key_heads · key_dim` columns.
        k: ValueId,
        /// `value_heads · value_dim` columns.
        v: ValueId,
        /// One column per value head, or one for each of its `key_dim` state rows.
        decay: ValueId,
        /// One column per value head.
        beta: ValueId,
        /// Specification.
        spec: DeltaSpec,
    },
    /// RWKV 6 (Peng et al., 2024). For each head, with the decay `w = exp(-exp(decay))`: the result
    /// is `(S + (u ⊙ k) vᵀ)ᵀ r`, then `S ← diag(w) S + k vᵀ`. Without `u` (`spec.bonus`) it is
    /// gated linear attention (Yang et al., 2023): `S ← diag(w) S + ((1 - w) ⊙ k) vᵀ`, then the
    /// result is `Sᵀ r / √dim`.
    Wkv {
        /// `heads · dim` columns.
        r: ValueId,
        /// `kv_heads · dim` columns: keys.
        k: ValueId,
        /// `kv_heads · dim` columns: values.
        v: ValueId,
        /// `heads · dim` columns: logarithm of the negative logarithm of the decay.
        decay: ValueId,
        /// Specification.
        spec: WkvSpec,
    },
    /// RWKV 7 (Peng et al., 2025): a delta rule with separate removal keys. For each head, with the
    /// decay `w = exp(-σ(decay) / √e)` and `κ = removal_key / |removal_key|`:
    /// `S ← diag(w) S - (rate ⊙ κ) (Sᵀ κ)ᵀ + k vᵀ`. The result has the columns `Sᵀ r` of all heads,
    /// then the columns `(r · (u ⊙ k)) v` of all heads (bonus of the token itself).
    Wkv7 {
        /// `heads · dim` columns, like all inputs.
        r: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// Input of the sigmoid of the decay.
        decay: ValueId,
        /// Removal keys, not normalized.
        removal_key: ValueId,
        /// In-context learning rate: part of the value at the removal key that is forgotten.
        iclr: ValueId,
        /// Specification.
        spec: Wkv7Spec,
    },
    /// Retention: linear attention with a fixed decay per head (RetNet, Sun et al., 2023; Lightning
    /// Attention, Qin et al., 2024). For each head: `S ← exp(-rate) S + k vᵀ`, and the result is
    /// `Sᵀ q`.
    Retention {
        /// `heads · dim` columns, like all inputs.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// Specification.
        spec: RetentionSpec,
    },
    /// Pooling of blocks of tokens to one row each (DeepSeek-AI, 2026): for each column, the
    /// average of `x` with weights softmax(`gate + bias`) over the tokens of the block. If blocks
    /// overlap, the second half of a token's columns is for its own block and the first half for
    /// the next block. The result is the pooled row at the last token of a block, and zeros at
    /// other tokens.
    Pool {
        /// `dim` columns; `2 · dim` if blocks overlap.
        x: ValueId,
        /// Same number of columns; 0 if absent.
        gate: Option<ValueId>,
        /// Specification.
        spec: PoolSpec,
    },
    /// Table rows of the n-grams that end with each token ([`NgramEmbeddingSpec`]). Its input is
    /// the token ids only.
    NgramRows {
        /// Specification.
        spec: Arc<NgramEmbeddingSpec>,
    },
}

/// Specification of [`Recurrence::Conv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of rows: the token's own and earlier ones.
    pub taps: usize,
    /// Distance of rows in tokens (dilation); usually 1.
    pub stride: usize,
    /// `[taps, columns]`, with the token's own tap last; `None` returns the oldest row.
    pub w: Option<WeightId>,
    /// `[columns]`.
    pub bias: Option<WeightId>,
    /// Whether the result is `silu` of the sum.
    pub silu: bool,
}

impl ConvSpec {
    /// Length of the state for `cols` columns.
    pub fn values(&self, cols: usize) -> usize {
        self.before() * cols
    }

    /// Number of earlier rows in the state.
    pub fn before(&self) -> usize {
        (self.taps - 1) * self.stride
    }
}

/// Specification of [`Recurrence::Scan`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of heads, each with its own step size. Mamba 1 has one head per column.
    pub heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// State values per column.
    pub state_dim: usize,
    /// Groups of consecutive heads that share `b` and `c`.
    pub groups: usize,
    /// `[heads]`, or with `head_dim` one `[state_dim, heads]`; negative.
    pub a: WeightId,
    /// `[heads]`.
    pub d: WeightId,
    /// `[heads]`: bias of step sizes.
    pub dt_bias: Option<WeightId>,
}

impl ScanSpec {
    /// Length of the state.
    pub fn values(&self) -> usize {
        self.heads * self.head_dim * self.state_dim
    }
}

/// Specification of [`Recurrence::Delta`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Dimensions of a query or key head.
    pub key_dim: usize,
    /// Dimensions of a value head.
    pub value_dim: usize,
    /// Whether value head h uses key head `h mod key_heads`, and not `h · key_heads / value_heads`.
    pub tiled: bool,
    /// Layout of `decay` and `beta`: heads per run of consecutive columns, and distance of runs in
    /// columns.
    pub runs: (usize, usize),
    /// Factors of queries and keys.
    pub scales: [f32; 2],
    /// Kind of decay.
    pub decay_kind: DecayKind,
    /// `[value_heads]`.
    pub a: WeightId,
    /// `[value_heads]`, or one value for each column of `decay` if a head has several.
    pub dt_bias: WeightId,
}

/// Logarithm `g` of the decay of a [`Recurrence::Delta`] state, from `x = decay + dt_bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DecayKind {
    /// `a · softplus(x)` with negative `a`.
    Unbounded,
    /// `least · σ(sign · a · x)`, so `g ≥ least`.
    Bounded {
        /// Lower bound, negative.
        min: f32,
        /// 1, or -1 if the file stores `a` with the opposite sign.
        sign: f32,
    },
}

impl DeltaSpec {
    /// Length of the state.
    pub fn values(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// The key head of a value head.
    pub fn key_head(&self, head: usize) -> usize {
        if self.tiled { head % self.key_heads } else { head * self.key_heads / self.value_heads }
    }

    /// Column of `beta` of a value head; also of `decay`, if that has one column per head.
    pub fn column(&self, head: usize) -> usize {
        head / self.runs.0 * self.runs.1 + head % self.runs.0
    }
}

/// Specification of [`Recurrence::Wkv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WkvSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of heads.
    pub heads: usize,
    /// Number of key and value heads, each for a group of consecutive heads.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// `u`, `[heads · dim]`: extra weight of the current token (RWKV `time_faaaa`).
    pub bonus: Option<WeightId>,
}

impl WkvSpec {
    /// Length of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }
}

/// Specification of [`Recurrence::Wkv7`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wkv7Spec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// `u`, `[heads · dim]`: extra weight of the current token (RWKV `r_k`).
    pub bonus: WeightId,
}

impl Wkv7Spec {
    /// Length of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }
}

/// Specification of [`Recurrence::Retention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Number of heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Factor of the decay rates of all heads.
    pub rate: f32,
}

impl RetentionSpec {
    /// Length of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }

    /// Decay rate of a head: `2^(-8 h / n)` for head h (from 1) of n, as the slopes of ALiBi (Press
    /// et al., 2022).
    pub fn rate_of(&self, head: usize) -> f32 {
        self.rate * (-8.0 * (head + 1) as f32 / self.heads as f32).exp2()
    }
}

/// Specification of [`Recurrence::Pool`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Tokens per block; block 0 begins at position 0.
    pub block: usize,
    /// Columns of a pooled row.
    pub dim: usize,
    /// Whether blocks overlap, so that a token belongs to two.
    pub overlaps: bool,
    /// `[columns, block]`: bias of gates by the position in the block; 0 if absent.
    pub bias: Option<WeightId>,
}

impl PoolSpec {
    /// Columns of the input.
    pub fn cols(&self) -> usize {
        if self.overlaps { 2 * self.dim } else { self.dim }
    }

    /// Length of the state: largest gate, sum of weights and weighted sum of each unfinished block.
    pub fn values(&self) -> usize {
        3 * self.cols()
    }
}

/// Specification of [`Recurrence::NgramRows`]: embeddings of the n-grams of two ids, of three and
/// so on that end with a token (Qwen, 2026).
///
/// The number of an n-gram is the exclusive or of its ids, each times its multiplier, modulo 2⁶⁴.
/// It is unsigned, also in the division by [`NgramHead::rows`]. N-grams do not cross the end of a
/// text: `end` takes the place of ids before it, and of ids before the first token of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramEmbeddingSpec {
    /// Index of the state, which has [`Self::values`] values.
    pub state: usize,
    /// Multiplier of the token's id, then of each earlier id; one more than there are lengths of
    /// n-grams.
    pub multipliers: Vec<u64>,
    /// Heads of each length from two on, the same number for each. A column of the result has the
    /// bits of a head's row ([`crate::SelectedPositions::entry`]).
    pub heads: Vec<NgramHead>,
    /// The id that ends a text.
    pub end: u32,
}

/// Rows of the table that belong to one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramHead {
    /// First row.
    pub first: u32,
    /// Number of rows. The row of an n-gram is its number modulo this.
    pub rows: u32,
}

impl NgramEmbeddingSpec {
    /// Largest number of earlier ids in an n-gram.
    pub fn before(&self) -> usize {
        self.multipliers.len() - 1
    }

    /// Length of the state.
    pub fn values(&self) -> usize {
        self.before()
    }

    /// Rows of the n-grams that end with the first id. The ids run backwards from the token.
    pub fn rows(&self, ids: &[u32]) -> impl Iterator<Item = u32> {
        let mut numbers = ids.iter().zip(&self.multipliers).scan(0u64, |number, (&id, by)| {
            *number ^= u64::from(id).wrapping_mul(*by);
            Some(*number)
        });
        numbers.next();
        let numbers = numbers.collect::<Vec<u64>>();
        let each = self.heads.len() / self.before();
        self.heads
            .iter()
            .enumerate()
            .map(move |(i, head)| head.first + (numbers[i / each] % u64::from(head.rows)) as u32)
    }
}

impl Recurrence {
    /// The operation's name in listings and measurements.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv { .. } => "conv",
            Self::Scan { .. } => "scan",
            Self::Delta { .. } => "delta",
            Self::Wkv { .. } => "wkv",
            Self::Wkv7 { .. } => "wkv7",
            Self::Retention { .. } => "retention",
            Self::Pool { .. } => "pool",
            Self::NgramRows { .. } => "ngram_rows",
        }
    }

    /// The values that the operation reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Self::Conv { x, .. } => vec![x],
            Self::Scan { x, dt, b, c, .. } => vec![x, dt, b, c],
            Self::Delta { q, k, v, decay, beta, .. } => vec![q, k, v, decay, beta],
            Self::Wkv { r, k, v, decay, .. } => vec![r, k, v, decay],
            Self::Wkv7 { r, k, v, decay, removal_key, iclr, .. } => {
                vec![r, k, v, decay, removal_key, iclr]
            }
            Self::Retention { q, k, v, .. } => vec![q, k, v],
            Self::Pool { x, gate, .. } => [x].into_iter().chain(gate).collect(),
            Self::NgramRows { .. } => Vec::new(),
        }
    }

    /// Columns of the result, after a check of those that it reads.
    pub(crate) fn cols(&self, of: impl Fn(ValueId) -> usize) -> usize {
        match *self {
            Self::Conv { x, spec } => {
                assert!(spec.taps > 1 && spec.stride > 0);
                of(x)
            }
            Self::Scan { x, dt, b, c, spec } => {
                let ScanSpec { heads, head_dim, state_dim, groups, .. } = spec;
                assert_eq!((of(x), of(dt)), (heads * head_dim, heads));
                assert_eq!((of(b), of(c)), (groups * state_dim, groups * state_dim));
                assert!(heads.is_multiple_of(groups));
                of(x)
            }
            Self::Delta { q, k, v, decay, beta, spec } => {
                assert_eq!(
                    (of(q), of(k)),
                    (spec.key_heads * spec.key_dim, spec.key_heads * spec.key_dim)
                );
                assert_eq!(of(v), spec.value_heads * spec.value_dim);
                assert!(spec.value_heads.is_multiple_of(spec.key_heads));
                let columns = spec.column(spec.value_heads - 1) + 1;
                assert!(of(beta) >= columns);
                assert!(of(decay) == spec.value_heads * spec.key_dim || of(decay) >= columns);
                of(v)
            }
            Self::Wkv { r, k, v, decay, spec } => {
                let (cols, shared) = (spec.heads * spec.dim, spec.kv_heads * spec.dim);
                assert!(spec.heads.is_multiple_of(spec.kv_heads));
                assert_eq!([of(r), of(decay), of(k), of(v)], [cols, cols, shared, shared]);
                cols
            }
            Self::Wkv7 { r, k, v, decay, removal_key, iclr, spec } => {
                let cols = spec.heads * spec.dim;
                assert!([r, k, v, decay, removal_key, iclr].into_iter().all(|x| of(x) == cols));
                2 * cols
            }
            Self::Retention { q, k, v, spec } => {
                let cols = spec.heads * spec.dim;
                assert!([q, k, v].into_iter().all(|x| of(x) == cols));
                cols
            }
            Self::Pool { x, gate, spec } => {
                assert!([x].into_iter().chain(gate).all(|x| of(x) == spec.cols()));
                assert!(spec.block > 0);
                spec.dim
            }
            Self::NgramRows { ref spec } => {
                assert!(spec.before() > 0 && spec.heads.len().is_multiple_of(spec.before()));
                assert!(spec.heads.iter().all(|head| head.rows > 0));
                spec.heads.len()
            }
        }
    }
}
