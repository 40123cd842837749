//! LFM2-VL, LFM2.5-VL: a SigLIP 2 tower and two matrices.
//! GGUF: `clip.projector_type = "lfm2"`.
//!
//! Head: the m × m patches of a token side by side, in some files layer norm `mm.input_norm`
//! (epsilon 1e-5), then `mm.2 · gelu(mm.1 · x)` with the exact GELU. Source: `Lfm2VlModel` of
//! transformers.

use puna_graph::{Activation, Graph};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, load_mlp, mlp};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::norms::{AnyNorm, NormKind};
use crate::weights::Weights;

/// Epsilon of the head's norm, the default of PyTorch.
const HEAD_EPS: f32 = 1e-5;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let layout = grid_layout(keys, keys.count("vision.projector.scale_factor")?)?;
    let spec = EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh));
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let positions = PositionTable::load(w, encoder.n_embd, &layout, Resize::Antialiased)?;
    let merged = layout.patches_per_token() * encoder.n_embd;
    let norm = NormKind::Layer(HEAD_EPS).load_opt(w, "mm.input_norm", &[merged])?;
    let [first, second] = load_mlp(w, ["mm.1", "mm.2"], merged)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("pixel_shuffle", x, layout.patches_per_token());
    let x = norm.unwrap_or(AnyNorm::None).apply(g, "mm_norm", x);
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
