//! Step 3.5: layers differ in the number of heads, which are normed and gated by a sigmoid each.
//! Layers with a sliding window rotate whole heads, the others half of each. Dense layers, and
//! experts with clamped activations and a shared expert.
//! GGUF: `general.architecture = "step35"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::blocks::FeedForward;
use crate::decoder::{self, Decoder, Layer, LayerLoader, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let [global_rope, local_rope] = ropes(keys, w, &hp)?;
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let limits = [
        keys.limits_per_layer("swiglu_clamp_exp", hp.n_layer)?,
        keys.limits_per_layer("swiglu_clamp_shexp", hp.n_layer)?,
    ];
    let layers = decoder::layers(w, &hp, norm, |b| {
        let heads = hp.heads[b.i];
        let activations = [&limits[0], &limits[1]]
            .map(|limits| limits[b.i].map_or(Glu::Silu, |limit| Glu::ClampedSilu { limit }));
        let ffn = feed_forward(keys, b, activations)?;
        let gate = b.w.opt_linear(&format!("{}.attn_gate", b.name), hp.n_embd, heads)?;
        let is_normed = b.has("attn_q_norm.weight");
        Ok(Layer {
            qk_norm: if is_normed { QkNorm::BeforeRope(b.head_norms()?) } else { QkNorm::None },
            rope: Some(if windows.has_window(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: gate.map(|gate| (gate, Activation::Sigmoid)),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}

/// Rotary embedding of layers without and with a window. Only the former use the file's frequency
/// factors, which have the length of the longer table.
fn ropes(keys: &Keys<'_>, w: &mut Weights<'_>, hp: &Hparams) -> Result<[RopeId; 2], ModelError> {
    let all = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_keys = RopeKeys { dims: all.dims / 2, ..all }.checked(keys, hp.key_dim)?;
    let local_keys = all.for_windows(keys, hp.key_dim, rope::BASE)?.unscaled();
    let factors = w.rope_factors("rope_freqs.weight", global_keys.dims.max(local_keys.dims) / 2)?;
    let global = global_keys.table(RopeKind::Neox, factors.as_deref());
    Ok([w.rope(global), w.rope(local_keys.table(RopeKind::Neox, None))])
}

/// Feed-forward network: experts if the layer has a router. `glu` is the activation of the
/// experts, `dense` that of the shared expert and of dense layers.
fn feed_forward(
    keys: &Keys<'_>,
    b: &mut LayerLoader<'_, '_>,
    [glu, dense]: [Glu; 2],
) -> Result<FeedForward, ModelError> {
    if !b.has("ffn_gate_inp.weight") {
        return b.gated(dense);
    }
    let shape = ExpertShape::read_with_routing(
        keys,
        keys.count("expert_feed_forward_length")?,
        Gating::Sigmoid,
    )?;
    let width = keys.count("expert_shared_feed_forward_length")?;
    b.experts_with_shared_glu(ExpertShape { glu, ..shape }, width, dense)
}
