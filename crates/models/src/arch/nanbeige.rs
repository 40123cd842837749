//! Nanbeige: a Llama that runs its layers several times, each time with own keys and values, and
//! with the last norm in between.
//! GGUF: `general.architecture = "nanbeige"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys, MAX_LAYERS};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let mut hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let loops = keys.count_or("num_loops", 1)?;
    if loops.saturating_mul(hp.n_layer) > MAX_LAYERS as usize {
        let reason = "num_loops × block_count must be at most 512";
        let (key, value) = (keys.name("num_loops"), loops.to_string());
        return Err(ModelError::KeyValue { key, value, reason });
    }
    let scale = keys.factor("attention.scale")?;
    let once = decoder::layers(w, &hp, norm, |b| {
        let (ffn, plain) = (b.gated(Glu::Silu)?, hp.attention(b.i));
        let attention = AttentionSpec { scale: scale.unwrap_or(plain.scale), ..plain };
        Ok(Layer { rope: Some(rope), attention, ..b.pre_norm(ffn)? })
    })?;
    let between = norm.load(w, "output_norm", &[hp.n_embd])?;
    let between = (!keys.flag("skip_loop_final_norm")?).then_some(between);
    let mut layers: Vec<Layer> = (0..loops).flat_map(|_| once.iter().cloned()).collect();
    for pass in 1..loops {
        layers[pass * hp.n_layer - 1].stream_norm = between;
    }
    hp.n_layer *= loops;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
