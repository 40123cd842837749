//! Operations that carry a state of fixed size from token to token: what recurrent layers are made of.
//!
//! A step continues the states of each of its sequences ([`crate::Segment::state`]) token by token; a sequence without a past
//! begins with zeros. The order of a state's values is the backend's own.

use std::sync::Arc;

use crate::graph::Graph;
use crate::ops::Op;
use crate::values::{Rows, ValueId, WeightId};

/// One of these operations and what it reads. Each has a state of its own: its position in [`crate::StateSpec::states`].
#[derive(Debug, Clone, PartialEq)]
pub enum Recurrence {
    /// A causal convolution of each column by itself: a token's row and some before it, weighed and added.
    Conv {
        /// Input.
        x: ValueId,
        /// The form.
        spec: ConvSpec,
    },
    /// A selective scan (Gu and Dao, 2023; Dao and Gu, 2024). For each head, with the step `δ = softplus(dt + dt_bias)`:
    /// `S ← exp(δ a) · S + δ x bᵀ`, and the result is `S c + d x`.
    Scan {
        /// `heads · head_dim` columns.
        x: ValueId,
        /// A column a head.
        dt: ValueId,
        /// `groups · state_dim` columns: what is written.
        b: ValueId,
        /// `groups · state_dim` columns: what is read.
        c: ValueId,
        /// The form.
        spec: ScanSpec,
    },
    /// The gated delta rule (Yang et al., 2024). For each value head, with `g` as [`Fading`] has it and `β = σ(beta)`: `S ← exp(g) S`,
    /// then `S ← S + k (β (v - Sᵀ k))ᵀ`, and the result is `Sᵀ q`. Queries and keys are multiplied by `spec.scales` before.
    Delta {
        /// `key_heads · key_dim` columns.
        q: ValueId,
        /// `key_heads · key_dim` columns.
        k: ValueId,
        /// `value_heads · value_dim` columns.
        v: ValueId,
        /// A column a value head, or one for each of its `key_dim` rows of the state.
        decay: ValueId,
        /// A column a value head.
        beta: ValueId,
        /// The form.
        spec: DeltaSpec,
    },
    /// The sixth RWKV's memory (Peng et al., 2024). For each head, with the decay `w = exp(-exp(decay))`: the result is
    /// `(S + (u ⊙ k) vᵀ)ᵀ r`, then `S ← diag(w) S + k vᵀ`. Without `u` (`spec.first`) it is gated linear attention (Yang et al., 2023):
    /// `S ← diag(w) S + ((1 - w) ⊙ k) vᵀ`, then the result is `Sᵀ r / √dim`.
    Wkv {
        /// `heads · dim` columns.
        r: ValueId,
        /// `kv_heads · dim` columns: keys.
        k: ValueId,
        /// `kv_heads · dim` columns: values.
        v: ValueId,
        /// `heads · dim` columns: logarithm of the decay's negative logarithm.
        decay: ValueId,
        /// The form.
        spec: WkvSpec,
    },
    /// The seventh RWKV's memory (Peng et al., 2025), a delta rule whose keys for forgetting are not those for learning. For each head, with
    /// the decay `w = exp(-σ(decay) / √e)` and `κ = forget / |forget|`: `S ← diag(w) S - (rate ⊙ κ) (Sᵀ κ)ᵀ + k vᵀ`. The result is
    /// `Sᵀ r` of all heads and behind these columns, of all heads too, what a token reads of itself: `(r · (u ⊙ k)) v`.
    Wkv7 {
        /// `heads · dim` columns, as all of these.
        r: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// What the decay's logarithm is the sigmoid of.
        decay: ValueId,
        /// Keys of what is forgotten, of any length.
        forget: ValueId,
        /// How much of it is forgotten.
        rate: ValueId,
        /// The form.
        spec: Wkv7Spec,
    },
    /// Linear attention whose heads forget at rates of their own (Sun et al., 2023; Qin et al., 2024). For each head:
    /// `S ← exp(-rate) S + k vᵀ`, and the result is `Sᵀ q`.
    Retention {
        /// `heads · dim` columns, as all of these.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// The form.
        spec: RetentionSpec,
    },
    /// Blocks of tokens that become one row each (DeepSeek-AI, 2026): column by column the softmax of `gate + bias` over a block's
    /// tokens weighs their `x`. Where blocks overlap, a token has a second half of columns for its own block, and the first is for the
    /// block that follows. The result is the row at the last token of a block, and zeros at others.
    Pool {
        /// `dim` columns, or twice as many where blocks overlap.
        x: ValueId,
        /// As many; zeros if absent.
        gate: Option<ValueId>,
        /// The form.
        spec: PoolSpec,
    },
    /// Which rows of a table stand for the n-grams that end with a token, see [`GramSpec`]. Reads no value but the tokens' ids.
    Grams {
        /// The form.
        spec: Arc<GramSpec>,
    },
}

