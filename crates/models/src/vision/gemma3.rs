//! Gemma 3: a SigLIP tower, whose patches are pooled to 256 tokens.
//! GGUF: `clip.projector_type = "gemma3"`.
//!
//! Head: mean of m × m patches, RMS norm `mm.soft_emb_norm` (its weight includes the 1 that Gemma's
//! norms add), and `mm.input_projection`, which the file stores transposed, `[D, E]`.

use puna_graph::{Activation, Graph, Linear};

use super::encoder::{Encoder, EncoderSpec, FfnActivation};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Patches of a side of a token, if the file does not say.
const DEFAULT_POOL: usize = 4;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count_or("vision.projector.scale_factor", DEFAULT_POOL)?)?;
    let spec = EncoderSpec {
        may_swap_ffn: true,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let positions = PositionTable::load(w, encoder.n_embd, &layout, Resize::Never)?;
    let norm = w.norm("mm.soft_emb_norm", encoder.n_embd, encoder.eps)?;
    let project = transposed(w, "mm.input_projection.weight", encoder.n_embd)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.mean_rows("pooled", x, layout.patches_per_token());
    let x = g.rms_norm("soft_emb_norm", &norm, x);
    let x = g.linear("mm_out", &project, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}

/// The matrix of a tensor `[out, input]`.
fn transposed(w: &mut Weights<'_>, name: &str, input: usize) -> Result<Linear, ModelError> {
    let missing = || ModelError::MissingTensor { name: name.into() };
    let out = w.columns(name).ok_or_else(missing)?;
    let stored = w.numbers(name, out * input)?.ok_or_else(missing)?;
    let numbers: Vec<f32> = (0..out)
        .flat_map(|to| (0..input).map(move |from| (from, to)))
        .map(|(from, to)| stored[from * out + to])
        .collect();
    let w = w.constant(&format!("{name} (transposed)"), &[input, out], &numbers);
    Ok(Linear { w, scale: 1.0, bias: None, out })
}
