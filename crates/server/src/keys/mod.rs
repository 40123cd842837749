//! API keys: who may do what.
//!
//! [`KeyFile`] is the file of them, which `puna key` writes; it holds hashes, so that nobody who reads it can use them.
//! A server asks it at every request.

mod file;
pub(crate) mod guard;
#[cfg(test)]
mod tests;
mod usage;

pub use file::{Key, KeyError, KeyFile};

use serde::{Deserialize, Serialize};

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Generating, embedding, and looking at what there is.
    Inference,
    /// Making, fetching, copying and removing models.
    Models,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Inference, Self::Models, Self::Admin];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Models => "models",
            Self::Admin => "admin",
        }
    }

    /// By its name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// What a route asks for; `None` for those that tell nothing.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        const OPEN: [&str; 3] = ["/", "/health", "/api/version"];
        const MODELS: [&str; 5] = ["/api/create", "/api/copy", "/api/delete", "/api/pull", "/api/push"];
        if OPEN.contains(&path) {
            return None;
        }
        match MODELS.contains(&path) || path.starts_with("/api/blobs/") {
            true => Some(Self::Models),
            false if path == "/metrics" => Some(Self::Admin),
            false => Some(Self::Inference),
        }
    }
}
