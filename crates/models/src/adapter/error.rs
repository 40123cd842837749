//! Why an adapter cannot be applied.

use puna_gguf::{GgufError, shown};
use puna_quant::TensorType;

use crate::error::ModelError;

/// Why an adapter cannot be applied to a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum AdapterError {
    /// One of its keys.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Another kind of file.
    #[error("`{key}` is {}; an adapter has `{expected}`", shown(found.as_bytes()))]
    Kind { key: &'static str, found: String, expected: &'static str },
    /// Made for other models.
    #[error("it is made for the architecture {}, and this model's is `{model}`", shown(found.as_bytes()))]
    Architecture { found: String, model: String },
    /// A direction of no layer that could be steered.
    #[error(
        "tensor `{tensor}` is not `direction.N` for a layer N from 1 on of the model, which has {layers} layers"
    )]
    Direction { tensor: String, layers: usize },
    /// A control vector without any.
    #[error("it has no tensor `direction.N`")]
    Empty,
    /// A file without a change.
    #[error("it has no pair of tensors `NAME.lora_a` and `NAME.lora_b`, and so changes nothing")]
    NoPair,
    /// Values that would reach requests which do without the adapter, since nothing times what is no number is no number.
    #[error(
        "the data of tensor `{tensor}` cannot be used: {reason}; the file is damaged, or the training failed"
    )]
    Values { tensor: String, reason: String },
    /// A pair of matrices that are larger than the one which they change.
    #[error(
        "`{a}` and its other half have rank {rank}, more than the model's tensor of shape {model:?} has rows or columns"
    )]
    HighRank { a: String, rank: u64, model: Vec<usize> },
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
    #[error(
        "tensor `{tensor}` is not one that the model multiplies with, so its change cannot be applied"
    )]
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

impl AdapterError {
    pub(super) fn of(self, adapter: &str) -> ModelError {
        ModelError::Adapter { adapter: adapter.to_owned(), error: Box::new(self) }
    }
}
