//! Llama 4: a tower with learned and rotary positions and a class token behind the patches.
//! GGUF: `clip.projector_type = "llama4"`.
//!
//! Head: the m × m patches of a token side by side (pixel shuffle), `gelu(mm.model.mlp.1 · x)`,
//! `gelu(mm.model.mlp.2 · x)`, `mm.model.fc`; none has a bias. Source: `Llama4VisionModel` of
//! transformers.

use puna_graph::{Activation, Graph, Rope, RopeKind};

use super::LoadedTower;
use super::encoder::{Encoder, EncoderSpec, FfnActivation, mlp};
use super::patches::{ClassToken, PatchLayout};
use super::position_table::{PositionTable, Resize};
use super::qwen_vl::{COLUMN_AXIS, ROW_AXIS};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Base of the rotary frequencies.
const ROPE_BASE: f64 = 10_000.0;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let merge = keys.count("vision.projector.scale_factor")?;
    let layout = PatchLayout::new(keys, merge, ClassToken::Last)?;
    let spec = EncoderSpec {
        activation: FfnActivation::Plain(Activation::GeluErf),
        is_rms: false,
        may_swap_ffn: false,
        skips_last_block: false,
        has_positions: true,
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Never)?
        .without_class_bias(&Encoder::patch_bias(w, n_embd)?);
    let rope = w.rope(rope(n_embd / keys.count("vision.attention.head_count")?));
    let merged = layout.patches_per_token() * n_embd;
    let hidden = w.rows_of("mm.model.mlp.1.weight")?;
    let inner = w.rows_of("mm.model.mlp.2.weight")?;
    let width = w.rows_of("mm.model.fc.weight")?;
    let first = w.linear("mm.model.mlp.1", merged, hidden)?;
    let second = w.linear("mm.model.mlp.2", hidden, inner)?;
    let project = w.linear("mm.model.fc", inner, width)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, Some(rope), |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("pixel_shuffle", x, layout.patches_per_token());
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    let x = g.activate("mm_act", Activation::GeluErf, x);
    let x = g.linear("mm_fc", &project, x);
    g.set_result(x);
    Ok(LoadedTower { graph, layout, positions: Some(positions), row_end: None })
}

/// Rotates the first half of the pairs by the column of a patch and the second half by its row,
/// both with the same frequencies.
fn rope(head_dim: usize) -> Rope {
    let quarter = head_dim / 4;
    let frequency = |i: usize| ROPE_BASE.powf(-2.0 * i as f64 / (head_dim / 2) as f64) as f32;
    let pairs = || (0..2 * quarter).map(|pair| (pair / quarter.max(1), pair % quarter.max(1)));
    Rope {
        kind: RopeKind::Norm,
        frequencies: pairs().map(|(_, i)| frequency(i)).collect(),
        magnitude: 1.0,
        axes: pairs().map(|(half, _)| if half == 0 { COLUMN_AXIS } else { ROW_AXIS }).collect(),
        position_offset: 0,
        is_inverse: false,
    }
}
