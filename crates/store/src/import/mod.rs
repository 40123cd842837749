//! Models in the form of Hugging Face: a folder of safetensors and JSON files becomes one GGUF file.

mod bert;
mod bytewise;
mod config;
mod decoder;
mod families;
mod keys;
mod lora;
mod pieces;
mod plamo;
mod plan;
mod pretokenizer;
mod ranks;
mod rope;
mod rules;
mod safetensors;
mod sentencepiece;
mod source;
mod special;
mod unigram;
mod vocabulary;
mod weights;
mod wordpiece;
mod words;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::files::read_limited;
use crate::store::Store;
pub(crate) use lora::convert as convert_adapter;
pub use safetensors::{Dtype, SafeTensors, TensorEntry};

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFile {
    /// Its path within the folder, with `/`.
    pub name: String,
    /// Where its content is.
    pub path: PathBuf,
}

/// Why a folder cannot be imported.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message of a variant is its documentation, the fields are what it prints
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

/// The most bytes of a vocabulary, and of a file of settings, which none comes near.
const TEXT_LIMIT: u64 = 256 << 20;
const SETTINGS_LIMIT: u64 = 16 << 20;

/// The files of a model's folder.
pub(crate) struct Folder<'a> {
    files: &'a [ImportFile],
}

impl Folder<'_> {
    fn path(&self, name: &str) -> Option<&Path> {
        self.files.iter().find(|file| file.name == name).map(|file| file.path.as_path())
    }

    /// A JSON file, if it is there.
    fn json(&self, name: &str) -> Result<Option<serde_json::Value>, crate::StoreError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        // A parsed file takes many times its bytes: vocabularies and indices alone may be large.
        let is_large = name.starts_with("tokenizer") || name.ends_with(".index.json");
        let bytes = read_limited(path, if is_large { TEXT_LIMIT } else { SETTINGS_LIMIT })?;
        let value = serde_json::from_slice(&bytes);
        Ok(Some(
            value
                .map_err(|e| ImportError::Json { file: name.to_owned(), reason: e.to_string() })?,
        ))
    }

    /// A text file, if it is there.
    fn text(&self, name: &str) -> Result<Option<String>, crate::StoreError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        Ok(Some(String::from_utf8_lossy(&read_limited(path, TEXT_LIMIT)?).into_owned()))
    }

    /// The files of weights: those at the top, where there are some, since folders below hold other forms of the same.
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

    /// Every file that the index names must be there.
    fn check_index(&self) -> Result<(), crate::StoreError> {
        let file = "model.safetensors.index.json";
        let Some(index) = self.json(file)? else { return Ok(()) };
        let names = index.get("weight_map").and_then(serde_json::Value::as_object);
        let mut names =
            names.into_iter().flat_map(|map| map.values()).filter_map(serde_json::Value::as_str);
        match names.find(|name| self.path(name).is_none()) {
            Some(name) => {
                Err(ImportError::Shard { file: file.to_owned(), missing: crate::name::shown(name) }
                    .into())
            }
            None => Ok(()),
        }
    }
}

/// Classes of encoders that can be imported, by the name in `config.json`.
const BERT: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
];

/// The architectures (`general.architecture`) of the files that folders of safetensors become.
#[must_use]
pub fn imported_architectures() -> BTreeSet<&'static str> {
    families::made().collect()
}

/// Where it is told what is done, to how many bytes, and of how many.
pub(crate) type Report<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// What writing the file is called.
pub(crate) const CONVERTING: &str = "converting model";

/// Writes the GGUF file of a folder.
///
/// # Errors
/// What is missing or not understood.
pub(crate) fn convert(
    files: &[ImportFile],
    out: &mut dyn Write,
    report: Report<'_>,
) -> Result<(), crate::StoreError> {
    let folder = Folder { files };
    if !folder.has("config.json") && folder.has(lora::CONFIG) {
        return Err(crate::StoreError::AdapterAlone);
    }
    let config = config::Json::read(&folder, "config.json")?;
    let class = config.architecture()?;
    let config = config.of_text();
    match families::of_class(&class, &config) {
        Some(family) => decoder::convert(&folder, &config, family, out, report),
        None if BERT.contains(&class.as_str()) => bert::convert(&folder, &config, out, report),
        None => {
            let (file, found) = ("config.json".to_owned(), crate::name::shown(&class));
            Err(ImportError::Architecture { file, found, known: families::known() }.into())
        }
    }
}

impl Store {
    /// Converts a folder of safetensors into a GGUF blob.
    ///
    /// # Errors
    /// What is missing or not understood, or the store cannot be written.
    pub fn import(&self, files: &[ImportFile]) -> Result<crate::NewBlob, crate::StoreError> {
        let mut blob = self.blob_writer()?;
        convert(files, &mut blob, &mut |_, _, _| {})?;
        blob.finish(None)
    }
}
