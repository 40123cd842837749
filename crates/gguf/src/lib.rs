//! The GGUF file format: parse, validate, map, split files, write, and the translating [`View`].
//!
//! [`Gguf::open`] maps a file (and the other parts of a split one) and checks everything its header claims against
//! the bytes that are there; tensor data is handed out in place. [`Metadata`] has the keys and values, with typed
//! getters. [`View`] shows a model the way its architecture's code wants it, translating files in the form of
//! Ollama's library.
//!
//! ```no_run
//! # fn main() -> Result<(), puna_gguf::GgufError> {
//! use puna_gguf::{Gguf, View};
//! let gguf = std::sync::Arc::new(Gguf::open("model.gguf".as_ref())?);
//! let view = View::new(gguf)?;
//! println!("{}", view.metadata().architecture()?);
//! for tensor in view.tensors() {
//!     println!("{} {} {:?}: {} bytes", tensor.name, tensor.ty, tensor.shape, tensor.bytes().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `unsafe` occurs once, where a file is mapped.

mod bytes;
mod error;
mod file;
mod file_type;
mod metadata;
mod parse;
mod split;
mod tensor;
mod value;
mod view;
mod write;

pub use bytes::{DATA_ALIGNMENT, SharedBytes};
pub use error::{GgufError, shown};
pub use file::{Advice, Gguf, Storage};
pub use file_type::{FileType, TypeShare};
pub use metadata::Metadata;
pub use split::PartName;
pub use tensor::TensorInfo;
pub use value::{Array, Strings, Text, Value, ValueType};
pub use view::{TensorView, Translation, View};
pub use write::{Body, Writer};
