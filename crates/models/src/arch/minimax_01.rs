//! MiniMax Text 01 and M1 (2025): seven layers of linear attention with decay alternate with one
//! layer of attention with partial rotary embedding; experts. Each part adds its output to a
//! multiple of its normed input instead of the residual stream.
//! GGUF: `general.architecture = "minimax-01"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let recurrent = keys.recurrent_layers(hp.n_layer, 8)?;
    let residual_from_norm_scale = Some(keys.f32("residual_scale")?);
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if recurrent[b.i] {
            Box::new(Lightning::load(b)?)
        } else {
            Box::new(Attention { rope: Some(rope), ..Attention::load(b, false)? })
        };
        let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, hp.ff(b.i))? };
        let ffn = Some((b.norm("ffn_norm")?, b.experts(shape)?));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    Ok(Hybrid { residual_from_norm_scale, ..Hybrid::new(w, &hp, norm, layers)? }
        .into_architecture(&hp))
}

/// Linear attention. The decay is fastest in the first layer and almost absent in the last.
struct Lightning {
    /// Query, key and value, head by head.
    qkv: Linear,
    /// Projection to the output gate.
    gate: Linear,
    retention: RetentionSpec,
    /// Norm over all heads together.
    norm: AnyNorm,
    out: Linear,
}

impl Lightning {
    fn load(b: &mut LayerLoader<'_, '_>) -> Result<Self, ModelError> {
        let (n_embd, heads, dim) = (b.hp.n_embd, b.hp.heads[b.i], b.hp.key_dim);
        let cols = heads * dim;
        // The published code has these small numbers; the first avoids a division by zero in a
        // model of one layer.
        let depth = b.i as f32 / (b.hp.n_layer as f32 - 1.0 + 1e-5);
        Ok(Self {
            qkv: b.linear("attn_qkv", n_embd, 3 * cols)?,
            gate: b.linear("attn_gate", n_embd, cols)?,
            retention: RetentionSpec {
                state: b.state("attn_norm_2.weight", cols, dim)?,
                heads,
                dim,
                rate: 1.0 - depth + 1e-5,
            },
            norm: b.norm_of("attn_norm_2", &[cols])?,
            out: b.linear("attn_output", cols, n_embd)?,
        })
    }
}

impl Mixer for Lightning {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let spec = self.retention;
        let all = g.linear("la_qkv", &self.qkv, h);
        let all = g.activate("la_qkv_silu", Activation::Silu, all);
        let [q, k, v] = [0, 1, 2]
            .map(|i| g.strided_columns("la_part", all, i * spec.dim, spec.dim, 3 * spec.dim));
        let gate = g.linear("la_gate", &self.gate, h);
        let y = g.recur("la_out", Recurrence::Retention { q, k, v, spec });
        let y = self.norm.apply(g, "la_normed", y);
        let gate = g.activate("la_gate_sigmoid", Activation::Sigmoid, gate);
        g.mul("la_gated", y, gate)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("la_proj", &self.out, mixed)
    }
}
