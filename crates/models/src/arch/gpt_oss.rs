//! gpt-oss: pre-norm decoder, attention sinks, every other layer with a sliding window, a mixture of experts with biases
//! and a clamped SwiGLU.
//! GGUF: `general.architecture = "gpt-oss"`.

use puna_graph::*;

use crate::blocks::{Experts, Qkv};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct GptOss {
    n_embd: usize,
    table: WeightId,
    rope: RopeId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

struct Layer {
    attn_norm: Norm,
    qkv: Qkv,
    attention: AttentionSpec,
    wo: Linear,
    /// Stored as `post_attention_norm`.
    ffn_norm: Norm,
    ffn: Experts,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.rms_eps()?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let window = keys.count("attention.sliding_window")?;
    let sliding = keys.sliding(hp.n_layer, 2)?;
    let shape = ExpertShape {
        gating: Gating::SoftmaxOfChosen,
        glu: Glu::Clamped { alpha: 1.702, limit: 7.0 },
        ..ExpertShape::read(keys, keys.count("expert_feed_forward_length")?)?
    };
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let mut layers = Vec::with_capacity(hp.n_layer);
    for (i, &slides) in sliding.iter().enumerate() {
        let b = format!("blk.{i}");
        let (heads, kv_heads) = (hp.heads[i], hp.kv_heads[i]);
        let widths = [heads * hp.key_dim, kv_heads * hp.key_dim, kv_heads * hp.value_dim];
        layers.push(Layer {
            attn_norm: w.norm(&format!("{b}.attn_norm"), hp.n_embd, eps)?,
            qkv: Qkv::load(w, &b, hp.n_embd, widths)?,
            attention: AttentionSpec {
                mask: if slides { Mask::Window(window as u32) } else { Mask::Causal },
                sinks: Some(w.tensor(&format!("{b}.attn_sinks.weight"), &[heads])?),
                ..hp.attention(i)
            },
            wo: w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, hp.n_embd)?,
            ffn_norm: w.norm(&format!("{b}.post_attention_norm"), hp.n_embd, eps)?,
            ffn: Experts::load(w, &b, hp.n_embd, shape)?,
        });
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.head(table, hp.n_embd, hp.n_vocab)?;
    let cache = layers.iter().map(|l| l.attention.cache_layer()).collect();
    let arch = Box::new(GptOss { n_embd: hp.n_embd, table, rope, layers, norm, head });
    Ok(Loaded { arch, cache, shape: Shape::decoder(&hp) })
}

impl Architecture for GptOss {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
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
            x = g.add("ffn_inp", x, a);
            let h = g.rms_norm("attn_post_norm", &l.ffn_norm, x);
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
