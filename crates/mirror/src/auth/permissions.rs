//! API keys and what they permit. The embedding server provides the keys.

use std::any::Any;

use crate::types::name_pattern::matches_pattern;
use crate::types::repository::Repository;

/// What a request wants to do. Each permission includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Pull and list.
    Read,
    /// Push.
    Write,
    /// Remove.
    Admin,
}

/// An authenticated API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name of the key.
    pub name: String,
    /// Largest permission of the key.
    pub permission: Permission,
    /// Namespaces that the key is limited to: `name` or `name*`. If empty, the key is valid for
    /// all.
    pub namespaces: Vec<String>,
}

impl Principal {
    /// Whether the key has a permission for a repository. `None` stands for requests that concern
    /// no single repository.
    pub fn is_allowed(&self, permission: Permission, name: Option<&Repository>) -> bool {
        let within = || match name {
            None => permission == Permission::Read,
            Some(name) => self.can_see_namespace(name.namespace()),
        };
        self.permission >= permission && (self.namespaces.is_empty() || within())
    }

    /// Whether the key may know of a namespace.
    pub(crate) fn can_see_namespace(&self, namespace: &str) -> bool {
        self.namespaces.is_empty()
            || self.namespaces.iter().any(|own| matches_pattern(namespace, own))
    }
}

/// Accounts a running request to a key until it is dropped.
pub type RequestPermit = Box<dyn Any + Send + Sync>;

/// The request limit of a key is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Message for the client.
    pub message: String,
    /// Seconds after which the client may retry.
    pub retry_after: u64,
}

/// Access to the API keys of the embedding server.
pub trait Keys: Send + Sync + 'static {
    /// Whether any keys exist.
    fn has_keys(&self) -> bool;
    /// Finds a key by its name.
    fn by_name(&self, name: &str) -> Option<Principal>;
    /// Finds a key by its secret.
    fn by_secret(&self, secret: &str) -> Option<Principal>;
    /// Finds a key by the public half of its Ed25519 key pair.
    fn by_public(&self, key: &[u8]) -> Option<Principal>;
    /// Starts a request of a key. `part_of` identifies requests that transfer ranges of the same
    /// object.
    ///
    /// # Errors
    /// The request limit of the key is reached.
    fn begin_request(
        &self,
        name: &str,
        part_of: Option<&str>,
    ) -> Result<Option<RequestPermit>, RateLimit>;
}

/// No keys exist.
pub struct NoKeys;

impl Keys for NoKeys {
    fn has_keys(&self) -> bool {
        false
    }
    fn by_name(&self, _: &str) -> Option<Principal> {
        None
    }
    fn by_secret(&self, _: &str) -> Option<Principal> {
        None
    }
    fn by_public(&self, _: &[u8]) -> Option<Principal> {
        None
    }
    fn begin_request(&self, _: &str, _: Option<&str>) -> Result<Option<RequestPermit>, RateLimit> {
        Ok(None)
    }
}
