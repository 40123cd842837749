//! The guard against DNS rebinding: which `Host` headers a server on a loopback address answers.

use std::net::{IpAddr, UdpSocket};

use puna_api::split_port;

/// What a `Host` header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// This machine, by a number or not at all.
    Number,
    /// This machine or one of its network, by a name.
    Name,
    /// Something else.
    Foreign,
}

/// Judges a `Host` header; `machine` is this machine's own name.
pub(crate) fn judge(header: &str, machine: &str) -> Host {
    let (host, _) = split_port(header.trim());
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() {
        return Host::Number;
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return if is_ours(ip) { Host::Number } else { Host::Foreign };
    }
    let name = bare.to_ascii_lowercase();
    let local =
        name == "localhost" || (!machine.is_empty() && name == machine.to_ascii_lowercase());
    if local || [".localhost", ".local", ".internal"].iter().any(|suffix| name.ends_with(suffix)) {
        Host::Name
    } else {
        Host::Foreign
    }
}

fn is_ours(ip: IpAddr) -> bool {
    let private = match ip {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    // Only addresses of this machine's interfaces can be bound to.
    ip.is_loopback() || ip.is_unspecified() || private || UdpSocket::bind((ip, 0)).is_ok()
}

/// This machine's name.
pub(crate) fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_its_network_are_served() {
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
            assert_eq!(judge(header, "box"), Host::Number, "{header}");
        }
        for header in
            ["localhost", "LOCALHOST:1", "foo.local", "a.internal", "x.localhost:9", "BOX:11434"]
        {
            assert_eq!(judge(header, "box"), Host::Name, "{header}");
        }
    }

    #[test]
    fn others_are_not() {
        for header in [
            "evil.test",
            "8.8.8.8",
            "100.64.0.1",
            "localhost.evil.test",
            "local",
            "[2606:4700::1111]:80",
        ] {
            assert_eq!(judge(header, "box"), Host::Foreign, "{header}");
        }
        assert_eq!(judge("x", ""), Host::Foreign);
    }
}
