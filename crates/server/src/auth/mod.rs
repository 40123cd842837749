//! API keys and access rights.
//!
//! [`KeyFile`] is the key file that `puna key` writes. It holds hashes, so that reading it reveals
//! no keys. The server checks every request against it.
//!
//! Words for the sender of a request:
//!
//! | type | what it is for |
//! |---|---|
//! | [`Key`] | An entry of the key file. |
//! | `owner::ClientIdentity` | The key, or the address without one, before it is hashed. |
//! | `http::Client` | Number for fair shares, and namespace of cached prefixes. |
//! | `http::Owner` | Hashed identity; owns stored responses. |
//! | `caller::Caller` | Namespaces that the request may use. |
//! | `http::CallerOutgoingAccess` | Hosts that the request may have the server contact. |
//! | [`puna_mirror::Principal`] | A key at `/v2`: name, permission and namespaces. |

pub(crate) mod authorizer;
pub(crate) mod caller;
mod file;
pub(crate) mod owner;
pub(crate) mod rate_limits;
#[cfg(test)]
mod tests;

pub use file::{Key, KeyError, KeyFile, check_key_name};

use serde::{Deserialize, Serialize};

use caller::ModelAccess;

/// Access right of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Generating, embedding, and listing models.
    Inference,
    /// Creating, pulling, copying and deleting models.
    Models,
    /// Everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Inference, Self::Models, Self::Admin];

    /// Name of the scope.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Models => "models",
            Self::Admin => "admin",
        }
    }

    /// Finds a scope by its name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// What a route requires of its caller. Every route states it, so that none is open by omission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteRequirement {
    /// No key: the route reveals nothing about the server.
    Open,
    /// A key with this scope, if the server has keys, whose namespaces permit what the route does
    /// with models.
    Requires(Scope, ModelAccess),
}
