//! The table of routes, and what becomes of paths and methods that are not in it.

use axum::http::{HeaderMap, Method, Uri};
use axum::routing::MethodRouter;

use crate::app::App;
use crate::http::Dialect;
use crate::keys::Access;

/// Who may come, the dialect that is spoken, a path pattern, its methods (in the order of the `Allow` header) and its handler.
pub(crate) struct Route {
    pub(crate) access: Access,
    pub(crate) dialect: Dialect,
    /// Whether Anthropic's clients, who name a version of its API, hear its dialect here.
    pub(crate) shared: bool,
    pub(crate) path: &'static str,
    pub(crate) methods: &'static [&'static str],
    pub(crate) handler: MethodRouter<App>,
}

impl Route {
    pub(crate) fn new(
        dialect: Dialect,
        access: Access,
        path: &'static str,
        methods: &'static [&'static str],
        handler: MethodRouter<App>,
    ) -> Self {
        Self { access, dialect, shared: false, path, methods, handler }
    }

    /// Anthropic's clients hear its dialect here.
    pub(crate) fn shared(self) -> Self {
        Self { shared: true, ..self }
    }
}

/// All routes, without the handlers.
#[derive(Debug, Clone)]
pub(crate) struct Table(Vec<Row>);

/// A route without its handler.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    access: Access,
    dialect: Dialect,
    shared: bool,
    /// The pattern.
    pub(crate) path: &'static str,
    methods: &'static [&'static str],
}

impl Row {
    /// The dialect that a request with such headers hears.
    pub(crate) fn spoken(&self, headers: &HeaderMap) -> Dialect {
        match self.shared && headers.contains_key("anthropic-version") {
            true => Dialect::Anthropic,
            false => self.dialect,
        }
    }
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Hand it to its route, if it may come in.
    Route(Access),
    /// 405 with this `Allow` header.
    NotAllowed(String),
    /// Another spelling of the path is meant.
    Redirect { status: u16, path: String },
    /// 404
    NotFound,
}

impl Table {
    pub(crate) fn of(routes: &[Route]) -> Self {
        let row = |&Route { access, dialect, shared, path, methods, .. }: &Route| Row {
            access,
            dialect,
            shared,
            path,
            methods,
        };
        Self(routes.iter().map(row).collect())
    }

    /// Judges a request by its decoded path.
    pub(crate) fn judge(&self, method: &Method, path: &str) -> Verdict {
        if let Some(Row { access, methods, .. }) = self.row(path) {
            let known = methods.contains(&method.as_str());
            return if known {
                Verdict::Route(*access)
            } else {
                Verdict::NotAllowed(methods.join(", "))
            };
        }
        let answers =
            |path: &str| self.row(path).is_some_and(|row| row.methods.contains(&method.as_str()));
        if let Some(shorter) = path.strip_suffix('/')
            && answers(shorter)
        {
            let status = if method == Method::GET { 301 } else { 307 };
            return Verdict::Redirect { status, path: shorter.to_owned() };
        }
        match clean(path) {
            clean if clean != path && answers(&clean) => {
                Verdict::Redirect { status: 307, path: clean }
            }
            _ => Verdict::NotFound,
        }
    }

    /// The route of a decoded path.
    pub(crate) fn row(&self, path: &str) -> Option<&Row> {
        self.0.iter().find(|row| matches(row.path, path))
    }
}

/// Whether a path is of a pattern: `{x}` is one segment, `{*x}` all the rest; neither may be empty.
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

/// The path without empty, `.` and `..` segments.
fn clean(path: &str) -> String {
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

/// An address with its decoded path written anew, if that was written with escapes.
pub(crate) fn respelt(uri: &Uri, path: &str) -> Option<Uri> {
    if !uri.path().contains('%') {
        return None;
    }
    let mut spelt = String::with_capacity(path.len());
    for b in path.bytes() {
        match b {
            b'/' | b':' | b'-' | b'.' | b'_' | b'~' => spelt.push(char::from(b)),
            b if b.is_ascii_alphanumeric() => spelt.push(char::from(b)),
            b => spelt.push_str(&format!("%{b:02X}")),
        }
    }
    if let Some(query) = uri.query() {
        spelt = format!("{spelt}?{query}");
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(spelt.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use puna_mirror::unescaped;

    use super::*;
    use crate::keys::Scope;

    const USE: Access = Access::Needs(Scope::Inference);
    const CHANGE: Access = Access::Needs(Scope::Models);

    fn judge(method: &str, path: &str) -> Verdict {
        let row = |access, path, methods| Row {
            access,
            dialect: Dialect::Ollama,
            shared: false,
            path,
            methods,
        };
        let table = Table(vec![
            row(Access::Open, "/", &["HEAD", "GET"]),
            row(USE, "/api/tags", &["HEAD", "GET"]),
            row(USE, "/api/generate", &["POST"]),
            row(CHANGE, "/api/blobs/{digest}", &["HEAD", "POST"]),
            row(USE, "/v1/models/{*model}", &["GET"]),
        ]);
        table.judge(&method.parse().unwrap(), path)
    }

    fn redirect(status: u16, path: &str) -> Verdict {
        Verdict::Redirect { status, path: path.into() }
    }

    #[test]
    fn routes_answer_their_methods_only() {
        assert_eq!(judge("GET", "/api/tags"), Verdict::Route(USE));
        assert_eq!(judge("HEAD", "/"), Verdict::Route(Access::Open));
        assert_eq!(judge("POST", "/api/tags"), Verdict::NotAllowed("HEAD, GET".into()));
        assert_eq!(judge("HEAD", "/api/generate"), Verdict::NotAllowed("POST".into()));
        assert_eq!(judge("PUT", "/api/blobs/sha256:00"), Verdict::NotAllowed("HEAD, POST".into()));
        assert_eq!(judge("GET", "/v1/models/ns/name"), Verdict::Route(USE));
        assert_eq!(judge("POST", "/api/blobs/sha256:00"), Verdict::Route(CHANGE));
    }

    #[test]
    fn escapes_are_written_anew_as_they_were_judged() {
        let spelt = |uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            respelt(&uri, &unescaped(uri.path()).unwrap()).map(|uri| uri.to_string())
        };
        assert_eq!(spelt("/api/%67enerate?a=%20").as_deref(), Some("/api/generate?a=%20"));
        assert_eq!(spelt("/api%2Fchat").as_deref(), Some("/api/chat"));
        assert_eq!(
            spelt("http://h:1/v1/models/a%25b%3Fc").as_deref(),
            Some("http://h:1/v1/models/a%25b%3Fc")
        );
        assert_eq!(spelt("/api/chat"), None);
    }

    #[test]
    fn unknown_paths_and_other_cases_are_not_found() {
        for path in
            ["/nope", "/API/tags", "/api", "/v1", "/api/blobs/", "/v1/models/", "/api/generate/x"]
        {
            assert_eq!(judge("GET", path), Verdict::NotFound, "{path}");
        }
    }

    #[test]
    fn slashes_too_many_are_redirected() {
        assert_eq!(judge("GET", "/api/tags/"), redirect(301, "/api/tags"));
        assert_eq!(judge("POST", "/api/generate/"), redirect(307, "/api/generate"));
        assert_eq!(judge("GET", "/api//tags"), redirect(307, "/api/tags"));
        assert_eq!(judge("GET", "/api/../api/tags"), redirect(307, "/api/tags"));
        assert_eq!(judge("GET", "/../../api/./tags//"), redirect(307, "/api/tags"));
    }
}
