//! The transformer that most towers share: patch embedding, blocks with full attention and two
//! norms, as in ViT (Dosovitskiy et al., 2021).
//!
//! | tensor | |
//! |---|---|
//! | `v.patch_embd.{weight,bias}` | patch of 3 · P · P values → E |
//! | `v.patch_embd.weight.1` | second frame; a still picture is its own second frame |
//! | `v.norm_embd` | norm behind the patch embedding |
//! | `v.pre_ln`, `v.post_ln` | norms around the blocks |
//! | `v.blk.N.ln1`, `attn_{q,k,v}`, `attn_qkv`, `attn_{q,k}_norm`, `attn_out`, `ls1` | attention |
//! | `v.blk.N.ln2`, `ffn_{gate,up,down}`, `ls2` | feed-forward network |
//!
//! Qwen2.5-VL has blocks with attention within windows ([`EncoderSpec::full_attention_every`]).

use std::ops::Range;

use puna_graph::{
    Activation, AttentionSpec, Glu, Graph, Index, Linear, Mask, RopeId, ValueId, WeightId,
};

use super::patches::PatchLayout;
use crate::blocks::Qkv;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::norms::{AnyNorm, NormKind};
use crate::weights::Weights;

/// Slope of the sigmoid in quick GELU, `x · σ(1.702 x)`.
const QUICK_GELU: f32 = 1.702;

/// Activation of the feed-forward networks without a gate.
#[derive(Debug, Clone, Copy)]
pub(super) enum FfnActivation {
    Plain(Activation),
    /// `x · σ(1.702 x)`, as in CLIP (Radford et al., 2021).
    QuickGelu,
}

/// Rotary tables of a block, each with the first dimension of a head that it rotates.
pub(super) type HeadRopes<'a> = &'a [(usize, RopeId)];

/// Properties of a family's transformer.
pub(super) struct EncoderSpec {
    /// Activation of networks without a gate.
    pub activation: FfnActivation,
    /// Activation of networks with a gate.
    pub glu: Glu,
    /// Whether norms are RMS norms.
    pub is_rms: bool,
    /// Whether files may have exchanged the names of `ffn_up` and `ffn_down`.
    pub may_swap_ffn: bool,
    /// Whether the last block is left out.
    pub skips_last_block: bool,
    /// Whether the graph has an input of learned positions.
    pub has_positions: bool,
    /// Each block with a number that is a multiple has full attention, counted from 1. The other
    /// blocks have attention within windows of rows; all blocks without a number.
    pub full_attention_every: Option<usize>,
}

impl EncoderSpec {
    /// Layer norms, full attention and learned positions.
    pub fn new(activation: FfnActivation) -> Self {
        Self {
            activation,
            glu: Glu::Silu,
            is_rms: false,
            may_swap_ffn: false,
            skips_last_block: false,
            has_positions: true,
            full_attention_every: Some(1),
        }
    }
}

/// The transformer of a file.
pub(super) struct Encoder {
    /// Columns of a row.
    pub n_embd: usize,
    /// Epsilon of norms.
    pub eps: f32,
    patch_values: usize,
    patch: Vec<Linear>,
    patch_norm: AnyNorm,
    has_positions: bool,
    pre_norm: AnyNorm,
    blocks: Vec<Block>,
    post_norm: AnyNorm,
}

struct Block {
    norms: [AnyNorm; 2],
    qkv: Qkv,
    qk_norm: [AnyNorm; 2],
    attention: AttentionSpec,
    wo: Linear,
    ffn: Ffn,
    /// Factors of the results of attention and network, one for each column.
    scales: [Option<WeightId>; 2],
}

enum Ffn {
    Gated { gate: Linear, up: Linear, down: Linear, glu: Glu },
    Plain { up: Linear, down: Linear, activation: FfnActivation },
}

