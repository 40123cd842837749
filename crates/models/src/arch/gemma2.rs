//! Gemma 2: norms before and after each part, soft-capped scores and logits, every other layer with a sliding window,
//! GeGLU, tied output.
//! GGUF: `general.architecture = "gemma2"`.

use puna_graph::*;

use crate::blocks::{Mlp, Qkv};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::rope::RopeKeys;
use crate::weights::Weights;

/// Layers of the 27B form, whose scores are scaled by the hidden size over the heads.
const LAYERS_27B: usize = 46;

struct Gemma2 {
    n_embd: usize,
    table: WeightId,
    rope: RopeId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    logit_cap: Option<f32>,
}

struct Layer {
    attn_norm: Norm,
    qkv: Qkv,
    attention: AttentionSpec,
    wo: Linear,
    post_attn_norm: Norm,
    ffn_norm: Norm,
    ffn: Mlp,
    post_ffn_norm: Norm,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let window = keys.count_or("attention.sliding_window", 4096)?;
    let sliding = keys.sliding(hp.n_layer, 2)?;
    let softcap = keys.opt_f32("attn_logit_softcapping")?.unwrap_or(50.0);
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let mut layers = Vec::with_capacity(hp.n_layer);
    for (i, &slides) in sliding.iter().enumerate() {
        let b = format!("blk.{i}");
        let (heads, kv_heads) = (hp.heads[i], hp.kv_heads[i]);
        let widths = [heads * hp.key_dim, kv_heads * hp.key_dim, kv_heads * hp.value_dim];
        let per_head = if hp.n_layer == LAYERS_27B { hp.n_embd / heads } else { hp.key_dim };
        let ff = hp.ff.get(i).copied().unwrap_or(0);
        layers.push(Layer {
            attn_norm: w.norm(&format!("{b}.attn_norm"), hp.n_embd, eps)?,
            qkv: Qkv::load(w, &b, hp.n_embd, widths)?,
            attention: AttentionSpec {
                scale: 1.0 / (per_head as f32).sqrt(),
                softcap: Some(softcap).filter(|&c| c > 0.0),
                mask: if slides { Mask::Window(window as u32) } else { Mask::Causal },
                ..hp.attention(i)
            },
            wo: w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, hp.n_embd)?,
            post_attn_norm: w.norm(&format!("{b}.post_attention_norm"), hp.n_embd, eps)?,
            ffn_norm: w.norm(&format!("{b}.ffn_norm"), hp.n_embd, eps)?,
            ffn: Mlp::load(w, &b, hp.n_embd, ff, Glu::Gelu)?,
            post_ffn_norm: w.norm(&format!("{b}.post_ffw_norm"), hp.n_embd, eps)?,
        });
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.head(table, hp.n_embd, hp.n_vocab)?;
    let logit_cap = Some(keys.opt_f32("final_logit_softcapping")?.unwrap_or(30.0)).filter(|&c| c > 0.0);
    let cache = layers.iter().map(|l| l.attention.cache_layer()).collect();
    let arch = Box::new(Gemma2 { n_embd: hp.n_embd, table, rope, layers, norm, head, logit_cap });
    Ok(Loaded { arch, cache, shape: Shape::decoder(&hp) })
}

impl Architecture for Gemma2 {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        let mut x = g.scale("inp_scaled", x, (self.n_embd as f32).sqrt());
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = g.rms_norm("attn_norm", &l.attn_norm, x);
            let [q, k, v] = l.qkv.project(g, h);
            let q = g.rope("Qcur_rope", q, l.attention.key_dim, self.rope);
            let k = g.rope("Kcur_rope", k, l.attention.key_dim, self.rope);
            let mut a = g.attention("kqv_out", i, [q, k, v], l.attention);
            if outputs_only && i + 1 == self.layers.len() {
                (a, x) = (g.gather_outputs(a), g.gather_outputs(x));
            }
            let a = g.linear("attn_out", &l.wo, a);
            let a = g.rms_norm("attn_post_norm", &l.post_attn_norm, a);
            x = g.add("sa_out", x, a);
            let h = g.rms_norm("ffn_norm", &l.ffn_norm, x);
            let f = l.ffn.forward(g, h);
            let f = g.rms_norm("ffn_post_norm", &l.post_ffn_norm, f);
            x = g.add("l_out", x, f);
        }
        g.set_layer(None);
        g.rms_norm("result_norm", &self.norm, x)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        let logits = g.linear("result_output", &self.head, hidden);
        match self.logit_cap {
            Some(cap) => g.softcap("result_capped", logits, cap),
            None => logits,
        }
    }
}
