//! Stored and running models: list, show, create, copy, delete, pull.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::{Message, is_default};
use crate::shape;

/// What a model is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ModelDetails {
    /// The model that this one was made from.
    pub parent_model: String,
    /// `gguf`.
    pub format: String,
    /// Architecture.
    pub family: String,
    /// Architectures of all its parts.
    pub families: Option<Vec<String>>,
    /// Parameters in words: `134.52M`.
    pub parameter_size: String,
    /// Most of its tensors' format: `Q4_K_M`.
    pub quantization_level: String,
    /// Tokens it was trained for; only in the list.
    #[serde(skip_serializing_if = "is_default")]
    pub context_length: u64,
    /// Width of its vectors; only in the list.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding_length: u64,
    /// The runner that its manifest is for, such as `llamacpp` or `ggml`, where it says one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runner: String,
}

/// One of the manifests that a name stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunnerManifest {
    /// The runner that it is for: `llamacpp`, `ggml`, `mlx` …
    pub runner: String,
    /// The format of its weights: `gguf` or `safetensors`.
    pub format: String,
    /// SHA-256 of the manifest in hexadecimal.
    pub digest: String,
    /// Bytes of its parts; zero where it is not stored.
    pub size: u64,
    /// Whether it is stored; `puna pull NAME@runner` fetches it.
    pub stored: bool,
    /// Whether this program can run it.
    pub runnable: bool,
    /// Whether Puna uses this manifest for the name.
    pub chosen: bool,
}

/// A stored model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ModelSummary {
    /// Shortest name that finds it, with its tag.
    pub name: String,
    /// The same.
    pub model: String,
    /// Of a model on other servers: its name there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_model: String,
    /// The addresses of those servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// When it was stored.
    pub modified_at: String,
    /// Bytes of all its parts.
    pub size: u64,
    /// SHA-256 of its manifest in hexadecimal.
    pub digest: String,
    /// What it is.
    pub details: ModelDetails,
    /// `completion`, `embedding`, `tools` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

/// `GET /api/tags`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ListResponse {
    /// The newest first.
    pub models: Vec<ModelSummary>,
    /// What is wrong with files and folders of models that are in no list (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The answer to `DELETE /api/delete`: nothing (not even this object) where all went well (Puna's addition).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeleteResponse {
    /// Why the space was not freed.
    pub warning: String,
}

/// `POST /api/show`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShowRequest {
    /// The model's name.
    pub model: String,
    /// The same under its old name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Arrays of the file's metadata in full.
    #[serde(skip_serializing_if = "is_default")]
    pub verbose: bool,
    /// Shown instead of the stored system text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Shown in the Modelfile beside the stored parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// A tensor of the model's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its format: `Q4_K`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Extents, the fastest first.
    pub shape: Vec<u64>,
}

/// The answer to `POST /api/show`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShowResponse {
    /// All licence texts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub license: String,
    /// A Modelfile that makes this model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub modelfile: String,
    /// One a line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameters: String,
    /// The prompt template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// The system text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// What it is.
    pub details: ModelDetails,
    /// Messages that precede every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Of a model on other servers: its name there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_model: String,
    /// The addresses of those servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// The file's metadata by key.
    pub model_info: BTreeMap<String, Value>,
    /// The same of the projector.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub projector_info: BTreeMap<String, Value>,
    /// The file's tensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<TensorInfo>,
    /// `completion`, `embedding`, `tools` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The manifests for several runners that the name stands for (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runners: Vec<RunnerManifest>,
    /// When it was stored.
    pub modified_at: String,
    /// Version that it asks for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requires: String,
}

/// A model in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunningModel {
    /// Shortest name that finds it, with its tag.
    pub name: String,
    /// The same.
    pub model: String,
    /// Bytes of memory.
    pub size: u64,
    /// SHA-256 of its manifest in hexadecimal.
    pub digest: String,
    /// What it is.
    pub details: ModelDetails,
    /// When it is unloaded unless it is used.
    pub expires_at: String,
    /// Bytes of memory on graphics cards.
    pub size_vram: u64,
    /// Tokens of one conversation at most.
    pub context_length: u64,
    /// Other names by which it was used since it was loaded: models of the same weights share a place in memory
    /// (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// How far it is on its way into memory; absent once it takes requests (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// `GET /api/ps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessResponse {
    /// The one that stays longest first.
    pub models: Vec<RunningModel>,
}

/// One licence text or several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct License(pub Vec<String>);

impl<'de> Deserialize<'de> for License {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(d)?;
        let list = match &value {
            Value::String(s) => Some(vec![s.clone()]),
            Value::Array(list) => list.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        list.map(Self)
            .ok_or_else(|| de::Error::custom("license must be a string or a list of strings"))
    }
}

/// `POST /api/create`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CreateRequest {
    /// The new model's name.
    pub model: String,
    /// The same under its old name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// A stored model to start from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// Digests of uploaded files by file name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<BTreeMap<String, String>>,
    /// Digests of uploaded adapters by file name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub adapters: BTreeMap<String, String>,
    /// Digests of uploaded files of a draft model by file name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub draft_files: BTreeMap<String, String>,
    /// Format to quantize the draft model to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub draft_quantize: String,
    /// The prompt template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// The system text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Licence texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    /// Parameters by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Messages that precede every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Format to quantize to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quantize: String,
    /// The same under its old name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quantization: String,
    /// Digest of an uploaded importance matrix to quantize with (Puna's addition).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub imatrix: String,
    /// Name of a built-in renderer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    /// Name of a built-in parser.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// Version that the model asks for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requires: String,
    /// Overrides of what is found in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "shape::info")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Info>"))]
    pub info: Option<Map<String, Value>>,
    /// The servers that have the model, which `from` names as they do: one address, or several separated by commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// Line by line (the default) or only the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// `POST /api/copy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CopyRequest {
    /// An existing model.
    pub source: String,
    /// Its further name.
    pub destination: String,
}

/// `DELETE /api/delete`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeleteRequest {
    /// The model's name.
    pub model: String,
    /// The same under its old name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `POST /api/pull` and `POST /api/push`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PullRequest {
    /// The model's name.
    pub model: String,
    /// The same under its old name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Plain HTTP.
    #[serde(skip_serializing_if = "is_default")]
    pub insecure: bool,
    /// Line by line (the default) or only the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The mirror to ask first, instead of those that are set; empty: none (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Bytes a second at most (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_rate: Option<u64>,
    /// Fetch the manifests for all runners, where the name stands for several (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub all_runners: bool,
    /// How a model is packaged that is pushed: `ollama` (the default), `docker` or `modelpack` (Puna's addition).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format: String,
}

/// A line of progress of create, pull and push.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Progress {
    /// What is being done; `success` at the end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The part it is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Bytes of the part.
    #[serde(skip_serializing_if = "is_default")]
    pub total: u64,
    /// Bytes that are done.
    #[serde(skip_serializing_if = "is_default")]
    pub completed: u64,
}

/// `GET /api/version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VersionResponse {
    /// Version of Ollama whose interface is spoken.
    pub version: String,
    /// Version of Puna; absent on other servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub puna: String,
}
