//! Model architectures, one file each: hyper-parameters, weights by name, the graph.
//!
//! [`Model::load`] reads the keys of a file, finds its tensors and checks their shapes;
//! [`Model::graph`] records the operations of a step. To add an architecture, write a file in
//! `arch/`, a line in its list and an entry of the zoo.

#![forbid(unsafe_code)]

mod adapter;
mod arch;
mod architecture;
mod block_draft_head;
mod blocks;
mod companion;
mod decoder;
mod delta;
mod error;
mod experts;
mod gated_streams;
mod hparams;
mod hybrid;
mod hyper;
mod indexer;
mod kda;
mod latent;
mod mamba;
mod model;
mod ngram_embedding;
mod norms;
mod per_layer;
mod residual;
mod rope;
mod rwkv;
mod token_mixing_conv;
mod vision;
mod weights;
mod windows;

pub use adapter::{Adapter, AdapterError};
pub use arch::is_diffusion;
pub use architecture::{LoadOptions, ModelShape, UnmaskOrder, Unmasking};
pub use companion::{DraftBlock, DraftCache, DraftMethod, TransitionHead};
pub use error::ModelError;
pub use model::{
    Model, Pooling, StepKind, check_architecture, check_companion, is_companion,
    is_supported_architecture, known_architectures, known_companions,
};
pub use vision::{NormalizedPicture, PromptPart, TowerInputError, TowerPicture, VisionTower};
