//! LLaVA 1.5, BakLLaVA, ShareGPT4V: a CLIP tower without its last block, and two matrices.
//! GGUF: `clip.projector_type = "mlp"`.
//!
//! Head: `mm.2 · gelu(mm.0 · x)` of the patches; the class token takes part in the tower only.

use puna_graph::{Activation, Graph};

use super::LoadedTower;
use super::encoder::{Encoder, EncoderSpec, FfnActivation, load_mlp, mlp};
use super::patches::{ClassToken, PatchLayout};
use super::position_table::{PositionTable, Resize};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let class = if w.has("v.class_embd") { ClassToken::First } else { ClassToken::None };
    let layout = PatchLayout::new(keys, 1, class)?;
    let activation = match keys.flag("use_gelu")? {
        true => FfnActivation::Plain(Activation::GeluTanh),
        false => FfnActivation::QuickGelu,
    };
    let spec =
        EncoderSpec { may_swap_ffn: true, skips_last_block: true, ..EncoderSpec::new(activation) };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Never)?
        .without_class_bias(&Encoder::patch_bias(w, n_embd)?);
    let [first, second] = load_mlp(w, ["mm.0", "mm.2"], n_embd)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = g.gather_outputs(x);
    let x = mlp(g, &first, Activation::GeluErf, &second, x);
    g.set_result(x);
    Ok(LoadedTower::new(graph, layout, Some(positions)))
}
