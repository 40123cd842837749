//! Checks applied to every request before its route: origin (CORS), `Host` header, path and method,
//! API key, in this order. Panics of the route become an error response.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use puna_mirror::{Denial, Mirror, unescaped};
use tower::ServiceExt;

use crate::app::App;
use crate::auth::RouteRequirement;
use crate::auth::authorizer::{AccessDenied, Authorizer};
use crate::auth::owner::{ClientIdentity, OwnerHasher};
use crate::canonical::ApiError;
use crate::config::TrustedProxies;
use crate::config::origins::Origins;
use crate::http::access_log::{KeyName, LogEntry};
use crate::http::body_budget::{BodyBudget, RequestReservation};
use crate::http::body_workers::BodyWorkers;
use crate::http::connection_table::ConnectionSlot;
use crate::http::host_check::{HostKind, HostNames, machine_name};
use crate::http::peer::{host, is_local, peer, resolve_client_address};
use crate::http::serve::{RequestHandler, exhausted_response};
use crate::http::{CallerOutgoingAccess, Client, CompatibilityReport, Dialect, SchemaReport};
use crate::metrics::ServerMetrics;
use crate::mirror::MirrorService;
use crate::routes::table::{Route, RouteMatch, RouteTable, with_decoded_path};
use crate::util::panic_message::panic_message;

/// Request headers that web pages may send.
const ALLOWED_HEADERS: &str = "Authorization,Content-Type,User-Agent,Accept,X-Requested-With,Openai-Beta,\
X-Stainless-Arch,X-Stainless-Async,X-Stainless-Custom-Poll-Interval,X-Stainless-Helper-Method,X-Stainless-Lang,\
X-Stainless-Os,X-Stainless-Package-Version,X-Stainless-Poll-Helper,X-Stainless-Retry-Count,X-Stainless-Runtime,\
X-Stainless-Runtime-Version,X-Stainless-Timeout,X-Api-Key,Anthropic-Version,Anthropic-Beta,\
Anthropic-Dangerous-Direct-Browser-Access,X-Request-Id";

/// Response headers that web pages may read.
const EXPOSED_HEADERS: &str = "X-Request-Id,Request-Id,X-Puna-Ignored,X-Puna-Adapted,\
     X-Puna-Schema-Unenforced,X-Puna-Schema-Violations,Retry-After";

/// The middleware with the router behind it. Cheap to clone.
#[derive(Clone)]
pub struct Middleware(Arc<Inner>);

struct Inner {
    router: Router,
    table: RouteTable,
    metrics: Arc<ServerMetrics>,
    origins: Origins,
    /// Whether `Host` headers are checked, which is so on loopback addresses only.
    checks_hosts: bool,
    host_names: HostNames,
    authorizer: Arc<Authorizer>,
    owners: OwnerHasher,
    trusted_proxies: TrustedProxies,
    body_budget: BodyBudget,
    registry: Option<MirrorService>,
}

impl Middleware {
    /// Creates the middleware of a server that listens at `listen`.
    pub(crate) fn new(
        app: App,
        routes: Vec<Route>,
        authorizer: Arc<Authorizer>,
        listen: SocketAddr,
        registry: Option<MirrorService>,
    ) -> Self {
        let table = RouteTable::new(&routes);
        let metrics = app.metrics().clone();
        let config = app.config();
        let owners = OwnerHasher::open(&config.keys, config.prefix_sharing);
        let (origins, trusted_proxies) = (config.origins.clone(), config.trusted_proxies.clone());
        let host_names = HostNames::new(&machine_name(), &config.allowed_hosts);
        let router = routes
            .into_iter()
            .fold(Router::new(), |router, route| router.route(route.path, route.handler));
        let checks_hosts = listen.ip().is_loopback();
        Self(Arc::new(Inner {
            router: router.with_state(app),
            table,
            metrics,
            origins,
            checks_hosts,
            host_names,
            authorizer,
            owners,
            trusted_proxies,
            body_budget: BodyBudget::default(),
            registry,
        }))
    }

    #[cfg(test)]
    pub(crate) fn body_budget(&self) -> &BodyBudget {
        &self.0.body_budget
    }

    /// Answers a request, counts it and logs it.
    pub async fn answer(&self, mut request: Request) -> Response {
        resolve_client_address(&mut request, &self.0.trusted_proxies);
        let entry = LogEntry::begin(&request, peer(&request));
        // In a box, since the future of all routes is large and its callers would copy it.
        entry.record(Box::pin(self.answer_with_metrics(request))).await
    }

    async fn answer_with_metrics(&self, mut request: Request) -> Response {
        let path = unescaped(request.uri().path());
        let entry = path.as_deref().and_then(|path| self.0.table.entry(path));
        let dialect = entry.map(|entry| entry.dialect_for(request.headers())).unwrap_or_default();
        let pending = self.0.metrics.start_request(entry.map(|entry| entry.path), request.method());
        request.extensions_mut().insert(dialect);
        let mut response = self.check_origin_and_route(request, path.as_deref()).await;
        pending.finish(response.status());
        response.extensions_mut().insert(dialect);
        response
    }

