//! Authentication and authorization of requests to the registry.

mod authenticator;
pub(crate) mod client_id;
mod nonces;
pub(crate) mod permissions;

pub(crate) use authenticator::{Authenticator, TOKEN_LIFETIME};
pub(crate) use client_id::ClientId;
pub(crate) use nonces::NONCES;
pub use permissions::{
    Action, Grant, Keys, NoKeys, Permission, Principal, RateLimit, RequestPermit, Resource,
};
