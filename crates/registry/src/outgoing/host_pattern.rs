//! Hosts that the configuration names, with or without a port.

use reqwest::Url;

/// Ports of HTTPS and HTTP, which a registry's name without a port means.
const DEFAULT_PORTS: [u16; 2] = [443, 80];

/// A host of the configuration. It matches the host of a URL by name and port, never by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    /// Host as the URL parser writes it: in lower case, addresses in canonical form.
    host: String,
    /// `None` matches every port.
    port: Option<u16>,
}

impl HostPattern {
    /// Patterns of a registry: `host`, `host:port` or a URL. Without a port, they match the default
    /// ports of HTTP and HTTPS. A text that is no address gives none.
    pub fn of_registry(text: &str) -> Vec<Self> {
        let Some((host, port)) = parse(text) else { return Vec::new() };
        let one = |port| Self { host: host.clone(), port: Some(port) };
        match port {
            Some(port) => vec![one(port)],
            None => DEFAULT_PORTS.map(one).to_vec(),
        }
    }

    /// Pattern of a machine: `host`, `host:port` or a URL. Without a port, it matches every port.
    /// `None`: the text is no address.
    pub fn of_machine(text: &str) -> Option<Self> {
        parse(text).map(|(host, port)| Self { host, port })
    }

    /// Whether the pattern matches a host in the URL parser's form, at a port.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port.is_none_or(|own| own == port)
    }

    /// The port, if the pattern has one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

/// Host and explicit port of `host`, `host:port` or a URL.
fn parse(text: &str) -> Option<(String, Option<u16>)> {
    let text = text.trim();
    let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = bare.split(['/', '?', '#']).next()?;
    // This scheme has no default port, so the parser keeps every explicit port.
    let port = Url::parse(&format!("puna://{authority}")).ok()?.port();
    // Only the parser of HTTP URLs brings addresses into their canonical form.
    let url = Url::parse(&format!("https://{authority}")).ok()?;
    let is_bare = url.username().is_empty() && url.password().is_none();
    let host = url.host_str().filter(|host| is_bare && !host.is_empty())?;
    Some((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_without_a_port_has_the_default_ports_only() {
        let matches = |text: &str, host: &str, port| {
            HostPattern::of_registry(text).iter().any(|pattern| pattern.matches(host, port))
        };
        for (text, host, port) in [
            ("Mirror.Intra", "mirror.intra", 443),
            ("mirror.intra", "mirror.intra", 80),
            ("https://mirror.intra/ollama", "mirror.intra", 443),
            ("192.168.1.5:5000", "192.168.1.5", 5000),
            ("http://192.168.1.5:5000/x", "192.168.1.5", 5000),
            ("http://192.168.1.5:80", "192.168.1.5", 80),
            ("[::1]:5000", "[::1]", 5000),
        ] {
            assert!(matches(text, host, port), "{text}");
        }
        for (text, host, port) in [
            ("mirror.intra", "mirror.intra", 22),
            ("mirror.intra:443", "mirror.intra", 80),
            ("192.168.1.5:5000", "192.168.1.5", 5001),
            ("192.168.1.5:5000", "192.168.1.50", 5000),
            ("intra", "mirror.intra", 443),
            ("http://user@mirror.intra", "mirror.intra", 80),
        ] {
            assert!(!matches(text, host, port), "{text}");
        }
        assert_eq!(HostPattern::of_registry(""), []);
        assert_eq!(HostPattern::of_registry("a b"), []);
    }

    #[test]
    fn a_machine_without_a_port_has_all_ports() {
        let machine = HostPattern::of_machine("GPU1").unwrap();
        assert!(machine.matches("gpu1", 22) && machine.matches("gpu1", 8000));
        let service = HostPattern::of_machine("https://gpu1:8000").unwrap();
        assert!(service.matches("gpu1", 8000) && !service.matches("gpu1", 8001));
        assert_eq!(HostPattern::of_machine("http://"), None);
    }
}
