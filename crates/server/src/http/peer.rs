//! The remote end of a connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderMap, header};

use super::host_check::{HostKind, HostNames};
use crate::config::TrustedProxies;

/// IP address of the remote end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

pub(crate) fn peer(request: &Request) -> IpAddr {
    request.extensions().get().map_or(Ipv4Addr::LOCALHOST.into(), |Peer(ip)| ip.to_canonical())
}

/// Replaces the address of a trusted proxy by the client's address that the proxy forwards. It is
/// the last one in `X-Forwarded-For`, or else `Forwarded` (RFC 7239), that is no trusted proxy.
/// Addresses before it may be forged.
pub(crate) fn resolve_client_address(request: &mut Request, trusted: &TrustedProxies) {
    let mut address = peer(request);
    if trusted.is_empty() || !trusted.contains(address) {
        return;
    }
    for text in forwarded_addresses(request.headers()).iter().rev() {
        let Some(before) = parse_address(text) else { break };
        address = before;
        if !trusted.contains(before) {
            break;
        }
    }
    request.extensions_mut().insert(Peer(address));
}

/// Addresses of `X-Forwarded-For`, or else of `Forwarded`, in order.
fn forwarded_addresses(headers: &HeaderMap) -> Vec<String> {
    let elements = |name: &str| {
        let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
        values.flat_map(|value| value.split(',')).map(str::trim).map(str::to_owned).collect()
    };
    let plain: Vec<String> = elements("x-forwarded-for");
    if !plain.is_empty() {
        return plain;
    }
    let of_element = |element: &String| {
        let pair = element.split(';').find_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            name.eq_ignore_ascii_case("for").then(|| value.trim_matches('"').to_owned())
        });
        pair.unwrap_or_default()
    };
    elements("forwarded").iter().map(of_element).collect()
}

/// Parses an address with an optional port. IPv6 addresses with a port are in brackets.
fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = bare.and_then(|bare| bare.parse().ok());
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    address.map(|address| address.to_canonical())
}

/// Whether a request comes from this machine and is meant for it. Requests through a proxy, or of a
/// page that resolves its own name to this machine, are not.
pub(crate) fn is_local(request: &Request, names: &HostNames) -> bool {
    let forwarded = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "via",
    ];
    peer(request).is_loopback()
        && names.classify(host(request)) != HostKind::Foreign
        && !forwarded.iter().any(|name| request.headers().contains_key(*name))
}

/// The requested host. The authority of an absolute request target precedes the header (RFC 9112,
/// 3.2.2).
pub(crate) fn host(request: &Request) -> &str {
    let header = || request.headers().get(header::HOST).map(|h| h.to_str().unwrap_or("?"));
    request.uri().authority().map(|a| a.as_str()).or_else(header).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn resolved(from: &str, headers: &[(&str, &str)]) -> String {
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request.extensions_mut().insert(Peer(from.parse().unwrap()));
        let trusted = TrustedProxies::of(&["10.0.0.5", "10.1.0.0/16", "fd00::/8"]);
        resolve_client_address(&mut request, &trusted);
        peer(&request).to_string()
    }

    #[test]
    fn a_trusted_proxy_names_the_client() {
        let forwarded = "x-forwarded-for";
        for (from, headers, client) in [
            ("10.0.0.5", &[(forwarded, "192.168.1.7")][..], "192.168.1.7"),
            ("::ffff:10.0.0.5", &[(forwarded, "192.168.1.7:5000")], "192.168.1.7"),
            // The client may have sent the first address itself.
            ("10.0.0.5", &[(forwarded, "127.0.0.1, 192.168.1.7")], "192.168.1.7"),
            ("10.0.0.5", &[(forwarded, "127.0.0.1"), (forwarded, "9.9.9.9")], "9.9.9.9"),
            ("10.0.0.5", &[(forwarded, "8.8.8.8, 10.1.2.3")], "8.8.8.8"),
            ("10.0.0.5", &[(forwarded, "8.8.8.8, x, 10.1.2.3")], "10.1.2.3"),
            ("fd00::1", &[("forwarded", "for=\"[2001:db8::7]:4711\";proto=https")], "2001:db8::7"),
            ("fd00::1", &[("forwarded", "proto=https;For=7.7.7.7")], "7.7.7.7"),
            ("10.0.0.5", &[], "10.0.0.5"),
            ("10.0.0.6", &[(forwarded, "192.168.1.7")], "10.0.0.6"),
        ] {
            assert_eq!(resolved(from, headers), client, "{from} {headers:?}");
        }
    }
}
