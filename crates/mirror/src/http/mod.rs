//! HTTP layer of the registry protocol: routes requests to the storage and builds responses.

pub(crate) mod base_url;
mod blobs;
mod listings;
mod maintenance;
mod manifests;
mod range;
mod recent_pulls;
pub(crate) mod target;
mod uploads;
mod web_ui;

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use puna_store::{Digest, ModelName, NewModel};
use serde_json::json;

use crate::auth::{
    Authenticator, ClientId, Keys, Permission, Principal, RequestPermit, TOKEN_LIFETIME,
};
use crate::error::MirrorError;
use crate::http::base_url::{LocalRequest, header_text};
use crate::http::target::{Target, WEB_UI_PATH, query_value, unescaped};
use crate::locks::{KeyGuard, KeyedLocks};
use crate::loop_detection::MirrorId;
use crate::metrics::{Metric, Metrics, families};
use crate::pull_through::{FetchStats, PullThrough, Requester};
use crate::quota::enforcement::FreeQuota;
use crate::quota::namespace_index::NamespaceIndex;
use crate::retention::Rule;
use crate::retention::usage_log::UsageLog;
use crate::settings::Settings;
use crate::storage::{Blob, Storage};
use crate::types::manifest::Manifest;
use crate::types::repository::{Reference, Repository};

use recent_pulls::RecentPulls;

pub use recent_pulls::ClientAddress;
pub(crate) use recent_pulls::RECENT_PULLS;

/// Header of every response that identifies the protocol version.
const VERSION: (HeaderName, HeaderValue) = (
    HeaderName::from_static("docker-distribution-api-version"),
    HeaderValue::from_static("registry/2.0"),
);

pub(crate) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct Mirror(Arc<Inner>);

struct Inner {
    storage: Storage,
    /// The layer of `storage` that fetches from upstreams.
    pull_through: Option<PullThrough>,
    authenticator: Authenticator,
    allow_delete: bool,
    pulls: RecentPulls,
    namespace_index: NamespaceIndex,
    metrics: Metrics,
    mirror_id: MirrorId,
    usage_log: UsageLog,
    retention: Vec<Rule>,
    /// Locks for changing the manifests of a repository, by lowercase name.
    repository_locks: KeyedLocks<String>,
}

/// Keeps other changes of a namespace waiting while a model is stored in it.
pub struct QuotaGuard {
    mirror: Mirror,
    _guard: Option<KeyGuard>,
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        // The next check reads the namespace again.
        self.mirror.namespace_index().record_change();
    }
}

/// Result of a request handler.
type HandlerResult = Result<Response, MirrorError>;

