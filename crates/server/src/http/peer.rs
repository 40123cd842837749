//! The other end of a connection.

use std::net::{IpAddr, Ipv4Addr};

use axum::extract::Request;
use axum::http::header;

use super::hosts::{Host, judge};

/// The address at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

pub(crate) fn peer(request: &Request) -> IpAddr {
    request.extensions().get().map_or(Ipv4Addr::LOCALHOST.into(), |Peer(ip)| ip.to_canonical())
}

/// Whether a request comes from this machine and was meant for it: no page that has made its own name one of this
/// machine's, nobody behind a proxy.
pub(crate) fn is_local(request: &Request, machine: &str) -> bool {
    let forwarded = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
        "via",
    ];
    peer(request).is_loopback()
        && !matches!(judge(host(request), machine), Host::Foreign)
        && !forwarded.iter().any(|name| request.headers().contains_key(*name))
}

/// The host that is asked for: that of a whole address in the first line goes before the header (RFC 9112, 3.2.2).
pub(crate) fn host(request: &Request) -> &str {
    let header = || request.headers().get(header::HOST).map(|h| h.to_str().unwrap_or("?"));
    request.uri().authority().map(|a| a.as_str()).or_else(header).unwrap_or_default()
}
