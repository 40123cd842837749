//! Errors of applying an adapter.

use puna_gguf::{GgufError, escape_for_display};
use puna_quant::TensorType;

use crate::error::ModelError;

/// Why an adapter cannot be applied to a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages describe the fields
pub enum AdapterError {
    /// Error of one of its keys.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is not an adapter.
    #[error("`{key}` is {}; an adapter has `{expected}`", escape_for_display(found.as_bytes()))]
    Kind { key: &'static str, found: String, expected: &'static str },
    /// The adapter was made for another architecture.
    #[error("it is for architecture {}, but the model has architecture `{model}`", escape_for_display(found.as_bytes()))]
    Architecture { found: String, model: String },
    /// Direction for a layer that does not exist or cannot be steered.
    #[error(
        "tensor `{tensor}` is not `direction.N` for a layer N from 1 on of the model, which has {layers} layers"
    )]
    Direction { tensor: String, layers: usize },
    /// Control vector without a direction.
    #[error("it has no tensor `direction.N`")]
    Empty,
    /// LoRA adapter without a pair of matrices.
    #[error("it has no pair of tensors `NAME.lora_a` and `NAME.lora_b`")]
    NoPair,
    /// NaN or infinite values. An adapter scale of zero would not remove them, so they would reach
    /// requests that do not use the adapter.
    #[error(
        "the data of tensor `{tensor}` cannot be used: {reason}; the file is damaged, or the training failed"
    )]
    Values { tensor: String, reason: String },
    /// Rank above the dimensions of the model's matrix.
    #[error(
        "`{a}` has rank {rank}, more than the rows or columns of the model's tensor of shape {model:?}"
    )]
    HighRank { a: String, rank: u64, model: Vec<usize> },
    /// Activated LoRA, which applies only from certain tokens on.
    #[error(
        "it applies only from certain tokens on (`adapter.alora.invocation_tokens`), which is not supported; \
         use an adapter that applies to the whole text"
    )]
    ActivatedLora,
    /// Scale that is not finite.
    #[error("`adapter.lora.alpha` is {alpha}: it must be a finite number")]
    Alpha { alpha: f32 },
    /// Tensor that is neither `lora_a` nor `lora_b`.
    #[error("tensor `{tensor}` ends neither in `.lora_a` nor in `.lora_b`")]
    Suffix { tensor: String },
    /// Pair with one matrix missing.
    #[error("tensor `{found}` needs `{missing}`, which is missing")]
    Half { found: String, missing: String },
    /// Tensor that the model does not have.
    #[error("the model has no tensor `{tensor}`: the adapter was made for another model")]
    NoTensor { tensor: String },
    /// Tensor that is not a matrix, or that this architecture does not multiply with.
    #[error(
        "tensor `{tensor}` is not a matrix of the model's multiplications, so the adapter cannot change it"
    )]
    Unused { tensor: String },
    /// Tensor of a wrong shape.
    #[error(
        "tensor `{tensor}` has shape {found:?}; the model's tensor of shape {model:?} needs {expected:?}: the \
         adapter was made for another model"
    )]
    Shape { tensor: String, found: Vec<u64>, model: Vec<usize>, expected: Vec<u64> },
    /// Pair of matrices with different ranks.
    #[error("`{a}` has rank {rank_a}, and `{b}` has rank {rank_b}")]
    Rank { a: String, rank_a: u64, b: String, rank_b: u64 },
    /// Tensor of a type that holds no weights.
    #[error("tensor `{tensor}` has type {ty}, which holds no weights; convert the adapter again")]
    Type { tensor: String, ty: TensorType },
}

impl AdapterError {
    pub(super) fn of(self, adapter: &str) -> ModelError {
        ModelError::Adapter { adapter: adapter.to_owned(), error: Box::new(self) }
    }
}
