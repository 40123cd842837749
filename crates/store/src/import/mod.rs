//! Converts a Hugging Face model folder (safetensors and JSON files) to one GGUF file.
//!
//! [`convert`] reads `config.json`, finds the model's family by its class, and maps the folder's
//! tensors, metadata and vocabulary by the family's rules. `convert_adapter` does the same for LoRA
//! adapters of PEFT. `create` and [`Store::import`] call them.

mod bert;
mod config;
mod families;
mod family_vocabulary;
mod lora;
mod metadata;
mod model;
mod output;
mod plamo_vocabulary;
mod pretokenizer;
mod rope;
mod rules;
mod rwkv_vocabulary;
mod safetensors;
mod sentencepiece;
mod special_tokens;
mod tensor_data;
mod tensor_mapper;
mod tiktoken;
mod unigram;
mod vocabulary;
mod weights;
mod wordpiece;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::files::read_limited;
use crate::store::Store;
pub(crate) use lora::convert as convert_adapter;
pub use safetensors::{Dtype, SafeTensors, TensorEntry};

/// A file of a model folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFile {
    /// Path within the folder, with `/` as separator.
    pub name: String,
    /// Path of its content.
    pub path: PathBuf,
}

/// Reason why a folder cannot be imported.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant documents it and prints its fields
pub enum ImportError {
    #[error("no Modelfile or safetensors files found in {}: the folder of a model has *.gguf or *.safetensors; name it with FROM", dir.display())]
    NoModel { dir: PathBuf },
    #[error("{}: weights of this form may run programs when they are read; convert them to safetensors first", path.display())]
    Pickle { path: PathBuf },
    #[error("insecure path: {}{}", path.display(), if *cached { " (use --local-dir <dir> when downloading model to disable caching)" } else { "" })]
    InsecurePath { path: PathBuf, cached: bool },
    #[error("failed to find user '{0}'")]
    NoHome(String),
    #[error("{0} is missing among the files")]
    FileMissing(String),
    #[error("{file}: {reason}")]
    Json { file: String, reason: String },
    #[error("{file}: `{key}` must be {want}")]
    Key { file: String, key: String, want: &'static str },
    #[error("{file}: `{key}` is {found}")]
    KeyValue { file: String, key: String, found: String },
    #[error("{file}: architecture {found} cannot be imported; those that can: {known}")]
    Architecture { file: String, found: String, known: String },
    #[error("{file} names {missing}, which is not there: the folder is not whole")]
    Shard { file: String, missing: String },
    #[error("{file}: not a safetensors file: {reason}")]
    Safetensors { file: String, reason: String },
    #[error("tensor {name} is missing")]
    TensorMissing { name: String },
    #[error("tensor {name} has shape {found:?}, but {want:?} is expected")]
    TensorShape { name: String, found: Vec<u64>, want: Vec<u64> },
    #[error("tensor {name} has type {found}, which cannot be imported")]
    TensorType { name: String, found: String },
    #[error("tensor {name} is not known to this architecture")]
    TensorUnknown { name: String },
    #[error("{file}: pooling {found} is not supported (mean, cls and last token are)")]
    Pooling { file: String, found: String },
    #[error("{file}: {reason}")]
    Tokenizer { file: String, reason: String },
}

/// Size limits of vocabularies and indices, and of settings files. Real files are far smaller.
const MAX_VOCABULARY_BYTES: u64 = 256 << 20;
const MAX_SETTINGS_BYTES: u64 = 16 << 20;

/// The files of a model folder.
pub(crate) struct ModelFolder<'a> {
    files: &'a [ImportFile],
}

