//! Protection against DNS rebinding: which `Host` headers a server on a loopback address accepts.

use std::net::{IpAddr, UdpSocket};

use puna_api::split_port;

/// Class of the host in a `Host` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostKind {
    /// An IP address of this machine or a private network, or no host.
    Number,
    /// A name of this machine or of its local network.
    Name,
    /// Any other host.
    Foreign,
}

/// Classifies a `Host` header; `machine` is the name of this machine.
pub(crate) fn classify_host(header: &str, machine: &str) -> HostKind {
    let (host, _) = split_port(header.trim());
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() {
        return HostKind::Number;
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return if is_local_address(ip) { HostKind::Number } else { HostKind::Foreign };
    }
    let name = bare.to_ascii_lowercase();
    let local =
        name == "localhost" || (!machine.is_empty() && name == machine.to_ascii_lowercase());
    if local || [".localhost", ".local", ".internal"].iter().any(|suffix| name.ends_with(suffix)) {
        HostKind::Name
    } else {
        HostKind::Foreign
    }
}

fn is_local_address(ip: IpAddr) -> bool {
    let private = match ip {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    // Only addresses of local interfaces can be bound.
    ip.is_loopback() || ip.is_unspecified() || private || UdpSocket::bind((ip, 0)).is_ok()
}

/// Host name of this machine.
pub(crate) fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_its_network_are_local() {
        for header in [
            "",
            "127.0.0.1",
            "127.0.0.2:80",
            "10.1.2.3",
            "192.168.0.9:8080",
            "0.0.0.0",
            "[::1]:1",
            "::1",
            "[fd00::1]",
        ] {
            assert_eq!(classify_host(header, "box"), HostKind::Number, "{header}");
        }
        for header in
            ["localhost", "LOCALHOST:1", "foo.local", "a.internal", "x.localhost:9", "BOX:11434"]
        {
            assert_eq!(classify_host(header, "box"), HostKind::Name, "{header}");
        }
    }

    #[test]
    fn other_hosts_are_foreign() {
        for header in [
            "evil.test",
            "8.8.8.8",
            "100.64.0.1",
            "localhost.evil.test",
            "local",
            "[2606:4700::1111]:80",
        ] {
            assert_eq!(classify_host(header, "box"), HostKind::Foreign, "{header}");
        }
        assert_eq!(classify_host("x", ""), HostKind::Foreign);
    }
}
