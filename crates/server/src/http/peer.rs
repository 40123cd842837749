//! The remote end of a connection.

use std::net::{IpAddr, Ipv4Addr};

use axum::extract::Request;
use axum::http::header;

use super::host_check::{HostKind, classify_host};

/// IP address of the remote end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

pub(crate) fn peer(request: &Request) -> IpAddr {
    request.extensions().get().map_or(Ipv4Addr::LOCALHOST.into(), |Peer(ip)| ip.to_canonical())
}

/// Whether a request comes from this machine and is meant for it. Requests through a proxy, or of a
/// page that resolves its own name to this machine, are not.
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
        && !matches!(classify_host(host(request), machine), HostKind::Foreign)
        && !forwarded.iter().any(|name| request.headers().contains_key(*name))
}

/// The requested host. The authority of an absolute request target precedes the header (RFC 9112,
/// 3.2.2).
pub(crate) fn host(request: &Request) -> &str {
    let header = || request.headers().get(header::HOST).map(|h| h.to_str().unwrap_or("?"));
    request.uri().authority().map(|a| a.as_str()).or_else(header).unwrap_or_default()
}
