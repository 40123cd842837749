//! Network of a client without an API key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network that counts as one client: an IPv4 address, or the /64 network of an IPv6 address, which
/// one household usually has. All loopback addresses are 127.0.0.1, because each program has them
/// all.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        loopback if loopback.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let at = |text: &str| client_network(text.parse().unwrap());
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
