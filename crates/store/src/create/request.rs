//! What creating a model takes and reports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::error::StoreError;
use crate::manifest::Layer;
use crate::remote::Remote;

/// A body of `/api/create`, checked for types only. File names map to digests of blobs that were stored before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CreateRequest {
    /// A model of the store.
    pub from: Option<String>,
    /// Weights: GGUF files, or the files of a safetensors folder by their relative paths.
    pub files: Option<BTreeMap<String, String>>,
    /// LoRA adapters, which all apply, in the order of their names.
    pub adapters: BTreeMap<String, String>,
    /// A draft model.
    pub draft_files: BTreeMap<String, String>,
    /// Quantization of the draft model.
    pub draft_quantize: Option<String>,
    /// A Go template.
    pub template: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// Licences, which are added to those that are there.
    pub license: Vec<String>,
    /// Options, which are merged over those that are there.
    pub parameters: Map<String, Value>,
    /// Messages: objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// Quantize to this type.
    pub quantize: Option<String>,
    /// Digest of the importance matrix to quantize with.
    pub imatrix: Option<String>,
    /// Built-in prompt renderer.
    pub renderer: Option<String>,
    /// Built-in output parser.
    pub parser: Option<String>,
    /// Oldest version that runs the model.
    pub requires: Option<String>,
    /// Somebody else's server.
    pub remote_host: Option<String>,
    /// Overrides of what is found out about the model.
    pub info: Map<String, Value>,
    /// Layers that the model keeps beside its own, such as what it was made of.
    pub beside: Vec<Layer>,
}

impl CreateRequest {
    /// The model of another server that the request names, if it does.
    ///
    /// # Errors
    /// [`StoreError::BadRemote`]
    pub fn remote(&self) -> Result<Option<Remote>, StoreError> {
        super::check::remote(self)
    }
}

/// A line of progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in Ollama's words.
    pub status: String,
    /// The blob that it is done to.
    pub digest: Option<String>,
    /// Bytes in all.
    pub total: Option<u64>,
    /// Bytes that are done.
    pub completed: Option<u64>,
}

impl Progress {
    /// A line about so many bytes of so many. Lines that a bar shows have a digest, of a blob or standing for one.
    pub(crate) fn bytes(status: &str, digest: &str, completed: u64, total: u64) -> Self {
        let (total, completed) = (Some(total), Some(completed));
        Self { status: status.to_owned(), digest: Some(digest.to_owned()), total, completed }
    }

    /// A line without figures.
    pub fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), ..Self::default() }
    }
}

/// Lines of progress that come so often that nobody could read them; all but the last of some work may be left out.
pub(crate) struct Pace {
    last: Option<Instant>,
}

impl Pace {
    /// The time between two lines.
    const STEP: Duration = Duration::from_millis(100);

    pub(crate) fn new() -> Self {
        Self { last: None }
    }

    /// Whether it is time for a line on work that is done or not.
    pub(crate) fn is_due(&mut self, is_done: bool) -> bool {
        let due = is_done || self.last.is_none_or(|last| last.elapsed() >= Self::STEP);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}

/// A Go template that goes with a known Jinja template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Such as `chatml`.
    pub name: String,
    /// The Go template.
    pub template: String,
    /// Stop strings that go with it.
    pub stop: Vec<String>,
}

/// A test of a Go template: the reason why it is none.
pub type CheckTemplate<'a> = &'a dyn Fn(&str) -> Result<(), String>;
/// The Jinja template of a file, with the texts of the tokens that it may write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileTemplate {
    /// The template.
    pub source: String,
    /// Text of the token that begins a prompt, empty where there is none.
    pub bos: String,
    /// Text of the token that ends an answer, empty where there is none.
    pub eos: String,
}

/// A search for the known template that the Jinja template of a file is.
pub type DetectTemplate<'a> = &'a dyn Fn(&FileTemplate) -> Option<NamedTemplate>;

/// A test of a file of weights with its adapters: the reason why the program cannot load them. Of a kind of model that the program
/// does not know it says so: another one on the same folder may know it.
pub type CheckModel<'a> = &'a dyn Fn(&Path, &[PathBuf]) -> Result<Option<String>, String>;

/// A test of a file of weights with that of a draft model: the reason why this cannot guess for it.
pub type CheckDraft<'a> = &'a dyn Fn(&Path, &Path) -> Result<(), String>;

/// What other crates know and the store does not.
#[derive(Clone, Copy, Default)]
pub struct Hooks<'a> {
    /// Tests the `template` of a request.
    pub check_template: Option<CheckTemplate<'a>>,
    /// Tests weights and adapters that are new to the model.
    pub check_model: Option<CheckModel<'a>>,
    /// Tests a draft model that is new, or whose model is.
    pub check_draft: Option<CheckDraft<'a>>,
    /// Finds a Go template for the Jinja template of a GGUF file.
    pub detect_template: Option<DetectTemplate<'a>>,
    /// The version of Ollama that the program is compatible with; models that require a newer one are refused.
    pub version: Option<&'static str>,
    /// Keep blobs that the replaced model alone used (`OLLAMA_NOPRUNE`).
    pub keep_unused: bool,
}
