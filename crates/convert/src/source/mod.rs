//! The source of a conversion: a model folder with safetensors files and JSON settings.

mod config;
mod folder;
mod safetensors;
mod tensor_data;
mod weights;

pub(crate) use config::Config;
pub use folder::FolderFile;
pub(crate) use folder::ModelFolder;
pub use safetensors::{Dtype, SafeTensors, TensorEntry};
pub(crate) use weights::{PARAMETRIZATIONS, SourceTensor, Weights};
