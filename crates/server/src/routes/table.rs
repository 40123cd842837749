//! The route table: resolves a method and a path to a route, a redirect or an error.

use axum::http::{HeaderMap, Method, Uri};
use axum::routing::MethodRouter;

use crate::app::App;
use crate::auth::RouteRequirement;
use crate::http::Dialect;

/// A route: required access, API dialect, path pattern, methods (in the order of the `Allow`
/// header) and handler.
pub(crate) struct Route {
    pub(crate) requirement: RouteRequirement,
    pub(crate) dialect: Dialect,
    /// Whether clients that send `anthropic-version` get Anthropic's dialect here.
    pub(crate) shared_with_anthropic: bool,
    pub(crate) path: &'static str,
    pub(crate) methods: &'static [&'static str],
    pub(crate) handler: MethodRouter<App>,
}

impl Route {
    pub(crate) fn new(
        dialect: Dialect,
        requirement: RouteRequirement,
        path: &'static str,
        methods: &'static [&'static str],
        handler: MethodRouter<App>,
    ) -> Self {
        Self { requirement, dialect, shared_with_anthropic: false, path, methods, handler }
    }

    /// Answers clients that send `anthropic-version` in Anthropic's dialect.
    pub(crate) fn shared_with_anthropic(self) -> Self {
        Self { shared_with_anthropic: true, ..self }
    }
}

/// All routes without their handlers.
#[derive(Debug, Clone)]
pub(crate) struct RouteTable(Vec<RouteEntry>);

/// A route without its handler.
#[derive(Debug, Clone)]
pub(crate) struct RouteEntry {
    requirement: RouteRequirement,
    dialect: Dialect,
    shared_with_anthropic: bool,
    /// Path pattern.
    pub(crate) path: &'static str,
    methods: &'static [&'static str],
}

impl RouteEntry {
    /// Dialect of the response to a request with these headers.
    pub(crate) fn dialect_for(&self, headers: &HeaderMap) -> Dialect {
        match self.shared_with_anthropic && headers.contains_key("anthropic-version") {
            true => Dialect::Anthropic,
            false => self.dialect,
        }
    }
}

/// How to answer a method and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RouteMatch {
    /// Pass the request to its route after a check of this access.
    Route(RouteRequirement),
    /// Status 405 with this `Allow` header.
    NotAllowed(String),
    /// Redirect to the normalized path.
    Redirect { status: u16, path: String },
    /// Status 404.
    NotFound,
}

impl RouteTable {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let entry =
            |&Route { requirement, dialect, shared_with_anthropic, path, methods, .. }: &Route| {
                RouteEntry { requirement, dialect, shared_with_anthropic, path, methods }
            };
        Self(routes.iter().map(entry).collect())
    }

    /// Resolves a method and a decoded path.
    pub(crate) fn resolve(&self, method: &Method, path: &str) -> RouteMatch {
        if let Some(RouteEntry { requirement, methods, .. }) = self.entry(path) {
            let known = methods.contains(&method.as_str());
            return if known {
                RouteMatch::Route(*requirement)
            } else {
                RouteMatch::NotAllowed(methods.join(", "))
            };
        }
        let answers = |path: &str| {
            self.entry(path).is_some_and(|entry| entry.methods.contains(&method.as_str()))
        };
        if let Some(shorter) = path.strip_suffix('/')
            && answers(shorter)
        {
            let status = if method == Method::GET { 301 } else { 307 };
            return RouteMatch::Redirect { status, path: shorter.to_owned() };
        }
        match normalized(path) {
            normal if normal != path && answers(&normal) => {
                RouteMatch::Redirect { status: 307, path: normal }
            }
            _ => RouteMatch::NotFound,
        }
    }

    /// Finds the entry of a decoded path.
    pub(crate) fn entry(&self, path: &str) -> Option<&RouteEntry> {
        self.0.iter().find(|entry| matches(entry.path, path))
    }
}

/// Whether a path matches a pattern: `{x}` matches one segment, `{*x}` all remaining ones. Empty
/// segments match neither.
fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/').peekable());
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(p), Some(s)) if p.starts_with("{*") => {
                return !s.is_empty() && path.all(|s| !s.is_empty());
            }
            (Some(p), Some(s)) if p.starts_with('{') && !s.is_empty() => {}
            (Some(p), Some(s)) if p == s => {}
            _ => return false,
        }
    }
}

