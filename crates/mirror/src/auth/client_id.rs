//! Identity of a client, for its share of limited tables.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

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

    /// The client at an address. An IPv6 client has as many addresses as it likes in its /64
    /// network. All loopback addresses are one client.
    pub(crate) fn of_address(address: &str) -> Self {
        let network = match address.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip.is_loopback() => "loopback".to_owned(),
            Ok(IpAddr::V6(ip)) => {
                let network = Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX));
                format!("{network}/64")
            }
            Ok(ip) => ip.to_string(),
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
        assert_eq!(of("2001:db8::ffff"), "at 2001:db8::/64");
        assert_ne!(of("2001:db8:0:1::1"), "at 2001:db8::/64");
        assert_eq!(of("192.0.2.1"), "at 192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "at 192.0.2.1");
        for address in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(address), "at loopback");
        }
        assert_ne!(ClientId::of_key("loopback"), ClientId::of_address("127.0.0.1"));
    }

    #[tokio::test]
    async fn a_request_has_its_client() {
        assert_eq!(ClientId::current(), ClientId::mirror());
        let inner = ClientId::of_key("k").scope(async { ClientId::current() }).await;
        assert_eq!(inner, ClientId::of_key("k"));
    }
}
