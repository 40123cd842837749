//! T5: an encoder reads the whole prompt. The decoder starts with a fixed token; each of its layers
//! attends to the answer so far, then to the encoder's states. A cache layer holds the keys and
//! values of both in sequence, first the prompt's, then the answer's.
//! GGUF: `general.architecture = "t5"`.

use puna_graph::*;

use super::t5encoder;
use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::Qkv;
use crate::decoder::{Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys, MAX_LAYERS};
use crate::hybrid::{Attention, Hybrid, HybridLayer, Mixer, MixerContext};
use crate::weights::Weights;

struct T5 {
    encoder: Decoder,
    /// Projections from encoder states to the keys and values of each decoder layer.
    prompt_kv: Vec<PromptKv>,
    /// Decoder; two of its layers are one of the file's.
    decoder: Hybrid,
}

/// Keys and values of the prompt in a decoder layer.
struct PromptKv {
    k: Linear,
    v: Linear,
    spec: AttentionSpec,
}

/// Attention to the prompt, on the cache layer of the mixer before it.
struct CrossAttention {
    q: Linear,
    wo: Linear,
    spec: AttentionSpec,
}

impl Mixer for CrossAttention {
    fn mix(&self, g: &mut Graph, context: &mut MixerContext, h: ValueId) -> ValueId {
        let q = g.linear("Qcur_cross", &self.q, h);
        g.attention_to("kqv_cross_out", context.cache_layer - 1, q, self.spec)
    }

    fn finish(&self, g: &mut Graph, mixed: ValueId) -> ValueId {
        g.linear("cross_attn_out", &self.wo, mixed)
    }
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = keys.opt_count("decoder_block_count")?.unwrap_or(hp.n_layer);
    if layers == 0 || layers > MAX_LAYERS as usize {
        let (key, value) = (keys.name("decoder_block_count"), layers.to_string());
        return Err(ModelError::KeyValue { key, value, reason: "must be between 1 and 512" });
    }
    let encoder = t5encoder::encoder(keys, w, &hp)?;
    let last = norm.load(w, "dec.output_norm", &[hp.n_embd])?;
    let outer = Decoder::with_norm(w, &hp, last, Vec::new())?;
    // With tied embeddings, hidden states are larger by the square root of the width.
    let is_tied = outer.head.w == outer.table;
    let logit_scale = if is_tied { 1.0 / (hp.n_embd as f32).sqrt() } else { 1.0 };
    let (mut halves, mut prompt_kv) = (Vec::new(), Vec::new());
    for i in 0..layers {
        let position_bias = t5encoder::position_bias(keys, w, ("dec", i, hp.heads[0]), false)?;
        let block = DecoderBlock { w: &mut *w, hp: &hp, norm, name: format!("dec.blk.{i}") };
        let (both, kv) = block.load(position_bias)?;
        halves.extend(both);
        prompt_kv.push(kv);
    }
    let decoder = Hybrid {
        layers_per_block: 2,
        ..Hybrid::with_outer(Decoder { logit_scale, ..outer }, halves)
    };
    let cache = prompt_kv.iter().map(|kv| kv.spec.cache_layer()).collect();
    let shape = ModelShape {
        // Prompt and answer have the full context each.
        n_ctx: 2 * hp.n_ctx,
        n_layer: layers.max(hp.n_layer),
        start_token: Some(start_token(keys, hp.n_vocab)?),
        ..ModelShape::decoder(&hp)
    };
    Ok(LoadedArchitecture { arch: Box::new(T5 { encoder, prompt_kv, decoder }), cache, shape })
}

/// First token of an answer.
fn start_token(keys: &Keys<'_>, n_vocab: usize) -> Result<u32, ModelError> {
    let start_token = keys.opt_count("decoder_start_token_id")?.unwrap_or(0);
    if start_token >= n_vocab {
        let (key, value) = (keys.name("decoder_start_token_id"), start_token.to_string());
        return Err(ModelError::KeyValue {
            key,
            value,
            reason: "the vocabulary has no such token",
        });
    }
    Ok(start_token as u32)
}

/// Loads a layer of the decoder.
struct DecoderBlock<'a, 'w> {
    w: &'a mut Weights<'w>,
    hp: &'a Hparams,
    norm: NormKind,
    name: String,
}

impl DecoderBlock<'_, '_> {
    /// The two attentions of the layer, and the projections of the prompt for the second.
    fn load(
        self,
        position_bias: RelativePositionBias,
    ) -> Result<([HybridLayer; 2], PromptKv), ModelError> {
        let Self { w, hp, norm, name } = self;
        let (n, [q, k, v], plain) = (hp.n_embd, hp.qkv_widths(0), hp.attention(0));
        let values = plain.heads * plain.value_dim;
        let mut linear =
            |part: &str, input: usize, out: usize| w.linear(&format!("{name}.{part}"), input, out);
        let wo = linear("attn_o", values, n)?;
        // Both share a cache layer and so have the same dimensions.
        let both = AttentionSpec { scale: 1.0, ..plain };
        let of_prompt = AttentionSpec { mask: Mask::CrossAttention, ..both };
        let cross = CrossAttention {
            q: linear("cross_attn_q", n, q)?,
            wo: linear("cross_attn_o", values, n)?,
            spec: of_prompt,
        };
        let kv = PromptKv {
            k: linear("cross_attn_k", n, k)?,
            v: linear("cross_attn_v", n, v)?,
            spec: both,
        };
        let own = Attention {
            qkv: Qkv::load(w, &name, n, [q, k, v])?,
            gated: false,
            norms: None,
            rope: None,
            spec: AttentionSpec {
                mask: Mask::DecoderCausal,
                position_bias: Some(position_bias),
                ..both
            },
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
        Ok(([first, second], kv))
    }
}

impl Architecture for T5 {
    fn encode(&self, g: &mut Graph) -> Option<ValueId> {
        let x = self.encoder.input_stream(g);
        let x = self.encoder.run_layers(g, 0..self.encoder.layers.len(), x, false);
        let x = self.encoder.output_hidden(g, x);
        for (i, kv) in self.prompt_kv.iter().enumerate() {
            g.set_layer(Some(i));
            let k = g.linear("Kcur_cross", &kv.k, x);
            let v = g.linear("Vcur_cross", &kv.v, x);
            g.store_kv("cross_kept", i, [k, v], kv.spec);
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
