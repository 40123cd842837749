//! LoRA adapters: `W + scale · B · A` for some matrices `W`.
//!
//! The layout is llama.cpp's: `NAME.lora_a` of shape `[in, rank]` and `NAME.lora_b` of shape `[rank, out]` for a matrix
//! `NAME` of shape `[in, out]`, both with the experts as third dimension where the matrix has them. For the token table
//! the two change places: `lora_a` is `[rank, tokens]`, `lora_b` is `[rank, features]`. The scale is
//! `adapter.lora.alpha / rank`, or one where alpha is zero or missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_gguf::{SharedBytes, TensorView, View};
use puna_graph::{LowRank, Weight, WeightId};
use puna_quant::TensorType;

use super::check_values;
use super::error::AdapterError;
use crate::weights::Mapped;

/// The table whose pair has its halves exchanged.
const TOKEN_TABLE: &str = "token_embd.weight";

/// Tables whose rows are taken by number.
const TABLES: [&str; 3] = [TOKEN_TABLE, "position_embd.weight", "token_types.weight"];

/// Which tensors change, and how. `adapter` is the adapter's number.
pub(super) fn changes(
    view: &View,
    adapter: usize,
    model: &View,
    tensors: &mut Vec<Weight>,
) -> Result<Vec<(WeightId, LowRank)>, AdapterError> {
    let alpha = checked_alpha(view, model)?;
    let (pairs, mut changes) = (pairs(view)?, Vec::new());
    if pairs.is_empty() {
        return Err(AdapterError::NoPair);
    }
    for (of, [a, b]) in pairs {
        let Some(at) = tensors.iter().position(|t| *t.name == *of) else {
            let (tensor, is_known) = (of.to_owned(), model.tensor(of).is_some());
            let error = match is_known {
                true => AdapterError::Unused { tensor },
                false => AdapterError::NoTensor { tensor },
            };
            return Err(error);
        };
        let pair = Pair { of, a, b, is_token_table: of == TOKEN_TABLE };
        let rank = pair.check(&tensors[at].shape)?;
        let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        changes.push((WeightId(at as u32), LowRank { scale, adapter, ..pair.add_to(tensors, rank)? }));
    }
    Ok(changes)
}

/// Whether the file is an adapter for this model; what it multiplies its changes by, before the rank.
fn checked_alpha(adapter: &View, model: &View) -> Result<f32, AdapterError> {
    let meta = adapter.metadata();
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = meta.opt_str(key)?.unwrap_or_default();
        if found != expected {
            return Err(AdapterError::Kind { key, found: found.to_owned(), expected });
        }
    }
    // A file in another form than llama.cpp's may bear another name of the same architecture.
    let (found, known) = (meta.architecture()?, model.metadata().architecture()?);
    if found != known && found != model.gguf().metadata().architecture()? {
        return Err(AdapterError::Architecture { found: found.to_owned(), model: known.to_owned() });
    }
    if meta.contains("adapter.alora.invocation_tokens") {
        return Err(AdapterError::Activated);
    }
    let alpha = meta.opt_f32("adapter.lora.alpha")?.unwrap_or(0.0);
    if alpha.is_finite() { Ok(alpha) } else { Err(AdapterError::Alpha { alpha }) }
}

/// The pairs of a file by the names of the tensors that they change. Norms that were trained along are left out, as llama.cpp
/// leaves them out.
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
            let (names, at) =
                ([".lora_a", ".lora_b"].map(|half| format!("{of}{half}")), usize::from(pair[0].is_none()));
            return Err(AdapterError::Half { found: names[at].clone(), missing: names[1 - at].clone() });
        };
        pairs.insert(of, [a, b]);
    }
    Ok(pairs)
}

/// The two halves of one change.
struct Pair<'a> {
    of: &'a str,
    a: TensorView<'a>,
    b: TensorView<'a>,
    is_token_table: bool,
}

impl Pair<'_> {
    /// The rank, if both halves have the shapes that a tensor of shape `model` needs, and values.
    fn check(&self, model: &[usize]) -> Result<usize, AdapterError> {
        let [input, output, experts] = [0, 1, 2].map(|i| model.get(i).map_or(1, |&n| n as u64));
        let dim = |half: &TensorView<'_>, i: usize| half.shape.get(i).copied().unwrap_or(1);
        let (rank_a, rank_b) = (dim(&self.a, usize::from(!self.is_token_table)), dim(&self.b, 0));
        let expected = match self.is_token_table {
            false => [[input, rank_a, experts], [rank_b, output, experts]],
            true => [[rank_a, output, experts], [rank_b, input, experts]],
        };
        for (half, expected) in [&self.a, &self.b].into_iter().zip(expected) {
            if [0, 1, 2].map(|i| dim(half, i)) != expected || half.shape.iter().skip(3).any(|&n| n != 1) {
                let expected = if experts == 1 { expected[..2].to_vec() } else { expected.to_vec() };
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

    /// Adds the matrices of the change to a model's. Scale and adapter are left to the caller.
    fn add_to(&self, tensors: &mut Vec<Weight>, rank: usize) -> Result<LowRank, AdapterError> {
        let mut add = |half: &TensorView<'_>, is_transposed: bool| -> Result<WeightId, AdapterError> {
            let (ty, shape, data) = numbers(half, is_transposed)?;
            tensors.push(Weight { name: half.name.to_owned(), ty, shape, data: Arc::new(Mapped(data)) });
            Ok(WeightId(tensors.len() as u32 - 1))
        };
        let (down, up, back) = match self.is_token_table {
            // The head may be the same tensor, and needs the product the other way round.
            true => (add(&self.b, true)?, add(&self.a, false)?, Some(add(&self.b, false)?)),
            false if TABLES.contains(&self.of) => {
                (add(&self.a, false)?, add(&self.b, false)?, Some(add(&self.a, true)?))
            }
            false => (add(&self.a, false)?, add(&self.b, false)?, None),
        };
        Ok(LowRank { down, up, back, rank, scale: 1.0, adapter: 0 })
    }
}

/// A half as it is multiplied with: floats where they are, all else as f32. So changes are as exact as the file.
fn numbers(
    half: &TensorView<'_>,
    is_transposed: bool,
) -> Result<(TensorType, Vec<usize>, SharedBytes), AdapterError> {
    let shape: Vec<usize> = half.shape.iter().map(|&n| n as usize).collect();
    let is_float = matches!(half.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    if is_float && !is_transposed {
        return Ok((half.ty, shape, half.shared()));
    }
    let bad = || AdapterError::Type { tensor: half.name.to_owned(), ty: half.ty };
    let mut floats = vec![0.0f32; shape.iter().product()];
    puna_quant::dequantize(half.ty, &half.bytes(), &mut floats).map_err(|_| bad())?;
    let bytes = |floats: &mut dyn Iterator<Item = f32>| -> SharedBytes {
        SharedBytes::aligned(&floats.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>())
    };
    if !is_transposed {
        return Ok((TensorType::F32, shape, bytes(&mut floats.into_iter())));
    }
    let (cols, rows) = (shape[0], floats.len() / shape[0]);
    let mut turned = (0..cols).flat_map(|col| (0..rows).map(move |row| (row, col)));
    let data = bytes(&mut turned.by_ref().map(|(row, col)| floats[row * cols + col]));
    Ok((TensorType::F32, vec![rows, cols], data))
}