/// The form of a [`Recurrence::Conv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Rows that are weighed: a token's and those before it.
    pub taps: usize,
    /// From each of them to the next one: 1 where they follow each other.
    pub stride: usize,
    /// `[taps, columns]`, the token's own last; without, the result is the oldest row as it is.
    pub w: Option<WeightId>,
    /// `[columns]`.
    pub bias: Option<WeightId>,
    /// Whether the result is `silu` of the sum.
    pub silu: bool,
}

impl ConvSpec {
    /// Values of the state for so many columns.
    pub fn values(&self, cols: usize) -> usize {
        self.before() * cols
    }

    /// Rows before a token's that it, or one of those that follow, is made of.
    pub fn before(&self) -> usize {
        (self.taps - 1) * self.stride
    }
}

/// The form of a [`Recurrence::Scan`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScanSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Heads: parts of the columns with a step of their own. Mamba's first version has one a column.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Values of the state for each column.
    pub state_dim: usize,
    /// Groups of heads that follow each other and share `b` and `c`.
    pub groups: usize,
    /// `[heads]`, or with `head_dim` one `[state_dim, heads]`; negative.
    pub a: WeightId,
    /// `[heads]`.
    pub d: WeightId,
    /// `[heads]`, added to steps.
    pub dt_bias: Option<WeightId>,
}

impl ScanSpec {
    /// Values of the state.
    pub fn values(&self) -> usize {
        self.heads * self.head_dim * self.state_dim
    }
}

/// The form of a [`Recurrence::Delta`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple.
    pub value_heads: usize,
    /// Features of a query or key head.
    pub key_dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Whether value head h uses key head `h mod key_heads`, and not `h · key_heads / value_heads`.
    pub tiled: bool,
    /// Columns of `decay` and `beta` of heads that lie side by side, and from one such run to the next.
    pub runs: (usize, usize),
    /// Multiply queries and keys.
    pub scales: [f32; 2],
    /// How fast the state fades.
    pub fading: Fading,
    /// `[value_heads]`.
    pub a: WeightId,
    /// `[value_heads]`, or one for each column of `decay` where a head has several.
    pub dt_bias: WeightId,
}

/// The logarithm `g` of what stays of a [`Recurrence::Delta`]'s state, from `x = decay + dt_bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fading {
    /// `a · softplus(x)`, of negative `a`.
    Free,
    /// `least · σ(by · a · x)`: never less.
    Bounded {
        /// Negative.
        least: f32,
        /// One, or minus one where `a` is stored with the other sign.
        by: f32,
    },
}

impl DeltaSpec {
    /// Values of the state.
    pub fn values(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// The key head of a value head.
    pub fn key_head(&self, head: usize) -> usize {
        if self.tiled { head % self.key_heads } else { head * self.key_heads / self.value_heads }
    }

    /// The column of `beta` (and `decay`, where that has one a head) of a value head.
    pub fn column(&self, head: usize) -> usize {
        head / self.runs.0 * self.runs.1 + head % self.runs.0
    }
}

/// The form of a [`Recurrence::Wkv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WkvSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Heads.
    pub heads: usize,
    /// Heads of keys and values, each for as many heads that follow each other.
    pub kv_heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// `u`: `[heads · dim]`.
    pub first: Option<WeightId>,
}

impl WkvSpec {
    /// Values of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }
}

/// The form of a [`Recurrence::Wkv7`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wkv7Spec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Heads.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// `u`: `[heads · dim]`.
    pub itself: WeightId,
}

impl Wkv7Spec {
    /// Values of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }
}

/// The form of a [`Recurrence::Retention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Heads.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Multiplies the rates of all heads.
    pub rate: f32,
}

impl RetentionSpec {
    /// Values of the state.
    pub fn values(&self) -> usize {
        self.heads * self.dim * self.dim
    }

    /// How fast a head forgets: of n heads, the h-th from one on has `2^(-8 h / n)`, the slopes of ALiBi (Press et al., 2022).
    pub fn rate_of(&self, head: usize) -> f32 {
        self.rate * (-8.0 * (head + 1) as f32 / self.heads as f32).exp2()
    }
}

