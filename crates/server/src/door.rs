//! The door: every request passes here before it reaches a route.
//!
//! In this order: origins (CORS), `Host` header, path and method, API key; then the route, whose panics end here.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use puna_mirror::{Mirror, MirrorError, unescaped};
use tower::ServiceExt;

use crate::app::App;
use crate::canonical::Failure;
use crate::config::origins::Origins;
use crate::figures::Figures;
use crate::http::hosts::{Host, judge, machine_name};
use crate::http::journal::{Entry, KeyName};
use crate::http::peer::{host, is_local, peer};
use crate::http::room::{Held, Room};
use crate::http::serve::Desk;
use crate::http::{Client, Dialect, Ignored, Owner, SchemaNotes};
use crate::keys::Access;
use crate::keys::guard::{Guard, Refusal};
use crate::mirror::Registry;
use crate::panics::text_of;
use crate::table::{Route, Table, Verdict, respelt};

/// Headers that pages may send.
const ALLOWED_HEADERS: &str = "Authorization,Content-Type,User-Agent,Accept,X-Requested-With,Openai-Beta,\
X-Stainless-Arch,X-Stainless-Async,X-Stainless-Custom-Poll-Interval,X-Stainless-Helper-Method,X-Stainless-Lang,\
X-Stainless-Os,X-Stainless-Package-Version,X-Stainless-Poll-Helper,X-Stainless-Retry-Count,X-Stainless-Runtime,\
X-Stainless-Runtime-Version,X-Stainless-Timeout,X-Api-Key,Anthropic-Version,Anthropic-Beta,\
Anthropic-Dangerous-Direct-Browser-Access,X-Request-Id";

/// Headers of answers that pages may read.
const EXPOSED_HEADERS: &str = "X-Request-Id,Request-Id,X-Puna-Ignored,X-Puna-Adapted,\
     X-Puna-Schema-Unenforced,X-Puna-Schema-Violations,Retry-After";

/// Everything a connection needs to answer requests. Cheap to clone.
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    router: Router,
    table: Table,
    figures: Arc<Figures>,
    origins: Origins,
    /// Whether `Host` headers are looked at: only on loopback addresses.
    judges_hosts: bool,
    machine: String,
    guard: Arc<Guard>,
    room: Room,
    registry: Option<Registry>,
}

impl Door {
    /// The door to routes, of a server that listens at `listen`.
    pub(crate) fn new(
        app: App,
        routes: Vec<Route>,
        guard: Arc<Guard>,
        listen: SocketAddr,
        registry: Option<Registry>,
    ) -> Self {
        let table = Table::of(&routes);
        let figures = app.figures().clone();
        let origins = app.config().origins.clone();
        let router = routes
            .into_iter()
            .fold(Router::new(), |router, route| router.route(route.path, route.handler));
        let judges_hosts = listen.ip().is_loopback();
        Self(Arc::new(Inner {
            router: router.with_state(app),
            table,
            figures,
            origins,
            judges_hosts,
            machine: machine_name(),
            guard,
            room: Room::default(),
            registry,
        }))
    }

    #[cfg(test)]
    pub(crate) fn room(&self) -> &Room {
        &self.0.room
    }

    /// Answers a request, counts it and writes it down.
    pub async fn answer(&self, request: Request) -> Response {
        Entry::begin(&request, peer(&request)).follow(self.counted(request)).await
    }

    async fn counted(&self, mut request: Request) -> Response {
        let path = unescaped(request.uri().path());
        let row = path.as_deref().and_then(|path| self.0.table.row(path));
        let dialect = row.map(|row| row.spoken(request.headers())).unwrap_or_default();
        let asked = self.0.figures.asked(row.map(|row| row.path), request.method());
        request.extensions_mut().insert(dialect);
        let mut response = self.admit(request, path.as_deref()).await;
        asked.answered(response.status());
        response.extensions_mut().insert(dialect);
        response
    }

