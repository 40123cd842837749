//! What a list says of a model.

use crate::model::Details;

/// What a list says of a model, beside what its manifest says.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Family, size and so on.
    pub details: Details,
    /// Tokens that it was trained for.
    pub context_length: u64,
    /// Width of its vectors.
    pub embedding_length: u64,
    /// What it can do, as [`Model::capabilities`](crate::Model::capabilities).
    pub capabilities: Vec<String>,
    /// The model on other servers that it stands for; empty for one that is here.
    pub remote_model: String,
    /// Those servers.
    pub remote_host: String,
}
