//! LoRA adapters: `W + scale · B · A` for some matrices `W`.
//!
//! The layout is llama.cpp's: `NAME.lora_a` of shape `[in, rank]` and `NAME.lora_b` of shape
//! `[rank, out]` for a matrix `NAME` of shape `[in, out]`, both with the experts as third dimension
//! if the matrix has them. For token embeddings the two are exchanged: `lora_a` is
//! `[rank, tokens]`, `lora_b` is `[rank, features]`. The scale is `adapter.lora.alpha / rank`, or 1
//! if alpha is zero or missing.
//!
//! If the model's weights are slices of a tensor, an update of the tensor becomes one of each
//! slice.

use std::collections::BTreeMap;

use puna_gguf::{TensorView, View};
use puna_graph::{LowRank, Weight, WeightId};

use super::check_values;
use super::error::AdapterError;
use super::low_rank::{F32Matrices, LowRankMatrix};
use crate::weights::{WeightSlice, Weights};

/// Suffix of the token embeddings; their `lora_a` and `lora_b` are exchanged.
const TOKEN_TABLE: &str = "token_embd.weight";

/// Other embedding tables that are indexed by row number.
const ROW_TABLES: [&str; 2] = ["position_embd.weight", "token_types.weight"];

/// Low-rank updates of an adapter: tensor name, weight and update. `adapter` is the index of the
/// adapter.
pub(super) fn low_rank_updates<'a>(
    view: &'a View,
    adapter: usize,
    model: &View,
    weights: &mut Weights<'_>,
) -> Result<Vec<(&'a str, WeightId, LowRank)>, AdapterError> {
    let alpha = checked_alpha(view, model)?;
    let (pairs, mut updates) = (pairs(view)?, Vec::new());
    if pairs.is_empty() {
        return Err(AdapterError::NoPair);
    }
    for (of, [a, b]) in pairs {
        let unknown = || AdapterError::NoTensor { tensor: of.to_owned() };
        let shape = model.tensor(of).ok_or_else(unknown)?.shape.iter().map(|&n| n as usize);
        let pair = LoraPair { of, a, b, is_token_table: of.ends_with(TOKEN_TABLE) };
        let rank = pair.check(&shape.collect::<Vec<_>>())?;
        let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        let tensors = &mut weights.tensors;
        let mut add = |at, low_rank| updates.push((of, at, LowRank { scale, adapter, ..low_rank }));
        let slices: Vec<&WeightSlice> =
            weights.slices.iter().filter(|slice| slice.of == of).collect();
        match tensors.iter().position(|t| *t.name == *of) {
            _ if !slices.is_empty() => {
                for slice in slices {
                    add(slice.weight, pair.add_slice_to(tensors, rank, slice)?);
                }
            }
            Some(at) => add(WeightId(at as u32), pair.add_to(tensors, rank)?),
            None => return Err(AdapterError::Unused { tensor: of.to_owned() }),
        }
    }
    Ok(updates)
}

/// Checks that the file is an adapter for this model. Returns alpha, the scale before the division
/// by the rank.
fn checked_alpha(adapter: &View, model: &View) -> Result<f32, AdapterError> {
    let meta = adapter.metadata();
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = meta.opt_str(key)?.unwrap_or_default();
        if found != expected {
            return Err(AdapterError::Kind { key, found: found.to_owned(), expected });
        }
    }
    // A file in another layout than llama.cpp's may have another name of the same architecture.
    let (found, known) = (meta.architecture()?, model.metadata().architecture()?);
    if found != known && found != model.gguf().metadata().architecture()? {
        return Err(AdapterError::Architecture {
            found: found.to_owned(),
            model: known.to_owned(),
        });
    }
    if meta.contains("adapter.alora.invocation_tokens") {
        return Err(AdapterError::ActivatedLora);
    }
    let alpha = meta.opt_f32("adapter.lora.alpha")?.unwrap_or(0.0);
    if alpha.is_finite() { Ok(alpha) } else { Err(AdapterError::Alpha { alpha }) }
}

