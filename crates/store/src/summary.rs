//! Details of a model in a listing.

/// The `details` of a model in API responses.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)] // the fields of the answer
pub struct Details {
    pub parent_model: String,
    pub format: String,
    pub family: String,
    pub families: Option<Vec<String>>,
    pub parameter_size: String,
    pub quantization_level: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runner: String,
}

/// Details of a model in a listing, beyond those of its manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Family, size and so on.
    pub details: Details,
    /// Trained context length in tokens.
    pub context_length: u64,
    /// Embedding length.
    pub embedding_length: u64,
    /// Capabilities, as in [`Model::capabilities`](crate::Model::capabilities).
    pub capabilities: Vec<String>,
    /// Name of a remote model on its servers; empty for a local model.
    pub remote_model: String,
    /// The servers of a remote model.
    pub remote_host: String,
}
