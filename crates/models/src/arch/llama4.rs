//! Llama 4: three layers with chunked attention, rotary embedding and norms of query and key
//! without weights alternate with one layer without any of these. Layers with experts alternate
//! with dense ones; the routing weight multiplies the experts' input.
//! GGUF: `general.architecture = "llama4"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, NormKind, QkNorm};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Positions per chunk.
const CHUNK: u32 = 8192;
/// Number of experts of Maverick, which has no norms of query and key.
const EXPERTS_MAVERICK: usize = 128;
/// Query factor of the layers without chunks.
const TEMPERATURE: AttnTemperatureSpec = AttnTemperatureSpec { scale: 0.1, floor: 8192, offset: 1 };

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    // A window of zero means no chunks; every layer then has rotary embedding.
    let chunks = keys.opt_count("attention.sliding_window")? != Some(0);
    let sliding = keys.sliding(hp.n_layer, 4)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape {
        gating: Gating::Sigmoid,
        weighs_input: true,
        ..ExpertShape::read(keys, hidden)?
    };
    let step = keys.count("interleave_moe_layer_step")?;
    let qk_norm = match shape.experts {
        EXPERTS_MAVERICK => QkNorm::None,
        _ => QkNorm::AfterRope([norm.unweighted(hp.key_dim); 2]),
    };
    let layers = decoder::layers(w, &hp, norm, |b| {
        let is_mixture = (b.i + 1).is_multiple_of(step);
        let ffn =
            if is_mixture { b.experts_with_shared(shape, hidden)? } else { b.gated(Glu::Silu)? };
        let local = !chunks || sliding[b.i];
        Ok(Layer {
            qk_norm: if local { qk_norm } else { QkNorm::None },
            rope: local.then_some(rope),
            temperature: (!local).then_some(TEMPERATURE),
            attention: AttentionSpec {
                mask: if chunks && local { Mask::Chunk(CHUNK) } else { Mask::Causal },
                ..hp.attention(b.i)
            },
            ..b.pre_norm(ffn)?
        })
    })?;
    Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp))
}