/// Removes empty, `.` and `..` segments from a path.
fn normalized(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Replaces the path of a URI with percent-escapes by its canonical encoding; `None` if it has
/// none.
pub(crate) fn with_decoded_path(uri: &Uri, path: &str) -> Option<Uri> {
    if !uri.path().contains('%') {
        return None;
    }
    let mut encoded = String::with_capacity(path.len());
    for b in path.bytes() {
        match b {
            b'/' | b':' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(b)),
            b if b.is_ascii_alphanumeric() => encoded.push(char::from(b)),
            b => encoded.push_str(&format!("%{b:02X}")),
        }
    }
    if let Some(query) = uri.query() {
        encoded = format!("{encoded}?{query}");
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(encoded.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use puna_mirror::unescaped;

    use super::*;
    use crate::auth::Scope;
    use crate::auth::caller::ModelAccess;

    const USE: RouteRequirement = RouteRequirement::Requires(Scope::Inference, ModelAccess::Use);
    const CHANGE: RouteRequirement = RouteRequirement::Requires(Scope::Models, ModelAccess::Change);

    fn resolve(method: &str, path: &str) -> RouteMatch {
        let entry = |requirement, path, methods| RouteEntry {
            requirement,
            dialect: Dialect::Ollama,
            shared_with_anthropic: false,
            path,
            methods,
        };
        let table = RouteTable(vec![
            entry(RouteRequirement::Open, "/", &["HEAD", "GET"]),
            entry(USE, "/api/tags", &["HEAD", "GET"]),
            entry(USE, "/api/generate", &["POST"]),
            entry(CHANGE, "/api/blobs/{digest}", &["HEAD", "POST"]),
            entry(USE, "/v1/models/{*model}", &["GET"]),
        ]);
        table.resolve(&method.parse().unwrap(), path)
    }

    fn redirect(status: u16, path: &str) -> RouteMatch {
        RouteMatch::Redirect { status, path: path.into() }
    }

    #[test]
    fn routes_answer_their_methods_only() {
        assert_eq!(resolve("GET", "/api/tags"), RouteMatch::Route(USE));
        assert_eq!(resolve("HEAD", "/"), RouteMatch::Route(RouteRequirement::Open));
        assert_eq!(resolve("POST", "/api/tags"), RouteMatch::NotAllowed("HEAD, GET".into()));
        assert_eq!(resolve("HEAD", "/api/generate"), RouteMatch::NotAllowed("POST".into()));
        assert_eq!(
            resolve("PUT", "/api/blobs/sha256:00"),
            RouteMatch::NotAllowed("HEAD, POST".into())
        );
        assert_eq!(resolve("GET", "/v1/models/ns/name"), RouteMatch::Route(USE));
        assert_eq!(resolve("POST", "/api/blobs/sha256:00"), RouteMatch::Route(CHANGE));
    }

    #[test]
    fn escaped_paths_are_encoded_canonically() {
        let encoded = |uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            with_decoded_path(&uri, &unescaped(uri.path()).unwrap()).map(|uri| uri.to_string())
        };
        assert_eq!(encoded("/api/%67enerate?a=%20").as_deref(), Some("/api/generate?a=%20"));
        assert_eq!(encoded("/api%2Fchat").as_deref(), Some("/api/chat"));
        assert_eq!(
            encoded("http://h:1/v1/models/a%25b%3Fc").as_deref(),
            Some("http://h:1/v1/models/a%25b%3Fc")
        );
        assert_eq!(encoded("/api/chat"), None);
    }

    #[test]
    fn unknown_paths_and_other_cases_are_not_found() {
        for path in
            ["/nope", "/API/tags", "/api", "/v1", "/api/blobs/", "/v1/models/", "/api/generate/x"]
        {
            assert_eq!(resolve("GET", path), RouteMatch::NotFound, "{path}");
        }
    }

    #[test]
    fn extra_slashes_are_redirected() {
        assert_eq!(resolve("GET", "/api/tags/"), redirect(301, "/api/tags"));
        assert_eq!(resolve("POST", "/api/generate/"), redirect(307, "/api/generate"));
        assert_eq!(resolve("GET", "/api//tags"), redirect(307, "/api/tags"));
        assert_eq!(resolve("GET", "/api/../api/tags"), redirect(307, "/api/tags"));
        assert_eq!(resolve("GET", "/../../api/./tags//"), redirect(307, "/api/tags"));
    }
}
