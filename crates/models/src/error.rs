//! Why a model cannot be built from a file.

use puna_gguf::{GgufError, shown};
use puna_quant::TensorType;

use crate::adapter::AdapterError;

/// What is wrong with a file as a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file itself, or one of its keys.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No such architecture.
    #[error("unknown architecture {}; this version knows {}", shown(name.as_bytes()), known.join(", "))]
    UnknownArchitecture {
        /// What the file says.
        name: String,
        /// What would work.
        known: Vec<&'static str>,
    },
    /// A draft model that was loaded without its model.
    #[error(
        "`{name}` is a draft model, which guesses ahead for {of} with that model's own states and cannot answer alone: run the model \
         with `puna run MODEL --speculate DRAFT`, or name the file in the model's Modelfile: DRAFT ./FILE.gguf"
    )]
    NeedsItsModel {
        /// The draft model's architecture.
        name: &'static str,
        /// What it guesses for.
        of: &'static str,
    },
    /// A draft model that was made for another model.
    #[error(
        "`{draft}` was made for another model than this `{model}`: {difference}; take the draft model that was published beside \
         the model"
    )]
    Companion {
        /// The draft model's architecture.
        draft: &'static str,
        /// The model's.
        model: &'static str,
        /// What does not fit.
        difference: String,
    },
    /// A draft model that reads what this version cannot read of its model.
    #[error(
        "`{draft}` reads the input of layer {layer}, which this version does not know of a model of architecture `{model}`; run \
         the model without it"
    )]
    UnreadLayer {
        /// The draft model's architecture.
        draft: &'static str,
        /// The model's.
        model: &'static str,
        /// The layer.
        layer: usize,
    },
    /// A tensor that the architecture needs.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape than the keys say.
    #[error(
        "tensor `{name}` has shape {found:?}; the keys of the file say {expected:?}{}",
        if expected.contains(&0) { ": one of them is absent or zero" } else { "" }
    )]
    TensorShape {
        /// Its name.
        name: String,
        /// What the file has, fastest dimension first.
        found: Vec<usize>,
        /// What the keys say.
        expected: Vec<usize>,
    },
    /// A tensor whose values cannot be weights.
    #[error("tensor `{name}` has type {ty}, which holds no weights; convert the model again")]
    TensorType {
        /// Its name.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// A key with a value that makes no sense.
    #[error("key `{key}` is {value}: {reason}")]
    KeyValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why not.
        reason: &'static str,
    },
    /// Something the format allows and this program does not support.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What.
        what: String,
        /// Why, or what to do instead.
        reason: &'static str,
    },
    /// An adapter that does not fit the model.
    #[error("adapter {adapter}: {error}")]
    Adapter {
        /// What it is called.
        adapter: String,
        /// What is wrong.
        error: Box<AdapterError>,
    },
}
