//! BERT and related encoders: bidirectional attention, layer norms after each part. BERT has
//! learned positions and GELU; others have rotary embedding or ALiBi, and a gated network. An
//! optional classifier makes a reranker.
//! GGUF: `general.architecture = "bert"`, `"jina-bert-v2"`, `"jina-bert-v3"`, `"nomic-bert"`, and
//! `"nomic-bert-moe"`, in which every other layer has experts.

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::blocks::{Experts, FeedForward, Mlp, Qkv, UngatedMlp};
use crate::decoder::{AnyNorm, NormKind};
use crate::error::ModelError;
use crate::experts::ExpertShape;
use crate::hparams::{Hparams, Keys};
use crate::rope::RopeKeys;
use crate::weights::Weights;

struct Bert {
    n_embd: usize,
    table: WeightId,
    positions: Option<WeightId>,
    token_types: Option<WeightId>,
    embd_norm: Norm,
    layers: Vec<Layer>,
    classifier: Classifier,
}

struct Layer {
    qkv: Qkv,
    /// Norms of query and key over all heads together.
    qk_norm: [Option<AnyNorm>; 2],
    rope: Option<RopeId>,
    attention: AttentionSpec,
    wo: Linear,
    attn_norm: Norm,
    /// Norm of the first norm's result plus the layer's input.
    second_norm: Option<Norm>,
    ffn: FeedForward,
    out_norm: Norm,
}

/// Dense layer with tanh, then a projection to the labels; each is optional.
struct Classifier {
    dense: Option<Linear>,
    project: Option<Linear>,
}

/// Position encoding.
#[derive(Clone, Copy)]
enum PositionKind {
    /// Learned vectors, added to the token embeddings.
    Learned(WeightId),
    /// Rotary embedding of query and key.
    Rotary(RopeId),
    /// ALiBi with this maximum bias: scores decrease with the distance.
    Alibi(f32),
}

/// Kind of feed-forward network.
#[derive(Clone, Copy)]
enum FfnKind {
    Ungated(Activation),
    Gated(Glu),
    /// Experts in the second of every `n` layers, else a network without a gate.
    Mixture(ExpertShape, usize),
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let positions =
        PositionKind::Learned(w.tensor("position_embd.weight", &[hp.n_embd, hp.n_ctx])?);
    load_with(keys, w, &hp, positions, FfnKind::Ungated(Activation::GeluErf))
}

pub(super) fn load_nomic(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    load_with(keys, w, &hp, PositionKind::Rotary(rope), FfnKind::Gated(Glu::Silu))
}

pub(super) fn load_jina(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    load_with(keys, w, &Hparams::read(keys)?, PositionKind::Alibi(8.0), FfnKind::Gated(Glu::Gelu))
}

pub(super) fn load_jina_3(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    load_with(keys, w, &hp, PositionKind::Rotary(rope), FfnKind::Ungated(Activation::GeluErf))
}

pub(super) fn load_nomic_moe(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let rope = w.rope(RopeKeys::read(keys, hp.key_dim, hp.n_ctx)?.table(RopeKind::Neox, None));
    let shape = ExpertShape { glu: Glu::UngatedGelu, ..ExpertShape::read(keys, hp.ff(0))? };
    let ffn = FfnKind::Mixture(shape, keys.count("moe_every_n_layers")?);
    load_with(keys, w, &hp, PositionKind::Rotary(rope), ffn)
}

fn load_with(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    hp: &Hparams,
    positions: PositionKind,
    ffn: FfnKind,
) -> Result<LoadedArchitecture, ModelError> {
    let eps = keys.layer_eps()?;
    let n = hp.n_embd;
    let table = w.tensor("token_embd.weight", &[n, hp.n_vocab])?;
    let types = keys.meta().opt_u32("tokenizer.ggml.token_type_count")?.unwrap_or(2) as usize;
    let token_types = w.opt("token_types.weight", &[n, types])?;
    let embd_norm = w.norm("token_embd_norm", n, eps)?;
    let layers = (0..hp.n_layer).map(|i| layer(w, hp, i, eps, positions, ffn));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    let classifier = Classifier {
        dense: w.opt_linear("cls", n, n)?,
        project: w.opt_linear("cls.output", n, keys.labels()?)?,
    };
    let score_labels = match (&classifier.project, &classifier.dense) {
        (Some(project), _) => project.out,
        (None, Some(dense)) => dense.out,
        (None, None) => 0,
    };
    let shape =
        ModelShape { causal: false, has_logits: false, score_labels, ..ModelShape::decoder(hp) };
    let positions = if let PositionKind::Learned(table) = positions { Some(table) } else { None };
    let arch = Bert { n_embd: n, table, positions, token_types, embd_norm, layers, classifier };
    Ok(LoadedArchitecture { arch: Box::new(arch), cache: Vec::new(), shape })
}

