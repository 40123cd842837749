//! Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5 and 3.6: a tower with two-dimensional rotary positions,
//! and a merger.
//! GGUF: `clip.projector_type = "qwen2vl_merger"`, `"qwen2.5vl_merger"`, `"qwen3vl_merger"`.
//!
//! Merger: norm `v.post_ln` of each patch, the four patches of a token side by side,
//! `mm.2 · gelu(mm.0 · x)` with the exact GELU.
//!
//! Qwen2.5-VL has RMS norms, gated networks, and attention within windows of 112 × 112 pixels;
//! every `n_wa_pattern`-th block has full attention.
//!
//! Qwen3-VL also has learned positions and, behind some blocks, mergers of their own (DeepStack;
//! Meng et al., 2024), `v.deepstack.N.{norm,fc1,fc2}`. Their columns follow those of the last block
//! in each row.

use puna_graph::{Activation, Graph, Linear, Norm, Rope, RopeKind, ValueId};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, mlp};
use super::patches::PatchLayout;
use super::position_table::{PositionTable, Resize};
use super::rope::{COLUMN_AXIS, ROW_AXIS, equal_halves, two_axis_rope};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Patches of a side of a token, if the file does not say.
const DEFAULT_MERGE: usize = 2;
/// Pixels of a side of a window, if the file does not say.
const DEFAULT_WINDOW_PIXELS: usize = 112;

/// Merger behind a block in the middle of the tower.
struct DeepStack {
    block: usize,
    norm: Norm,
    first: Linear,
    second: Linear,
}

pub(super) fn load_2(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let spec = EncoderSpec::new(FfnActivation::QuickGelu);
    load(keys, w, layout(keys)?, EncoderSpec { has_positions: false, ..spec })
}

pub(super) fn load_2_5(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = layout(keys)?;
    let pixels = keys.count_or("vision.window_size", DEFAULT_WINDOW_PIXELS)?;
    let spec = EncoderSpec {
        is_rms: true,
        has_positions: false,
        full_attention_every: Some(keys.count("vision.n_wa_pattern")?),
        ..EncoderSpec::new(FfnActivation::Plain(Activation::Silu))
    };
    load(keys, w, layout.with_windows(pixels / layout.patch / layout.merge), spec)
}

pub(super) fn load_3(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    load(keys, w, layout(keys)?, EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh)))
}

fn layout(keys: &Keys<'_>) -> Result<PatchLayout, ModelError> {
    grid_layout(keys, keys.count_or("vision.spatial_merge_size", DEFAULT_MERGE)?)
}

fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    layout: PatchLayout,
    spec: EncoderSpec,
) -> Result<LoadedTower, ModelError> {
    let spec = EncoderSpec { may_swap_ffn: true, ..spec };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = spec
        .has_positions
        .then(|| PositionTable::load(w, n_embd, &layout, Resize::BilinearCorners))
        .transpose()?;
    let rope = w.rope(rope(n_embd / keys.count("vision.attention.head_count")?));
    let merged = layout.patches_per_token() * n_embd;
    let [first, second] = two_matrices(w, ["mm.0", "mm.2"], merged)?;
    let blocks = keys.layers("vision.block_count")?;
    let stacks = deep_stacks(w, blocks, merged, encoder.eps)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let mut stacked = Vec::new();
    let x = encoder.forward(g, &[(0, rope)], |g, i, x| {
        let of_block = stacks.iter().filter(|stack| stack.block == i);
        stacked.extend(of_block.map(|stack| stack.forward(g, &layout, x)));
    });
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("merged", x, layout.patches_per_token());
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    let x = stacked.into_iter().fold(x, |x, rows| g.concat("deepstack", x, rows));
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, positions))
}

/// Rotary table of heads with `head_dim` dimensions.
pub(super) fn rope(head_dim: usize) -> Rope {
    two_axis_rope(RopeKind::Neox, [ROW_AXIS, COLUMN_AXIS], head_dim, equal_halves(head_dim))
}

/// Two matrices, the first one for rows of `input` columns.
fn two_matrices(
    w: &mut Weights<'_>,
    [first, second]: [&str; 2],
    input: usize,
) -> Result<[Linear; 2], ModelError> {
    let hidden = w.rows_of(&format!("{first}.weight"))?;
    let width = w.rows_of(&format!("{second}.weight"))?;
    Ok([w.linear(first, input, hidden)?, w.linear(second, hidden, width)?])
}

/// Mergers of the blocks that the file has.
fn deep_stacks(
    w: &mut Weights<'_>,
    blocks: usize,
    merged: usize,
    eps: f32,
) -> Result<Vec<DeepStack>, ModelError> {
    let mut stacks = Vec::new();
    for block in 0..blocks {
        let name = format!("v.deepstack.{block}");
        if !w.has(&format!("{name}.fc1.weight")) {
            continue;
        }
        let norm = w.norm(&format!("{name}.norm"), merged, eps)?;
        let [first, second] =
            two_matrices(w, [&format!("{name}.fc1"), &format!("{name}.fc2")], merged)?;
        stacks.push(DeepStack { block, norm, first, second });
    }
    Ok(stacks)
}

impl DeepStack {
    fn forward(&self, g: &mut Graph, layout: &PatchLayout, x: ValueId) -> ValueId {
        let x = g.concat_rows("deepstack_merged", x, layout.patches_per_token());
        let x = g.layer_norm("deepstack_norm", &self.norm, x);
        mlp(g, &self.first, Activation::GeluErf, &self.second, x)
    }
}