impl Encoder {
    /// Loads the tensors of a file.
    pub fn load(
        keys: &Keys<'_>,
        w: &mut Weights<'_>,
        layout: &PatchLayout,
        spec: &EncoderSpec,
    ) -> Result<Self, ModelError> {
        let n_embd = keys.hidden_size("vision.embedding_length")?;
        let heads = head_count(keys, n_embd)?;
        let eps = keys.epsilon("vision.attention.layer_norm_epsilon")?;
        let norm = if spec.is_rms { NormKind::Rms(eps) } else { NormKind::Layer(eps) };
        let layers = keys.layers("vision.block_count")?;
        let used = if spec.skips_last_block { layers.saturating_sub(1) } else { layers };
        let mut patch = vec![patch_embedding(w, "", layout, n_embd)?];
        if w.has("v.patch_embd.weight.1") {
            patch.push(patch_embedding(w, ".1", layout, n_embd)?);
        }
        let mut blocks = Vec::new();
        for i in 0..used {
            let is_full = |every: usize| (i + 1).is_multiple_of(every);
            let mask = match spec.full_attention_every.is_some_and(is_full) {
                true => Mask::Full,
                false => Mask::RowWindow,
            };
            let dim = n_embd / heads;
            let attention = AttentionSpec { mask, ..AttentionSpec::causal(heads, heads, dim, dim) };
            blocks.push(Block::load(w, &format!("v.blk.{i}"), attention, norm, spec)?);
        }
        Ok(Self {
            n_embd,
            eps,
            patch_values: layout.patch_values(),
            patch,
            patch_norm: norm.load_opt(w, "v.norm_embd", &[n_embd])?.unwrap_or(AnyNorm::None),
            has_positions: spec.has_positions,
            pre_norm: norm.load_opt(w, "v.pre_ln", &[n_embd])?.unwrap_or(AnyNorm::None),
            blocks,
            post_norm: norm.load_opt(w, "v.post_ln", &[n_embd])?.unwrap_or(AnyNorm::None),
        })
    }

    /// Values of the bias of the patch embedding; zeros without.
    pub fn patch_bias(w: &Weights<'_>, n_embd: usize) -> Result<Vec<f32>, ModelError> {
        Ok(w.numbers("v.patch_embd.bias", n_embd)?.unwrap_or_else(|| vec![0.0; n_embd]))
    }

    /// Rows of all patches behind the blocks, before the last norm. `after_block` is called with
    /// the result of each block.
    pub fn forward(
        &self,
        g: &mut Graph,
        ropes: HeadRopes<'_>,
        after_block: impl FnMut(&mut Graph, usize, ValueId),
    ) -> ValueId {
        let x = self.embed(g);
        self.run_blocks(g, 0..self.blocks.len(), x, ropes, after_block)
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Rows of all patches in front of the first block.
    pub fn embed(&self, g: &mut Graph) -> ValueId {
        let patches = g.input_rows("inp_raw", self.patch_values);
        let mut x = g.linear("patch_embd", &self.patch[0], patches);
        for second in &self.patch[1..] {
            let other = g.linear("patch_embd_1", second, patches);
            x = g.add("patch_embd", x, other);
        }
        x = self.patch_norm.apply(g, "norm_embd", x);
        if self.has_positions {
            let positions = g.input_rows("pos_embd", self.n_embd);
            x = g.add("inp_pos", x, positions);
        }
        self.pre_norm.apply(g, "pre_ln", x)
    }

    /// Rows behind these blocks, from the rows in front of them. `after_block` is called with the
    /// result of each block.
    pub fn run_blocks(
        &self,
        g: &mut Graph,
        blocks: Range<usize>,
        mut x: ValueId,
        ropes: HeadRopes<'_>,
        mut after_block: impl FnMut(&mut Graph, usize, ValueId),
    ) -> ValueId {
        for i in blocks {
            g.set_layer(Some(i));
            x = self.blocks[i].forward(g, i, x, ropes);
            after_block(g, i, x);
        }
        g.set_layer(None);
        x
    }

    /// The norm behind the blocks, if the file has it.
    pub fn post_norm(&self, g: &mut Graph, x: ValueId) -> ValueId {
        self.post_norm.apply(g, "post_ln", x)
    }
}

impl Block {
    fn load(
        w: &mut Weights<'_>,
        block: &str,
        attention: AttentionSpec,
        norm: NormKind,
        spec: &EncoderSpec,
    ) -> Result<Self, ModelError> {
        let (dim, n_embd) = (attention.key_dim, attention.heads * attention.key_dim);
        let scale = |w: &mut Weights<'_>, name: &str| {
            w.opt(&format!("{block}.{name}.weight"), &[n_embd, 1])
        };
        Ok(Self {
            norms: [
                norm.load(w, &format!("{block}.ln1"), &[n_embd])?,
                norm.load(w, &format!("{block}.ln2"), &[n_embd])?,
            ],
            qkv: Qkv::load(w, block, n_embd, [n_embd; 3])?,
            qk_norm: [
                norm.load_opt(w, &format!("{block}.attn_q_norm"), &[dim])?.unwrap_or(AnyNorm::None),
                norm.load_opt(w, &format!("{block}.attn_k_norm"), &[dim])?.unwrap_or(AnyNorm::None),
            ],
            attention,
            wo: w.linear(&format!("{block}.attn_out"), n_embd, n_embd)?,
            ffn: Ffn::load(w, block, n_embd, spec)?,
            scales: [scale(w, "ls1")?, scale(w, "ls2")?],
        })
    }

