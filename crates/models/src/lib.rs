//! Model architectures, one file each: hyper-parameters, weights by name, the graph.
//!
//! [`Model::load`] reads a file's keys, finds its tensors and checks their shapes; [`Model::graph`] records the
//! operations of a step. Adding an architecture means one file in `arch/`, one line in its list and one entry of the
//! zoo.

#![forbid(unsafe_code)]

mod adapter;
mod arch;
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
mod rope;
mod rwkv;
mod token_mixing_conv;
mod weights;
mod windows;

pub use adapter::{Adapter, AdapterError};
pub use arch::fills_masks;
pub use companion::{Block, Guesses, Link, Seen};
pub use error::ModelError;
pub use model::{
    LoadOptions, Model, Order, Pooling, Shape, Unmasking, Want, check_architecture,
    check_companion, is_companion, known_architectures, known_companions,
};
