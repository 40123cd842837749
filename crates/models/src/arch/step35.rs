//! Step 3.5: heads of each layer's own number, normed, with a sigmoid gate a head; layers with a sliding window, which turn as a whole,
//! among those without, of whose heads half turns; dense layers and mixtures with an expert that every token uses, of bounded units.
//! GGUF: `general.architecture = "step35"`.

use puna_graph::*;

use crate::blocks::FeedForward;
use crate::decoder::{self, Block, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{self, RopeKeys};
use crate::weights::Weights;
use crate::windows::Windows;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let [global_rope, local_rope] = ropes(keys, w, &hp)?;
    let windows = Windows::read(keys, keys.listed_sliding(hp.n_layer)?)?;
    let bounds = [
        keys.bounds("swiglu_clamp_exp", hp.n_layer)?,
        keys.bounds("swiglu_clamp_shexp", hp.n_layer)?,
    ];
    let layers = decoder::layers(w, &hp, norm, |b| {
        let heads = hp.heads[b.i];
        let units = [&bounds[0], &bounds[1]]
            .map(|bounds| bounds[b.i].map_or(Glu::Silu, |limit| Glu::ClampedSilu { limit }));
        let ffn = feed_forward(keys, b, units)?;
        let gate = b.w.opt_linear(&format!("{}.attn_gate", b.name), hp.n_embd, heads)?;
        let is_normed = b.has("attn_q_norm.weight");
        Ok(Layer {
            qk_norm: if is_normed { QkNorm::Before(b.head_norms()?) } else { QkNorm::None },
            rope: Some(if windows.slides(b.i) { local_rope } else { global_rope }),
            attention: AttentionSpec { mask: windows.mask(b.i), ..hp.attention(b.i) },
            gate: gate.map(|gate| (gate, Activation::Sigmoid)),
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}

/// How layers without and with a window turn. The file's factors are for the longest of both; the shorter takes the first of them.
fn ropes(keys: &Keys<'_>, w: &mut Weights<'_>, hp: &Hparams) -> Result<[RopeId; 2], ModelError> {
    let all = RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?;
    let global_keys = RopeKeys { dims: all.dims / 2, ..all }.checked(keys, hp.key_dim)?;
    let local_keys = all.in_windows(keys, hp.key_dim, rope::BASE)?.unscaled();
    let factors = w.rope_factors("rope_freqs.weight", global_keys.dims.max(local_keys.dims) / 2)?;
    let global = global_keys.table(RopeKind::Neox, factors.as_deref());
    Ok([w.rope(global), w.rope(local_keys.table(RopeKind::Neox, None))])
}

/// A mixture where the layer has a router. `units` are those of its experts and of the one that every token uses, which is the unit of
/// dense layers, too.
fn feed_forward(
    keys: &Keys<'_>,
    b: &mut Block<'_, '_>,
    [glu, dense]: [Glu; 2],
) -> Result<FeedForward, ModelError> {
    if !b.has("ffn_gate_inp.weight") {
        return b.gated(dense);
    }
    let shape =
        ExpertShape::read_all(keys, keys.count("expert_feed_forward_length")?, Gating::Sigmoid)?;
    let width = keys.count("expert_shared_feed_forward_length")?;
    b.experts_beside_other(ExpertShape { glu, ..shape }, width, dense)
}
