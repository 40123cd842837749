//! Identifies the client of a request: for fair scheduling, and for what the server reuses from its
//! earlier requests.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use puna_registry::OutgoingAccess;

/// Client of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// Number for fair scheduling: clients with different numbers share a busy model equally.
    pub(crate) number: u64,
    /// Namespace of the prefixes that its requests find in the cache of a model.
    pub(crate) cache_namespace: u128,
}

impl Client {
    /// Number of the client at an address. An IPv6 client is its /64 network, which one household
    /// usually has. All loopback addresses are one client, because each program has them all.
    pub(crate) fn number_at(address: IpAddr) -> u64 {
        match address.to_canonical() {
            loopback if loopback.is_loopback() => u32::from(Ipv4Addr::LOCALHOST).into(),
            IpAddr::V4(v4) => u32::from(v4).into(),
            IpAddr::V6(v6) => (u128::from(v6) >> 64) as u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let at = |text: &str| Client::number_at(text.parse().unwrap());
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
        assert_eq!(at("2001:db8:1:2::5"), at("2001:db8:1:2:3:4:5:6"));
        assert_ne!(at("2001:db8:1:2::5"), at("2001:db8:1:3::5"));
        for same in ["127.0.0.2", "127.255.0.1", "::1", "::ffff:127.0.0.9"] {
            assert_eq!(at(same), at("127.0.0.1"), "{same}");
        }
        assert_ne!(at("127.0.0.1"), at("128.0.0.1"));
    }
}
