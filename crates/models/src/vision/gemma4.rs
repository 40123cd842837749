//! Gemma 4: a tower with tables of columns and rows, rotary positions, norms in front of and behind
//! attention and networks, and pooled patches. Gemma 4 unified: patches without a tower.
//! GGUF: `clip.projector_type = "gemma4v"`, `"gemma4uv"`.
//!
//! Norms are RMS norms. Values have a norm without weight, and scores have no scale. Linear layers
//! may clamp their inputs and results (`.input_min`, `.input_max`, `.output_min`, `.output_max`).
//! Head: mean of m × m patches times √E, `(x - v.std_bias) · v.std_scale`, an RMS norm without
//! weight, and `mm.input_projection`. Source: `Gemma4VisionModel` of transformers.
//!
//! Unified: the layer norms `v.patch_norm.{1,2,3}` of the pixels of a patch, of their product with
//! `v.patch_embd`, and of its sum with the positions; then the norm and the matrix of the head.

use puna_graph::{Activation, AttentionSpec, Glu, Graph, Index, Linear, Mask, ValueId};

use super::encoder::{HeadRopes, head_count, patch_embedding};
use super::patches::PatchLayout;
use super::position_table::PositionTable;
use super::rope::{COLUMN_AXIS, ROW_AXIS, one_axis_rope};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::norms::{AnyNorm, NormKind};
use crate::weights::Weights;

/// Patches of a side of a token, if the file does not say.
const DEFAULT_POOL: usize = 3;
/// Base of the rotary frequencies.
const ROPE_BASE: f64 = 100.0;
/// Epsilon of the layer norms of patches, the default of PyTorch.
const PATCH_EPS: f32 = 1e-5;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let pool = keys.count_or("vision.projector.scale_factor", DEFAULT_POOL)?;
    let layout = PatchLayout { has_signed_pixels: true, ..grid_layout(keys, pool)? };
    let n_embd = keys.hidden_size("vision.embedding_length")?;
    let heads = head_count(keys, n_embd)?;
    let norm = NormKind::Rms(keys.epsilon("vision.attention.layer_norm_epsilon")?);
    let patch = patch_embedding(w, "", &layout, n_embd)?;
    let positions = PositionTable::load_axes(w, n_embd)?;
    let dim = n_embd / heads;
    let axes = [COLUMN_AXIS, ROW_AXIS].map(|axis| one_axis_rope(axis, dim / 2, ROPE_BASE));
    let [by_column, by_row] = axes.map(|rope| w.rope(rope));
    let ropes = [(0, by_column), (dim / 2, by_row)];
    let blocks = (0..keys.layers("vision.block_count")?)
        .map(|i| Block::load(w, &format!("v.blk.{i}"), (n_embd, heads), norm))
        .collect::<Result<Vec<_>, _>>()?;
    let standard = match w.opt("v.std_bias", &[n_embd, 1])? {
        Some(bias) => Some([bias, w.tensor("v.std_scale", &[n_embd, 1])?]),
        None => None,
    };
    let project = projection(w, n_embd)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = g.input_rows("inp_raw", layout.patch_values());
    let x = g.linear("patch_embd", &patch, x);
    let rows = g.input_rows("pos_embd", n_embd);
    let mut x = g.add("inp_pos", x, rows);
    for (i, block) in blocks.iter().enumerate() {
        g.set_layer(Some(i));
        x = block.forward(g, i, x, &ropes);
    }
    g.set_layer(None);
    let x = g.mean_rows("pooled", x, layout.patches_per_token());
    let mut x = g.scale("pooled_scaled", x, (n_embd as f32).sqrt());
    if let Some([bias, scale]) = standard {
        let [bias, scale] = [bias, scale].map(|weight| {
            let row = g.embed("std", weight, n_embd, Index::Fixed(0));
            g.gather_outputs(row)
        });
        let bias = g.scale("std_bias", bias, -1.0);
        x = g.add("centered", x, bias);
        x = g.mul("standardized", x, scale);
    }
    let x = norm.unweighted(n_embd).apply(g, "mm_norm", x);
    let x = g.linear("mm_out", &project, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}

