//! Hunyuan 4: several residual streams that stay apart, read and written by weights of their own (hyper-connections); latent attention with
//! a logit of its own for each head that sees nothing, and sigmoid gates of what heads read; dense layers first, then mixtures of
//! bounded experts by sigmoids, with a bias for choosing, beside shared ones. Later files attend to what lightning indexers have chosen,
//! which some layers share with the last one before them that has one.
//! GGUF: `general.architecture = "hy_v4"`.

use puna_graph::*;

use crate::decoder::{self, Block, Decoder, Layer, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::hyper::{HyperForm, Streams};
use crate::indexer::{self, Indexer, IndexerForm, IndexerRope, SparseSelection};
use crate::latent::LatentSizes;
use crate::model::{LoadOptions, Loaded};
use crate::rope::RopeKeys;
use crate::weights::Weights;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let norm = NormKind::Rms(eps);
    let form = LatentSizes::read(keys, &hp, w)?;
    let rope = w.rope(RopeKeys::read(keys, form.key_dim(), hp.n_ctx)?.table(RopeKind::Norm, None));
    let indexers = Indexers::read(keys, &hp, (&form, rope, eps))?;
    let dense = keys.opt_count("leading_dense_block_count")?.unwrap_or(0);
    let mixture = if dense < hp.n_layer { Some(mixture(keys)?) } else { None };
    let bounds = keys.bounds("swiglu_clamp_exp", hp.n_layer)?;
    let layers = decoder::layers(w, &hp, norm, |b| {
        let ffn = match mixture.filter(|_| b.i >= dense) {
            Some((shape, shared)) => {
                let glu = bounds[b.i].map_or(Glu::Silu, |limit| Glu::SiluOfClamped { limit });
                b.experts_beside_other(ExpertShape { glu, ..shape }, shared, Glu::Silu)?
            }
            None => b.gated(Glu::Silu)?,
        };
        let selection =
            indexers.as_ref().map_or(Ok(SparseSelection::Dense), |indexers| indexers.load(b))?;
        let layer = Layer { selection, ..b.latent(form, rope, 1.0, ffn)? };
        let heads = hp.heads[b.i];
        let gate = b.linear("attn_gate", hp.n_embd, heads * form.v_head_dim)?;
        let sinks = Some(b.tensor("attn_sinks.weight", &[heads])?);
        let attention = AttentionSpec { sinks, ..layer.attention };
        Ok(Layer { attention, gate: Some((gate, Activation::Sigmoid)), ..layer })
    })?;
    let streams = Some(Streams::load(w, hp.n_embd, hp.n_layer, &connections(keys, eps)?)?);
    Ok(Decoder { streams, ..Decoder::new(w, &hp, norm, layers)? }.loaded(&hp))
}

/// The experts, and the width of those that every token uses.
fn mixture(keys: &Keys<'_>) -> Result<(ExpertShape, usize), ModelError> {
    let hidden = keys.count("expert_feed_forward_length")?;
    Ok((ExpertShape::read_all(keys, hidden, Gating::Sigmoid)?, keys.shared_width(hidden)?))
}

fn connections(keys: &Keys<'_>, eps: f32) -> Result<HyperForm, ModelError> {
    let form = HyperForm::read(keys, eps)?;
    let magnitude = keys.opt_f32("hyper_connection.magnitude")?.unwrap_or(1.0);
    if !magnitude.is_finite() {
        let (key, value) = (keys.name("hyper_connection.magnitude"), magnitude.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be a number" });
    }
    Ok(HyperForm { magnitude, write_floor: form.floor, ..form })
}

/// The indexers of files that have some.
struct Indexers {
    form: IndexerForm,
    /// Columns of what their queries are made of.
    thin: usize,
    turned: IndexerRope,
    eps: f32,
    /// Which layers have one of their own.
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
        let form = IndexerForm::read(keys, latent.qk_rope_dim)?;
        let owners = indexer::owners(keys, hp.n_layer)?.unwrap_or_else(|| vec![true; hp.n_layer]);
        let thin = keys.count("attention.q_lora_rank")?;
        // As in the heads of attention, the last features turn.
        let turned = (rope, form.dim - latent.qk_rope_dim);
        Ok(Some(Self { form, thin, turned, eps, owners }))
    }

    fn load(&self, b: &mut Block<'_, '_>) -> Result<SparseSelection, ModelError> {
        if !self.owners[b.i] {
            return Ok(SparseSelection::Shared);
        }
        Ok(SparseSelection::Own(
            Indexer::load(b, self.form, self.thin, (Some(self.turned), self.eps))?.into(),
        ))
    }
}
