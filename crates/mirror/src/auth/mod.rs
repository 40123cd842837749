//! Authentication and authorization of requests to the registry.

mod authenticator;
pub(crate) mod permissions;

pub(crate) use authenticator::{Authenticator, TOKEN_LIFETIME};
pub use permissions::{Keys, NoKeys, Permission, Principal, RateLimit, RequestPermit};