    /// Checks the origin and answers a request. `path` is the decoded path; `None` if it cannot be
    /// decoded, which is answered with 404.
    async fn check_origin_and_route(&self, request: Request, path: Option<&str>) -> Response {
        let route_match = match path {
            Some(path) => self.0.table.resolve(request.method(), path),
            None => RouteMatch::NotFound,
        };
        let origin = self.origin(request.headers(), path.unwrap_or_else(|| request.uri().path()));
        let mut response = match origin {
            RequestOrigin::Refused => {
                self.forbidden(path.unwrap_or_default(), Denial::ForeignOrigin)
            }
            RequestOrigin::Allowed(_) if request.method() == Method::OPTIONS => preflight(),
            _ => self.check_host_and_route(request, path.unwrap_or_default(), &route_match).await,
        };
        if let RouteMatch::NotAllowed(allow) = &route_match
            && let Ok(allow) = HeaderValue::from_str(allow)
        {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        if let RequestOrigin::Allowed(origin) = origin {
            self.add_cors_headers(response.headers_mut(), origin);
        }
        response
    }

    async fn check_host_and_route(
        &self,
        mut request: Request,
        path: &str,
        route_match: &RouteMatch,
    ) -> Response {
        if self.0.checks_hosts {
            let host = host(&request);
            match self.0.host_names.classify(host) {
                // The mirror has host names of its own, which are valid for its paths only.
                HostKind::Foreign
                    if self.registry(path).is_some_and(|registry| registry.is_named(host)) => {}
                HostKind::Foreign => {
                    return self.forbidden(path, Denial::ForeignServerHost);
                }
                HostKind::Name if request.method() == Method::OPTIONS => {
                    return StatusCode::NO_CONTENT.into_response();
                }
                HostKind::Name | HostKind::LocalAddress => {}
            }
        }
        match route_match {
            RouteMatch::NotFound if let Some(registry) = self.registry(path) => {
                registry.answer(request).await
            }
            RouteMatch::NotFound => {
                plain_text(StatusCode::NOT_FOUND, "404 page not found", request.method())
            }
            RouteMatch::NotAllowed(_) => plain_text(
                StatusCode::METHOD_NOT_ALLOWED,
                "405 method not allowed",
                request.method(),
            ),
            RouteMatch::Redirect { status, path } => redirect(*status, path, &request),
            RouteMatch::Route(access) => {
                // The router must use the same path that was checked, however it was escaped.
                if let Some(uri) = with_decoded_path(request.uri(), path) {
                    *request.uri_mut() = uri;
                }
                self.authorize_and_route(request, *access).await
            }
        }
    }

    /// Checks the API key, and holds its permit until the response is sent.
    async fn authorize_and_route(
        &self,
        mut request: Request,
        requirement: RouteRequirement,
    ) -> Response {
        let local = self.is_local(&request);
        match self.0.authorizer.authorize(requirement, request.headers(), local) {
            Err(refusal) => {
                denied(request.extensions().get().copied().unwrap_or_default(), refusal)
            }
            Ok(authorized) => {
                if let Some(client) = authorized.client {
                    let slot = request.extensions().get::<ConnectionSlot>();
                    if slot.is_some_and(|slot| slot.assign_key(client).is_err()) {
                        return exhausted_response();
                    }
                }
                let address = peer(&request);
                let identity = authorized.identity.unwrap_or(ClientIdentity::Address(address));
                let number = authorized.client.unwrap_or_else(|| Client::number_at(address));
                let cache_namespace = self.0.owners.cache_namespace(&identity);
                request.extensions_mut().insert(self.0.owners.owner(&identity));
                let may_administer = authorized.may_administer;
                request.extensions_mut().insert(Client { number, cache_namespace, may_administer });
                request
                    .extensions_mut()
                    .insert(CallerOutgoingAccess::new(authorized.may_administer));
                let mut response = authorized.caller.run_as(self.route(request)).await;
                let Some(permit) = authorized.permit else { return response };
                response.extensions_mut().insert(KeyName(permit.key().to_owned()));
                response.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        // The permit is dropped with the body.
                        let _held = &permit;
                        frame
                    }))
                })
            }
        }
    }

    /// Status 403: with an empty body as Ollama sends it, or an error of the mirror on its paths.
    fn forbidden(&self, path: &str, reason: Denial) -> Response {
        match self.registry(path) {
            Some(_) => Mirror::error_response(&reason.into()),
            None => StatusCode::FORBIDDEN.into_response(),
        }
    }

    fn is_local(&self, request: &Request) -> bool {
        is_local(request, &self.0.host_names)
    }

    /// The mirror, if the path belongs to it.
    fn registry(&self, path: &str) -> Option<&MirrorService> {
        self.0.registry.as_ref().filter(|_| Mirror::is_registry_path(path))
    }

    /// Calls the route. Headers of the response name ignored fields and adaptations.
    async fn route(&self, mut request: Request) -> Response {
        let report = CompatibilityReport::default();
        request.extensions_mut().insert(self.0.body_budget.clone());
        let schema_report = SchemaReport::default();
        // The future is large and every wrapper would embed it, so it is boxed.
        let handled =
            schema_report.scope(RequestReservation::scope(Box::pin(self.handle(request))));
        let mut response = report.scope(handled).await;
        schema_report.write(response.headers_mut());
        if let Some(fields) = report.ignored_header() {
            response.headers_mut().insert("x-puna-ignored", fields);
        }
        if let Some(kinds) = report.adapted_header() {
            response.headers_mut().insert("x-puna-adapted", kinds);
        }
        response
    }

    async fn handle(&self, request: Request) -> Response {
        let what = format!("{} {}", request.method(), request.uri().path());
        let dialect = request.extensions().get().copied().unwrap_or_default();
        let answer = self.0.router.clone().oneshot(request);
        catch_panic(dialect, &what, async { answer.await.unwrap_or_else(|never| match never {}) })
            .await
    }

    /// Origin of a request. Browsers send no `Origin` when a page loads an image or a script, or
    /// follows a link: then they tell by `Sec-Fetch-Site` that the page belongs to another site.
    fn origin(&self, headers: &HeaderMap, path: &str) -> RequestOrigin {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if headers.get_all(header::ORIGIN).iter().count() > 1 {
            return RequestOrigin::Refused;
        }
        let Some(origin) = headers.get(header::ORIGIN).filter(|o| !o.is_empty()) else {
            let is_foreign = text(SEC_FETCH_SITE) == Some("cross-site");
            let is_page = text(SEC_FETCH_MODE) == Some("navigate") && !is_api_path(path);
            return match is_foreign && !is_page && !self.0.origins.allows_any() {
                true => RequestOrigin::Refused,
                false => RequestOrigin::Same,
            };
        };
        let host = text(header::HOST).unwrap_or_default();
        match origin.to_str() {
            Ok(text)
                if text.strip_prefix("http://").or(text.strip_prefix("https://")) == Some(host) =>
            {
                RequestOrigin::Same
            }
            Ok(text) if self.0.origins.allows(text) => RequestOrigin::Allowed(origin.clone()),
            _ => RequestOrigin::Refused,
        }
    }

    fn add_cors_headers(&self, headers: &mut HeaderMap, origin: HeaderValue) {
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

impl RequestHandler for Middleware {
    fn answer(&self, request: Request) -> BoxFuture<'static, Response> {
        let middleware = self.clone();
        Box::pin(async move { Middleware::answer(&middleware, request).await })
    }

    fn reload(&self) {
        self.0.authorizer.reload();
    }

    fn body_workers(&self) -> BodyWorkers {
        self.0.body_budget.workers()
    }
}