/// Pairs of `lora_a` and `lora_b` by tensor name. Trained norms are ignored, as in llama.cpp.
fn pairs(view: &View) -> Result<BTreeMap<&str, [TensorView<'_>; 2]>, AdapterError> {
    let mut halves: BTreeMap<&str, [Option<TensorView<'_>>; 2]> = BTreeMap::new();
    for tensor in view.tensors() {
        let name = tensor.name;
        let half = name.strip_suffix(".lora_a").map(|of| (of, 0));
        match half.or_else(|| name.strip_suffix(".lora_b").map(|of| (of, 1))) {
            Some((of, half)) => halves.entry(of).or_default()[half] = Some(tensor),
            None if name.ends_with("_norm.weight") => {}
            None => return Err(AdapterError::Suffix { tensor: name.to_owned() }),
        }
    }
    let mut pairs = BTreeMap::new();
    for (of, pair) in halves {
        let [Some(a), Some(b)] = pair else {
            let (names, at) = (
                [".lora_a", ".lora_b"].map(|half| format!("{of}{half}")),
                usize::from(pair[0].is_none()),
            );
            return Err(AdapterError::Half {
                found: names[at].clone(),
                missing: names[1 - at].clone(),
            });
        };
        pairs.insert(of, [a, b]);
    }
    Ok(pairs)
}

/// `lora_a` and `lora_b` of a tensor.
struct LoraPair<'a> {
    of: &'a str,
    a: TensorView<'a>,
    b: TensorView<'a>,
    is_token_table: bool,
}

impl LoraPair<'_> {
    /// Checks that both matrices fit a tensor of shape `model` and have finite values. Returns the
    /// rank.
    fn check(&self, model: &[usize]) -> Result<usize, AdapterError> {
        let [input, output, experts] = [0, 1, 2].map(|i| model.get(i).map_or(1, |&n| n as u64));
        let dim = |half: &TensorView<'_>, i: usize| half.shape.get(i).copied().unwrap_or(1);
        let (rank_a, rank_b) = (dim(&self.a, usize::from(!self.is_token_table)), dim(&self.b, 0));
        let expected = match self.is_token_table {
            false => [[input, rank_a, experts], [rank_b, output, experts]],
            true => [[rank_a, output, experts], [rank_b, input, experts]],
        };
        for (half, expected) in [&self.a, &self.b].into_iter().zip(expected) {
            if [0, 1, 2].map(|i| dim(half, i)) != expected
                || half.shape.iter().skip(3).any(|&n| n != 1)
            {
                let expected =
                    if experts == 1 { expected[..2].to_vec() } else { expected.to_vec() };
                let (tensor, found) = (half.name.to_owned(), half.shape.to_vec());
                let model = model.to_vec();
                return Err(AdapterError::Shape { tensor, found, model, expected });
            }
        }
        if rank_a != rank_b || rank_a == 0 {
            let [a, b] = [&self.a, &self.b].map(|half| half.name.to_owned());
            return Err(AdapterError::Rank { a, rank_a, b, rank_b });
        }
        if rank_a > input.max(output) {
            let (a, model) = (self.a.name.to_owned(), model.to_vec());
            return Err(AdapterError::HighRank { a, rank: rank_a, model });
        }
        [&self.a, &self.b].into_iter().try_for_each(check_values)?;
        Ok(rank_a as usize)
    }

    /// Adds the matrices of the update to the model's tensors. The caller sets scale and adapter.
    fn add_to(&self, tensors: &mut Vec<Weight>, rank: usize) -> Result<LowRank, AdapterError> {
        let (a, b) = (&self.a, &self.b);
        let (down, up, back) = match self.is_token_table {
            // The output matrix may be the same tensor, and needs the transposed product.
            true => (
                F32Matrices::of(b)?.transposed().into(),
                LowRankMatrix::of(a)?,
                Some(LowRankMatrix::of(b)?),
            ),
            false if ROW_TABLES.contains(&self.of) => (
                LowRankMatrix::of(a)?,
                LowRankMatrix::of(b)?,
                Some(F32Matrices::of(a)?.transposed().into()),
            ),
            false => (LowRankMatrix::of(a)?, LowRankMatrix::of(b)?, None),
        };
        let mut add = |matrix: LowRankMatrix| matrix.add_to(tensors, self.of);
        Ok(LowRank {
            down: add(down),
            up: add(up),
            back: back.map(add),
            rank,
            scale: 1.0,
            adapter: 0,
        })
    }

    /// [`Self::add_to`] for a slice of the tensor.
    fn add_slice_to(
        &self,
        tensors: &mut Vec<Weight>,
        rank: usize,
        slice: &WeightSlice,
    ) -> Result<LowRank, AdapterError> {
        let rows = F32Matrices::of(&self.b)?.slice_rows(slice);
        let (down, up) = match slice.is_transposed {
            false => (LowRankMatrix::of(&self.a)?, rows.padded(slice.passthrough)),
            true => (
                rows.transposed().into(),
                F32Matrices::of(&self.a)?.transposed().padded(slice.passthrough),
            ),
        };
        let mut add = |matrix: LowRankMatrix| matrix.add_to(tensors, self.of);
        Ok(LowRank {
            down: add(down),
            up: add(up.into()),
            back: None,
            rank,
            scale: 1.0,
            adapter: 0,
        })
    }
}
