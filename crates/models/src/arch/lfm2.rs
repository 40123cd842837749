//! LFM2: short convolutions between two gates, and some layers of attention with normed heads;
//! SwiGLU, or experts in most layers.
//! GGUF: `general.architecture = "lfm2"` and `"lfm2moe"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext, taps};
use crate::rope::RopeKeys;
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, options, usize::MAX)
}

pub(super) fn load_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, options, keys.opt_count("leading_dense_block_count")?.unwrap_or(0))
}

/// Loads the model; the first `dense` layers have no experts.
fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
    dense: usize,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read_hybrid(keys)?;
    let (norm, taps) = (NormKind::Rms(keys.rms_eps()?), taps(keys, "shortconv.l_cache")?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let windows = Windows::read_optional(keys, vec![true; hp.n_layer])?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let mixer: Box<dyn Mixer> = if hp.kv_heads[b.i] == 0 {
            Box::new(ShortConv::load(b, taps)?)
        } else {
            let (plain, norms) = (Attention::load(b, false)?, Some(b.head_norms()?));
            Box::new(Attention {
                norms,
                rope: Some(rope),
                spec: AttentionSpec { mask: windows.mask(b.i), ..plain.spec },
                ..plain
            })
        };
        let ffn = if b.i < dense {
            b.gated(Glu::Silu)?
        } else {
            let shape = ExpertShape::read_with_routing(
                keys,
                keys.count("expert_feed_forward_length")?,
                Gating::Sigmoid,
            )?;
            b.experts(ExpertShape { normalize: true, ..shape })?
        };
        let ffn = Some((b.norm("ffn_norm")?, ffn));
        Ok(HybridLayer { norm: b.norm("attn_norm")?, mixers: vec![mixer], ffn })
    })?;
    if w.has("dense_2.weight") {
        let what = "`dense_2` (one embedding per token)".to_owned();
        return Err(ModelError::Unsupported { what, reason: "a text has one embedding" });
    }
    // Files store the last norm under the name of an embedding norm.
    let last = norm.load(w, "token_embd_norm", &[hp.n_embd])?;
    let around = Decoder::with_norm(w, &hp, last, Vec::new())?;
    Ok(Hybrid::with_outer(around, layers).into_architecture(&hp))
}

/// Gated short convolution: one gate multiplies its input, another its output.
struct ShortConv {
    input: Linear,
    conv: ConvSpec,
    out: Linear,
}

impl ShortConv {
    fn load(b: &mut LayerLoader<'_, '_>, taps: usize) -> Result<Self, ModelError> {
        let n = b.hp.n_embd;
        let w = Some(b.tensor("shortconv.conv.weight", &[taps, n])?);
        let state = b.state("shortconv.conv.weight", taps - 1, n)?;
        Ok(Self {
            input: b.linear("shortconv.in_proj", n, 3 * n)?,
            conv: ConvSpec { state, taps, stride: 1, w, bias: None, silu: false },
            out: b.linear("shortconv.out_proj", n, n)?,
        })
    }
}

impl Mixer for ShortConv {
    fn mix(&self, g: &mut Graph, _: &mut MixerContext, h: ValueId) -> ValueId {
        let n = self.out.out;
        let all = g.linear("shortconv_in", &self.input, h);
        let [b, c, x] = [0, n, 2 * n].map(|start| g.slice(all, start, n));
        let x = g.mul("shortconv_bx", x, b);
        let x = g.recur("shortconv_conv", Recurrence::Conv { x, spec: self.conv });
        g.mul("shortconv_cx", x, c)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("shortconv_out", &self.out, mixed)
    }
}
