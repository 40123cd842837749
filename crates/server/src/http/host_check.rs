//! Protection against DNS rebinding: which `Host` headers a server on a loopback address accepts.

use std::net::{IpAddr, UdpSocket};

use axum::http::{HeaderMap, Version, header};
use puna_api::split_port;

/// Class of the host in a `Host` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostKind {
    /// An IP address of this machine or a private network, or no host.
    LocalAddress,
    /// A name of this machine, or one that the configuration allows.
    Name,
    /// Any other host.
    Foreign,
}

/// Host names of this server.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostNames {
    /// Name of this machine, without a domain of the local network.
    machine: String,
    /// Names of the setting `allowed_hosts`, in lower case, some with ports.
    allowed: Vec<String>,
}

impl HostNames {
    /// The name of this machine and the names of the setting `allowed_hosts`.
    pub(crate) fn new(machine: &str, allowed: &[String]) -> Self {
        let machine = machine.to_ascii_lowercase();
        let machine = machine.strip_suffix(".local").unwrap_or(&machine).to_owned();
        Self { machine, allowed: allowed.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Classifies a `Host` header. Another machine of the local network may claim any name that
    /// ends with `.local`, so only the name of this machine counts.
    pub(crate) fn classify(&self, header: &str) -> HostKind {
        let authority = header.trim().to_ascii_lowercase();
        let (host, _) = split_port(&authority);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare.is_empty() {
            return HostKind::LocalAddress;
        }
        let is_allowed = self.allowed.iter().any(|name| *name == authority || name == host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            let accepted = is_allowed || is_local_address(ip);
            return if accepted { HostKind::LocalAddress } else { HostKind::Foreign };
        }
        let name = bare.strip_suffix(".local").unwrap_or(bare);
        let is_machine = !self.machine.is_empty() && name == self.machine;
        let is_localhost = bare == "localhost" || bare.ends_with(".localhost");
        if is_allowed || is_machine || is_localhost { HostKind::Name } else { HostKind::Foreign }
    }
}

/// Returns the error of a request with an invalid `Host` header, which a proxy in front may have
/// understood differently. Requests of HTTP/1.1 must have one (RFC 9112, 3.2).
pub(crate) fn host_header_error(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let mut values = headers.get_all(header::HOST).iter();
    match (values.next(), values.next()) {
        (None, _) if version >= Version::HTTP_11 => Some("400 Bad Request: missing Host header"),
        (None, _) => None,
        (Some(_), Some(_)) => Some("400 Bad Request: too many Host headers"),
        (Some(value), None) => {
            let is_valid = value.to_str().is_ok_and(|host| is_authority(host.trim()));
            (!is_valid).then_some("400 Bad Request: malformed Host header")
        }
    }
}

/// Whether a text is empty, or one host with an optional port.
pub(crate) fn is_authority(text: &str) -> bool {
    let (host, port) = split_port(text);
    let is_name = |c: char| c.is_alphanumeric() || "-._~%:[]".contains(c);
    let has_port = port.is_none_or(|port| port.is_empty() || is_port(port));
    let has_one_port = !host.contains(':') || host.starts_with('[') || port.is_none();
    host.chars().all(is_name) && has_port && has_one_port
}

/// Whether a text is the number of a port, in digits only.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
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

    fn classify(header: &str) -> HostKind {
        HostNames::new("Box.local", &["Docker.internal".into(), "far.test:1".into()])
            .classify(header)
    }

    #[test]
    fn names_and_addresses_of_this_machine_are_local() {
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
            assert_eq!(classify(header), HostKind::LocalAddress, "{header}");
        }
        for header in ["localhost", "LOCALHOST:1", "x.localhost:9", "BOX:11434", "box.LOCAL:1"] {
            assert_eq!(classify(header), HostKind::Name, "{header}");
        }
        let named = HostNames::new("gpu.office.example", &[]);
        assert_eq!(named.classify("gpu.office.example:1"), HostKind::Name);
        assert_eq!(named.classify("gpu.evil.example"), HostKind::Foreign);
    }

    #[test]
    fn configured_hosts_are_allowed_and_other_hosts_are_foreign() {
        for header in ["docker.internal", "DOCKER.internal:11434", "far.test:1"] {
            assert_eq!(classify(header), HostKind::Name, "{header}");
        }
        for header in [
            "evil.test",
            "8.8.8.8",
            "100.64.0.1",
            "localhost.evil.test",
            "local",
            ".local",
            "evil.local",
            "box.evil.local",
            "evil.box.local",
            "metadata.internal",
            "far.test",
            "far.test:2",
            "[2606:4700::1111]:80",
        ] {
            assert_eq!(classify(header), HostKind::Foreign, "{header}");
        }
        assert_eq!(HostNames::default().classify("x"), HostKind::Foreign);
    }

    #[test]
    fn a_request_has_one_host() {
        let error = |version, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            host_header_error(version, &headers)
        };
        for host in ["", "localhost", "a_b.example:80", "[::1]:1", "127.0.0.1:", "xn--mller-kva.de"]
        {
            assert_eq!(error(Version::HTTP_11, &[host]), None, "{host}");
        }
        for host in [
            "a, b", "a,b", "a b", "a@b", "a/b", "http://a", "a:evil", "a:1:2", "a:99999", "a:+1",
            "a?b",
        ] {
            let error = error(Version::HTTP_11, &[host]);
            assert_eq!(error, Some("400 Bad Request: malformed Host header"), "{host}");
        }
        assert_eq!(error(Version::HTTP_11, &[]), Some("400 Bad Request: missing Host header"));
        assert_eq!(error(Version::HTTP_10, &[]), None);
        let several = error(Version::HTTP_10, &["a", "a"]);
        assert_eq!(several, Some("400 Bad Request: too many Host headers"));
    }
}
