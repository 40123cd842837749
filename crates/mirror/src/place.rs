//! What the head of a request says of where it comes from, and of where the client finds this registry: behind a reverse proxy that is
//! another address than ours.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

/// Whether a connection came with TLS. Whoever answers connections puts it among a request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Secure(pub bool);

/// A request comes from this machine and was meant for it. Whoever answers connections puts it among a request's extensions.
#[derive(Debug, Clone, Copy)]
pub struct Local;

/// The hosts, with ports where clients name them, under which they reach this registry.
#[derive(Debug)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Whether none is said.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a host is one of them. The usual port of the scheme goes without saying, and of both where nobody says which it is.
    pub(crate) fn has(&self, scheme: Option<&str>, host: &str) -> bool {
        let usual: &[&str] = match scheme {
            Some("https") => &[":443"],
            Some(_) => &[":80"],
            None => &[":80", ":443"],
        };
        let bare = |name: &str| {
            let rest = usual.iter().find_map(|port| name.strip_suffix(port));
            rest.unwrap_or(name).to_ascii_lowercase()
        };
        let host = bare(host.trim());
        self.0.iter().any(|name| bare(name) == host)
    }
}

/// `scheme://host` of a request, from what a proxy says of it, else from itself. A client that lies about this lies to
/// itself: it is told the address that it named.
pub(crate) fn of(head: &Parts) -> String {
    let headers = &head.headers;
    let first = |name: &'static str| {
        let all = headers.get(name)?.to_str().ok()?;
        all.split(',').next().map(str::trim).filter(|one| !one.is_empty())
    };
    let secure = head.extensions.get::<Secure>().is_some_and(|secure| secure.0);
    let scheme = match first("x-forwarded-proto") {
        Some("https") => "https",
        Some("http") => "http",
        _ if secure => "https",
        _ => "http",
    };
    let own = || head.uri.authority().map(|a| a.as_str()).or_else(|| text(headers, header::HOST));
    let host =
        first("x-forwarded-host").filter(|host| is_host(host)).or_else(own).unwrap_or_default();
    format!("{scheme}://{host}")
}

/// A header as text.
pub(crate) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a text can stand for a host in an address.
fn is_host(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_alphanumeric() || b".-_:[]".contains(&c))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use axum::extract::Request;

    use super::*;

    fn place(headers: &[(&str, &str)], secure: bool) -> String {
        let mut request = Request::get("/v2/").extension(Secure(secure));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        of(&request.body(Body::empty()).unwrap().into_parts().0)
    }

    #[test]
    fn the_usual_port_of_a_name_goes_without_saying() {
        let names = Names::new(vec!["Models.example".into(), "box:80".into(), "box:5000".into()]);
        for host in ["models.example", "models.example:443", "BOX", "box:80", " box:5000"] {
            assert!(names.has(None, host), "{host}");
        }
        assert!(!names.has(None, "models.example:5000") && !names.has(None, "box:5001"));
        assert!(
            names.has(Some("https"), "models.example:443")
                && !names.has(Some("http"), "models.example:443")
        );
        assert!(names.has(Some("http"), "box") && !names.has(Some("https"), "box"));
        assert!(!Names::new(Vec::new()).has(None, ""));
    }

    #[test]
    fn a_proxy_says_how_it_was_asked() {
        assert_eq!(place(&[("host", "box:5000")], false), "http://box:5000");
        assert_eq!(place(&[("host", "box")], true), "https://box");
        let forwarded = [
            ("host", "127.0.0.1:5000"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "models.example"),
        ];
        assert_eq!(place(&forwarded, false), "https://models.example");
        assert_eq!(place(&[("host", "a"), ("x-forwarded-host", "b/c?d")], false), "http://a");
        assert_eq!(
            place(
                &[("host", "a"), ("x-forwarded-host", "b, c"), ("x-forwarded-proto", "javascript")],
                false
            ),
            "http://b"
        );
    }
}
