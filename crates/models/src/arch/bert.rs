//! BERT and RoBERTa encoders: learned positions, every token sees every other, layer norms after each part, GELU; an
//! optional classifier makes a reranker.
//! GGUF: `general.architecture = "bert"`.

use puna_graph::*;

use crate::blocks::Qkv;
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::model::{Architecture, LoadOptions, Loaded, Shape};
use crate::weights::Weights;

struct Bert {
    n_embd: usize,
    table: WeightId,
    positions: WeightId,
    token_types: Option<WeightId>,
    embd_norm: Norm,
    layers: Vec<Layer>,
    classifier: Classifier,
}

struct Layer {
    qkv: Qkv,
    attention: AttentionSpec,
    wo: Linear,
    attn_norm: Norm,
    up: Linear,
    down: Linear,
    out_norm: Norm,
}

/// Dense and tanh, then a projection to the labels; either may be absent.
struct Classifier {
    dense: Option<Linear>,
    project: Option<Linear>,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>, _: LoadOptions) -> Result<Loaded, ModelError> {
    let hp = Hparams::read(keys)?;
    let eps = keys.layer_eps()?;
    let n = hp.n_embd;
    let table = w.tensor("token_embd.weight", &[n, hp.n_vocab])?;
    let positions = w.tensor("position_embd.weight", &[n, hp.n_ctx])?;
    let types = keys.meta().opt_u32("tokenizer.ggml.token_type_count")?.unwrap_or(2) as usize;
    let token_types = w.opt("token_types.weight", &[n, types])?;
    let embd_norm = w.norm("token_embd_norm", n, eps)?;
    let mut layers = Vec::with_capacity(hp.n_layer);
    for i in 0..hp.n_layer {
        let b = format!("blk.{i}");
        let heads = hp.heads[i];
        let ff = hp.ff.get(i).copied().unwrap_or(0);
        let width = heads * hp.key_dim;
        layers.push(Layer {
            qkv: Qkv::load(w, &b, n, [width, width, heads * hp.value_dim])?,
            attention: AttentionSpec { mask: Mask::Full, ..hp.attention(i) },
            wo: w.linear(&format!("{b}.attn_output"), heads * hp.value_dim, n)?,
            attn_norm: w.norm(&format!("{b}.attn_output_norm"), n, eps)?,
            up: w.linear(&format!("{b}.ffn_up"), n, ff)?,
            down: w.linear(&format!("{b}.ffn_down"), ff, n)?,
            out_norm: w.norm(&format!("{b}.layer_output_norm"), n, eps)?,
        });
    }
    let classifier = Classifier {
        dense: w.opt_linear("cls", n, n)?,
        project: w.opt_linear("cls.output", n, keys.labels()?)?,
    };
    let score_labels = match (&classifier.project, &classifier.dense) {
        (Some(project), _) => project.out,
        (None, Some(dense)) => dense.out,
        (None, None) => 0,
    };
    let shape = Shape { causal: false, has_logits: false, score_labels, ..Shape::decoder(&hp) };
    let arch = Bert { n_embd: n, table, positions, token_types, embd_norm, layers, classifier };
    Ok(Loaded { arch: Box::new(arch), cache: Vec::new(), shape })
}

impl Architecture for Bert {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        let positions = g.embed("pos_embd", self.positions, self.n_embd, Index::Position);
        let mut x = g.add("inp_pos", x, positions);
        if let Some(types) = self.token_types {
            let row = g.embed("type_embd", types, self.n_embd, Index::Fixed(0));
            x = g.add("inp_type", x, row);
        }
        x = g.layer_norm("inp_norm", &self.embd_norm, x);
        for (i, l) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            let [q, k, v] = l.qkv.project(g, x);
            let a = g.attention("kqv_out", i, [q, k, v], l.attention);
            let a = g.linear("attn_out", &l.wo, a);
            let h = g.add("attn_res", a, x);
            let h = g.layer_norm("attn_out_norm", &l.attn_norm, h);
            let f = g.linear("ffn_up", &l.up, h);
            let f = g.activate("ffn_gelu", Activation::GeluErf, f);
            let f = g.linear("ffn_out", &l.down, f);
            let out = g.add("ffn_res", f, h);
            x = g.layer_norm("l_out", &l.out_norm, out);
        }
        g.set_layer(None);
        if outputs_only { g.gather_outputs(x) } else { x }
    }

    fn logits(&self, _: &mut Graph, hidden: ValueId) -> ValueId {
        hidden
    }

    fn score(&self, g: &mut Graph, hidden: ValueId) -> Option<ValueId> {
        let Classifier { dense, project } = &self.classifier;
        let mut x = hidden;
        if let Some(dense) = dense {
            x = g.linear("cls_dense", dense, x);
            x = g.activate("cls_tanh", Activation::Tanh, x);
        }
        if let Some(project) = project {
            x = g.linear("cls_out", project, x);
        }
        (dense.is_some() || project.is_some()).then_some(x)
    }
}
