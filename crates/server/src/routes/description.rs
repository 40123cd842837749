//! `GET /openapi.json` and `GET /docs`: the OpenAPI document and a page that shows it.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};

use crate::openapi;

static DOCUMENT: LazyLock<StaticContent> =
    LazyLock::new(|| StaticContent::new(openapi::DOCUMENT, "application/json"));

static PAGE: LazyLock<StaticContent> = LazyLock::new(|| {
    let page = StaticContent::new(openapi::PAGE, "text/html; charset=utf-8");
    StaticContent { policy: content_security_policy(openapi::PAGE), ..page }
});

/// `GET /openapi.json`
pub(super) async fn document(headers: HeaderMap) -> Response {
    DOCUMENT.respond(&headers)
}

/// `GET /docs`
pub(super) async fn page(headers: HeaderMap) -> Response {
    PAGE.respond(&headers)
}

/// Static content with an entity tag, so that clients may cache it.
struct StaticContent {
    bytes: &'static str,
    kind: &'static str,
    tag: String,
    /// Value of `Content-Security-Policy`.
    policy: String,
}

impl StaticContent {
    fn new(bytes: &'static str, kind: &'static str) -> Self {
        let hash = digest(&SHA256, bytes.as_bytes());
        let tag: String = hash.as_ref()[..16].iter().map(|b| format!("{b:02x}")).collect();
        Self { bytes, kind, tag: format!("\"{tag}\""), policy: "default-src 'none'".into() }
    }

    fn respond(&'static self, request: &HeaderMap) -> Response {
        let known = request.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
        let known = known.is_some_and(|tags| {
            tags.split(',')
                .map(|tag| tag.trim().trim_start_matches("W/"))
                .any(|tag| tag == "*" || tag == self.tag)
        });
        let mut response = match known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => ([(header::CONTENT_TYPE, self.kind)], self.bytes).into_response(),
        };
        let headers = response.headers_mut();
        for (name, value) in [
            (header::ETAG, self.tag.as_str()),
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, &self.policy),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// Builds the `Content-Security-Policy` of the page: its own style and script by their hashes, and
/// requests to this server.
fn content_security_policy(page: &str) -> String {
    let hash = |tag: &str| {
        let inside = page
            .split_once(&format!("<{tag}>"))
            .and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
        let hash = digest(&SHA256, inside.map_or("", |(inside, _)| inside).as_bytes());
        format!("'sha256-{}'", puna_api::base64_encode(hash.as_ref()))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
}