impl ModelFolder<'_> {
    fn path(&self, name: &str) -> Option<&Path> {
        self.files.iter().find(|file| file.name == name).map(|file| file.path.as_path())
    }

    /// Reads a JSON file; `None` if the folder does not have it.
    fn json(&self, name: &str) -> Result<Option<serde_json::Value>, crate::StoreError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        // A parsed file takes many times its size in memory, so only vocabularies and indices may
        // be large.
        let is_large = name.starts_with("tokenizer") || name.ends_with(".index.json");
        let bytes =
            read_limited(path, if is_large { MAX_VOCABULARY_BYTES } else { MAX_SETTINGS_BYTES })?;
        let value = serde_json::from_slice(&bytes);
        Ok(Some(
            value
                .map_err(|e| ImportError::Json { file: name.to_owned(), reason: e.to_string() })?,
        ))
    }

    /// Reads a text file; `None` if the folder does not have it.
    fn text(&self, name: &str) -> Result<Option<String>, crate::StoreError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        Ok(Some(String::from_utf8_lossy(&read_limited(path, MAX_VOCABULARY_BYTES)?).into_owned()))
    }

    /// Opens the weight files. If the top folder has some, subfolders are ignored: they hold the
    /// same weights in other formats.
    fn safetensors(&self) -> Result<Vec<SafeTensors>, crate::StoreError> {
        let is_weights = |file: &&ImportFile| file.name.ends_with(".safetensors");
        let has_top = self.files.iter().filter(is_weights).any(|file| !file.name.contains('/'));
        let files = self
            .files
            .iter()
            .filter(is_weights)
            .filter(|file| !has_top || !file.name.contains('/'));
        self.check_index()?;
        files.map(|file| Ok(SafeTensors::open(&file.name, &file.path)?)).collect()
    }

    /// Checks that all files named in the index exist.
    fn check_index(&self) -> Result<(), crate::StoreError> {
        let file = "model.safetensors.index.json";
        let Some(index) = self.json(file)? else { return Ok(()) };
        let names = index.get("weight_map").and_then(serde_json::Value::as_object);
        let mut names =
            names.into_iter().flat_map(|map| map.values()).filter_map(serde_json::Value::as_str);
        match names.find(|name| self.path(name).is_none()) {
            Some(name) => Err(ImportError::Shard {
                file: file.to_owned(),
                missing: crate::name::escape_for_message(name),
            }
            .into()),
            None => Ok(()),
        }
    }
}

/// Classes in `config.json` that `bert::convert` handles.
const BERT_CLASSES: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
];

/// The values of `general.architecture` that imported folders can get.
#[must_use]
pub fn imported_architectures() -> BTreeSet<&'static str> {
    families::gguf_architectures().collect()
}

/// Called with a status text, the number of bytes done, and the total.
pub(crate) type ProgressReport<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// Status text of the phase that writes the file.
pub(crate) const CONVERTING_STATUS: &str = "converting model";

/// Writes the GGUF file of a model folder.
///
/// # Errors
/// A file, key or tensor is missing, or the import does not support it.
pub(crate) fn convert(
    files: &[ImportFile],
    out: &mut dyn Write,
    report: ProgressReport<'_>,
) -> Result<(), crate::StoreError> {
    let folder = ModelFolder { files };
    if !folder.has("config.json") && folder.has(lora::CONFIG) {
        return Err(crate::StoreError::AdapterWithoutModel);
    }
    let config = config::Config::read(&folder, "config.json")?;
    let class = config.architecture()?;
    let config = config.merge_text_config();
    match families::find_by_class(&class, &config) {
        Some(family) => model::convert(&folder, &config, family, out, report),
        None if BERT_CLASSES.contains(&class.as_str()) => {
            bert::convert(&folder, &config, out, report)
        }
        None => {
            let (file, found) = ("config.json".to_owned(), crate::name::escape_for_message(&class));
            Err(ImportError::Architecture { file, found, known: families::supported_class_list() }
                .into())
        }
    }
}

impl Store {
    /// Converts a model folder to a GGUF blob.
    ///
    /// # Errors
    /// A file, key or tensor is missing or not supported, or the store cannot be written.
    pub fn import(&self, files: &[ImportFile]) -> Result<crate::NewBlob, crate::StoreError> {
        let mut blob = self.blob_writer()?;
        convert(files, &mut blob, &mut |_, _, _| {})?;
        blob.finish(None)
    }
}
