//! Per-layer embeddings (Gemma 3n and 4): each token has an additional vector for each layer, which
//! is the sum of a table row and a projection of the token embedding.

use puna_graph::{Glu, Graph, Index, Linear, Norm, ValueId, WeightId};

use crate::error::ModelError;
use crate::weights::Weights;

/// Computes the per-layer vectors.
pub struct PerLayerEmbedding {
    n_embd: usize,
    layers: usize,
    width: usize,
    table: WeightId,
    projection: Linear,
    norm: Norm,
}

/// Adds a per-layer vector to the residual stream of a layer.
pub struct PerLayerProjection {
    gate: Linear,
    projection: Linear,
    norm: Norm,
}

impl PerLayerEmbedding {
    /// Loads `per_layer_token_embd`, `per_layer_model_proj` and `per_layer_proj_norm` for vectors
    /// of this width.
    pub fn load(
        w: &mut Weights<'_>,
        (n_embd, n_vocab): (usize, usize),
        (layers, width): (usize, usize),
        eps: f32,
    ) -> Result<Self, ModelError> {
        let all = width.saturating_mul(layers);
        Ok(Self {
            n_embd,
            layers,
            width,
            table: w.tensor("per_layer_token_embd.weight", &[all, n_vocab])?,
            projection: w.linear("per_layer_model_proj", n_embd, all)?,
            norm: w.norm("per_layer_proj_norm", width, eps)?,
        })
    }

    /// Vectors of all layers, concatenated; `x` are the token embeddings.
    pub fn record(&self, g: &mut Graph, x: ValueId) -> ValueId {
        // Rows of media have the vectors of the padding token, which is the first one.
        let index = Index::TokenOr(0);
        let own = g.embed("inp_per_layer", self.table, self.width * self.layers, index);
        let own = g.scale("inp_per_layer_selected", own, (self.width as f32).sqrt());
        let made = g.linear("per_layer_proj", &self.projection, x);
        let made = g.scale("per_layer_proj_scaled", made, 1.0 / (self.n_embd as f32).sqrt());
        let made = g.rms_norm("per_layer_proj_normed", &self.norm, made);
        let both = g.add("inp_per_layer_sum", made, own);
        g.scale("inp_per_layer_scaled", both, std::f32::consts::FRAC_1_SQRT_2)
    }

    /// Vector of layer `i`.
    pub fn of_layer(&self, g: &mut Graph, all: ValueId, i: usize) -> ValueId {
        g.slice(all, i * self.width, self.width)
    }
}

impl PerLayerProjection {
    /// Loads `inp_gate`, `proj` and `post_norm`.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        (n_embd, width): (usize, usize),
        eps: f32,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: w.linear(&format!("{block}.inp_gate"), n_embd, width)?,
            projection: w.linear(&format!("{block}.proj"), width, n_embd)?,
            norm: w.norm(&format!("{block}.post_norm"), n_embd, eps)?,
        })
    }

    /// Value to add to the stream `x`, from the layer's vector.
    pub fn record(&self, g: &mut Graph, x: ValueId, per_layer: ValueId) -> ValueId {
        let gate = g.linear("per_layer_gate", &self.gate, x);
        let y = g.glu("per_layer_glu", Glu::Gelu, gate, per_layer);
        let y = g.linear("per_layer_out", &self.projection, y);
        g.rms_norm("per_layer_embd_out", &self.norm, y)
    }
}
