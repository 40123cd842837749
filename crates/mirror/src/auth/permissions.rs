//! API keys and what they permit. The embedding server provides the keys.
//!
//! [`Grant::may`] is the one rule for every route of the registry, and of the own APIs of the
//! embedding server.

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

/// Namespace of models that belong to the server and not to one of its users.
const COMMON_NAMESPACE: &str = "library";

/// What a request does with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Runs, shows or lists a model over an API of the embedding server.
    Use,
    /// Does over the registry protocol, or to a stored model, what takes this permission.
    Registry(Permission),
}

/// What an action concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    /// No single model: lists, and actions on the whole server.
    Server,
    /// Everything in a namespace. That of a registry other than the default one begins with the
    /// host.
    Namespace(&'a str),
}

/// What the API key of a request permits.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// Largest permission.
    pub permission: Permission,
    /// Patterns of namespaces, `name` or `name*`; empty permits all.
    pub namespaces: &'a [String],
}

impl Grant<'_> {
    /// Whether the key permits an action, whether or not the resource exists. A key with namespaces
    /// permits everything in them that its permission allows, the use of common models, and lists.
    pub fn may(&self, action: Action, resource: Resource<'_>) -> bool {
        let needed = match action {
            Action::Use => Permission::Read,
            Action::Registry(permission) => permission,
        };
        let is_within = || match resource {
            Resource::Server => needed == Permission::Read,
            Resource::Namespace(namespace) => {
                let is_common = namespace.eq_ignore_ascii_case(COMMON_NAMESPACE);
                self.namespaces.iter().any(|own| matches_pattern(namespace, own))
                    || (action == Action::Use && is_common)
            }
        };
        self.permission >= needed && (self.namespaces.is_empty() || is_within())
    }
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
        let resource = name.map_or(Resource::Server, |name| Resource::Namespace(name.namespace()));
        self.grant().may(Action::Registry(permission), resource)
    }

    /// Whether the key may know of a namespace.
    pub(crate) fn can_see_namespace(&self, namespace: &str) -> bool {
        self.grant().may(Action::Registry(Permission::Read), Resource::Namespace(namespace))
    }

    /// What the key permits.
    pub fn grant(&self) -> Grant<'_> {
        Grant { permission: self.permission, namespaces: &self.namespaces }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_covers_permissions_namespaces_and_common_models() {
        use Permission::{Admin, Read, Write};
        let actions =
            [Action::Use, Action::Registry(Read), Action::Registry(Write), Action::Registry(Admin)];
        let bob = &["bob".to_owned()][..];
        let of = Resource::Namespace;
        for (permission, namespaces, resource, expected) in [
            (Admin, &[][..], Resource::Server, [true, true, true, true]),
            (Admin, &[], of("anna"), [true, true, true, true]),
            (Write, &[], of("anna"), [true, true, true, false]),
            (Read, &[], of("library"), [true, true, false, false]),
            (Admin, bob, Resource::Server, [true, true, false, false]),
            (Admin, bob, of("bob"), [true, true, true, true]),
            (Read, bob, of("BOB"), [true, true, false, false]),
            (Admin, bob, of("anna"), [false, false, false, false]),
            (Admin, bob, of("hf.co/bob"), [false, false, false, false]),
            (Admin, bob, of("Library"), [true, false, false, false]),
            (Admin, bob, of("hf.co/library"), [false, false, false, false]),
        ] {
            let grant = Grant { permission, namespaces };
            let may = actions.map(|action| grant.may(action, resource));
            assert_eq!(may, expected, "{grant:?} {resource:?}");
        }
    }
}