/// Awaits a handler's response. A panic becomes an error in the route's dialect.
async fn catch_panic(
    dialect: Dialect,
    what: &str,
    answer: impl Future<Output = Response>,
) -> Response {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!("request handler panicked: {what}: {}", panic_message(&*panic));
            dialect.error(ApiError::internal("internal error: see the server log"))
        }
    }
}

/// Error response of a denied request in the route's dialect.
fn denied(dialect: Dialect, refusal: AccessDenied) -> Response {
    let AccessDenied { error, key } = refusal;
    let (status, retry_after) = (error.status, error.retry_after);
    let mut response = dialect.error(error);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(name) = key {
        response.extensions_mut().insert(KeyName(name.into()));
    }
    if status == 401 {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Whether a path is of the API or the registry, and so of no page that other sites link to.
fn is_api_path(path: &str) -> bool {
    ["/api/", "/v1/", "/v2/"].iter().any(|start| path.starts_with(start)) || path == "/v2"
}

/// Origin of a request.
enum RequestOrigin {
    /// No web page, or a page of this server.
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

fn plain_text(status: StatusCode, body: &'static str, method: &Method) -> Response {
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
    async fn a_panic_becomes_an_error_of_the_dialect() {
        for (dialect, field) in [
            (Dialect::Ollama, "/error"),
            (Dialect::OpenAi, "/error/message"),
            (Dialect::Anthropic, "/error/message"),
        ] {
            let answer = catch_panic(dialect, "GET /", async { panic!("no") }).await;
            assert_eq!(answer.status(), 500);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let text = body.pointer(field).and_then(serde_json::Value::as_str).unwrap();
            assert!(text.starts_with("internal error"), "{body}");
        }
    }
}
