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
}

/// What a route asks for. Every route says it, so that none is open by omission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: it tells nobody anything.
    Open,
    /// A key with a scope, where there are keys.
    Needs(Scope),
}