/// The form of a [`Recurrence::Pool`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Tokens of a block; the first begins with the sequence.
    pub block: usize,
    /// Columns of a row.
    pub dim: usize,
    /// Whether a token is of two blocks.
    pub overlaps: bool,
    /// `[columns, block]`: added to the gates, by the token's place in its block; zeros if absent.
    pub bias: Option<WeightId>,
}

impl PoolSpec {
    /// Columns of what is read.
    pub fn cols(&self) -> usize {
        if self.overlaps { 2 * self.dim } else { self.dim }
    }

    /// Values of the state: the largest gate, the sum of weights and the weighed sum, for each block that has begun.
    pub fn values(&self) -> usize {
        3 * self.cols()
    }
}

/// The form of a [`Recurrence::Grams`]: n-grams of two ids, of three and so on, each of which has some rows of one table (Qwen, 2026).
///
/// An n-gram's number is the exclusive or of its ids, each times its multiplier, modulo 2⁶⁴. It has no sign, where
/// it is divided by a head's rows too. Its ids end at the end of a text: where
/// that lies before the token, and before a sequence's first, there are no further ids but `end` itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GramSpec {
    /// The state, of [`Self::values`] values.
    pub state: usize,
    /// Of the token's id, and of each before it: one more than there are lengths of n-grams.
    pub multipliers: Vec<u64>,
    /// For each length, from two on, as many heads. A column of the result is the bits of a head's row ([`crate::SelectedPositions::entry`]).
    pub heads: Vec<GramHead>,
    /// The id that ends a text.
    pub end: u32,
}

/// The rows of a table that one head of n-grams has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GramHead {
    /// The first.
    pub first: u32,
    /// How many there are: what an n-gram's number is divided by; the rest is its row.
    pub rows: u32,
}

impl GramSpec {
    /// Ids before a token's that its n-grams have.
    pub fn before(&self) -> usize {
        self.multipliers.len() - 1
    }

    /// Values of the state.
    pub fn values(&self) -> usize {
        self.before()
    }

    /// The rows of the n-grams that end with the first of these ids, each of which came before the one in front of it.
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
            Self::Grams { .. } => "grams",
        }
    }

    /// The values that the operation reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Self::Conv { x, .. } => vec![x],
            Self::Scan { x, dt, b, c, .. } => vec![x, dt, b, c],
            Self::Delta { q, k, v, decay, beta, .. } => vec![q, k, v, decay, beta],
            Self::Wkv { r, k, v, decay, .. } => vec![r, k, v, decay],
            Self::Wkv7 { r, k, v, decay, forget, rate, .. } => vec![r, k, v, decay, forget, rate],
            Self::Retention { q, k, v, .. } => vec![q, k, v],
            Self::Pool { x, gate, .. } => [x].into_iter().chain(gate).collect(),
            Self::Grams { .. } => Vec::new(),
        }
    }

    /// Columns of the result, after a check of those that it reads.
    fn cols(&self, of: impl Fn(ValueId) -> usize) -> usize {
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
                assert_eq!((of(q), of(k)), (spec.key_heads * spec.key_dim, spec.key_heads * spec.key_dim));
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
            Self::Wkv7 { r, k, v, decay, forget, rate, spec } => {
                let cols = spec.heads * spec.dim;
                assert!([r, k, v, decay, forget, rate].into_iter().all(|x| of(x) == cols));
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
            Self::Grams { ref spec } => {
                assert!(spec.before() > 0 && spec.heads.len().is_multiple_of(spec.before()));
                assert!(spec.heads.iter().all(|head| head.rows > 0));
                spec.heads.len()
            }
        }
    }
}

impl Graph {
    /// An operation with a state.
    pub fn recur(&mut self, name: &'static str, recurrence: Recurrence) -> ValueId {
        let cols = recurrence.cols(|id| self.value(id).cols);
        assert!(recurrence.inputs().iter().all(|&x| self.value(x).rows == Rows::Tokens));
        self.push(name, Op::Recur(Box::new(recurrence)), Rows::Tokens, cols)
    }

    /// `width` columns from `start` on of each `period` columns of `x`, side by side.
    pub fn pick(
        &mut self,
        name: &'static str,
        x: ValueId,
        start: usize,
        width: usize,
        period: usize,
    ) -> ValueId {
        let value = self.value(x);
        assert!(value.cols.is_multiple_of(period) && start + width <= period);
        let cols = value.cols / period * width;
        self.push(name, Op::Pick { x, start, width, period }, value.rows, cols)
    }
}
