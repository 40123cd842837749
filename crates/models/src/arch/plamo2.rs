//! PLaMo 2: Mamba with a low-rank, normed time step per head alternates with attention with norms
//! per head; SwiGLU, and norms before and after each part.
//! GGUF: `general.architecture = "plamo2"`. A block is two layers here.

use puna_graph::*;

use super::plamo3::bare_norm;
use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, AnyNorm, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext, SsmKeys};
use crate::mamba::conv;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let eps = keys.rms_eps()?;
    let (norm, ssm) = (NormKind::Rms(eps), SsmKeys::read(keys, false)?);
    if !ssm.inner.is_multiple_of(ssm.rank) {
        let (key, value) = (keys.name("ssm.time_step_rank"), ssm.rank.to_string());
        let reason = "must divide ssm.inner_size";
        return Err(ModelError::KeyValue { key, value, reason });
    }
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let blocks = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if hp.kv_heads[b.i] == 0 {
            Box::new(Mamba::load(b, ssm, eps)?)
        } else {
            let (plain, norms) = (Attention::load(b, false)?, Some(b.per_head_norms()?));
            let spec = AttentionSpec { scale: 1.0 / (hp.value_dim as f32).sqrt(), ..plain.spec };
            Box::new(Attention { norms, rope: Some(rope), spec, ..plain })
        };
        let ffn = Box::new(b.gated(Glu::Silu)?);
        let mut layer = |before: &str, mixer: Box<dyn Mixer>, after: &str| {
            let (norm, after) = (b.norm(before)?, bare_norm(b, after, hp.n_embd, eps)?);
            let mixer: Box<dyn Mixer> = Box::new(NormedMixer { mixer, norm: after });
            Ok::<_, ModelError>(HybridLayer { norm, mixers: vec![mixer], ffn: None })
        };
        Ok([
            layer("attn_norm", mixer, "post_attention_norm")?,
            layer("ffn_norm", ffn, "post_ffw_norm")?,
        ])
    })?;
    let plain = Hybrid::new(w, &hp, norm, blocks.into_iter().flatten().collect())?;
    Ok(Hybrid { layers_per_block: 2, ..plain }.into_architecture(&hp))
}

/// A mixer with a norm of its output.
struct NormedMixer {
    mixer: Box<dyn Mixer>,
    norm: AnyNorm,
}

impl Mixer for NormedMixer {
    fn cache(&self) -> Option<CacheLayer> {
        self.mixer.cache()
    }

    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        self.mixer.mix(g, context, h)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        let y = self.mixer.finish(g, mixed);
        self.norm.apply(g, "post_norm", y)
    }
}

/// Selective scan with a time step per head.
struct Mamba {
    keys: SsmKeys,
    /// Gate and inner columns, head by head.
    input: Linear,
    conv: ConvSpec,
    /// Projection to B, C and time step.
    x: Linear,
    /// Norms of B, C and time step.
    norms: [AnyNorm; 3],
    dt: Linear,
    scan: ScanSpec,
    out: Linear,
}

impl Mamba {
    fn load(b: &mut LayerLoader<'_, '_>, keys: SsmKeys, eps: f32) -> Result<Self, ModelError> {
        let SsmKeys { taps, inner, state, rank: heads, .. } = keys;
        let n = b.hp.n_embd;
        let dt_rank = (n / 16).max(64);
        Ok(Self {
            keys,
            input: b.linear("ssm_in", n, 2 * inner)?,
            conv: conv(b, taps, inner, false)?,
            x: b.linear("ssm_x", inner, dt_rank + 2 * state)?,
            norms: [
                bare_norm(b, "ssm_b_norm", state, eps)?,
                bare_norm(b, "ssm_c_norm", state, eps)?,
                bare_norm(b, "ssm_dt_norm", dt_rank, eps)?,
            ],
            dt: b.biased("ssm_dt", dt_rank, heads)?,
            scan: ScanSpec {
                state: b.state("ssm_a", inner, state)?,
                heads,
                head_dim: inner / heads,
                state_dim: state,
                groups: 1,
                a: b.tensor("ssm_a", &[heads])?,
                d: b.tensor("ssm_d", &[heads])?,
                dt_bias: None,
            },
            out: b.linear("ssm_out", inner, n)?,
        })
    }
}

impl Mixer for Mamba {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let (state, dim) = (self.keys.state, self.scan.head_dim);
        let all = g.linear("mamba_in_proj", &self.input, h);
        let [z, x] =
            [0, dim].map(|start| g.strided_columns("mamba_split", all, start, dim, 2 * dim));
        let x = g.recur("mamba_conv1d_silu", Recurrence::Conv { x, spec: self.conv });
        let all = g.linear("mamba_bcdt_proj", &self.x, x);
        let (b, c) = (g.slice(all, 0, state), g.slice(all, state, state));
        let dt = g.slice(all, 2 * state, self.x.out - 2 * state);
        let [of_b, of_c, of_dt] = &self.norms;
        let (b, c) = (of_b.apply(g, "mamba_B_normed", b), of_c.apply(g, "mamba_C_normed", c));
        let dt = of_dt.apply(g, "mamba_dt_normed", dt);
        let dt = g.linear("mamba_dt_proj", &self.dt, dt);
        let y = g.recur("mamba_ssm_scan", Recurrence::Scan { x, dt, b, c, spec: self.scan });
        g.glu("mamba_y_swiglu_z", Glu::Silu, z, y)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("mamba_out_proj", &self.out, mixed)
    }
}
