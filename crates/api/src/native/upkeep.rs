//! Looking after the store: verify, prune, downloads. All of it is Puna's addition.

use serde::{Deserialize, Serialize};

use super::is_default;

/// `POST /api/verify`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
// Nothing is required, so that `null` is an empty request, as with Ollama.
#[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
#[serde(default)]
pub struct VerifyRequest {
    /// The model; all of them if it is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Fetch what is damaged again from where it came.
    #[serde(skip_serializing_if = "is_default")]
    pub repair: bool,
    /// By plain HTTP instead of HTTPS.
    #[serde(skip_serializing_if = "is_default")]
    pub insecure: bool,
    /// Progress line by line, which is the default, or only the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
}

/// `POST /api/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
// Nothing is required, so that `null` is an empty request, as with Ollama.
#[cfg_attr(feature = "schema", schemars(extend("type" = ["object", "null"])))]
#[serde(default)]
pub struct PruneRequest {
    /// Only tell what would be removed.
    #[serde(skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// Interrupted downloads too, unless a process works on them.
    #[serde(skip_serializing_if = "is_default")]
    pub partial: bool,
    /// Bring back what was removed in the last day, instead of removing anything.
    #[serde(skip_serializing_if = "is_default")]
    pub undo: bool,
    /// Remove for good what was removed in the last day, instead of anything else.
    #[serde(skip_serializing_if = "is_default")]
    pub empty_trash: bool,
}

/// A file that nothing needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Leftover {
    /// Its path below the folder of models.
    pub file: String,
    /// What it was: `blob`, `download` or `temporary`.
    pub kind: String,
    /// Bytes that it took.
    pub size: u64,
    /// Why it is not needed.
    pub reason: String,
}

/// The answer to `POST /api/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PruneResponse {
    /// What was removed, or would be.
    pub removed: Vec<Leftover>,
    /// Bytes that were removed or brought back, or would be. What is removed is freed when it leaves the trash.
    pub bytes: u64,
    /// Unused files that stay because they were touched less than an hour ago; with `partial`, less than a minute.
    pub young: usize,
    /// Unused files that stay because a running pull, push or create may need them.
    pub held: usize,
    /// With `undo`: paths of what was brought back, or would be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<String>,
    /// With `undo`: paths of names that were not brought back, since they have been made anew.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<String>,
    /// Bytes in the trash.
    #[serde(skip_serializing_if = "is_default")]
    pub trash: u64,
    /// Why nothing was removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warning: String,
}

/// A pull that is not finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Download {
    /// The model.
    pub model: String,
    /// Its bytes.
    pub total: u64,
    /// Those that are here.
    pub completed: u64,
    /// Whether it goes on; otherwise the next pull of the model goes on from here.
    pub running: bool,
    /// When it was last begun.
    pub began_at: String,
}

/// The answer to `GET /api/downloads`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DownloadsResponse {
    /// By name.
    pub downloads: Vec<Download>,
}
