//! Metadata of the GGUF file: hyperparameters, rotary embedding, and the writer of keys.

mod hyper_parameters;
mod rope;
mod writer;

pub(crate) use hyper_parameters::{Defaults, HyperParameters, MAX_HEAD_DIM, MAX_HEAD_DIM_TEXT};
pub(crate) use rope::{constant_tensor, llama3_factors};
pub(crate) use writer::MetadataWriter;
