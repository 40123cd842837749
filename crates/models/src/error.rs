//! Errors of building a model from a file.

use puna_gguf::{GgufError, escape_for_display};
use puna_quant::TensorType;

use crate::adapter::AdapterError;

/// Why a file cannot be loaded as a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Error of the file, or of one of its keys.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Unknown architecture.
    #[error("unknown architecture {}; this version supports {}", escape_for_display(name.as_bytes()), known.join(", "))]
    UnknownArchitecture {
        /// Architecture that the file names.
        name: String,
        /// Known architectures.
        known: Vec<&'static str>,
    },
    /// Companion draft model that was loaded without its target.
    #[error(
        "`{name}` is a draft model for {of} and cannot run alone: use `puna run MODEL --speculate DRAFT`, or `DRAFT ./FILE.gguf` in the model's Modelfile"
    )]
    DraftWithoutTarget {
        /// Architecture of the draft model.
        name: &'static str,
        /// Target models, in words.
        of: &'static str,
    },
    /// Companion draft model of another target.
    #[error(
        "draft model `{draft}` does not fit model `{model}`: {difference}; use the draft model published with this model"
    )]
    Companion {
        /// Architecture of the draft model.
        draft: &'static str,
        /// Architecture of the target.
        model: &'static str,
        /// What differs.
        difference: String,
    },
    /// Companion draft model that taps a layer which the target's graph does not record.
    #[error(
        "draft model `{draft}` needs the input of layer {layer}, which architecture `{model}` does not provide; run the model without the draft model"
    )]
    UnreadableLayer {
        /// Architecture of the draft model.
        draft: &'static str,
        /// Architecture of the target.
        model: &'static str,
        /// Index of the layer.
        layer: usize,
    },
    /// Missing tensor.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The shape of a tensor differs from the shape that the keys declare.
    #[error(
        "tensor `{name}` has shape {found:?}, but the keys of the file require {expected:?}{}",
        if expected.contains(&0) { ": one of them is absent or zero" } else { "" }
    )]
    TensorShape {
        /// Name of the tensor.
        name: String,
        /// Shape in the file, fastest dimension first.
        found: Vec<usize>,
        /// Shape that the keys imply.
        expected: Vec<usize>,
    },
    /// Tensor of a type that cannot hold weights.
    #[error("tensor `{name}` has type {ty}, which holds no weights; convert the model again")]
    TensorType {
        /// Name of the tensor.
        name: String,
        /// Type of the tensor.
        ty: TensorType,
    },
    /// Key with an invalid value.
    #[error("key `{key}` is {value}: {reason}")]
    KeyValue {
        /// Name of the key.
        key: String,
        /// Value in the file.
        value: String,
        /// Why the value is invalid.
        reason: &'static str,
    },
    /// Valid content that this version does not support.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// The content.
        what: String,
        /// The reason, or what to do instead.
        reason: &'static str,
    },
    /// Adapter that does not fit the model.
    #[error("adapter {adapter}: {error}")]
    Adapter {
        /// Name of the adapter.
        adapter: String,
        /// The error.
        error: Box<AdapterError>,
    },
}
