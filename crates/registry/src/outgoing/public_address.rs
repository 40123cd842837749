//! Distinguishes public IP addresses from others, by IANA's special-purpose address registries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to the public internet: not loopback, private or reserved.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// IPv4 blocks that are not public: first address and prefix length.
const NON_PUBLIC_V4: [([u8; 4], u32); 14] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast and all higher blocks.
    ([224, 0, 0, 0], 3),
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !NON_PUBLIC_V4
        .iter()
        .any(|(first, prefix)| (bits ^ u32::from_be_bytes(*first)) >> (32 - prefix) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    match parts {
        // NAT64: embeds the IPv4 address at its end.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            is_public_v4(Ipv4Addr::new(a, b, c, d))
        }
        // Protocol assignments (such as Teredo), documentation, 6to4, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => {
            false
        }
        // Global unicast addresses, 2000::/3.
        [first, ..] => first >> 13 == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_private_and_reserved_addresses_are_not_public() {
        let not = [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:2::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ];
        for address in not {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn assigned_addresses_are_public() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.0.1",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
        ];
        for address in public {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
