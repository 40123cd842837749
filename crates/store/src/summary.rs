//! Details of a model in a listing.

use crate::model::Details;

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
