//! PaddleOCR-VL: a SigLIP tower with learned and two-dimensional rotary positions, and a merger.
//! GGUF: `clip.projector_type = "paddleocr"`.
//!
//! Head: layer norm `mm.input_norm` of each patch (epsilon 1e-5), the m × m patches of a token side
//! by side, then `mm.2 · gelu(mm.1 · x)` with the exact GELU. Source: `PaddleOCRVLModel` of
//! transformers.

use puna_graph::{Activation, Graph};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, head_count, load_mlp, mlp};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout, qwen_vl};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Patches of a side of a token, if the file does not say.
const DEFAULT_MERGE: usize = 2;
/// Epsilon of the head's norm.
const HEAD_EPS: f32 = 1e-5;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count_or("vision.projector.scale_factor", DEFAULT_MERGE)?)?;
    let spec = EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh));
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Bilinear)?;
    let rope = w.rope(qwen_vl::rope(n_embd / head_count(keys, n_embd)?));
    let norm = w.norm("mm.input_norm", n_embd, HEAD_EPS)?;
    let merged = layout.patches_per_token() * n_embd;
    let [first, second] = load_mlp(w, ["mm.1", "mm.2"], merged)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[(0, rope)], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.layer_norm("mm_norm", &norm, x);
    let x = g.concat_rows("merged", x, layout.patches_per_token());
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