    /// Judges a request for a decoded path; one that cannot be decoded leads nowhere.
    async fn admit(&self, request: Request, path: Option<&str>) -> Response {
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            // A proxy may have judged by another one than we would.
            return text(
                StatusCode::BAD_REQUEST,
                "400 Bad Request: too many Host headers",
                request.method(),
            );
        }
        let verdict = match path {
            Some(path) => self.0.table.judge(request.method(), path),
            None => Verdict::NotFound,
        };
        let origin = self.origin(request.headers());
        let mut response = match origin {
            Origin::Refused => self.shut(
                path.unwrap_or_default(),
                "pages of this origin may not ask here: `origins` names those that may",
            ),
            Origin::Allowed(_) if request.method() == Method::OPTIONS => preflight(),
            _ => self.inside(request, path.unwrap_or_default(), &verdict).await,
        };
        if let Verdict::NotAllowed(allow) = &verdict
            && let Ok(allow) = HeaderValue::from_str(allow)
        {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        if let Origin::Allowed(origin) = origin {
            self.mark(response.headers_mut(), origin);
        }
        response
    }

    async fn inside(&self, mut request: Request, path: &str, verdict: &Verdict) -> Response {
        if self.0.judges_hosts {
            let host = host(&request);
            match judge(host, &self.0.machine) {
                // Its clients may use a name of its own, though nobody else may.
                Host::Foreign
                    if self.registry(path).is_some_and(|registry| registry.is_named(host)) => {}
                Host::Foreign => {
                    let why = "this server listens to its own machine alone, and answers to no other name: set `host`, or have the proxy say localhost";
                    return self.shut(path, why);
                }
                Host::Name if request.method() == Method::OPTIONS => {
                    return StatusCode::NO_CONTENT.into_response();
                }
                Host::Name | Host::Number => {}
            }
        }
        match verdict {
            Verdict::NotFound if let Some(registry) = self.registry(path) => {
                registry.answer(request).await
            }
            Verdict::NotFound => {
                text(StatusCode::NOT_FOUND, "404 page not found", request.method())
            }
            Verdict::NotAllowed(_) => {
                text(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed", request.method())
            }
            Verdict::Redirect { status, path } => redirect(*status, path, &request),
            Verdict::Route(access) => {
                // The router goes by the path that was judged, however it was spelt.
                if let Some(uri) = respelt(request.uri(), path) {
                    *request.uri_mut() = uri;
                }
                self.guarded(request, *access).await
            }
        }
    }

    /// Asks for a key, and holds its place until the answer is sent.
    async fn guarded(&self, mut request: Request, access: Access) -> Response {
        let local = self.is_local(&request);
        match self.0.guard.admit(access, request.headers(), local) {
            Err(refusal) => {
                refused(request.extensions().get().copied().unwrap_or_default(), refusal)
            }
            Ok(pass) => {
                request.extensions_mut().insert(Owner(pass.client));
                if let Some(client) = pass.client {
                    request.extensions_mut().insert(Client(client));
                }
                let mut response = self.route(request).await;
                let Some(permit) = pass.permit else { return response };
                response.extensions_mut().insert(KeyName(permit.key().to_owned()));
                response.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        // It goes with the body.
                        let _held = &permit;
                        frame
                    }))
                })
            }
        }
    }

    /// A refusal at the door: without a word, as Ollama's, but for clients of the registry.
    fn shut(&self, path: &str, why: &str) -> Response {
        match self.registry(path) {
            Some(_) => Mirror::refusal(&MirrorError::Denied(why.to_owned())),
            None => StatusCode::FORBIDDEN.into_response(),
        }
    }

    fn is_local(&self, request: &Request) -> bool {
        is_local(request, &self.0.machine)
    }

    /// The registry, where a path is one of it.
    fn registry(&self, path: &str) -> Option<&Registry> {
        self.0.registry.as_ref().filter(|_| Mirror::has(path))
    }

    /// The route's answer. Where it left fields of the request aside, a header says so.
    async fn route(&self, mut request: Request) -> Response {
        let ignored = Ignored::default();
        request.extensions_mut().insert(self.0.room.clone());
        let schema_notes = SchemaNotes::default();
        // On the heap: it is large, and every wrapper around it would hold it once more.
        let handled = schema_notes.during(Held::during(Box::pin(self.handle(request))));
        let mut response = ignored.during(handled).await;
        schema_notes.write(response.headers_mut());
        if let Some(fields) = ignored.header() {
            response.headers_mut().insert("x-puna-ignored", fields);
        }
        if let Some(kinds) = ignored.adapted_header() {
            response.headers_mut().insert("x-puna-adapted", kinds);
        }
        response
    }

    async fn handle(&self, request: Request) -> Response {
        let what = format!("{} {}", request.method(), request.uri().path());
        let dialect = request.extensions().get().copied().unwrap_or_default();
        let answer = self.0.router.clone().oneshot(request);
        caught(dialect, &what, async { answer.await.unwrap_or_else(|never| match never {}) }).await
    }

    fn origin(&self, headers: &HeaderMap) -> Origin {
        if headers.get_all(header::ORIGIN).iter().count() > 1 {
            return Origin::Refused;
        }
        let Some(origin) = headers.get(header::ORIGIN).filter(|o| !o.is_empty()) else {
            return Origin::Same;
        };
        let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
        match origin.to_str() {
            Ok(text)
                if text.strip_prefix("http://").or(text.strip_prefix("https://")) == Some(host) =>
            {
                Origin::Same
            }
            Ok(text) if self.0.origins.allows(text) => Origin::Allowed(origin.clone()),
            _ => Origin::Refused,
        }
    }

    fn mark(&self, headers: &mut HeaderMap, origin: HeaderValue) {
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED_HEADERS),
        );
        if self.0.origins.allows_any() {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            headers.remove(header::VARY);
            return;
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if !headers.contains_key(header::VARY) {
            headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        }
    }
}

