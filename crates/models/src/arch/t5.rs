//! T5: an encoder reads the whole prompt, and a decoder, which begins with a token that always is the first, attends to what it has
//! written and then to what the encoder made of the prompt. Layer by layer the cache keeps keys and values of both in one row: first those of
//! the prompt, then those of the answer.
//! GGUF: `general.architecture = "t5"`.

use puna_graph::*;

use super::t5encoder;
use crate::blocks::Qkv;
use crate::decoder::{Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys, MAX_LAYERS};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, Trail};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::weights::Weights;

struct T5 {
    encoder: Decoder,
    /// From what the encoder gives to keys and values of each layer of the decoder.
    crossings: Vec<Crossing>,
    /// Two of its layers are one of the file's.
    decoder: Hybrid,
}

/// Keys and values of the prompt in a layer.
struct Crossing {
    k: Linear,
    v: Linear,
    spec: AttentionSpec,
}

/// Attention to the prompt, in the layer of the cache of the mixer before it.
struct Cross {
    q: Linear,
    wo: Linear,
    spec: AttentionSpec,
}

impl Mixer for Cross {
    fn mix(&self, g: &mut Graph, trail: &mut Trail, h: ValueId) -> ValueId {
        let q = g.linear("Qcur_cross", &self.q, h);
        g.attention_to("kqv_cross_out", trail.layer - 1, q, self.spec)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("cross_attn_out", &self.wo, mixed)
    }
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = keys.opt_count("decoder_block_count")?.unwrap_or(hp.n_layer);
    if layers == 0 || layers > MAX_LAYERS as usize {
        let (key, value) = (keys.name("decoder_block_count"), layers.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 1 and 512" });
    }
    let encoder = t5encoder::encoder(keys, w, &hp)?;
    let last = norm.load(w, "dec.output_norm", &[hp.n_embd])?;
    let around = Decoder::with_norm(w, &hp, last, Vec::new())?;
    // Where vectors of tokens are used in both places, hidden states are as much larger.
    let is_tied = around.head.w == around.table;
    let logit_scale = if is_tied { 1.0 / (hp.n_embd as f32).sqrt() } else { 1.0 };
    let (mut halves, mut crossings) = (Vec::new(), Vec::new());
    for i in 0..layers {
        let shifts = t5encoder::shifts(keys, w, ("dec", i, hp.heads[0]), false)?;
        let block = DecoderBlock { w: &mut *w, hp: &hp, norm, name: format!("dec.blk.{i}") };
        let (both, crossing) = block.load(shifts)?;
        halves.extend(both);
        crossings.push(crossing);
    }
    let decoder = Hybrid { block: 2, ..Hybrid::between(Decoder { logit_scale, ..around }, halves) };
    let cache = crossings.iter().map(|crossing| crossing.spec.cache_layer()).collect();
    let shape = Shape {
        // What is read and what is written have as much room each.
        n_ctx: 2 * hp.n_ctx,
        n_layer: layers.max(hp.n_layer),
        start: Some(start(keys, hp.n_vocab)?),
        ..Shape::decoder(&hp)
    };
    Ok(Loaded { arch: Box::new(T5 { encoder, crossings, decoder }), cache, shape })
}

/// The token that answers begin with.
fn start(keys: &Keys<'_>, n_vocab: usize) -> Result<u32, ModelError> {
    let start = keys.opt_count("decoder_start_token_id")?.unwrap_or(0);
    if start >= n_vocab {
        let (key, value) = (keys.name("decoder_start_token_id"), start.to_string());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "the vocabulary has no such token",
        });
    }
    Ok(start as u32)
}

/// Loads a layer of the decoder.
struct DecoderBlock<'a, 'w> {
    w: &'a mut Weights<'w>,
    hp: &'a Hparams,
    norm: NormKind,
    name: String,
}

impl DecoderBlock<'_, '_> {
    /// Its two attentions, and what the second one reads.
    fn load(self, shifts: Shifts) -> Result<([HybridLayer; 2], Crossing), ModelError> {
        let Self { w, hp, norm, name } = self;
        let (n, [q, k, v], plain) = (hp.n_embd, hp.widths(0), hp.attention(0));
        let values = plain.heads * plain.value_dim;
        let mut linear =
            |part: &str, input: usize, out: usize| w.linear(&format!("{name}.{part}"), input, out);
        let wo = linear("attn_o", values, n)?;
        // One layer of the cache has both, so they are of one form.
        let both = AttentionSpec { scale: 1.0, ..plain };
        let of_prompt = AttentionSpec { mask: Mask::Encoded, ..both };
        let cross = Cross {
            q: linear("cross_attn_q", n, q)?,
            wo: linear("cross_attn_o", values, n)?,
            spec: of_prompt,
        };
        let crossing = Crossing {
            k: linear("cross_attn_k", n, k)?,
            v: linear("cross_attn_v", n, v)?,
            spec: both,
        };
        let own = Attention {
            qkv: Qkv::load(w, &name, n, [q, k, v])?,
            gated: false,
            norms: None,
            rope: None,
            spec: AttentionSpec { mask: Mask::Decoded, shifts: Some(shifts), ..both },
            wo,
        };
        let mut normed = |part: &str| norm.load(w, &format!("{name}.{part}"), &[n]);
        let (attn_norm, cross_norm, ffn_norm) =
            (normed("attn_norm")?, normed("cross_attn_norm")?, normed("ffn_norm")?);
        let ffn = t5encoder::feed_forward(w, &name, n, hp.ff(0))?;
        let first = HybridLayer { norm: attn_norm, mixers: vec![Box::new(own)], ffn: None };
        let second = HybridLayer {
            norm: cross_norm,
            mixers: vec![Box::new(cross)],
            ffn: Some((ffn_norm, ffn)),
        };
        Ok(([first, second], crossing))
    }
}

impl Architecture for T5 {
    fn encode(&self, g: &mut Graph) -> Option<ValueId> {
        let x = self.encoder.enter(g);
        let x = self.encoder.pass(g, 0..self.encoder.layers.len(), x, false);
        let x = self.encoder.leave(g, x);
        for (i, crossing) in self.crossings.iter().enumerate() {
            g.set_layer(Some(i));
            let k = g.linear("Kcur_cross", &crossing.k, x);
            let v = g.linear("Vcur_cross", &crossing.v, x);
            g.keep("cross_kept", i, [k, v], crossing.spec);
        }
        g.set_layer(None);
        Some(x)
    }

    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        self.decoder.hidden(g, outputs_only)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        self.decoder.logits(g, hidden)
    }
}
