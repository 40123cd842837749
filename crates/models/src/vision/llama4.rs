//! Llama 4: a tower with learned and rotary positions and a class token behind the patches.
//! GGUF: `clip.projector_type = "llama4"`.
//!
//! Head: the m × m patches of a token side by side (pixel shuffle), `gelu(mm.model.mlp.1 · x)`,
//! `gelu(mm.model.mlp.2 · x)`, `mm.model.fc`; none has a bias. Source: `Llama4VisionModel` of
//! transformers.

use puna_graph::{Activation, Graph, RopeKind};

use super::LoadedTower;
use super::encoder::{Encoder, EncoderSpec, FfnActivation, mlp};
use super::patches::{ClassToken, PatchLayout};
use super::position_table::{PositionTable, Resize};
use super::rope::{COLUMN_AXIS, ROW_AXIS, equal_halves, two_axis_rope};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let merge = keys.count("vision.projector.scale_factor")?;
    let layout = PatchLayout::new(keys, merge, ClassToken::Last)?;
    let spec = EncoderSpec::new(FfnActivation::Plain(Activation::GeluErf));
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Never)?
        .without_class_bias(&Encoder::patch_bias(w, n_embd)?);
    let dim = n_embd / keys.count("vision.attention.head_count")?;
    let rope = two_axis_rope(RopeKind::Norm, [COLUMN_AXIS, ROW_AXIS], dim, equal_halves(dim));
    let rope = w.rope(rope);
    let merged = layout.patches_per_token() * n_embd;
    let hidden = w.rows_of("mm.model.mlp.1.weight")?;
    let inner = w.rows_of("mm.model.mlp.2.weight")?;
    let width = w.rows_of("mm.model.fc.weight")?;
    let first = w.linear("mm.model.mlp.1", merged, hidden)?;
    let second = w.linear("mm.model.mlp.2", hidden, inner)?;
    let project = w.linear("mm.model.fc", inner, width)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[(0, rope)], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("pixel_shuffle", x, layout.patches_per_token());
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    let x = g.activate("mm_act", Activation::GeluErf, x);
    let x = g.linear("mm_fc", &project, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