    fn forward(&self, g: &mut Graph, i: usize, x: ValueId, ropes: HeadRopes<'_>) -> ValueId {
        let dim = self.attention.key_dim;
        let h = self.norms[0].apply(g, "layer_inp_normed", x);
        let [mut q, mut k, v] = self.qkv.project(g, h);
        q = self.qk_norm[0].apply(g, "Qcur_norm", q);
        k = self.qk_norm[1].apply(g, "Kcur_norm", k);
        for &(start, rope) in ropes {
            q = g.rope_from("Qcur_pos", q, (dim, start), rope);
            k = g.rope_from("Kcur_pos", k, (dim, start), rope);
        }
        let a = g.attention("kqv_out", i, [q, k, v], self.attention);
        let a = g.linear("attn_out", &self.wo, a);
        let a = self.scaled(g, 0, a);
        let x = g.add("ffn_inp", a, x);
        let h = self.norms[1].apply(g, "ffn_inp_normed", x);
        let f = self.ffn.forward(g, h);
        let f = self.scaled(g, 1, f);
        g.add("layer_out", f, x)
    }

    fn scaled(&self, g: &mut Graph, part: usize, x: ValueId) -> ValueId {
        let Some(scale) = self.scales[part] else { return x };
        let cols = g.value(x).cols;
        let factors = g.embed("layer_scale", scale, cols, Index::Fixed(0));
        g.mul("layer_scaled", x, factors)
    }
}

impl Ffn {
    fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        spec: &EncoderSpec,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{block}.ffn_{part}.weight");
        // The matrix that takes rows of the tower is the first one.
        let is_swapped = spec.may_swap_ffn && w.columns(&name("down")) == Some(n_embd);
        let [up, down] = if is_swapped { ["down", "up"] } else { ["up", "down"] };
        let missing = || ModelError::MissingTensor { name: name(up) };
        let ff = w.rows(&name(up)).ok_or_else(missing)?;
        let up = w.linear(&format!("{block}.ffn_{up}"), n_embd, ff)?;
        let down = w.linear(&format!("{block}.ffn_{down}"), ff, n_embd)?;
        Ok(match w.opt_linear(&format!("{block}.ffn_gate"), n_embd, ff)? {
            Some(gate) => Self::Gated { gate, up, down, glu: spec.glu },
            None => Self::Plain { up, down, activation: spec.activation },
        })
    }

    fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        match self {
            Self::Gated { gate, up, down, glu } => {
                let (gate, up) = (g.linear("ffn_gate", gate, x), g.linear("ffn_up", up, x));
                let h = g.glu("ffn_glu", *glu, gate, up);
                g.linear("ffn_out", down, h)
            }
            Self::Plain { up, down, activation } => {
                let h = g.linear("ffn_up", up, x);
                let h = activation.apply(g, h);
                g.linear("ffn_out", down, h)
            }
        }
    }
}

