//! CogVLM's language model: a llama with one matrix for query, key and value. Beside each matrix there is another for what images say
//! (`vis_*`), which no text needs.
//! GGUF: `general.architecture = "cogvlm"`.

use puna_graph::*;

use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{LoadOptions, Loaded};
use crate::rope::{RopeKeys, Scaling};
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    // Heads turn as a whole and by one base, whatever files say; by another in CogVLM 2, whose heads share keys.
    let base = if hp.kv_heads == hp.heads { 10_000.0 } else { 500_000.0 };
    let (dims, original) = (hp.key_dim, hp.n_ctx);
    let turning = RopeKeys { dims, base, scaling: Scaling::None, attn_factor: 1.0, original };
    let rope = w.rope(turning.checked(keys, hp.key_dim)?.table(RopeKind::Neox, None));
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = b.gated(Glu::Silu)?;
        Ok(Layer { rope: Some(rope), ..b.pre_norm(ffn)? })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.loaded(&hp))
}
