//! Requests, progress messages and callbacks of model creation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::StoreError;
use crate::file_job::{InProcessExecutor, JobExecutor};
use crate::manifest::Layer;
use crate::remote::Remote;

/// A body of `/api/create`, checked for types only. File names map to digests of blobs that were
/// uploaded before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CreateRequest {
    /// Name of the model to start from.
    pub from: Option<String>,
    /// Weights: GGUF files, or the files of a safetensors folder by their relative paths.
    pub files: Option<BTreeMap<String, String>>,
    /// LoRA adapters. All apply, in the order of their names.
    pub adapters: BTreeMap<String, String>,
    /// Files of a draft model.
    pub draft_files: BTreeMap<String, String>,
    /// Quantization type of the draft model.
    pub draft_quantize: Option<String>,
    /// Go template.
    pub template: Option<String>,
    /// System message.
    pub system: Option<String>,
    /// Licences, added to existing ones.
    pub license: Vec<String>,
    /// Options, merged over existing ones.
    pub parameters: Map<String, Value>,
    /// Messages: objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// Quantization type.
    pub quantize: Option<String>,
    /// Digest of the importance matrix for quantization.
    pub imatrix: Option<String>,
    /// Built-in renderer.
    pub renderer: Option<String>,
    /// Built-in output parser.
    pub parser: Option<String>,
    /// Oldest version of Ollama that runs the model.
    pub requires: Option<String>,
    /// Server of a remote model.
    pub remote_host: Option<String>,
    /// Overrides of detected properties of the model.
    pub info: Map<String, Value>,
    /// Additional layers, such as the manifest that the model was converted from.
    pub extra_layers: Vec<Layer>,
}

impl CreateRequest {
    /// The remote model that the request names, if any.
    ///
    /// # Errors
    /// [`StoreError::BadRemote`]
    pub fn remote(&self) -> Result<Option<Remote>, StoreError> {
        let from = self.from.as_deref().unwrap_or_default();
        match self.remote_host.as_deref().filter(|host| !host.is_empty()) {
            None => Remote::parse(from),
            Some(_) if from.is_empty() => Err(StoreError::BadRemote(
                "`from` must be the model's name on the remote server".into(),
            )),
            Some(host) => Ok(Some(Remote { host: host.to_owned(), model: from.to_owned() })),
        }
    }
}

/// A Go template that is equivalent to a known Jinja template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Its name, such as `chatml`.
    pub name: String,
    /// The Go template.
    pub template: String,
    /// Stop strings of the template.
    pub stop: Vec<String>,
}

/// Checks a Go template; the error is the reason why it is invalid.
pub type CheckTemplate<'a> = &'a dyn Fn(&str) -> Result<(), String>;
/// The Jinja template of a file, with its BOS and EOS tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileTemplate {
    /// The template.
    pub source: String,
    /// Text of the BOS token, or empty.
    pub bos: String,
    /// Text of the EOS token, or empty.
    pub eos: String,
}

/// Finds the Go equivalent of a file's Jinja template.
pub type DetectTemplate<'a> = &'a dyn Fn(&FileTemplate) -> Option<NamedTemplate>;

/// Checks whether the program can load a file of weights with its adapters; the error is the
/// reason. For an unknown architecture it returns a remark instead, because another program on the
/// same store may know it.
pub type CheckModel<'a> = &'a dyn Fn(&Path, &[PathBuf]) -> Result<Option<String>, String>;

/// Checks whether a draft model (second path) fits a model; the error is the reason.
pub type CheckDraft<'a> = &'a dyn Fn(&Path, &Path) -> Result<(), String>;

/// Callbacks and settings from crates that the store does not depend on.
#[derive(Clone, Copy, Default)]
pub struct CreateHooks<'a> {
    /// Checks the `template` of a request.
    pub check_template: Option<CheckTemplate<'a>>,
    /// Checks new weights and adapters.
    pub check_model: Option<CheckModel<'a>>,
    /// Checks the draft model if it or its target is new.
    pub check_draft: Option<CheckDraft<'a>>,
    /// Finds a Go template for the Jinja template of a GGUF file.
    pub detect_template: Option<DetectTemplate<'a>>,
    /// Runs conversions, quantizations and joins. `None` runs them in this process.
    pub executor: Option<&'a dyn JobExecutor>,
    /// The compatible version of Ollama. Models that require a newer one are rejected.
    pub version: Option<&'static str>,
    /// Keep blobs that only the replaced model used (`OLLAMA_NOPRUNE`).
    pub keep_unused: bool,
    /// Report layers that the store has like new ones, for callers who may not know its content.
    pub hides_stored_layers: bool,
}

impl<'a> CreateHooks<'a> {
    pub(super) fn executor(&self) -> &'a dyn JobExecutor {
        self.executor.unwrap_or(&InProcessExecutor)
    }
}
