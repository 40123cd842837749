//! Llama: pre-norm decoder, grouped-query attention with rotary pairs, SwiGLU or a mixture of experts (Mixtral).
//! GGUF: `general.architecture = "llama"`, `"internlm2"`, `"xverse"` and `"baichuan"`; Mistral, SmolLM and many others publish in this form.

use puna_graph::*;

use crate::blocks::{Experts, FeedForward, Mlp, Qkv};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::rope::RopeKeys;
use crate::weights::Weights;

const LAYERS_BAICHUAN_13B: usize = 40;

struct Llama {
    n_embd: usize,
    table: WeightId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

struct Layer {
    attn_norm: Norm,
    qkv: Qkv,
    rope: RopeId,
    attention: AttentionSpec,
    wo: Linear,
    ffn_norm: Norm,
    ffn: FeedForward,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let rope = w.factored_rope(&RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?, RopeKind::Norm)?;
    let scale = keys.opt_f32("attention.scale")?.filter(|&s| s != 0.0);
    let scale = scale.unwrap_or(1.0 / (hp.key_dim as f32).sqrt());
    let experts = keys.opt_count("expert_count")?.unwrap_or(0);

    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let mut layers = Vec::with_capacity(hp.n_layer);
    for i in 0..hp.n_layer {
        let b = format!("blk.{i}");
        let (heads, kv_heads) = (hp.heads[i], hp.kv_heads[i]);
        let widths = [heads * hp.key_dim, kv_heads * hp.key_dim, kv_heads * hp.value_dim];
        let ff = hp.ff.get(i).copied().unwrap_or(0);
        let ffn = if experts > 0 {
            let shape = ExpertShape { normalise: true, ..ExpertShape::read(keys, ff)? };
            FeedForward::Moe(Experts::load(w, &b, hp.n_embd, shape)?)
        } else {
            FeedForward::Dense(Mlp::load(w, &b, hp.n_embd, ff, Glu::Silu)?)
        };
        layers.push(Layer {
            attn_norm: w.norm(&format!("{b}.attn_norm"), hp.n_embd, eps)?,
            qkv: Qkv::load(w, &b, hp.n_embd, widths)?,
            rope,
            attention: AttentionSpec { scale, ..hp.attention(i) },
            wo: w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, hp.n_embd)?,
            ffn_norm: w.norm(&format!("{b}.ffn_norm"), hp.n_embd, eps)?,
            ffn,
        });
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.head(table, hp.n_embd, hp.n_vocab)?;
    let cache = layers.iter().map(|l| l.attention.cache_layer()).collect();
    let shape = Shape::decoder(&hp);
    Ok(Loaded { arch: Box::new(Llama { n_embd: hp.n_embd, table, layers, norm, head }), cache, shape })
}

/// Baichuan's 7B form. The 13B form has positions by ALiBi instead of turns.
pub(super) fn load_baichuan(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    options: LoadOptions,
) -> Result<Loaded, ModelError> {
    if Hparams::read(keys)?.n_layer == LAYERS_BAICHUAN_13B {
        let (what, reason) = ("Baichuan 13B".into(), "use Baichuan 7B, or another model of this size");
        return Err(ModelError::Unsupported { what, reason });
    }
    load(keys, w, options)
}

impl Architecture for Llama {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = g.rms_norm("attn_norm", &l.attn_norm, x);
            let [q, k, v] = l.qkv.project(g, h);
            let q = g.rope("Qcur_rope", q, l.attention.key_dim, l.rope);
            let k = g.rope("Kcur_rope", k, l.attention.key_dim, l.rope);
            let mut a = g.attention("kqv_out", i, [q, k, v], l.attention);
            if outputs_only && i + 1 == self.layers.len() {
                (a, x) = (g.gather_outputs(a), g.gather_outputs(x));
            }
            let a = g.linear("attn_out", &l.wo, a);
            x = g.add("ffn_inp", x, a);
            let h = g.rms_norm("ffn_norm", &l.ffn_norm, x);
            let f = l.ffn.forward(g, h);
            x = g.add("l_out", x, f);
        }
        g.set_layer(None);
        g.rms_norm("result_norm", &self.norm, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        g.linear("result_output", &self.head, hidden)
    }
}
