//! Converts model folders (checkpoints) of Hugging Face to GGUF files.
//!
//! [`convert`] reads `config.json`, finds the model's family by its class, and maps the folder's
//! tensors, metadata and vocabulary by the family's rules. [`convert_adapter`] does the same for
//! LoRA adapters of PEFT. Both take the paths of the files and write to any [`Write`], so that the
//! caller decides where files come from and where the result goes.
//!
//! ```text
//! source      safetensors files, JSON settings, tensors as rows of f32
//! families    tensor rules and metadata of each model family; `family` has their type
//! vocabulary  SentencePiece, BPE, WordPiece, Unigram, tiktoken and RWKV vocabularies
//! metadata    hyperparameters and the keys that follow from them
//! output      tensors of the GGUF file and its writer
//! ```
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use puna_convert::{FolderFile, convert};
//! let files = ["config.json", "model.safetensors", "tokenizer.json"]
//!     .map(|name| FolderFile { name: name.into(), path: format!("my-model/{name}").into() });
//! let mut out = std::fs::File::create("my-model.gguf")?;
//! convert(&files, &mut out, &mut |status, done, total| eprintln!("{status}: {done} of {total}"))?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod error;
mod families;
mod family;
mod lora;
mod metadata;
mod model;
mod output;
mod rules;
mod source;
mod tensor_mapper;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::BTreeSet;
use std::io::Write;

use puna_gguf::escape_for_message;

use crate::families::bert;
use crate::source::{Config, ModelFolder};
pub use error::ConvertError;
pub use lora::convert_adapter;
pub use output::{CONVERTING_STATUS, ProgressReport};
pub use source::{Dtype, FolderFile, SafeTensors, TensorEntry};

/// Values of `general.architecture` that converted folders can get.
#[must_use]
pub fn supported_architectures() -> BTreeSet<&'static str> {
    families::gguf_architectures().collect()
}

/// Writes the GGUF file of a model folder.
///
/// # Errors
/// A file, key or tensor is missing or not supported, or `out` fails.
pub fn convert(
    files: &[FolderFile],
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), ConvertError> {
    let folder = ModelFolder::new(files);
    if !folder.has("config.json") && folder.has(lora::CONFIG) {
        return Err(ConvertError::AdapterWithoutModel);
    }
    let config = Config::read(&folder, "config.json")?;
    let class = config.architecture()?;
    let config = config.merge_text_config();
    match families::find_by_class(&class, &config) {
        Some(family) => model::convert(&folder, &config, family, out, report),
        None if bert::CLASSES.contains(&class.as_str()) => {
            bert::convert(&folder, &config, out, report)
        }
        None => {
            let (file, found) = ("config.json".to_owned(), escape_for_message(&class));
            Err(ConvertError::Architecture { file, found, known: families::supported_class_list() })
        }
    }
}
