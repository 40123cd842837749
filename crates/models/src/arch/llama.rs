//! Llama (Touvron et al., 2023, <https://arxiv.org/abs/2302.13971>): pre-norm decoder,
//! grouped-query attention with adjacent-pair rotary embedding, SwiGLU or experts (Mixtral,
//! <https://arxiv.org/abs/2401.04088>).
//!
//! This file is the reference for the others: it names every tensor and records the forward pass in
//! reading order. Other architectures set options of [`crate::decoder::Decoder`] instead, which
//! records the same operations.
//!
//! GGUF: `general.architecture = "llama"`, `"internlm2"`, `"xverse"` and `"baichuan"`; Mistral,
//! SmolLM and many others use this architecture.
//!
//! | tensor | shape, fastest dimension first |
//! |---|---|
//! | `token_embd.weight` | `[n_embd, n_vocab]` |
//! | `blk.N.attn_norm.weight` | `[n_embd]` |
//! | `blk.N.attn_q.weight` | `[n_embd, n_head · head_dim]` |
//! | `blk.N.attn_k.weight`, `blk.N.attn_v.weight` | `[n_embd, n_head_kv · head_dim]` |
//! | `blk.N.attn_output.weight` | `[n_head · head_dim, n_embd]` |
//! | `blk.N.ffn_norm.weight` | `[n_embd]` |
//! | `blk.N.ffn_gate.weight`, `blk.N.ffn_up.weight` | `[n_embd, n_ff]` |
//! | `blk.N.ffn_down.weight` | `[n_ff, n_embd]` |
//! | `blk.N.ffn_gate_inp.weight` (experts) | `[n_embd, n_expert]` |
//! | `blk.N.ffn_{gate,up,down}_exps.weight` (experts) | as above, `× n_expert` |
//! | `rope_freqs.weight` (optional, Llama 3.1) | `[head_dim / 2]`, divisors of the frequencies |
//! | `output_norm.weight` | `[n_embd]` |
//! | `output.weight` (else `token_embd.weight`) | `[n_embd, n_vocab]` |
//!
//! Each matrix can have a bias, `NAME.bias`. Some files store `attn_q`, `attn_k` and `attn_v` as
//! one matrix, `attn_qkv`.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::{Experts, FeedForward, Mlp, Qkv};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Number of layers of Baichuan 13B.
const LAYERS_BAICHUAN_13B: usize = 40;

/// The model; the fields are in the order of computation.
struct Llama {
    /// Features of the residual stream.
    n_embd: usize,
    token_embd: WeightId,
    layers: Vec<Layer>,
    output_norm: Norm,
    output: Linear,
}

/// One layer; the fields are in the order of computation.
struct Layer {
    attn_norm: Norm,
    /// `attn_q`, `attn_k` and `attn_v`.
    qkv: Qkv,
    rope: RopeId,
    attention: AttentionSpec,
    attn_output: Linear,
    ffn_norm: Norm,
    /// `ffn_gate`, `ffn_up` and `ffn_down`, or experts.
    ffn: FeedForward,
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let token_embd = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let layers = (0..hp.n_layer).map(|i| Layer::load(keys, w, &hp, (i, eps, rope)));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let model = Llama {
        n_embd: hp.n_embd,
        token_embd,
        output_norm: w.norm("output_norm", hp.n_embd, eps)?,
        output: w.output_head(token_embd, hp.n_embd, hp.n_vocab)?,
        layers,
    };
    let cache = model.layers.iter().map(|layer| layer.attention.cache_layer()).collect();
    Ok(LoadedArchitecture { arch: Box::new(model), cache, shape: ModelShape::decoder(&hp) })
}

impl Layer {
    /// Loads layer `i`.
    fn load(
        keys: &Keys<'_>,
        w: &mut Weights<'_>,
        hp: &Hparams,
        (i, eps, rope): (usize, f32, RopeId),
    ) -> Result<Self, ModelError> {
        let blk = format!("blk.{i}");
        let attention = AttentionSpec { scale: attention_scale(keys, hp)?, ..hp.attention(i) };
        let n_ff = hp.ff(i);
        let ffn = match keys.opt_count("expert_count")?.unwrap_or(0) {
            0 => FeedForward::Dense(Mlp::load(w, &blk, hp.n_embd, n_ff, Glu::Silu)?),
            _ => {
                let shape = ExpertShape { normalize: true, ..ExpertShape::read(keys, n_ff)? };
                FeedForward::Moe(Experts::load(w, &blk, hp.n_embd, shape)?)
            }
        };
        let heads = attention.heads * attention.value_dim;
        Ok(Self {
            attn_norm: w.norm(&format!("{blk}.attn_norm"), hp.n_embd, eps)?,
            qkv: Qkv::load(w, &blk, hp.n_embd, hp.qkv_widths(i))?,
            rope,
            attention,
            attn_output: w.linear(&format!("{blk}.attn_output"), heads, hp.n_embd)?,
            ffn_norm: w.norm(&format!("{blk}.ffn_norm"), hp.n_embd, eps)?,
            ffn,
        })
    }
}

/// Factor of attention scores: the key `attention.scale`, else `1 / √head_dim`.
fn attention_scale(keys: &Keys<'_>, hp: &Hparams) -> Result<f32, ModelError> {
    let scale = keys.opt_f32("attention.scale")?.filter(|&scale| scale != 0.0);
    Ok(scale.unwrap_or(1.0 / (hp.key_dim as f32).sqrt()))
}

impl Architecture for Llama {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.token_embd, self.n_embd, Index::Token);
        let mut x = g.add_media(x);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));

            // x += attn_output · attention(rope(attn_q h), rope(attn_k h), attn_v h)
            let h = g.rms_norm("attn_norm", &layer.attn_norm, x);
            let [q, k, v] = layer.qkv.project(g, h);
            let q = g.rope("Qcur_rope", q, layer.attention.key_dim, layer.rope);
            let k = g.rope("Kcur_rope", k, layer.attention.key_dim, layer.rope);
            let mut a = g.attention("kqv_out", i, [q, k, v], layer.attention);
            if outputs_only && i + 1 == self.layers.len() {
                // After the last attention only the output rows are computed.
                a = g.gather_outputs(a);
                x = g.gather_outputs(x);
            }
            let a = g.linear("attn_out", &layer.attn_output, a);
            x = g.add("ffn_inp", x, a);

            // x += ffn_down · (silu(ffn_gate h) ⊙ ffn_up h)
            let h = g.rms_norm("ffn_norm", &layer.ffn_norm, x);
            let f = layer.ffn.forward(g, h);
            x = g.add("l_out", x, f);

            x = g.add_control_vectors(i, x);
        }
        g.set_layer(None);
        g.rms_norm("result_norm", &self.output_norm, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        g.linear("result_output", &self.output, hidden)
    }
}

/// Baichuan. The 13B model has ALiBi instead of rotary embedding.
pub(super) fn load_baichuan(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    if Hparams::read(keys)?.n_layer == LAYERS_BAICHUAN_13B {
        return super::refact::load(keys, w, options);
    }
    load(keys, w, options)
}
