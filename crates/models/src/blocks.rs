//! Parts that files store in more than one form: projections of query, key and value, and feed-forward pairs.

use puna_graph::{Activation, Glu, Graph, Linear, Norm, ValueId};

pub use crate::experts::{Experts, Shared};

use crate::error::ModelError;
use crate::latent::Latent;
use crate::weights::Weights;

/// Query, key and value projections: three matrices, one with the rows of all three, or by way of a short vector.
#[derive(Debug, Clone)]
pub enum Qkv {
    /// `attn_q`, `attn_k`, `attn_v`.
    Split([Linear; 3]),
    /// `attn_qkv`, with the widths of its three parts.
    Fused(Linear, [usize; 3]),
    /// What queries meet holds the values, and has turned already.
    Latent(Box<Latent>),
}

impl Qkv {
    /// Loads either form; `widths` are the columns of query, key and value.
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

    /// What queries are made of: `x`, or the short vector by way of which they come.
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

    /// The same where [`Self::source`] of it is known.
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

/// Gate and up projections, split or as one matrix with the gate's rows first, and the way down.
#[derive(Debug, Clone)]
pub struct Mlp {
    gate_up: GateUp,
    kind: Glu,
    /// Of the unit's result, by the root of the mean square.
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

    /// The same with `end` behind each of the names.
    pub fn named(
        w: &mut Weights<'_>,
        block: &str,
        end: &str,
        (n_embd, ff): (usize, usize),
        kind: Glu,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{block}.ffn_{part}{end}");
        let up = format!("{}.weight", name("up"));
        if end.is_empty() && w.has(&up) {
            w.needs_width("feed_forward_length", ff, &up)?;
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

    /// The same with this norm before the way down.
    pub fn with_norm(self, norm: Norm) -> Self {
        Self { norm: Some(norm), ..self }
    }

    /// The feed-forward part of a layer.
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

/// A feed-forward pair without a gate: up, a function of each element, down.
#[derive(Debug, Clone)]
pub struct Plain {
    up: Linear,
    down: Linear,
    kind: Activation,
}

impl Plain {
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

    /// The same with `end` behind each of the names.
    pub fn named(
        w: &mut Weights<'_>,
        block: &str,
        end: &str,
        (n_embd, ff): (usize, usize),
        kind: Activation,
    ) -> Result<Self, ModelError> {
        let up = format!("{block}.ffn_up{end}");
        let named = format!("{up}.weight");
        if end.is_empty() && w.has(&named) {
            w.needs_width("feed_forward_length", ff, &named)?;
        }
        let up = w.linear(&up, n_embd, ff)?;
        Ok(Self { up, down: w.linear(&format!("{block}.ffn_down{end}"), ff, n_embd)?, kind })
    }

    /// The feed-forward part of a layer.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let hidden = g.linear("ffn_up", &self.up, x);
        let hidden = g.activate("ffn_act", self.kind, hidden);
        g.linear("ffn_out", &self.down, hidden)
    }
}

/// The feed-forward part of a layer, in one of its forms.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// One gated unit.
    Dense(Mlp),
    /// One without a gate.
    Plain(Plain),
    /// A mixture of experts.
    Moe(Experts),
    /// A mixture, and beside it an expert that every token uses.
    Shared(Experts, Shared),
    /// A dense part, and beside it a mixture that reads, by this norm, what the router is given.
    Early {
        /// Reads what the layer's feed-forward part reads.
        dense: Mlp,
        /// Of what the mixture reads, by the root of the mean square.
        norm: Norm,
        /// The mixture.
        experts: Experts,
    },
    /// What one of the others gives, times this.
    Scaled(Box<FeedForward>, f32),
}

impl FeedForward {
    /// The same times `by`.
    pub fn scaled(self, by: f32) -> Self {
        Self::Scaled(Box::new(self), by)
    }

    /// The feed-forward part of a layer.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        self.forward_by(g, x, x)
    }

    /// The same where a router reads something else.
    pub fn forward_by(&self, g: &mut Graph, x: ValueId, by: ValueId) -> ValueId {
        match self {
            Self::Dense(mlp) => mlp.forward(g, x),
            Self::Plain(plain) => plain.forward(g, x),
            Self::Moe(experts) => experts.forward_by(g, x, by),
            Self::Shared(experts, shared) => {
                let y = experts.forward_by(g, x, by);
                let beside = shared.forward(g, x);
                g.add("ffn_out", y, beside)
            }
            Self::Early { dense, norm, experts } => {
                let y = dense.forward(g, x);
                let by = g.rms_norm("ffn_norm_exps", norm, by);
                let beside = experts.forward_by(g, by, by);
                g.add("ffn_out", y, beside)
            }
            Self::Scaled(of, factor) => {
                let y = of.forward_by(g, x, by);
                g.scale("ffn_out_scaled", y, *factor)
            }
        }
    }
}
