//! GLM-4.1V, 4.5V and 4.6V, GLM-OCR: a tower with two-dimensional rotary positions and gated
//! networks, and a gated head.
//! GGUF: `clip.projector_type = "glm4v"`.
//!
//! Head: `mm.patch_merger`, a convolution over the 2 × 2 patches of a token; `mm.model.fc`; layer
//! norm `mm.post_norm` (epsilon 1e-5) and exact GELU; `mm.down · (silu(mm.gate · x) · mm.up · x)`.
//! GLM-OCR has no learned positions, and norms of queries and keys. Source: `Glm4vVisionModel` of
//! transformers.

use puna_graph::{Activation, Glu, Graph, Linear};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, by_patch};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout, qwen_vl};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Patches of a side of a token, if the file does not say.
const DEFAULT_MERGE: usize = 2;
/// Epsilon of the head's norm, the default of PyTorch.
const HEAD_EPS: f32 = 1e-5;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count_or("vision.spatial_merge_size", DEFAULT_MERGE)?)?;
    let has_positions = w.has("v.position_embd.weight");
    let spec = EncoderSpec {
        is_rms: true,
        has_positions,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::Silu))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = has_positions
        .then(|| PositionTable::load(w, n_embd, &layout, Resize::Bicubic))
        .transpose()?;
    let rope = w.rope(qwen_vl::rope(n_embd / keys.count("vision.attention.head_count")?));
    let mut merger = by_patch(w, "mm.patch_merger.weight", n_embd, layout.patches_per_token())?;
    merger.bias = w.opt("mm.patch_merger.bias", &[merger.out])?;
    let width = w.rows_of("mm.model.fc.weight")?;
    let fc = w.linear("mm.model.fc", merger.out, width)?;
    let norm = w.norm("mm.post_norm", width, HEAD_EPS)?;
    let [gate, up, down] = gated(w, width)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[(0, rope)], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("merged", x, layout.patches_per_token());
    let x = g.linear("patch_merger", &merger, x);
    let x = g.linear("mm_fc", &fc, x);
    let x = g.layer_norm("mm_post_norm", &norm, x);
    let x = g.activate("mm_act", Activation::GeluErf, x);
    let (hidden, other) = (g.linear("mm_gate", &gate, x), g.linear("mm_up", &up, x));
    let x = g.glu("mm_glu", Glu::Silu, hidden, other);
    let x = g.linear("mm_out", &down, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, positions))
}

/// The matrices of the head's gated network.
fn gated(w: &mut Weights<'_>, input: usize) -> Result<[Linear; 3], ModelError> {
    let hidden = w.rows_of("mm.up.weight")?;
    let width = w.rows_of("mm.down.weight")?;
    Ok([
        w.linear("mm.gate", input, hidden)?,
        w.linear("mm.up", input, hidden)?,
        w.linear("mm.down", hidden, width)?,
    ])
}
