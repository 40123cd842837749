//! InternVL 2.5, 3 and 3.5: InternViT and two matrices.
//! GGUF: `clip.projector_type = "internvl"`.
//!
//! Head: the m × m patches of a token side by side, layer norm `mm.model.mlp.0` (epsilon 1e-5),
//! `mm.model.mlp.3 · gelu(mm.model.mlp.1 · x)`. Sources: `modeling_intern_vit.py` and
//! `modeling_internvl_chat.py` of the published models.

use puna_graph::{Activation, Graph};

use super::LoadedTower;
use super::encoder::{Encoder, EncoderSpec, FfnActivation, load_mlp, mlp};
use super::patches::{ClassToken, PatchLayout};
use super::position_table::{PositionTable, Resize};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Epsilon of the head's norm, the default of PyTorch.
const HEAD_EPS: f32 = 1e-5;
/// Width and number of blocks of the tower with 6 billion parameters, which has RMS norms.
const LARGE_TOWER: [usize; 2] = [3200, 45];

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let merge = keys.count("vision.projector.scale_factor")?;
    let layout = PatchLayout::new(keys, merge, ClassToken::First)?;
    let size = [keys.count("vision.embedding_length")?, keys.count("vision.block_count")?];
    let spec = EncoderSpec {
        is_rms: size == LARGE_TOWER,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::GeluErf))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Never)?
        .without_class_bias(&Encoder::patch_bias(w, n_embd)?);
    let merged = layout.patches_per_token() * n_embd;
    let norm = w.norm("mm.model.mlp.0", merged, HEAD_EPS)?;
    let [first, second] = load_mlp(w, ["mm.model.mlp.1", "mm.model.mlp.3"], merged)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.concat_rows("pixel_shuffle", x, layout.patches_per_token());
    let x = g.layer_norm("mm_norm", &norm, x);
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
