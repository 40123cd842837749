//! Origin of a request and public base URL of the registry. Behind a reverse proxy, clients use
//! another address than the one this server listens on.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

/// Whether a connection uses TLS. The server adds it to the request extensions.
#[derive(Debug, Clone, Copy)]
pub struct TlsConnection(pub bool);

/// Marks a request that comes from this machine and was meant for it. The server adds it to the
/// request extensions.
#[derive(Debug, Clone, Copy)]
pub struct LocalRequest;

/// Hosts under which clients reach the registry, with ports where clients name them.
#[derive(Debug)]
pub(crate) struct HostNames(Vec<String>);

impl HostNames {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Whether no host is configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a host is in the list. The default port of the scheme is ignored; without a scheme,
    /// both default ports are.
    pub(crate) fn contains(&self, scheme: Option<&str>, host: &str) -> bool {
        let default_ports: &[&str] = match scheme {
            Some("https") => &[":443"],
            Some(_) => &[":80"],
            None => &[":80", ":443"],
        };
        let without_default_port = |name: &str| {
            let rest = default_ports.iter().find_map(|port| name.strip_suffix(port));
            rest.unwrap_or(name).to_ascii_lowercase()
        };
        let host = without_default_port(host.trim());
        self.0.iter().any(|name| without_default_port(name) == host)
    }
}

/// Returns `scheme://host` of a request: from proxy headers, else from the request itself. A client
/// that forges these headers only misleads itself, because the URL goes back to it.
pub(crate) fn base_url(head: &Parts) -> String {
    let headers = &head.headers;
    let first_value = |name: &'static str| {
        let all = headers.get(name)?.to_str().ok()?;
        all.split(',').next().map(str::trim).filter(|one| !one.is_empty())
    };
    let is_tls = head.extensions.get::<TlsConnection>().is_some_and(|is_tls| is_tls.0);
    let scheme = match first_value("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ if is_tls => "https",
        _ => "http",
    };
    let host_header =
        || head.uri.authority().map(|a| a.as_str()).or_else(|| header_text(headers, header::HOST));
    let host = first_value("x-forwarded-host")
        .filter(|host| is_host(host))
        .or_else(host_header)
        .unwrap_or_default();
    format!("{scheme}://{host}")
}

/// Returns a header value as text.
pub(crate) fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a text contains only characters of a host and port.
fn is_host(header_text: &str) -> bool {
    header_text.bytes().all(|c| c.is_ascii_alphanumeric() || b".-_:[]".contains(&c))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use axum::extract::Request;

    use super::*;

    fn base_url_of(headers: &[(&str, &str)], is_tls: bool) -> String {
        let mut request = Request::get("/v2/").extension(TlsConnection(is_tls));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        base_url(&request.body(Body::empty()).unwrap().into_parts().0)
    }

    #[test]
    fn default_ports_are_ignored() {
        let names =
            HostNames::new(vec!["Models.example".into(), "box:80".into(), "box:5000".into()]);
        for host in ["models.example", "models.example:443", "BOX", "box:80", " box:5000"] {
            assert!(names.contains(None, host), "{host}");
        }
        assert!(!names.contains(None, "models.example:5000") && !names.contains(None, "box:5001"));
        assert!(
            names.contains(Some("https"), "models.example:443")
                && !names.contains(Some("http"), "models.example:443")
        );
        assert!(names.contains(Some("http"), "box") && !names.contains(Some("https"), "box"));
        assert!(!HostNames::new(Vec::new()).contains(None, ""));
    }

    #[test]
    fn proxy_headers_determine_the_base_url() {
        assert_eq!(base_url_of(&[("host", "box:5000")], false), "http://box:5000");
        assert_eq!(base_url_of(&[("host", "box")], true), "https://box");
        let forwarded = [
            ("host", "127.0.0.1:5000"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "models.example"),
        ];
        assert_eq!(base_url_of(&forwarded, false), "https://models.example");
        assert_eq!(base_url_of(&[("host", "a"), ("x-forwarded-host", "b/c?d")], false), "http://a");
        assert_eq!(
            base_url_of(
                &[("host", "a"), ("x-forwarded-host", "b, c"), ("x-forwarded-proto", "javascript")],
                false
            ),
            "http://b"
        );
    }
}
