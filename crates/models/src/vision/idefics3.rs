//! Idefics 3, SmolVLM: a SigLIP tower and one matrix.
//! GGUF: `clip.projector_type = "idefics3"`.
//!
//! Head: the m × m patches of a token side by side (pixel shuffle), then `mm.model.fc`.

use puna_graph::{Activation, Graph};

use super::encoder::{Encoder, EncoderSpec, FfnActivation};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count("vision.projector.scale_factor")?)?;
    let spec = EncoderSpec {
        may_swap_ffn: true,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let positions = PositionTable::load(w, encoder.n_embd, &layout, Resize::Never)?;
    let merged = layout.patches_per_token() * encoder.n_embd;
    let width = w.rows_of("mm.model.fc.weight")?;
    let project = w.linear("mm.model.fc", merged, width)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("pixel_shuffle", x, layout.patches_per_token());
    let x = g.linear("mm_out", &project, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
