//! Stored and running models: list, show, create, copy, delete, pull.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::{Message, is_default};
use crate::json_shape;

/// Properties of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ModelDetails {
    /// Name of the parent model.
    pub parent_model: String,
    /// `gguf`.
    pub format: String,
    /// Architecture of the model.
    pub family: String,
    /// Architectures of all parts of the model.
    pub families: Option<Vec<String>>,
    /// Number of parameters as text: `134.52M`.
    pub parameter_size: String,
    /// Quantization of most tensors: `Q4_K_M`.
    pub quantization_level: String,
    /// Context length of the training in tokens; only in the list.
    #[serde(skip_serializing_if = "is_default")]
    pub context_length: u64,
    /// Width of the embeddings; only in the list.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding_length: u64,
    /// Runner of the manifest, such as `llamacpp` or `ggml`, if it names one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runner: String,
}

/// Manifest for a runner, in a manifest list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunnerManifest {
    /// Runner: `llamacpp`, `ggml`, `mlx` …
    pub runner: String,
    /// Format of the weights: `gguf` or `safetensors`.
    pub format: String,
    /// SHA-256 of the manifest in hexadecimal.
    pub digest: String,
    /// Size of its blobs in bytes; 0 if it is not stored.
    pub size: u64,
    /// Whether it is stored; `puna pull NAME@runner` fetches it.
    pub stored: bool,
    /// Whether Puna can run it.
    pub runnable: bool,
    /// Whether Puna uses this manifest.
    pub chosen: bool,
}

/// Stored model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ModelSummary {
    /// Shortest name with tag.
    pub name: String,
    /// Equal to `name`.
    pub model: String,
    /// For remote models: the name on the other servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_model: String,
    /// Addresses of these servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// When the model was stored.
    pub modified_at: String,
    /// Size of all blobs in bytes.
    pub size: u64,
    /// SHA-256 of the manifest in hexadecimal.
    pub digest: String,
    /// Properties of the model.
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
    /// Models, newest first.
    pub models: Vec<ModelSummary>,
    /// Problems of model files and folders that are not in the list (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Response of `DELETE /api/delete` with a warning; else the body is empty (Puna's addition).
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
    /// Name of the model.
    pub model: String,
    /// Older name of `model`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Return arrays of the file's metadata in full.
    #[serde(skip_serializing_if = "is_default")]
    pub verbose: bool,
    /// Shown instead of the stored system prompt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Shown in the Modelfile in addition to the stored options.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::options")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Options>"))]
    pub options: Option<Map<String, Value>>,
}

/// Tensor of a model file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Block format of the tensor: `Q4_K`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Dimensions, the fastest-varying first.
    pub shape: Vec<u64>,
}

/// Response of `POST /api/show`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ShowResponse {
    /// License texts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub license: String,
    /// A Modelfile that creates this model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub modelfile: String,
    /// Options, one per line.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameters: String,
    /// Prompt template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// System prompt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Properties of the model.
    pub details: ModelDetails,
    /// Messages before every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// For remote models: the name on the other servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_model: String,
    /// Addresses of these servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// Metadata of the file by key.
    pub model_info: BTreeMap<String, Value>,
    /// Metadata of the projector by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub projector_info: BTreeMap<String, Value>,
    /// Tensors of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<TensorInfo>,
    /// `completion`, `embedding`, `tools` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Manifests for several runners, if the model is a manifest list (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runners: Vec<RunnerManifest>,
    /// When the model was stored.
    pub modified_at: String,
    /// Version that the model requires.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requires: String,
}

/// Loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunningModel {
    /// Shortest name with tag.
    pub name: String,
    /// Equal to `name`.
    pub model: String,
    /// Size in memory in bytes.
    pub size: u64,
    /// SHA-256 of the manifest in hexadecimal.
    pub digest: String,
    /// Properties of the model.
    pub details: ModelDetails,
    /// When the model is unloaded if it is not used.
    pub expires_at: String,
    /// Size in GPU memory in bytes.
    pub size_vram: u64,
    /// Context length in tokens.
    pub context_length: u64,
    /// Other names used for the model; names with the same weights share it (Puna's addition).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Restrictions of the runner, such as `landlock, seccomp` (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Progress of loading; absent once the model is ready (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// `GET /api/ps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProcessResponse {
    /// Loaded models, the last to expire first.
    pub models: Vec<RunningModel>,
}

/// A license text, or several.
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
    /// Name of the new model.
    pub model: String,
    /// Older name of `model`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Stored model to start from.
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
    /// Block format to quantize the draft model to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub draft_quantize: String,
    /// Prompt template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template: String,
    /// System prompt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// License texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<License>,
    /// Options by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Messages before every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Block format to quantize to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quantize: String,
    /// Older name of `quantize`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quantization: String,
    /// Digest of an uploaded importance matrix for quantization (Puna's addition).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub imatrix: String,
    /// Name of a built-in renderer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    /// Name of a built-in output parser.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// Version that the model requires.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requires: String,
    /// Values that replace properties of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "json_shape::info")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Info>"))]
    pub info: Option<Map<String, Value>>,
    /// Servers of a remote model, which `from` names: one address, or several separated by commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// Stream progress (the default), or return only the last object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// `POST /api/copy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CopyRequest {
    /// Existing model.
    pub source: String,
    /// Name of the copy.
    pub destination: String,
}

/// `DELETE /api/delete`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeleteRequest {
    /// Name of the model.
    pub model: String,
    /// Older name of `model`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `POST /api/pull` and `POST /api/push`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PullRequest {
    /// Name of the model.
    pub model: String,
    /// Older name of `model`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Use plain HTTP.
    #[serde(skip_serializing_if = "is_default")]
    pub insecure: bool,
    /// Stream progress (the default), or return only the last object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Mirror to try first, instead of the configured ones; empty: none (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Rate limit in bytes per second (Puna's addition).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_rate: Option<u64>,
    /// Pull the manifests for all runners of a manifest list (Puna's addition).
    #[serde(skip_serializing_if = "is_default")]
    pub all_runners: bool,
    /// Packaging of a pushed model: `ollama` (default), `docker` or `modelpack` (Puna's addition).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format: String,
}

/// Progress of create, pull and push.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Progress {
    /// Current action; `success` at the end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Blob that the action is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Size of the blob in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub total: u64,
    /// Completed bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub completed: u64,
}

/// `GET /api/version`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VersionResponse {
    /// Version of Ollama's API that the server implements.
    pub version: String,
    /// Version of Puna; absent on other servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub puna: String,
}