impl Desk for Door {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        let door = self.clone();
        Box::pin(async move { Door::answer(&door, request).await })
    }

    fn reload(&self) {
        self.0.guard.reload();
    }
}

/// A handler's answer; where it panics, an error in its dialect's form.
async fn caught(dialect: Dialect, what: &str, answer: impl Future<Output = Response>) -> Response {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!("a handler panicked: {what}: {}", text_of(&*panic));
            dialect.error(Failure::internal(
                "an internal error happened; the log of the server says more",
            ))
        }
    }
}

/// A refusal in the form of the route's dialect.
fn refused(dialect: Dialect, Refusal { failure, retry_after }: Refusal) -> Response {
    let status = failure.status;
    let mut response = dialect.error(failure);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    if status == 401 {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Where a request comes from.
enum Origin {
    /// No page, or a page of this server.
    Same,
    Allowed(HeaderValue),
    Refused,
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("43200"));
    for vary in ["Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"] {
        headers.append(header::VARY, HeaderValue::from_static(vary));
    }
    response
}

fn text(status: StatusCode, body: &'static str, method: &Method) -> Response {
    let body = if method == Method::HEAD { Body::empty() } else { Body::from(body) };
    (status, [(header::CONTENT_TYPE, "text/plain")], body).into_response()
}

fn redirect(status: u16, path: &str, request: &Request) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TEMPORARY_REDIRECT);
    let query = request.uri().query().map(|q| format!("?{q}")).unwrap_or_default();
    let Ok(location) = HeaderValue::from_str(&format!("{path}{query}")) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut response = if request.method() == Method::GET {
        let reason = status.canonical_reason().unwrap_or_default();
        let target = escaped(&format!("{path}{query}"));
        let body = format!("<a href=\"{target}\">{reason}</a>.\n\n");
        (status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], body).into_response()
    } else {
        status.into_response()
    };
    response.headers_mut().insert(header::LOCATION, location);
    response
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_in_the_form_of_its_dialect() {
        for (dialect, field) in [
            (Dialect::Ollama, "/error"),
            (Dialect::OpenAi, "/error/message"),
            (Dialect::Anthropic, "/error/message"),
        ] {
            let answer = caught(dialect, "GET /", async { panic!("no") }).await;
            assert_eq!(answer.status(), 500);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let text = body.pointer(field).and_then(serde_json::Value::as_str).unwrap();
            assert!(text.starts_with("an internal error"), "{body}");
        }
    }
}