impl Mirror {
    /// Creates a registry that serves a storage. `usage_log` records arrivals and pulls.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new(
        storage: Storage,
        keys: Box<dyn Keys>,
        settings: &Settings,
        usage_log: UsageLog,
    ) -> Result<Self, MirrorError> {
        Self::build(storage, None, keys, settings, usage_log)
    }

    /// Creates a registry that also serves what its upstreams have.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn with_pull_through(
        pull_through: PullThrough,
        keys: Box<dyn Keys>,
        settings: &Settings,
        usage_log: UsageLog,
    ) -> Result<Self, MirrorError> {
        Self::build(pull_through.storage(), Some(pull_through), keys, settings, usage_log)
    }

    fn build(
        storage: Storage,
        pull_through: Option<PullThrough>,
        keys: Box<dyn Keys>,
        settings: &Settings,
        usage_log: UsageLog,
    ) -> Result<Self, MirrorError> {
        let authenticator = Authenticator::new(keys, settings)?;
        let namespace_index =
            NamespaceIndex::new(settings.quotas.clone(), storage.clone(), pull_through.clone());
        let (allow_delete, pulls) = (settings.delete, RecentPulls::default());
        let (metrics, retention, mirror_id) =
            (Metrics::default(), settings.retention.clone(), MirrorId::new()?);
        let repository_locks = KeyedLocks::default();
        let inner = Inner {
            storage,
            pull_through,
            authenticator,
            allow_delete,
            pulls,
            namespace_index,
            metrics,
            mirror_id,
            usage_log,
            retention,
            repository_locks,
        };
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn usage_log(&self) -> &UsageLog {
        &self.0.usage_log
    }

    /// Records that a model of the store was used on this machine, which counts as a pull.
    pub fn record_use(&self, model: &ModelName) {
        if let Some(name) = Repository::from_model_name(model) {
            self.usage_log().record_pull(&name, &Reference::Tag(model.tag().to_owned()));
        }
    }

    pub(crate) fn pulls(&self) -> &RecentPulls {
        &self.0.pulls
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Returns all metrics.
    ///
    /// # Errors
    /// The storage cannot be read.
    pub async fn all_metrics(&self) -> Result<Vec<Metric>, MirrorError> {
        let mut metrics = self.metrics().snapshot();
        let fetch_stats = match &self.0.pull_through {
            Some(pull_through) => pull_through.fetch_stats().await,
            None => FetchStats::default(),
        };
        metrics.extend([
            Metric::new(&families::HITS, fetch_stats.hits),
            Metric::new(&families::MISSES, fetch_stats.misses),
            Metric::new(&families::FETCH_FAILURES, fetch_stats.failures),
            Metric::new(&families::FETCHES_REFUSED, fetch_stats.refused),
            Metric::new(&families::FETCHED_BYTES, fetch_stats.bytes),
            Metric::new(&families::FETCHING, fetch_stats.running),
        ]);
        metrics.extend(self.namespace_index().metrics().await?);
        Ok(metrics)
    }

    /// Checks the quota for a model that another part of the program stores. The caller keeps the
    /// result until the model, or a record of its pull, is stored: until then other changes of the
    /// namespace wait.
    ///
    /// # Errors
    /// [`MirrorError::Quota`], or the storage cannot be read.
    pub async fn reserve_model(&self, model: &NewModel) -> Result<QuotaGuard, MirrorError> {
        let guard = self.namespace_index().check_model_quota(model).await?;
        Ok(QuotaGuard { mirror: self.clone(), _guard: guard })
    }

    /// Returns how much more a namespace may store; `None` if it has no quota.
    ///
    /// # Errors
    /// The storage cannot be read.
    pub async fn free_quota(&self, namespace: &str) -> Result<Option<FreeQuota>, MirrorError> {
        self.namespace_index().free_quota(namespace).await
    }

    /// Checks whether a request may read the metrics.
    ///
    /// # Errors
    /// The request lacks the permission.
    pub fn authorize_metrics(&self, head: &Parts) -> Result<(), MirrorError> {
        self.authenticator().authorize_metrics(head)
    }

    /// Whether a `Host` header is one of the configured host names.
    pub fn is_host_name(&self, host: &str) -> bool {
        self.authenticator().is_host_name(host)
    }

    /// Converts an error to a response of the distribution specification.
    pub fn error_response(error: &MirrorError) -> Response {
        error_response(error)
    }

    /// Waits for the lock of a repository, so that no other request changes its manifests between a
    /// check and a write.
    async fn lock_repository(&self, name: &Repository) -> KeyGuard {
        self.0.repository_locks.lock(name.to_string().to_ascii_lowercase()).await
    }

    pub(crate) fn namespace_index(&self) -> &NamespaceIndex {
        &self.0.namespace_index
    }

    /// Returns a manifest. The requester decides whether a missing one may be fetched.
    async fn find_manifest(
        &self,
        name: &Repository,
        reference: &Reference,
        requester: Requester,
    ) -> Result<Option<Manifest>, MirrorError> {
        match &self.0.pull_through {
            Some(pull_through) => pull_through.manifest_for(name, reference, requester).await,
            None => self.storage().manifests.manifest(name, reference).await,
        }
    }

    /// Returns a blob for a request in a repository. The requester decides whether a missing one
    /// may be fetched.
    async fn find_blob(
        &self,
        name: &Repository,
        digest: Digest,
        requester: Requester,
    ) -> Result<Option<Box<dyn Blob>>, MirrorError> {
        match &self.0.pull_through {
            Some(pull_through) => pull_through.blob_for(name, digest, requester).await,
            None => self.storage().blobs.blob(digest).await,
        }
    }

    /// Whether the upstream of a repository confirms that a blob belongs to it.
    async fn upstream_confirms_blob(
        &self,
        name: &Repository,
        digest: Digest,
    ) -> Result<bool, MirrorError> {
        match &self.0.pull_through {
            Some(pull_through) => pull_through.upstream_confirms_blob(name, digest).await,
            None => Ok(false),
        }
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.0.authenticator
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Whether a path belongs to the registry.
    pub fn is_registry_path(path: &str) -> bool {
        path == "/v2" || path == WEB_UI_PATH || path.starts_with("/v2/")
    }

    /// Handles a request for a path of the registry.
    pub async fn answer(&self, request: Request) -> Response {
        let head = request.method() == Method::HEAD;
        let method = request.method().clone();
        let path = unescaped(request.uri().path());
        let target = path.and_then(|path| Target::parse(&path).ok());
        let answered = match self.0.mirror_id.request_path(request.headers()) {
            Ok(path) => path.scope(self.route(request)).await,
            Err(error) => Err(error),
        };
        let mut response = answered.unwrap_or_else(|error| error_response(&error));
        self.metrics().count_response(target.as_ref(), &method, response.status());
        if let Some(target) = target.filter(|_| response.status() == StatusCode::METHOD_NOT_ALLOWED)
        {
            let allowed = target.methods().filter(|allowed| *allowed != method.as_str());
            // A client that may push may cancel its upload.
            let may_delete = self.0.allow_delete || matches!(target, Target::Upload(..));
            let allowed = allowed.filter(|allowed| may_delete || *allowed != "DELETE");
            let allowed = header_value(&allowed.collect::<Vec<_>>().join(", "));
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        let (name, version) = VERSION;
        response.headers_mut().insert(name, version);
        restrict_browsers(response.headers_mut());
        if head {
            // A HEAD response has the headers of the body.
            *response.body_mut() = Body::empty();
        }
        response
    }

    async fn route(&self, request: Request) -> HandlerResult {
        let (head, body) = request.into_parts();
        let path = unescaped(head.uri.path()).ok_or(MirrorError::NoRoute)?;
        let (mut target, method) = (Target::parse(&path)?, head.method.clone());
        let reads = method == Method::GET || method == Method::HEAD;
        if let Some(host) =
            query_value(head.uri.query(), "ns").filter(|host| reads && !host.is_empty())
        {
            target = target.with_registry_host(&host)?;
        }
        let permission = target.permission(&method);
        let head = &head;
        let principal = match self.authorize(head, &target, permission) {
            Err(error @ MirrorError::Unauthorized(_)) => {
                let challenge = match target {
                    // Browsers then ask for a name and password.
                    Target::WebUi => "Basic realm=\"use the API key as the password\"".to_owned(),
                    _ => self.authenticator().challenge(head, permission, target.repository()),
                };
                let mut response = error_response(&error);
                response.headers_mut().insert(header::WWW_AUTHENTICATE, header_value(&challenge));
                return Ok(response);
            }
            admitted => admitted?,
        };
        let permit = self.authenticator().begin_request(head, principal.as_ref(), &target)?;
        let client = self.client_id(head, principal.as_ref(), &target);
        let answer = client.scope(self.handle(target, head, body, principal.as_ref())).await?;
        Ok(match permit {
            Some(permit) => hold_permit(answer, permit),
            None => answer,
        })
    }

    /// Handles an authorized request.
    async fn handle(
        &self,
        target: Target,
        head: &Parts,
        body: Body,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let method = head.method.clone();
        let reads = method == Method::GET || method == Method::HEAD;
        match (target, method) {
            (Target::WebUi, _) if reads => self.web_ui(head, principal).await,
            (Target::Token, _) if reads => self.token(head),
            (Target::Ping, _) if reads => Ok(json_response(StatusCode::OK, &json!({}))),
            (Target::Catalog, _) if reads => self.catalog(head, principal).await,
            (Target::Tags(name), _) if reads => self.tags(name, head).await,
            (Target::Referrers(name, of), _) if reads => self.referrers(name, of, head).await,
            (Target::Manifest(name, of), _) if reads => {
                self.manifest(name, of, head, principal).await
            }
            (Target::Manifest(name, of), Method::PUT) => {
                self.put_manifest(name, of, head, body, principal).await
            }
            (Target::Manifest(name, of), Method::DELETE) => {
                self.remove_manifest(name, of, head).await
            }
            (Target::Blob(name, of), _) if reads => self.blob(name, of, head, principal).await,
            (Target::Blob(name, of), Method::DELETE) => {
                self.remove_blob(name, of, head, principal).await
            }
            (Target::Uploads(name), Method::POST) => self.begin(name, head, body, principal).await,
            (Target::Upload(name, id), Method::GET) => self.upload_status(name, id, head).await,
            (Target::Upload(name, id), Method::PATCH) => self.append(name, id, head, body).await,
            (Target::Upload(name, id), Method::PUT) => self.finish(name, id, head, body).await,
            (Target::Upload(name, id), Method::DELETE) => self.cancel(name, id).await,
            (_, method) => Err(MirrorError::MethodNotAllowed(method)),
        }
    }

    /// Checks the permission of a request. The token endpoint checks credentials itself.
    fn authorize(
        &self,
        head: &Parts,
        target: &Target,
        permission: Permission,
    ) -> Result<Option<Principal>, MirrorError> {
        if permission == Permission::Admin && !self.0.allow_delete {
            return Err(MirrorError::DeletionDisabled);
        }
        let blob = match target {
            Target::Token => return Ok(None),
            Target::Blob(_, blob) => Some(blob),
            _ => None,
        };
        self.authenticator().authorize(head, permission, target.repository(), blob)
    }

    /// Returns the client that the shares of limited tables belong to.
    fn client_id(&self, head: &Parts, principal: Option<&Principal>, target: &Target) -> ClientId {
        match self.authenticator().accountable_key(head, principal, target) {
            Some(name) => ClientId::of_key(&name),
            None => {
                let address = head.extensions.get::<ClientAddress>();
                ClientId::of_address(address.map_or("", |address| &address.0))
            }
        }
    }

    fn token(&self, head: &Parts) -> HandlerResult {
        let (token, permit) = self.authenticator().token(head)?;
        let seconds = TOKEN_LIFETIME.as_secs();
        let answer = json_response(
            StatusCode::OK,
            &json!({"token": token, "access_token": token, "expires_in": seconds}),
        );
        Ok(match permit {
            Some(permit) => hold_permit(answer, permit),
            None => answer,
        })
    }
}

/// Default `Retry-After` in seconds.
const RETRY_AFTER_SECONDS: u64 = 30;

/// Returns the `Retry-After` of an error in seconds, if it is temporary.
fn retry_after(error: &MirrorError) -> Option<u64> {
    match error {
        MirrorError::RetryLater(_) | MirrorError::TooManyRequests(_) => Some(RETRY_AFTER_SECONDS),
        MirrorError::RateLimited(limit) => Some(limit.retry_after),
        _ => None,
    }
}

/// Converts an error to a response of the distribution specification.
fn error_response(error: &MirrorError) -> Response {
    let (status, code) = error.code();
    let (retry_after, message) = (retry_after(error), error.public_message());
    if status >= 500 && retry_after.is_none() || message != error.to_string() {
        tracing::error!(%error, "registry request failed");
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response =
        json_response(status, &json!({"errors": [{"code": code, "message": message}]}));
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    restrict_browsers(response.headers_mut());
    response
}

/// Prevents browsers from executing pushed content. It has the same origin as [the web
/// page](Target::WebUi), where administrators enter their key. The page sets its own policy.
fn restrict_browsers(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let nothing = HeaderValue::from_static("default-src 'none'; sandbox");
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
}

fn json_response(status: StatusCode, body: &serde_json::Value) -> Response {
    let bytes = body.to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

/// Attaches a permit to a response until its body is sent.
fn hold_permit(answer: Response, permit: RequestPermit) -> Response {
    let len = answer.body().size_hint().exact();
    let mut answer = answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // The closure owns the permit, so it lives as long as the body.
            let _held = &permit;
            frame
        }))
    });
    // The mapped body has no known length, so the header states it.
    if let Some(len) = len
        && answer.status() != StatusCode::NO_CONTENT
        && answer.status() != StatusCode::NOT_MODIFIED
    {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(len.into());
    }
    answer
}

