//! Addresses at which a server listens and clients find it.

use std::net::{IpAddr, Ipv4Addr};

/// Default port of Ollama's API.
pub const DEFAULT_PORT: u16 = 11434;

/// Address at which a server listens, or at which a client finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `http` or `https`.
    pub scheme: String,
    /// Host name or IP address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path before all routes; empty, or begins with `/`.
    pub path: String,
}

impl Address {
    /// Parses `[scheme://]host[:port][/path]`. The second value describes an invalid port; the
    /// address then has the default port.
    pub fn parse(text: &str) -> (Self, Option<String>) {
        Self::parse_at(text, DEFAULT_PORT)
    }

    /// Like [`Address::parse`], with another default port.
    pub fn parse_at(text: &str, port: u16) -> (Self, Option<String>) {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let default = match (text.contains("://"), scheme) {
            (true, "http") => 80,
            (true, "https") => 443,
            _ => port,
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = split_port(authority);
        let (port, warning) = match port.map(|p| (p, p.parse::<u16>())) {
            None => (default, None),
            Some((_, Ok(port))) => (port, None),
            Some((text, Err(_))) => (
                default,
                Some(format!("has the port {text:?}: it must be a number from 0 to 65535")),
            ),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        (Self { scheme: scheme.to_owned(), host: host.to_owned(), port, path }, warning)
    }

    /// Describes an invalid scheme or host. `None`: both are valid.
    pub fn problem(&self) -> Option<String> {
        let Self { scheme, host, .. } = self;
        if !["http", "https"].contains(&scheme.as_str()) {
            return Some(format!("begins with {scheme}://: it must be http:// or https://"));
        }
        if host.contains('@') {
            return Some(
                "contains a user name or password: use PUNA_API_KEY for the server's key".into(),
            );
        }
        let is_name = || host.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'));
        let wrong = host.parse::<IpAddr>().is_err() && !is_name();
        wrong.then(|| {
            format!("has the host {host:?}: it must be a host name or IP address, such as 127.0.0.1:11434")
        })
    }

    /// URL for a client on this machine.
    pub fn url(&self) -> String {
        let host = match self.host.parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => self.host.clone(),
        };
        format!("{}://{host}:{}{}", self.scheme, self.port, self.path)
    }

    /// `host:port` to bind to.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Splits `host`, `host:port`, `[v6]`, `[v6]:port` or bare `v6` into host and port.
pub fn split_port(authority: &str) -> (&str, Option<&str>) {
    if authority.parse::<std::net::Ipv6Addr>().is_ok() {
        return (authority, None);
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> String {
        let a = Address::parse(text).0;
        format!("{}|{}|{}|{}", a.scheme, a.host, a.port, a.path)
    }

    #[test]
    fn addresses_are_parsed_in_all_documented_forms() {
        for (text, want) in [
            ("", "http|127.0.0.1|11434|"),
            ("0.0.0.0", "http|0.0.0.0|11434|"),
            (":8080", "http|127.0.0.1|8080|"),
            ("example.com:56789", "http|example.com|56789|"),
            ("http://1.2.3.4", "http|1.2.3.4|80|"),
            ("https://1.2.3.4", "https|1.2.3.4|443|"),
            ("https://1.2.3.4:4321/ollama/", "https|1.2.3.4|4321|/ollama"),
            ("::1", "http|::1|11434|"),
            ("[::1]:1337", "http|::1|1337|"),
            ("[0001:002:003:0004::1]", "http|0001:002:003:0004::1|11434|"),
            ("host:99999", "http|host|11434|"),
        ] {
            assert_eq!(address(text), want, "{text}");
        }
        assert!(Address::parse("host:99999").1.is_some());
    }

    #[test]
    fn invalid_hosts_are_refused() {
        for fine in ["", "box_1.local:1", "müller.example", "[::1]:1", "::", "https://1.2.3.4/x"] {
            assert_eq!(Address::parse(fine).0.problem(), None, "{fine}");
        }
        for (wrong, part) in [
            ("two words", "host \"two words\""),
            ("a:b:80", "host \"a:b\""),
            ("ftp://h", "begins with ftp://: it must be http:// or https://"),
            ("me@h:80", "contains a user name or password"),
        ] {
            let problem = Address::parse(wrong).0.problem().unwrap_or_default();
            assert!(problem.contains(part), "{wrong}: {problem}");
        }
    }

    #[test]
    fn the_unspecified_address_becomes_loopback_for_clients() {
        assert_eq!(Address::parse("0.0.0.0").0.url(), "http://127.0.0.1:11434");
        assert_eq!(Address::parse("[::1]:7").0.url(), "http://[::1]:7");
        assert_eq!(Address::parse("::1").0.authority(), "[::1]:11434");
    }
}
