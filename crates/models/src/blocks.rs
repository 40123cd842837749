//! Parts that files store in more than one form: projections of query, key and value, and feed-forward pairs.

use puna_graph::{ExpertChanges, Gating, Glu, Graph, Linear, MoeSpec, ValueId};

use crate::error::ModelError;
use crate::weights::Weights;

/// Query, key and value projections: three matrices, or one with the rows of all three.
#[derive(Debug, Clone)]
pub enum Qkv {
    /// `attn_q`, `attn_k`, `attn_v`.
    Split([Linear; 3]),
    /// `attn_qkv`, with the widths of its three parts.
    Fused(Linear, [usize; 3]),
}

impl Qkv {
    /// Loads either form; `widths` are the columns of query, key and value.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        input: usize,
        widths: [usize; 3],
    ) -> Result<Self, ModelError> {
        if let Some(fused) = w.opt_linear(&format!("{block}.attn_qkv"), input, widths.iter().sum())? {
            return Ok(Self::Fused(fused, widths));
        }
        let [q, k, v] = widths;
        Ok(Self::Split([
            w.linear(&format!("{block}.attn_q"), input, q)?,
            w.linear(&format!("{block}.attn_k"), input, k)?,
            w.linear(&format!("{block}.attn_v"), input, v)?,
        ]))
    }

    /// Query, key and value of `x`.
    pub fn project(&self, g: &mut Graph, x: ValueId) -> [ValueId; 3] {
        match self {
            Self::Split([q, k, v]) => {
                [g.linear("Qcur", q, x), g.linear("Kcur", k, x), g.linear("Vcur", v, x)]
            }
            Self::Fused(qkv, [q, k, v]) => {
                let all = g.linear("wqkv", qkv, x);
                [g.slice(all, 0, *q), g.slice(all, *q, *k), g.slice(all, q + k, *v)]
            }
        }
    }
}

/// Gate and up projections, split or as one matrix with the gate's rows first, and the way down.
#[derive(Debug, Clone)]
pub struct Mlp {
    gate_up: GateUp,
    down: Linear,
    kind: Glu,
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
        let up = format!("{block}.ffn_up");
        let gate_up = match w.opt_linear(&format!("{block}.ffn_gate"), n_embd, ff)? {
            Some(gate) => GateUp::Split(gate, w.linear(&up, n_embd, ff)?),
            None => GateUp::Fused(w.linear(&up, n_embd, 2 * ff)?),
        };
        Ok(Self { gate_up, down: w.linear(&format!("{block}.ffn_down"), ff, n_embd)?, kind })
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
        g.linear("ffn_out", &self.down, hidden)
    }
}

/// A router and its experts.
#[derive(Debug, Clone)]
pub struct Experts {
    router: Linear,
    spec: MoeSpec,
}

/// The feed-forward part of a layer of an architecture that has both forms.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// One gated unit.
    Dense(Mlp),
    /// A mixture of them.
    Moe(Experts),
}

impl FeedForward {
    /// The feed-forward part of a layer.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        match self {
            Self::Dense(mlp) => mlp.forward(g, x),
            Self::Moe(experts) => experts.forward(g, x),
        }
    }
}

/// What an architecture decides about its experts.
#[derive(Debug, Clone, Copy)]
pub struct ExpertShape {
    /// Number of experts.
    pub experts: usize,
    /// Experts a token uses.
    pub used: usize,
    /// Width of an expert.
    pub hidden: usize,
    /// How weights come from logits.
    pub gating: Gating,
    /// The experts' unit.
    pub glu: Glu,
}

impl Experts {
    /// Loads `ffn_gate_inp` and `ffn_{gate,up,down}_exps` with their optional biases.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        shape: ExpertShape,
    ) -> Result<Self, ModelError> {
        let ExpertShape { experts, used, hidden, gating, glu } = shape;
        if used == 0 || used > experts {
            let reason = "must be between 1 and the number of experts";
            return Err(ModelError::KeyValue {
                key: "expert_used_count".into(),
                value: used.to_string(),
                reason,
            });
        }
        let name = |part: &str, kind: &str| format!("{block}.ffn_{part}_exps.{kind}");
        if ["gate", "up", "down"].iter().any(|part| w.has(&name(part, "scale"))) {
            let what = format!("`{}`", name("*", "scale"));
            return Err(ModelError::Unsupported {
                what,
                reason: "convert the experts to a format without it",
            });
        }
        Ok(Self {
            router: w.linear(&format!("{block}.ffn_gate_inp"), n_embd, experts)?,
            spec: MoeSpec {
                experts,
                used,
                gating,
                scale: 1.0,
                glu,
                hidden,
                gate: w.tensor(&name("gate", "weight"), &[n_embd, hidden, experts])?,
                up: w.tensor(&name("up", "weight"), &[n_embd, hidden, experts])?,
                down: w.tensor(&name("down", "weight"), &[hidden, n_embd, experts])?,
                gate_bias: w.opt(&name("gate", "bias"), &[hidden, experts])?,
                up_bias: w.opt(&name("up", "bias"), &[hidden, experts])?,
                down_bias: w.opt(&name("down", "bias"), &[n_embd, experts])?,
                changes: ExpertChanges::default(),
            },
        })
    }

    /// The feed-forward part of a layer.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let logits = g.linear("ffn_moe_logits", &self.router, x);
        g.moe("ffn_moe_out", self.spec.clone(), x, logits)
    }
}
