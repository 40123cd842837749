//! Projections of query, key and value, and feed-forward networks, each of which files store in
//! several layouts.

use puna_graph::{Activation, Glu, Graph, Linear, Norm, ValueId};

pub use crate::experts::{Experts, SharedExpert};

use crate::error::ModelError;
use crate::latent::Latent;
use crate::weights::Weights;

/// Query, key and value projections: three matrices, one matrix with the rows of all three, or
/// latent attention.
#[derive(Debug, Clone)]
pub enum Qkv {
    /// `attn_q`, `attn_k`, `attn_v`.
    Split([Linear; 3]),
    /// `attn_qkv`, with the widths of its three parts.
    Fused(Linear, [usize; 3]),
    /// Latent attention: key and value are the same vector, with rotary embedding already applied.
    Latent(Box<Latent>),
}

impl Qkv {
    /// Loads the separate or the fused matrices; `widths` are the columns of query, key and value.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        input: usize,
        widths: [usize; 3],
    ) -> Result<Self, ModelError> {
        if let Some(fused) =
            w.opt_linear(&format!("{block}.attn_qkv"), input, widths.iter().sum())?
        {
            return Ok(Self::Fused(fused, widths));
        }
        let [q, k, v] = widths;
        Ok(Self::Split([
            w.linear(&format!("{block}.attn_q"), input, q)?,
            w.linear(&format!("{block}.attn_k"), input, k)?,
            w.linear(&format!("{block}.attn_v"), input, v)?,
        ]))
    }

    /// Input of the query projection: `x`, or the low-rank query of latent attention.
    pub fn source(&self, g: &mut Graph, x: ValueId) -> ValueId {
        match self {
            Self::Split(_) | Self::Fused(..) => x,
            Self::Latent(latent) => latent.source(g, x),
        }
    }

    /// Query, key and value of `x`.
    pub fn project(&self, g: &mut Graph, x: ValueId) -> [ValueId; 3] {
        let source = self.source(g, x);
        self.project_from(g, x, source)
    }

    /// [`Self::project`] if [`Self::source`] is already computed.
    pub fn project_from(&self, g: &mut Graph, x: ValueId, source: ValueId) -> [ValueId; 3] {
        match self {
            Self::Split([q, k, v]) => {
                [g.linear("Qcur", q, x), g.linear("Kcur", k, x), g.linear("Vcur", v, x)]
            }
            Self::Fused(qkv, [q, k, v]) => {
                let all = g.linear("wqkv", qkv, x);
                [g.slice(all, 0, *q), g.slice(all, *q, *k), g.slice(all, q + k, *v)]
            }
            Self::Latent(latent) => latent.project_from(g, x, source),
        }
    }
}

/// Gated feed-forward network: gate and up projections, split or fused with the gate's rows first,
/// and the down projection.
#[derive(Debug, Clone)]
pub struct Mlp {
    gate_up: GateUp,
    kind: Glu,
    /// RMS norm of the gated product, before the down projection.
    norm: Option<Norm>,
    down: Linear,
}

#[derive(Debug, Clone)]
enum GateUp {
    Split(Linear, Linear),
    Fused(Linear),
}

impl Mlp {
    /// Loads `ffn_gate`, `ffn_up`, `ffn_down`; without a gate, `ffn_up` holds both halves.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        ff: usize,
        kind: Glu,
    ) -> Result<Self, ModelError> {
        Self::named(w, block, "", (n_embd, ff), kind)
    }

    /// [`Self::load`] for tensor names that end in `suffix`.
    pub fn named(
        w: &mut Weights<'_>,
        block: &str,
        suffix: &str,
        (n_embd, ff): (usize, usize),
        kind: Glu,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{block}.ffn_{part}{suffix}");
        let up = format!("{}.weight", name("up"));
        if suffix.is_empty() && w.has(&up) {
            w.require_width("feed_forward_length", ff, &up)?;
        }
        let gate_up = match w.opt_linear(&name("gate"), n_embd, ff)? {
            Some(gate) => GateUp::Split(gate, w.linear(&name("up"), n_embd, ff)?),
            None if w.rows(&up) == Some(ff) => {
                return Err(ModelError::MissingTensor { name: format!("{}.weight", name("gate")) });
            }
            None => GateUp::Fused(w.linear(&name("up"), n_embd, 2 * ff)?),
        };
        Ok(Self { gate_up, kind, norm: None, down: w.linear(&name("down"), ff, n_embd)? })
    }

    /// Adds an RMS norm before the down projection.
    pub fn with_norm(self, norm: Norm) -> Self {
        Self { norm: Some(norm), ..self }
    }

    /// Output of the network for `x`.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let (gate, up) = match &self.gate_up {
            GateUp::Split(gate, up) => (g.linear("ffn_gate", gate, x), g.linear("ffn_up", up, x)),
            GateUp::Fused(both) => {
                let all = g.linear("ffn_up", both, x);
                (g.slice(all, 0, both.out / 2), g.slice(all, both.out / 2, both.out / 2))
            }
        };
        let hidden = g.glu("ffn_glu", self.kind, gate, up);
        let hidden =
            self.norm.as_ref().map_or(hidden, |norm| g.rms_norm("ffn_sub_norm", norm, hidden));
        g.linear("ffn_out", &self.down, hidden)
    }
}