impl FfnActivation {
    fn apply(self, g: &mut Graph, x: ValueId) -> ValueId {
        match self {
            Self::Plain(kind) => g.activate("ffn_act", kind, x),
            Self::QuickGelu => {
                let x = g.scale("ffn_act_in", x, QUICK_GELU);
                let x = g.activate("ffn_act", Activation::Silu, x);
                g.scale("ffn_act_out", x, 1.0 / QUICK_GELU)
            }
        }
    }
}

/// Number of attention heads, which divides the width.
pub(super) fn head_count(keys: &Keys<'_>, n_embd: usize) -> Result<usize, ModelError> {
    let heads = keys.count("vision.attention.head_count")?;
    if n_embd.is_multiple_of(heads) {
        return Ok(heads);
    }
    let (key, value) = (keys.name("vision.attention.head_count"), heads.to_string());
    Err(ModelError::KeyValue { key, value, reason: "it must divide the embedding length" })
}

/// The patch embedding with this suffix of its name. Some files hold the matrix of unfolded
/// patches.
pub(super) fn patch_embedding(
    w: &mut Weights<'_>,
    suffix: &str,
    layout: &PatchLayout,
    n_embd: usize,
) -> Result<Linear, ModelError> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("v.patch_embd.{part}{suffix}"));
    let (side, values) = (layout.patch, layout.patch_values());
    let stored = match w.columns(&weight) == Some(values) {
        true => vec![values, n_embd],
        false => vec![side, side, 3, n_embd],
    };
    w.reshaped_linear([&weight, &bias], &stored, [values, n_embd])
}

/// The matrices of [`mlp`]: the first takes `input` columns.
pub(super) fn load_mlp(
    w: &mut Weights<'_>,
    [first, second]: [&str; 2],
    input: usize,
) -> Result<[Linear; 2], ModelError> {
    let hidden = w.rows_of(&format!("{first}.weight"))?;
    let width = w.rows_of(&format!("{second}.weight"))?;
    Ok([w.linear(first, input, hidden)?, w.linear(second, hidden, width)?])
}

/// Two matrices with an activation between them.
pub(super) fn mlp(
    g: &mut Graph,
    first: &Linear,
    kind: Activation,
    second: &Linear,
    x: ValueId,
) -> ValueId {
    let h = g.linear("mm_up", first, x);
    let h = g.activate("mm_act", kind, h);
    g.linear("mm_out", second, h)
}

/// Matrix of merged patches, which the file orders by channel and then by patch, with columns
/// ordered by patch.
pub(super) fn by_patch(
    w: &mut Weights<'_>,
    name: &str,
    channels: usize,
    patches: usize,
) -> Result<Linear, ModelError> {
    let missing = || ModelError::MissingTensor { name: name.into() };
    let (out, input) = (w.outer_size(name).ok_or_else(missing)?, channels * patches);
    let stored = w.numbers(name, out * input)?.ok_or_else(missing)?;
    let mut numbers = Vec::with_capacity(stored.len());
    for row in stored.chunks_exact(input) {
        for patch in 0..patches {
            numbers.extend((0..channels).map(|channel| row[channel * patches + patch]));
        }
    }
    let w = w.constant(&format!("{name} (by patch)"), &[input, out], &numbers);
    Ok(Linear { w, scale: 1.0, bias: None, out })
}
