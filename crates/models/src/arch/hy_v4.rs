//! Hunyuan 4: hyper-connections with separate residual streams; latent attention with sinks and
//! sigmoid gates. Dense layers first, then experts with sigmoid routing, selection bias and clamped
//! activations, and a shared expert. Later files have sparse attention with lightning indexers;
//! some layers share a selection.
//! GGUF: `general.architecture = "hy_v4"`.

use puna_graph::*;

use crate::architecture::{LoadOptions, LoadedArchitecture};
use crate::decoder::{self, Decoder, Layer, LayerLoader, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hyper::{HyperConnectionSpec, ResidualStreams};
use crate::indexer::{self, Indexer, IndexerRope, IndexerSizes, SparseSelection};
use crate::latent::LatentSizes;
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let sizes = LatentSizes::read(keys, &hp, w)?;
    let rope = w.rope(RopeKeys::read(keys, sizes.key_dim(), hp.n_ctx)?.table(RopeKind::Norm, None));
    let indexers = Indexers::read(keys, &hp, (&sizes, rope, eps))?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let experts = if dense < hp.n_layer { Some(experts(keys)?) } else { None };
    let limits = keys.limits_per_layer("swiglu_clamp_exp", hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match experts.filter(|_| b.i >= dense) {
            Some((shape, shared)) => {
                let glu = limits[b.i].map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit });
                b.experts_with_shared_glu(ExpertShape { glu, ..shape }, shared, Glu::Silu)?
            }
            None => b.gated(Glu::Silu)?,
        };
        let selection =
            indexers.as_ref().map_or(Ok(SparseSelection::Dense), |indexers| indexers.load(b))?;
        let layer = Layer { selection, ..b.latent(sizes, rope, 1.0, ffn)? };
        let heads = hp.heads[b.i];
        let gate = b.linear("attn_gate", hp.n_embd, heads * sizes.v_head_dim)?;
        let sinks = Some(b.tensor("attn_sinks.weight", &[heads])?);
        let attention = AttentionSpec { sinks, ..layer.attention };
        Ok(Layer { attention, gate: Some((gate, Activation::Sigmoid)), ..layer })
    })?;
    let streams = Some(ResidualStreams::load(w, hp.n_embd, hp.n_layer, &connections(keys, eps)?)?);
    Ok(Decoder { streams, ..Decoder::new(w, &hp, norm, layers)? }.into_architecture(&hp))
}

/// Experts, and the width of the shared experts.
fn experts(keys: &Keys<'_>) -> Result<(ExpertShape, usize), ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    Ok((ExpertShape::read_with_routing(keys, hidden, Gating::Sigmoid)?, keys.shared_width(hidden)?))
}

fn connections(keys: &Keys<'_>, eps: f32) -> Result<HyperConnectionSpec, ModelError> {
    let spec = HyperConnectionSpec::read(keys, eps)?;
    let magnitude = keys.opt_f32("hyper_connection.magnitude")?.unwrap_or(1.0);
    if !magnitude.is_finite() {
        let (key, value) = (keys.name("hyper_connection.magnitude"), magnitude.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be a number" });
    }
    Ok(HyperConnectionSpec { magnitude, write_floor: spec.floor, ..spec })
}

/// Indexers, if the file has any.
struct Indexers {
    sizes: IndexerSizes,
    /// Columns of the input of their query projection.
    q_lora_rank: usize,
    rope: IndexerRope,
    eps: f32,
    /// Which layers have an indexer.
    owners: Vec<bool>,
}

impl Indexers {
    fn read(
        keys: &Keys<'_>,
        hp: &Hparams,
        (latent, rope, eps): (&LatentSizes, RopeId, f32),
    ) -> Result<Option<Self>, ModelError> {
        if keys.opt_count("attention.indexer.top_k")?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        let sizes = IndexerSizes::read(keys, latent.qk_rope_dim)?;
        let owners = indexer::owners(keys, hp.n_layer)?.unwrap_or_else(|| vec![true; hp.n_layer]);
        let q_lora_rank = keys.count("attention.q_lora_rank")?;
        // As in attention, the last dimensions of a head are rotated.
        let rope = (rope, sizes.dim - latent.qk_rope_dim);
        Ok(Some(Self { sizes, q_lora_rank, rope, eps, owners }))
    }

    fn load(&self, b: &mut LayerLoader<'_, '_>) -> Result<SparseSelection, ModelError> {
        if !self.owners[b.i] {
            return Ok(SparseSelection::Shared);
        }
        Ok(SparseSelection::Own(
            Indexer::load(b, self.sizes, self.q_lora_rank, (Some(self.rope), self.eps))?.into(),
        ))
    }
}
