//! The GGUF file format: parsing, validation, mapping, split files, writing, and the compatibility
//! [`View`].
//!
//! [`Gguf::open`] maps a file, including the other parts of a split file, and checks its header
//! against the file's contents. Tensor data is accessed in place. [`Metadata`] has the keys and
//! values with typed getters. [`View`] presents a model with the tensor names and keys that its
//! architecture expects, and translates the layouts of Ollama's library.
//!
//! ```no_run
//! # fn main() -> Result<(), puna_gguf::GgufError> {
//! use puna_gguf::{Gguf, View};
//! let gguf = std::sync::Arc::new(Gguf::open("model.gguf".as_ref())?);
//! let view = View::new(gguf)?;
//! println!("{}", view.metadata().architecture()?);
//! for tensor in view.tensors() {
//!     println!("{} {}: {} bytes", tensor.name, tensor.ty, tensor.bytes().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! There is one `unsafe`, for mapping a file.

mod bytes;
mod error;
mod file;
mod file_type;
mod metadata;
pub mod ordered_tasks;
mod parse;
mod regular_file;
mod split;
mod tensor;
mod value;
mod view;
mod write;

pub use bytes::{DATA_ALIGNMENT, SharedBytes};
pub use error::{GgufError, escape_for_display, escape_for_message};
pub use file::{Advice, Gguf, LoadMode};
pub use file_type::{FileType, TypeShare};
pub use metadata::Metadata;
pub use regular_file::{check_regular, read_limited};
pub use split::PartName;
pub use tensor::TensorInfo;
pub use value::{Array, GgufString, Strings, Value, ValueType};
pub use view::{TensorView, Translation, View};
pub use write::{DataWriter, Writer};