/// Returns a response without a body.
fn empty_response(status: StatusCode) -> Response {
    let mut response = status.into_response();
    response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    response
}

/// Converts a text to a header value. Values here consist of names and digests, which are valid.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// Returns the kind of requester, which decides what may be fetched.
fn requester(head: &Parts, principal: Option<&Principal>) -> Requester {
    match principal.is_some() || head.extensions.get::<LocalRequest>().is_some() {
        true => Requester::Trusted,
        false => Requester::Anonymous,
    }
}

/// `ETag` of content with a digest.
fn etag_of(digest: &Digest) -> String {
    format!("\"{digest}\"")
}

/// Whether `If-None-Match` contains the current `ETag`.
fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let tags =
        header_text(headers, header::IF_NONE_MATCH).unwrap_or_default().split(',').map(str::trim);
    tags.into_iter().any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// Checks `If-Match` against the current content; `None` if nothing exists.
fn check_if_match(headers: &HeaderMap, current: Option<Digest>) -> Result<(), MirrorError> {
    let mut lines = headers.get_all(header::IF_MATCH).iter().peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    // Weak tags never match (RFC 9110, 13.1.1).
    let mut tags =
        lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')).map(str::trim);
    let etag = current.as_ref().map(etag_of);
    match etag.is_some_and(|etag| tags.any(|tag| tag == "*" || tag == etag)) {
        true => Ok(()),
        false => Err(MirrorError::PreconditionFailed { current }),
    }
}
