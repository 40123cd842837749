//! Checks of host names and addresses in settings.

use std::net::Ipv6Addr;

/// Whether a text is a host name or IP address, optionally with a port. IPv6 addresses are in
/// brackets.
pub(super) fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let number = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named =
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    (named || number.is_some_and(|number| number.parse::<Ipv6Addr>().is_ok()))
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Whether a text is a host, optionally with `http://` or `https://`.
pub(super) fn is_server(text: &str) -> bool {
    is_host(without_scheme(text).trim_end_matches('/'))
}

/// Whether an address has a host or a port before its path, and brackets in pairs.
pub(super) fn names_host_or_port(address: &str) -> bool {
    let authority = without_scheme(address).split('/').next().unwrap_or_default();
    !authority.is_empty() && authority.contains('[') == authority.contains(']')
}

/// Removes `http://` or `https://`.
pub(super) fn without_scheme(text: &str) -> &str {
    text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text)
}
