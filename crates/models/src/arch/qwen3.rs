//! Qwen3: pre-norm decoder, grouped-query attention with RMS-normed query and key heads, SwiGLU or a mixture of experts;
//! rerankers have a projection to labels, whose probabilities are the scores.
//! GGUF: `general.architecture = "qwen3"` and `"qwen3moe"`.

use puna_graph::*;

use crate::blocks::{Experts, FeedForward, Mlp, Qkv};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct Qwen3 {
    n_embd: usize,
    table: WeightId,
    rope: RopeId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    classifier: Option<Linear>,
}

struct Layer {
    attn_norm: Norm,
    qkv: Qkv,
    q_norm: Norm,
    k_norm: Norm,
    attention: AttentionSpec,
    wo: Linear,
    ffn_norm: Norm,
    ffn: FeedForward,
}

pub(super) fn load_dense(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    load(keys, w, &hp, |w, block, i| {
        let ff = hp.ff.get(i).copied().unwrap_or(0);
        Ok(FeedForward::Dense(Mlp::load(w, block, hp.n_embd, ff, Glu::Silu)?))
    })
}

pub(super) fn load_moe(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let hidden = keys.count("expert_feed_forward_length")?;
    let shape = ExpertShape { normalise: true, ..ExpertShape::read(keys, hidden)? };
    load(keys, w, &hp, |w, block, _| Ok(FeedForward::Moe(Experts::load(w, block, hp.n_embd, shape)?)))
}

fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    feed_forward: impl Fn(&mut Weights<'_>, &str, usize) -> Result<FeedForward, ModelError>,
) -> Result<Loaded, ModelError> {
    let eps = keys.rms_eps()?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let table = w.tensor("token_embd.weight", &[hp.n_embd, hp.n_vocab])?;
    let mut layers = Vec::with_capacity(hp.n_layer);
    for i in 0..hp.n_layer {
        let b = format!("blk.{i}");
        let (heads, kv_heads) = (hp.heads[i], hp.kv_heads[i]);
        let widths = [heads * hp.key_dim, kv_heads * hp.key_dim, kv_heads * hp.value_dim];
        layers.push(Layer {
            attn_norm: w.norm(&format!("{b}.attn_norm"), hp.n_embd, eps)?,
            qkv: Qkv::load(w, &b, hp.n_embd, widths)?,
            q_norm: w.norm(&format!("{b}.attn_q_norm"), hp.key_dim, eps)?,
            k_norm: w.norm(&format!("{b}.attn_k_norm"), hp.key_dim, eps)?,
            attention: hp.attention(i),
            wo: w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, hp.n_embd)?,
            ffn_norm: w.norm(&format!("{b}.ffn_norm"), hp.n_embd, eps)?,
            ffn: feed_forward(w, &b, i)?,
        });
    }
    let norm = w.norm("output_norm", hp.n_embd, eps)?;
    let head = w.head(table, hp.n_embd, hp.n_vocab)?;
    let classifier = w.opt_linear("cls.output", hp.n_embd, keys.labels()?)?;
    let cache = layers.iter().map(|l| l.attention.cache_layer()).collect();
    let score_labels = classifier.as_ref().map_or(0, |c| c.out);
    let shape = Shape { score_labels, score_is_softmax: true, ..Shape::decoder(hp) };
    let arch = Box::new(Qwen3 { n_embd: hp.n_embd, table, rope, layers, norm, head, classifier });
    Ok(Loaded { arch, cache, shape })
}

impl Architecture for Qwen3 {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let h = g.rms_norm("attn_norm", &l.attn_norm, x);
            let [q, k, v] = l.qkv.project(g, h);
            let q = g.rms_norm("Qcur_normed", &l.q_norm, q);
            let k = g.rms_norm("Kcur_normed", &l.k_norm, k);
            let q = g.rope("Qcur_rope", q, l.attention.key_dim, self.rope);
            let k = g.rope("Kcur_rope", k, l.attention.key_dim, self.rope);
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

    fn score(&self, g: &mut Graph, hidden: ValueId) -> Option<ValueId> {
        self.classifier.as_ref().map(|classifier| g.linear("cls_out", classifier, hidden))
    }
}