pub(super) fn load_unified(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
) -> Result<LoadedTower, ModelError> {
    let pool = keys.count_or("vision.projector.scale_factor", DEFAULT_POOL)?;
    let small = grid_layout(keys, pool)?;
    let layout = PatchLayout { patch: small.patch * pool, merge: 1, ..small };
    let n_embd = keys.hidden_size("vision.embedding_length")?;
    let eps = keys.epsilon("vision.attention.layer_norm_epsilon")?;
    let patch = patch_embedding(w, "", &layout, n_embd)?;
    let positions = PositionTable::load_axes(w, n_embd)?;
    let widths = [layout.patch_values(), n_embd, n_embd];
    let [pixel_norm, patch_norm, sum_norm] = [1, 2, 3].map(|i| {
        let name = format!("v.patch_norm.{i}");
        NormKind::Layer(PATCH_EPS).load(w, &name, &[widths[i - 1]])
    });
    let (pixel_norm, patch_norm, sum_norm) = (pixel_norm?, patch_norm?, sum_norm?);
    let project = projection(w, n_embd)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = g.input_rows("inp_raw", layout.patch_values());
    let x = pixel_norm.apply(g, "inp_norm", x);
    let x = g.linear("patch_embd", &patch, x);
    let x = patch_norm.apply(g, "patch_norm", x);
    let rows = g.input_rows("pos_embd", n_embd);
    let x = g.add("inp_pos", x, rows);
    let x = sum_norm.apply(g, "pos_norm", x);
    let x = NormKind::Rms(eps).unweighted(n_embd).apply(g, "mm_norm", x);
    let x = g.gather_outputs(x);
    let x = g.linear("mm_out", &project, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}

fn projection(w: &mut Weights<'_>, n_embd: usize) -> Result<Linear, ModelError> {
    let width = w.rows_of("mm.input_projection.weight")?;
    w.linear("mm.input_projection", n_embd, width)
}

struct Block {
    input_norm: AnyNorm,
    qkv: [ClampedLinear; 3],
    qk_norm: [AnyNorm; 2],
    value_norm: AnyNorm,
    attention: AttentionSpec,
    wo: ClampedLinear,
    attention_norm: AnyNorm,
    ffn_norm: AnyNorm,
    gate: ClampedLinear,
    up: ClampedLinear,
    down: ClampedLinear,
    post_ffn_norm: AnyNorm,
}

impl Block {
    fn load(
        w: &mut Weights<'_>,
        block: &str,
        (n_embd, heads): (usize, usize),
        norm: NormKind,
    ) -> Result<Self, ModelError> {
        let dim = n_embd / heads;
        let (mask, scale) = (Mask::Full, 1.0);
        let attention =
            AttentionSpec { mask, scale, ..AttentionSpec::causal(heads, heads, dim, dim) };
        let ff = w.rows_of(&format!("{block}.ffn_up.weight"))?;
        let mut linear = |name: &str, input: usize, out: usize| {
            ClampedLinear::load(w, &format!("{block}.{name}"), input, out)
        };
        let qkv = [
            linear("attn_q", n_embd, n_embd)?,
            linear("attn_k", n_embd, n_embd)?,
            linear("attn_v", n_embd, n_embd)?,
        ];
        let wo = linear("attn_out", n_embd, n_embd)?;
        let (gate, up) = (linear("ffn_gate", n_embd, ff)?, linear("ffn_up", n_embd, ff)?);
        let down = linear("ffn_down", ff, n_embd)?;
        let mut norm_of =
            |name: &str, width: usize| norm.load(w, &format!("{block}.{name}"), &[width]);
        Ok(Self {
            input_norm: norm_of("ln1", n_embd)?,
            qkv,
            qk_norm: [norm_of("attn_q_norm", dim)?, norm_of("attn_k_norm", dim)?],
            value_norm: norm.unweighted(dim),
            attention,
            wo,
            attention_norm: norm_of("attn_post_norm", n_embd)?,
            ffn_norm: norm_of("ln2", n_embd)?,
            gate,
            up,
            down,
            post_ffn_norm: norm_of("ffn_post_norm", n_embd)?,
        })
    }

    fn forward(&self, g: &mut Graph, i: usize, x: ValueId, ropes: HeadRopes<'_>) -> ValueId {
        let dim = self.attention.key_dim;
        let h = self.input_norm.apply(g, "layer_inp_normed", x);
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (q.forward(g, "Qcur", h), k.forward(g, "Kcur", h), v.forward(g, "Vcur", h));
        let mut q = self.qk_norm[0].apply(g, "Qcur_norm", q);
        let mut k = self.qk_norm[1].apply(g, "Kcur_norm", k);
        let v = self.value_norm.apply(g, "Vcur_norm", v);
        for &(start, rope) in ropes {
            q = g.rope_from("Qcur_pos", q, (dim, start), rope);
            k = g.rope_from("Kcur_pos", k, (dim, start), rope);
        }
        let a = g.attention("kqv_out", i, [q, k, v], self.attention);
        let a = self.wo.forward(g, "attn_out", a);
        let a = self.attention_norm.apply(g, "attn_post_norm", a);
        let x = g.add("ffn_inp", a, x);
        let h = self.ffn_norm.apply(g, "ffn_inp_normed", x);
        let (gate, up) = (self.gate.forward(g, "ffn_gate", h), self.up.forward(g, "ffn_up", h));
        let h = g.glu("ffn_glu", Glu::Gelu, gate, up);
        let h = self.down.forward(g, "ffn_out", h);
        let h = self.post_ffn_norm.apply(g, "ffn_post_norm", h);
        g.add("layer_out", h, x)
    }
}

/// A matrix with bounds of its input and of its result.
struct ClampedLinear {
    linear: Linear,
    input: Option<Activation>,
    output: Option<Activation>,
}

impl ClampedLinear {
    fn load(w: &mut Weights<'_>, name: &str, input: usize, out: usize) -> Result<Self, ModelError> {
        Ok(Self {
            linear: w.linear(name, input, out)?,
            input: clamp(w, &format!("{name}.input"))?,
            output: clamp(w, &format!("{name}.output"))?,
        })
    }

    fn forward(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        let x = self.input.map_or(x, |clamp| g.activate("clamped_input", clamp, x));
        let x = g.linear(name, &self.linear, x);
        self.output.map_or(x, |clamp| g.activate("clamped_output", clamp, x))
    }
}

/// The bounds `NAME_min` and `NAME_max`, if the file has them.
fn clamp(w: &Weights<'_>, name: &str) -> Result<Option<Activation>, ModelError> {
    let bound = |end: &str| w.numbers(&format!("{name}_{end}"), 1);
    let (Some(min), Some(max)) = (bound("min")?, bound("max")?) else { return Ok(None) };
    match min[0] <= max[0] {
        true => Ok(Some(Activation::Clamp { min: min[0], max: max[0] })),
        false => Err(ModelError::KeyValue {
            key: format!("{name}_min"),
            value: min[0].to_string(),
            reason: "it must not exceed the upper bound",
        }),
    }
}
