//! MiniCPM-V 2.5, 2.6, 4 and 4.5: a SigLIP tower and a resampler, a cross-attention of learned
//! queries to the patches of a picture.
//! GGUF: `clip.projector_type = "resampler"`.
//!
//! Resampler: values are the layer norm `resampler.ln_kv` of `resampler.kv · x`. Keys have the
//! sines and cosines of the patch's column and row added. Queries are the layer norm
//! `resampler.ln_q` of `resampler.query`. Attention has heads of 128 dimensions. Then follow
//! `resampler.ln_post` and `resampler.proj`. Source: `resampler.py` of the published models.
//!
//! The queries are rows of the step behind the patches ([`Queries`]). Every row sees the patches
//! only, in the tower as in the resampler.

use puna_graph::{Activation, AttentionSpec, Graph, Linear, Mask, Norm, ValueId};

use super::encoder::{Encoder, EncoderSpec, FfnActivation};
use super::patches::{NormalizedPicture, PatchLayout, TowerInputError};
use super::position_table::{PositionTable, Resize};
use super::{LoadedTower, grid_layout};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Dimensions of a head of the resampler.
const HEAD_DIM: usize = 128;
/// Base of the frequencies of sines and cosines.
const POSITION_BASE: f64 = 10_000.0;

/// Input rows of the resampler.
pub(super) struct Queries {
    /// The learned queries, row after row.
    rows: Vec<f32>,
    /// Columns of a row.
    cols: usize,
}

impl Queries {
    /// Reads `resampler.query`.
    fn load(w: &Weights<'_>) -> Result<Self, ModelError> {
        const NAME: &str = "resampler.query";
        let missing = || ModelError::MissingTensor { name: NAME.into() };
        let (cols, count) = (w.columns(NAME).ok_or_else(missing)?, w.rows_of(NAME)?);
        let rows = w.numbers(NAME, cols * count)?.ok_or_else(missing)?;
        Ok(Self { rows, cols })
    }

    /// Number of queries.
    fn count(&self) -> usize {
        self.rows.len() / self.cols.max(1)
    }

    /// Appends the rows of a picture: sines and cosines of the place of each patch, then queries.
    pub fn add_rows(
        &self,
        layout: &PatchLayout,
        picture: &NormalizedPicture<'_>,
        to: &mut Vec<f32>,
    ) -> Result<(), TowerInputError> {
        let quarter = self.cols / 4;
        let frequency = |i: usize| POSITION_BASE.powf(-(i as f64) / quarter as f64);
        let tokens = layout.tokens(picture.width, picture.height)?;
        for [row, column] in layout.order(tokens) {
            for at in [column, row] {
                let angles = (0..quarter).map(|i| at as f64 * frequency(i));
                to.extend(angles.clone().map(|angle| angle.sin() as f32));
                to.extend(angles.map(|angle| angle.cos() as f32));
            }
        }
        to.extend(&self.rows);
        Ok(())
    }
}

/// The cross-attention and the matrices around it.
struct Resampler {
    kv: Linear,
    kv_norm: Norm,
    query_norm: Norm,
    qkv: [Linear; 3],
    attention: AttentionSpec,
    wo: Linear,
    post_norm: Norm,
    project: Linear,
}

pub(super) fn load(keys: &Keys<'_>, w: &mut Weights<'_>) -> Result<LoadedTower, ModelError> {
    let queries = Queries::load(w)?;
    let layout = PatchLayout { queries: queries.count(), ..grid_layout(keys, 1)? };
    let activation = match keys.flag("use_gelu")? {
        true => FfnActivation::Plain(Activation::GeluTanh),
        false => FfnActivation::QuickGelu,
    };
    let spec = EncoderSpec {
        may_swap_ffn: true,
        full_attention_every: None,
        ..EncoderSpec::new(activation)
    };
    let encoder = Encoder::load(keys, w, &layout, &spec)?;
    let positions = PositionTable::load(w, encoder.n_embd, &layout, Resize::Buckets)?;
    let resampler = Resampler::load(w, [encoder.n_embd, queries.cols], encoder.eps)?;
    let mut graph = Graph::new();
    let g = &mut graph;
    let x = encoder.forward(g, &[], |_, _, _| ());
    let x = encoder.post_norm(g, x);
    let x = resampler.forward(g, x);
    g.set_result(x);
    let queries = Some(queries);
    Ok(LoadedTower { queries, ..LoadedTower::new(graph, layout, Some(positions)) })
}

impl Resampler {
    fn load(
        w: &mut Weights<'_>,
        [n_embd, width]: [usize; 2],
        eps: f32,
    ) -> Result<Self, ModelError> {
        if width == 0 || !width.is_multiple_of(HEAD_DIM) {
            return Err(ModelError::TensorShape {
                name: "resampler.query".into(),
                found: vec![width],
                expected: vec![width.div_ceil(HEAD_DIM).max(1) * HEAD_DIM],
            });
        }
        let heads = width / HEAD_DIM;
        let attention = AttentionSpec {
            mask: Mask::RowWindow,
            ..AttentionSpec::causal(heads, heads, HEAD_DIM, HEAD_DIM)
        };
        let out = w.rows_of("resampler.proj.weight")?;
        Ok(Self {
            kv: w.linear("resampler.kv", n_embd, width)?,
            kv_norm: w.norm("resampler.ln_kv", width, eps)?,
            query_norm: w.norm("resampler.ln_q", width, eps)?,
            qkv: [
                w.linear("resampler.attn.q", width, width)?,
                w.linear("resampler.attn.k", width, width)?,
                w.linear("resampler.attn.v", width, width)?,
            ],
            attention,
            wo: w.linear("resampler.attn.out", width, width)?,
            post_norm: w.norm("resampler.ln_post", width, eps)?,
            project: w.linear("resampler.proj", width, out)?,
        })
    }

    /// Rows of the queries, from the rows of patches.
    fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let rows = g.input_rows("inp_resampler", self.kv.out);
        let q = g.layer_norm("resampler_q", &self.query_norm, rows);
        let v = g.linear("resampler_kv", &self.kv, x);
        let v = g.layer_norm("resampler_v", &self.kv_norm, v);
        let k = g.add("resampler_k", v, rows);
        let [wq, wk, wv] = &self.qkv;
        let q = g.linear("resampler_Qcur", wq, q);
        let k = g.linear("resampler_Kcur", wk, k);
        let v = g.linear("resampler_Vcur", wv, v);
        let x = g.attention("resampler_kqv_out", 0, [q, k, v], self.attention);
        let x = g.gather_outputs(x);
        let x = g.linear("resampler_attn_out", &self.wo, x);
        let x = g.layer_norm("resampler_post_norm", &self.post_norm, x);
        g.linear("mm_out", &self.project, x)
    }
}
