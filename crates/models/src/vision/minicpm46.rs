//! MiniCPM-V 4.6: a SigLIP tower that merges patches between two blocks, and a merger.
//! GGUF: `clip.projector_type = "minicpmv4_6"`.
//!
//! Behind block `wa_layer_indexes`, `v.vit_merger` merges 2 × 2 patches: attention within them;
//! then `ds_ffn_down · gelu(ds_ffn_up · ds_ln(x))` of the four side by side, plus their mean. So
//! the blocks behind are a graph of their own, with a quarter of the rows. At the end 2 × 2 rows go
//! through the layer norm `mm.input_norm` and `mm.down · gelu(mm.up · x)` with the exact GELU. With
//! a scale factor of 2 there is no merger in the middle. Source: `MiniCPMV4_6Model` in
//! transformers.

use puna_graph::{Activation, AttentionSpec, Graph, Linear, Mask, Norm, ValueId};

use super::encoder::{Encoder, EncoderSpec, FfnActivation, head_count, mlp};
use super::patches::PatchLayout;
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout};
use crate::blocks::Qkv;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::norms::{AnyNorm, NormKind};
use crate::weights::Weights;

/// Patches, or rows of merged patches, in a side of what a merger merges.
const MERGE: usize = 2;
/// Epsilon of the norm of the merger at the end.
const MERGER_EPS: f32 = 1e-6;

/// The merger between two blocks.
struct InnerMerger {
    input_norm: AnyNorm,
    qkv: Qkv,
    attention: AttentionSpec,
    wo: Linear,
    norm: Norm,
    up: Linear,
    down: Linear,
}

/// The merger behind the last block.
struct OuterMerger {
    norm: Norm,
    up: Linear,
    down: Linear,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let merge = keys.count("vision.projector.scale_factor")?;
    let has_inner_merger = merge == MERGE * MERGE;
    let inner_merge = if has_inner_merger { MERGE } else { 1 };
    let layout = PatchLayout { inner_merge, ..grid_layout(keys, merge)? };
    let spec = EncoderSpec {
        may_swap_ffn: true,
        ..EncoderSpec::new(FfnActivation::Plain(Activation::GeluTanh))
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let n_embd = encoder.n_embd;
    let positions = PositionTable::load(w, n_embd, &layout, Resize::Buckets)?;
    let outer = OuterMerger::load(w, n_embd)?;
    let blocks = encoder.block_count();
    let mut graph = Graph::new();
    let x = encoder.embed(&mut graph);
    if !has_inner_merger {
        let x = encoder.run_blocks(&mut graph, 0..blocks, x, &[], |_, _, _| ());
        outer.finish(&mut graph, &encoder, x);
        return Ok(LoadedTower::new(graph, layout, Some(positions)));
    }
    let key = "vision.wa_layer_indexes";
    let last = keys.block_indices(key)?.first().copied().filter(|at| *at < blocks);
    let missing = || ModelError::KeyValue {
        key: keys.name(key),
        value: String::new(),
        reason: "it must name a block",
    };
    let first_half = last.ok_or_else(missing)? + 1;
    let heads = head_count(keys, n_embd)?;
    let inner = InnerMerger::load(w, (n_embd, heads), encoder.eps)?;
    let x = encoder.run_blocks(&mut graph, 0..first_half, x, &[], |_, _, _| ());
    let x = inner.forward(&mut graph, blocks, x);
    graph.set_result(x);
    let mut second = Graph::new();
    let x = second.input_rows("inp_merged", n_embd);
    let x = encoder.run_blocks(&mut second, first_half..blocks, x, &[], |_, _, _| ());
    outer.finish(&mut second, &encoder, x);
    let second = Some(second);
    Ok(LoadedTower { second, ..LoadedTower::new(graph, layout, Some(positions)) })
}

impl InnerMerger {
    fn load(
        w: &mut Weights<'_>,
        (n_embd, heads): (usize, usize),
        eps: f32,
    ) -> Result<Self, ModelError> {
        const NAME: &str = "v.vit_merger";
        let (dim, mask) = (n_embd / heads, Mask::RowWindow);
        let merged = MERGE * MERGE * n_embd;
        let hidden = w.rows_of(&format!("{NAME}.ds_ffn_up.weight"))?;
        Ok(Self {
            input_norm: NormKind::Layer(eps).load(w, &format!("{NAME}.ln1"), &[n_embd])?,
            qkv: Qkv::load(w, NAME, n_embd, [n_embd; 3])?,
            attention: AttentionSpec { mask, ..AttentionSpec::causal(heads, heads, dim, dim) },
            wo: w.linear(&format!("{NAME}.attn_out"), n_embd, n_embd)?,
            norm: w.norm(&format!("{NAME}.ds_ln"), merged, eps)?,
            up: w.linear(&format!("{NAME}.ds_ffn_up"), merged, hidden)?,
            down: w.linear(&format!("{NAME}.ds_ffn_down"), hidden, n_embd)?,
        })
    }

    fn forward(&self, g: &mut Graph, layer: usize, x: ValueId) -> ValueId {
        let h = self.input_norm.apply(g, "merger_inp_normed", x);
        let qkv = self.qkv.project(g, h);
        let a = g.attention("merger_kqv_out", layer, qkv, self.attention);
        let a = g.linear("merger_attn_out", &self.wo, a);
        let x = g.add("merger_inp", a, x);
        let mean = g.mean_rows("merger_mean", x, MERGE * MERGE);
        let x = g.concat_rows("merged", x, MERGE * MERGE);
        let x = g.layer_norm("merger_norm", &self.norm, x);
        let x = mlp(g, &self.up, Activation::GeluTanh, &self.down, x);
        g.add("merger_out", x, mean)
    }
}

impl OuterMerger {
    fn load(w: &mut Weights<'_>, n_embd: usize) -> Result<Self, ModelError> {
        let merged = MERGE * MERGE * n_embd;
        let hidden = w.rows_of("mm.up.weight")?;
        let width = w.rows_of("mm.down.weight")?;
        Ok(Self {
            norm: w.norm("mm.input_norm", merged, MERGER_EPS)?,
            up: w.linear("mm.up", merged, hidden)?,
            down: w.linear("mm.down", hidden, width)?,
        })
    }

    /// The result of the tower, from the rows behind the last block.
    fn finish(&self, g: &mut Graph, encoder: &Encoder, x: ValueId) {
        let x = encoder.post_norm(g, x);
        let x = g.concat_rows("mm_merged", x, MERGE * MERGE);
        let x = g.layer_norm("mm_norm", &self.norm, x);
        let x = mlp(g, &self.up, Activation::GeluErf, &self.down, x);
        g.set_result(x);
    }
}
