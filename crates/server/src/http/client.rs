//! Identifies the client of a request: for fair scheduling, and for what the server reuses from its
//! earlier requests.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use puna_mirror::client_network;
use puna_registry::OutgoingAccess;

/// Client of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// Number for fair scheduling: clients with different numbers share a busy model equally.
    pub(crate) number: u64,
    /// Namespace of the prefixes that its requests find in the cache of a model.
    pub(crate) cache_namespace: u128,
    /// Whether it may administer the server.
    pub(crate) may_administer: bool,
}

impl Client {
    /// Number of the client at an address: that of its network.
    pub(crate) fn number_at(address: IpAddr) -> u64 {
        match client_network(address) {
            IpAddr::V4(v4) => v4.to_bits().into(),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// Owner of stored responses; see [`crate::auth::owner`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner(pub(crate) u128);

impl<S: Send + Sync> FromRequestParts<S> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// Hosts that the caller of a request may have the server contact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallerOutgoingAccess(pub(crate) OutgoingAccess);

impl CallerOutgoingAccess {
    /// The access of a caller, by its right to administer the server.
    pub(crate) fn new(may_administer: bool) -> Self {
        Self(match may_administer {
            true => OutgoingAccess::Unlimited,
            false => OutgoingAccess::Limited,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerOutgoingAccess {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}