fn layer(
    w: &mut Weights<'_>,
    hp: &Hparams,
    i: usize,
    eps: f32,
    positions: PositionKind,
    ffn: FfnKind,
) -> Result<Layer, ModelError> {
    let (b, n, ff) = (format!("blk.{i}"), hp.n_embd, hp.ff(i));
    let widths = hp.qkv_widths(i);
    let norm = NormKind::Layer(eps);
    let alibi = if let PositionKind::Alibi(max_bias) = positions { Some(max_bias) } else { None };
    Ok(Layer {
        qkv: Qkv::load(w, &b, n, widths)?,
        qk_norm: [
            norm.load_opt(w, &format!("{b}.attn_q_norm"), &[widths[0]])?,
            norm.load_opt(w, &format!("{b}.attn_k_norm"), &[widths[1]])?,
        ],
        rope: if let PositionKind::Rotary(rope) = positions { Some(rope) } else { None },
        attention: AttentionSpec { mask: Mask::Full, alibi, ..hp.attention(i) },
        wo: w.linear(&format!("{b}.attn_output"), hp.heads[i] * hp.value_dim, n)?,
        attn_norm: w.norm(&format!("{b}.attn_output_norm"), n, eps)?,
        second_norm: w.opt_norm(&format!("{b}.attn_norm_2"), &[n], eps)?,
        ffn: match ffn {
            FfnKind::Ungated(kind) => FeedForward::Ungated(UngatedMlp::load(w, &b, n, ff, kind)?),
            FfnKind::Mixture(shape, every) if i % every == 1 % every => {
                FeedForward::Moe(Experts::load(w, &b, n, shape)?)
            }
            FfnKind::Mixture(..) => {
                FeedForward::Ungated(UngatedMlp::load(w, &b, n, ff, Activation::GeluErf)?)
            }
            FfnKind::Gated(kind) => FeedForward::Dense(Mlp::load(w, &b, n, ff, kind)?),
        },
        out_norm: w.norm(&format!("{b}.layer_output_norm"), n, eps)?,
    })
}

impl Layer {
    fn forward(&self, g: &mut Graph, i: usize, x: ValueId) -> ValueId {
        let [mut q, mut k, v] = self.qkv.project(g, x);
        let [q_norm, k_norm] = &self.qk_norm;
        q = q_norm.as_ref().map_or(q, |norm| norm.apply(g, "Qcur_normed", q));
        k = k_norm.as_ref().map_or(k, |norm| norm.apply(g, "Kcur_normed", k));
        if let Some(rope) = self.rope {
            q = g.rope("Qcur_rope", q, self.attention.key_dim, rope);
            k = g.rope("Kcur_rope", k, self.attention.key_dim, rope);
        }
        let a = g.attention("kqv_out", i, [q, k, v], self.attention);
        let a = g.linear("attn_out", &self.wo, a);
        let h = g.add("attn_res", a, x);
        let mut h = g.layer_norm("attn_out_norm", &self.attn_norm, h);
        if let Some(norm) = &self.second_norm {
            let again = g.add("attn_res_2", h, x);
            h = g.layer_norm("attn_norm_2", norm, again);
        }
        let f = self.ffn.forward(g, h);
        let out = g.add("ffn_res", f, h);
        g.layer_norm("l_out", &self.out_norm, out)
    }
}

impl Architecture for Bert {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let mut x = g.embed("inp_embd", self.table, self.n_embd, Index::Token);
        if let Some(positions) = self.positions {
            let positions = g.embed("pos_embd", positions, self.n_embd, Index::Position);
            x = g.add("inp_pos", x, positions);
        }
        if let Some(types) = self.token_types {
            let row = g.embed("type_embd", types, self.n_embd, Index::Fixed(0));
            x = g.add("inp_type", x, row);
        }
        x = g.layer_norm("inp_norm", &self.embd_norm, x);
        for (i, layer) in self.layers.iter().enumerate() {
            g.set_layer(Some(i));
            x = layer.forward(g, i, x);
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