/// Feed-forward network without a gate: up projection, activation, down projection.
#[derive(Debug, Clone)]
pub struct UngatedMlp {
    up: Linear,
    down: Linear,
    kind: Activation,
}

impl UngatedMlp {
    /// Loads `ffn_up` and `ffn_down`.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        ff: usize,
        kind: Activation,
    ) -> Result<Self, ModelError> {
        Self::named(w, block, "", (n_embd, ff), kind)
    }

    /// [`Self::load`] for tensor names that end in `suffix`.
    pub fn named(
        w: &mut Weights<'_>,
        block: &str,
        suffix: &str,
        (n_embd, ff): (usize, usize),
        kind: Activation,
    ) -> Result<Self, ModelError> {
        let up = format!("{block}.ffn_up{suffix}");
        let named = format!("{up}.weight");
        if suffix.is_empty() && w.has(&named) {
            w.require_width("feed_forward_length", ff, &named)?;
        }
        let up = w.linear(&up, n_embd, ff)?;
        Ok(Self { up, down: w.linear(&format!("{block}.ffn_down{suffix}"), ff, n_embd)?, kind })
    }

    /// Output of the network for `x`.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let hidden = g.linear("ffn_up", &self.up, x);
        let hidden = g.activate("ffn_act", self.kind, hidden);
        g.linear("ffn_out", &self.down, hidden)
    }
}

/// Feed-forward network of a layer.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// Gated network.
    Dense(Mlp),
    /// Network without a gate.
    Ungated(UngatedMlp),
    /// Mixture of experts.
    Moe(Experts),
    /// Mixture of experts plus a shared expert.
    Shared(Experts, SharedExpert),
    /// Dense network plus a mixture of experts; the experts read the router's input behind a norm
    /// of their own.
    ParallelExperts {
        /// Dense network, which reads the layer's feed-forward input.
        dense: Mlp,
        /// RMS norm of the input of the experts.
        norm: Norm,
        /// Mixture of experts.
        experts: Experts,
    },
    /// Another network, with its output multiplied by a constant.
    Scaled(Box<FeedForward>, f32),
}

impl FeedForward {
    /// Multiplies the output by `by`.
    pub fn scaled(self, by: f32) -> Self {
        Self::Scaled(Box::new(self), by)
    }

    /// Output of the network for `x`.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        self.forward_routed(g, x, x)
    }

    /// Output of the network for `x` with a separate input of the router.
    pub fn forward_routed(&self, g: &mut Graph, x: ValueId, router_input: ValueId) -> ValueId {
        match self {
            Self::Dense(mlp) => mlp.forward(g, x),
            Self::Ungated(mlp) => mlp.forward(g, x),
            Self::Moe(experts) => experts.forward_routed(g, x, router_input),
            Self::Shared(experts, shared) => {
                let y = experts.forward_routed(g, x, router_input);
                let y_shared = shared.forward(g, x);
                g.add("ffn_out", y, y_shared)
            }
            Self::ParallelExperts { dense, norm, experts } => {
                let y = dense.forward(g, x);
                let h = g.rms_norm("ffn_norm_exps", norm, router_input);
                let y_experts = experts.forward_routed(g, h, h);
                g.add("ffn_out", y, y_experts)
            }
            Self::Scaled(inner, factor) => {
                let y = inner.forward_routed(g, x, router_input);
                g.scale("ffn_out_scaled", y, *factor)
            }
        }
    }
}
