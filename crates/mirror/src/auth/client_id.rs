//! Identity of a client, for its share of limited tables.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::types::client_network::client_network;

tokio::task_local! {
    /// Client of the request in progress.
    static CURRENT: ClientId;
}

/// Client that a share of a limited table belongs to: an API key, or without one the network of the
/// peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(Arc<str>);

impl ClientId {
    /// The client with an API key.
    pub(crate) fn of_key(name: &str) -> Self {
        Self(format!("key {name}").into())
    }

    /// The client at an address.
    pub(crate) fn of_address(address: &str) -> Self {
        let network = match address.parse().map(client_network) {
            Ok(network @ IpAddr::V6(_)) => format!("{network}/64"),
            Ok(network) => network.to_string(),
            Err(_) => address.to_owned(),
        };
        Self(format!("at {network}").into())
    }

    /// This mirror itself, which has no share of its own.
    pub(crate) fn mirror() -> Self {
        Self("".into())
    }

    /// Client of the request in progress; this mirror outside of requests.
    pub(crate) fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_else(|_| Self::mirror())
    }

    /// Runs a future that handles a request of this client.
    pub(crate) async fn scope<T>(self, handler: impl Future<Output = T>) -> T {
        CURRENT.scope(self, handler).await
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_for_its_network() {
        let of = |address| ClientId::of_address(address).to_string();
        assert_eq!(of("2001:db8::1"), "at 2001:db8::/64");
        assert_eq!(of("192.0.2.1"), "at 192.0.2.1");
        assert_eq!(of("127.0.0.2"), of("::1"));
        assert_ne!(ClientId::of_key("127.0.0.1"), ClientId::of_address("127.0.0.1"));
    }

    #[tokio::test]
    async fn a_request_has_its_client() {
        assert_eq!(ClientId::current(), ClientId::mirror());
        let inner = ClientId::of_key("k").scope(async { ClientId::current() }).await;
        assert_eq!(inner, ClientId::of_key("k"));
    }
}
