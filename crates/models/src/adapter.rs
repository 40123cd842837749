//! LoRA adapters: files that change matrices of a model by products of two thin ones, `W + scale · B · A`.
//!
//! The layout is llama.cpp's: `NAME.lora_a` of shape `[in, rank]` and `NAME.lora_b` of shape `[rank, out]` for a matrix
//! `NAME` of shape `[in, out]`, both with the experts as third dimension where the matrix has them. For the token table
//! the two change places: `lora_a` is `[rank, tokens]`, `lora_b` is `[rank, features]`. The scale is
//! `adapter.lora.alpha / rank`, or one where alpha is zero or missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use puna_gguf::{Gguf, GgufError, SharedBytes, TensorView, View};
use puna_graph::{Changes, Graph, LowRank, Op, Weight, WeightId};
use puna_quant::TensorType;

use crate::error::ModelError;
use crate::weights::Mapped;

/// A LoRA adapter's file, and what errors call it.
#[derive(Clone)]
pub struct Adapter {
    name: String,
    gguf: Arc<Gguf>,
}

impl Adapter {
    /// An adapter. Whether it fits a model is found when one is loaded with it.
    pub fn new(name: impl Into<String>, gguf: Arc<Gguf>) -> Self {
        Self { name: name.into(), gguf }
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&self.name).finish()
    }
}

/// Two handles of one opened file are the same adapter.
impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.gguf, &other.gguf)
    }
}

impl Eq for Adapter {}

/// Why an adapter cannot be applied to a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum AdapterError {
    /// One of its keys.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Another kind of file.
    #[error("`{key}` is {found:?}; an adapter has {expected:?}")]
    Kind { key: &'static str, found: String, expected: &'static str },
    /// Made for other models.
    #[error("it is made for the architecture `{found}`, and this model's is `{model}`")]
    Architecture { found: String, model: String },
    /// An adapter that is to begin in the middle of a text.
    #[error(
        "it applies only from certain tokens on (`adapter.alora.invocation_tokens`), which is not supported; \
         use an adapter that applies to the whole text"
    )]
    Activated,
    /// A scale that is no number.
    #[error("`adapter.lora.alpha` is {alpha}, which is no number to scale by")]
    Alpha { alpha: f32 },
    /// A tensor that is neither half of a pair.
    #[error("tensor `{tensor}` ends neither in `.lora_a` nor in `.lora_b`")]
    Suffix { tensor: String },
    /// Half a pair.
    #[error("tensor `{found}` has no `{missing}` beside it")]
    Half { found: String, missing: String },
    /// A tensor of some other model.
    #[error("the model has no tensor `{tensor}`: the adapter was made for another model")]
    NoTensor { tensor: String },
    /// A tensor that is no matrix, or that this architecture does not use.
    #[error("tensor `{tensor}` is not one that the model multiplies with, so its change cannot be applied")]
    Unused { tensor: String },
    /// A matrix of the wrong size.
    #[error(
        "tensor `{tensor}` has shape {found:?}; the model's tensor of shape {model:?} needs {expected:?}: the \
         adapter was made for another model"
    )]
    Shape { tensor: String, found: Vec<u64>, model: Vec<usize>, expected: Vec<u64> },
    /// Two halves that do not go together.
    #[error("`{a}` has rank {rank_a}, and `{b}` has rank {rank_b}")]
    Rank { a: String, rank_a: u64, b: String, rank_b: u64 },
    /// A type that holds no weights.
    #[error("tensor `{tensor}` has type {ty}, which holds no weights; convert the adapter again")]
    Type { tensor: String, ty: TensorType },
}

/// The table whose pair has its halves exchanged.
const TOKEN_TABLE: &str = "token_embd.weight";

/// Tables whose rows are taken by number.
const TABLES: [&str; 3] = [TOKEN_TABLE, "position_embd.weight", "token_types.weight"];

/// The changes of all adapters of a model.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    pub changes: Arc<Changes>,
    pairs: Vec<AttachedPair>,
}

#[derive(Debug)]
struct AttachedPair {
    adapter: String,
    tensor: String,
    up: WeightId,
}

impl Attached {
    /// Finds the matrices that `adapters` change, and adds their halves to `tensors`.
    pub fn new(adapters: &[Adapter], model: &View, tensors: &mut Vec<Weight>) -> Result<Self, ModelError> {
        let (mut changes, mut pairs) = (Changes::new(), Vec::new());
        for adapter in adapters {
            let found = adapter.changes(model, tensors);
            for (at, change) in found.map_err(|error| error.of(&adapter.name))? {
                let (adapter, tensor) = (adapter.name.clone(), tensors[at.index()].name.clone());
                pairs.push(AttachedPair { adapter, tensor, up: change.up });
                changes.entry(at).or_default().push(change);
            }
        }
        Ok(Self { changes: Arc::new(changes), pairs })
    }

    /// Checks that `graphs`, which were recorded with the changes, use every one of them.
    pub fn check_used(&self, graphs: &[Graph]) -> Result<(), ModelError> {
        let mut used: BTreeSet<WeightId> = BTreeSet::new();
        for node in graphs.iter().flat_map(Graph::nodes) {
            match &node.op {
                Op::Linear { w, .. } | Op::Embed { table: w, .. } => drop(used.insert(*w)),
                Op::Moe { spec, .. } => {
                    let all = [&spec.changes.gate, &spec.changes.up, &spec.changes.down];
                    used.extend(all.into_iter().flatten().map(|change| change.up));
                }
                _ => {}
            }
        }
        let unused = self.pairs.iter().find(|pair| !used.contains(&pair.up));
        unused.map_or(Ok(()), |AttachedPair { adapter, tensor, .. }| {
            Err(AdapterError::Unused { tensor: tensor.clone() }.of(adapter))
        })
    }
}

impl AdapterError {
    fn of(self, adapter: &str) -> ModelError {
        ModelError::Adapter { adapter: adapter.to_owned(), error: Box::new(self) }
    }
}

impl Adapter {
    /// Which tensors change, and how.
    fn changes(
        &self,
        model: &View,
        tensors: &mut Vec<Weight>,
    ) -> Result<Vec<(WeightId, LowRank)>, AdapterError> {
        let view = View::untranslated(Arc::clone(&self.gguf));
        let alpha = checked_alpha(&view, model)?;
        let mut changes = Vec::new();
        for (of, [a, b]) in pairs(&view)? {
            let Some(at) = tensors.iter().position(|t| *t.name == *of) else {
                let (tensor, is_known) = (of.to_owned(), model.tensor(of).is_some());
                let error = if is_known {
                    AdapterError::Unused { tensor }
                } else {
                    AdapterError::NoTensor { tensor }
                };
                return Err(error);
            };
            let pair = Pair { of, a, b, is_token_table: of == TOKEN_TABLE };
            let rank = pair.check(&tensors[at].shape)?;
            let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
            changes.push((WeightId(at as u32), pair.add_to(tensors, rank, scale)?));
        }
        Ok(changes)
    }
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
    /// The rank, if both halves have the shapes that a tensor of shape `model` needs.
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
        Ok(rank_a as usize)
    }

    /// Adds the matrices of the change to a model's.
    fn add_to(&self, tensors: &mut Vec<Weight>, rank: usize, scale: f32) -> Result<LowRank, AdapterError> {
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
        Ok(LowRank { down, up, back, rank, scale })
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
