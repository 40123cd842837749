//! HRM-Text: two stacks of layers with gated attention and norms without weights. In each cycle the
//! lower stack runs several times on the sum of both streams, then the upper stack runs once on the
//! same sum. Each run has its own keys and values.
//! GGUF: `general.architecture = "hrm_text"`; `block_count` counts a layer once per run.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture};
use crate::decoder::{Decoder, Layer, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct HrmText {
    /// Layers in the order in which they run; the embeddings start the upper stream.
    decoder: Decoder,
    /// `[n_embd]`: initial lower stream.
    lower: WeightId,
    /// Layers per stack.
    depth: usize,
    /// Runs of the lower stack for each run of the upper one.
    lower_passes: usize,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let [depth, cycles, lower_passes] =
        ["hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"].map(|key| keys.count(key));
    let (depth, cycles, lower_passes) = (depth?, cycles?, lower_passes?);
    let passed = depth.saturating_mul(cycles).saturating_mul(lower_passes.saturating_add(1));
    if passed != hp.n_layer {
        let reason = "must be hrm.layers_per_stack × hrm.h_cycles × (hrm.l_cycles + 1)";
        let (key, value) = (keys.name("block_count"), hp.n_layer.to_string());
        return Err(ModelError::KeyValue { key, value, reason });
    }
    w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let unweighted = norm.unweighted(hp.n_embd);
    let stacks = (0..2 * depth).map(|i| {
        let mut b = LayerLoader::new(w, &hp, norm, i);
        let (ffn, width) = (b.gated(Glu::Silu)?, hp.heads[i] * hp.value_dim);
        Ok(Layer {
            attn_norm: Some(unweighted),
            rope: Some(rope),
            gate: Some((b.linear("attn_gate", hp.n_embd, width)?, Activation::Sigmoid)),
            ffn_norm: Some(unweighted),
            stream_norm: (i % depth + 1 == depth).then_some(unweighted),
            ..b.without_norms(ffn)?
        })
    });
    let stacks = stacks.collect::<Result<Vec<Layer>, ModelError>>()?;
    let (lower, upper) = stacks.split_at(depth);
    let cycle = || std::iter::repeat_n(lower, lower_passes).chain([upper]).flatten().cloned();
    let layers = (0..cycles).flat_map(|_| cycle()).collect();
    let decoder = Decoder {
        embd_scale: keys.factor("embedding_scale")?.unwrap_or(1.0),
        ..Decoder::with_norm(w, &hp, unweighted, layers)?
    };
    let lower = w.tensor("hrm.z_l_init", &[hp.n_embd])?;
    Ok(decoder.into_architecture_as(&hp, |decoder| {
        Box::new(HrmText { decoder, lower, depth, lower_passes })
    }))
}

impl Architecture for HrmText {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut upper = self.decoder.input_stream(g);
        let mut lower = g.embed("z_l_init", self.lower, self.decoder.n_embd, Index::Fixed(0));
        let passes = self.decoder.layers.len() / self.depth;
        for pass in 0..passes {
            let both = g.add("streams", upper, lower);
            let stream = self.decoder.run_layers(
                g,
                pass * self.depth..(pass + 1) * self.depth,
                both,
                outputs_only,
            );
            let is_upper = (pass + 1) % (self.lower_passes + 1) == 0;
            *(if is_upper { &mut upper } else { &mut lower }) = stream;
        }
        upper
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.decoder.logits(g, hidden)
    }
}
