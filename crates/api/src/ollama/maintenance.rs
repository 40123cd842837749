//! Maintenance of the store: verify, prune, downloads. Puna adds these routes to Ollama's API.

use serde::{Deserialize, Serialize};

use super::is_default;

/// `POST /api/verify`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
// No field is required, so that `null` is an empty request, as for Ollama.
#[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
#[serde(default)]
pub struct VerifyRequest {
    /// Name of the model. Empty: all models.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Download damaged blobs again from their source.
    #[serde(skip_serializing_if = "is_default")]
    pub repair: bool,
    /// Use plain HTTP.
    #[serde(skip_serializing_if = "is_default")]
    pub insecure: bool,
    /// Stream progress (the default), or return only the last object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// `POST /api/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
// No field is required, so that `null` is an empty request, as for Ollama.
#[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
#[serde(default)]
pub struct PruneRequest {
    /// Only report what would be removed.
    #[serde(skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// Also remove interrupted downloads that no process continues.
    #[serde(skip_serializing_if = "is_default")]
    pub partial: bool,
    /// Restore what was removed in the last day, instead of removing anything.
    #[serde(skip_serializing_if = "is_default")]
    pub undo: bool,
    /// Delete the trash: what was removed in the last day.
    #[serde(skip_serializing_if = "is_default")]
    pub empty_trash: bool,
}

/// Unused file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Leftover {
    /// Path below the folder of models.
    pub file: String,
    /// Type of the file: `blob`, `download` or `temporary`.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Why the file is unused.
    pub reason: String,
}

/// Response of `POST /api/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PruneResponse {
    /// Files that were, or would be, removed.
    pub removed: Vec<Leftover>,
    /// Bytes that were, or would be, removed or restored. Emptying the trash frees the space.
    pub bytes: u64,
    /// Unused files kept because they changed less than an hour ago; with `partial`, a minute.
    pub young: usize,
    /// Unused files kept because a running pull, push or create may need them.
    pub held: usize,
    /// With `undo`: paths of files that were, or would be, restored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<String>,
    /// With `undo`: paths of names that were not restored because they exist again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<String>,
    /// Size of the trash in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub trash: u64,
    /// Why nothing was removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

/// Unfinished pull.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Download {
    /// Name of the model.
    pub model: String,
    /// Size of its blobs in bytes.
    pub total: u64,
    /// Completed bytes.
    pub completed: u64,
    /// Whether the pull is running; otherwise the next pull of the model resumes it.
    pub running: bool,
    /// When the pull was last started.
    pub began_at: String,
}

/// Response of `GET /api/downloads`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DownloadsResponse {
    /// Unfinished pulls by name.
    pub downloads: Vec<Download>,
}
