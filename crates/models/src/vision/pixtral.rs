//! Pixtral, Mistral Small 3.1 and later: a tower with two-dimensional rotary positions and gated
//! networks, and two matrices.
//! GGUF: `clip.projector_type = "pixtral"`.
//!
//! Head: in Mistral's files RMS norm `mm.input_norm`, and the m × m patches of a token side by
//! side, channel by channel (`unfold`), through `mm.patch_merger`; then `mm.2 · gelu(mm.1 · x)`.
//! A row `v.token_embd.img_break` follows each row of tokens but the last.

use puna_graph::{Activation, Graph, Linear, Norm, RopeKind};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, by_patch, load_mlp, mlp};
use super::rope::{COLUMN_AXIS, ROW_AXIS, two_axis_rope};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Norm and matrix that merge the patches of a token.
struct PatchMerger {
    norm: Norm,
    project: Linear,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count_or("vision.spatial_merge_size", 1)?)?;
    let spec = EncoderSpec {
        is_rms: true,
        has_positions: false,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::Silu))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let dim = n_embd / keys.count("vision.attention.head_count")?;
    // Rows have the even frequencies of a head, columns the odd ones.
    let exponent = |half: usize, i: usize| 2.0 * (2 * i + half) as f64 / dim as f64;
    let rope = w.rope(two_axis_rope(RopeKind::Norm, [ROW_AXIS, COLUMN_AXIS], dim, exponent));
    let merger = match w.has("mm.patch_merger.weight") {
        true => Some(PatchMerger {
            norm: w.norm("mm.input_norm", n_embd, encoder.eps)?,
            project: by_patch(w, "mm.patch_merger.weight", n_embd, layout.patches_per_token())?,
        }),
        false => None,
    };
    let [first, second] = load_mlp(w, ["mm.1", "mm.2"], n_embd)?;
    let row_end = w.numbers("v.token_embd.img_break", second.out)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[(0, rope)], |_, _, _| ());
    let x = match &merger {
        Some(PatchMerger { norm, project }) => {
            let x = g.rms_norm("mm_input_norm", norm, x);
            let x = g.concat_rows("merged", x, layout.patches_per_token());
            g.linear("patch_merger", project, x)
        }
        None => g.gather_outputs(x),
    };
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    g.set_result(x);
    Ok(LoadedTower { row_end, ..LoadedTower::new(graph, layout, None) })
}
