//! HTTP session with one registry: URLs, authentication, redirects, and responses of bounded size.

mod authorization;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use puna_store::{Digest, ModelName};
use puna_trust::TlsProblem;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue, LOCATION,
    RETRY_AFTER, VIA,
};
use reqwest::{Body, Client, Method, Response, StatusCode, Url};

use crate::Registry;
use crate::auth::challenge::Challenges;
use crate::client::destinations::refusal_error;
use crate::client::endpoint::Endpoint;
use crate::client::hosts::Credentials;
use crate::client::http::with_proxy_hint;
use crate::client::pinned_clients::{PinError, PinnedClients};
use crate::client::rate_limit::RateLimit;
use crate::client::retry::{LastFailure, Retry};
use crate::client::settings::{Options, Progress, Report, Settings, WAITING_PREFIX};
use crate::display::{authority, display_url, method_name, redact, root_cause, single_line};
use crate::error::{RegistryError, SetupProblem};
use crate::lock::lock;
use crate::outgoing::{OutgoingAccess, OutgoingPolicy, OutgoingRefusal};
use authorization::token_refused_error;

/// Largest number of redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// Largest part of an error response that is read and shown, in bytes.
const MAX_ERROR_TEXT_BYTES: usize = 4 << 10;
/// A small response must be complete within this many stall timeouts.
const BODY_TIMEOUT_FACTOR: u32 = 4;
/// Attempts of a request at a mirror. They are few because other endpoints can serve the request.
const MIRROR_ATTEMPTS: u32 = 3;
/// Text of the error if a server closes the connection during the TLS handshake.
const HANDSHAKE_EOF_ERROR: &str = "handshake eof";

/// Request to be sent, possibly several times.
pub(crate) struct RequestSpec<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Makes the body, once for each attempt.
    pub(crate) body: Option<&'a (dyn Fn() -> Body + Send + Sync)>,
    /// Whether the session follows redirects.
    pub(crate) follow: bool,
}

impl<'a> RequestSpec<'a> {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: None, follow: true }
    }

    /// Sets a body. The caller handles redirects of requests with a body.
    pub(crate) fn with_body(self, body: &'a (dyn Fn() -> Body + Send + Sync)) -> Self {
        Self { body: Some(body), follow: false, ..self }
    }

    pub(crate) fn header(mut self, name: reqwest::header::HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }
}

/// HTTP session of one pull or push: one registry, one model.
pub(crate) struct Session {
    registry: Registry,
    client: Client,
    endpoint: Endpoint,
    name: ModelName,
    limits: Vec<Arc<RateLimit>>,
    /// Current value of the `Authorization` header.
    authorization: Mutex<Option<Arc<str>>>,
    /// All secrets that were sent, and the texts that contain them. Messages redact them.
    secrets: Mutex<BTreeSet<String>>,
    /// Why a request is being retried.
    last_failure: LastFailure,
    /// `Via` header that names the client that a pull-through cache serves.
    via: Option<String>,
    /// Rights of the caller.
    access: OutgoingAccess,
    /// Clients for requests that the outgoing policy checks.
    pinned_clients: PinnedClients,
}

impl Session {
    pub(crate) fn new(
        registry: &Registry,
        name: ModelName,
        endpoint: Endpoint,
        options: &Options,
        limits: &[Arc<RateLimit>],
    ) -> Result<Self, RegistryError> {
        let client = registry.client(&endpoint)?;
        if endpoint.settings.credentials.is_some()
            && let Some(reason) = endpoint.withheld_credentials()
        {
            tracing::warn!(host = endpoint.host, %reason, "not using the configured credentials");
        }
        let limits = limits.iter().cloned().chain(registry.host_rate_limit(&endpoint)).collect();
        let (registry, last_failure) = (registry.clone(), LastFailure::default());
        let (authorization, secrets, pinned_clients) = Default::default();
        Ok(Self {
            registry,
            client,
            endpoint,
            name,
            limits,
            authorization,
            secrets,
            last_failure,
            via: options.via.clone(),
            access: options.access,
            pinned_clients,
        })
    }

    /// The policy that this session's requests must follow. `None`: the caller may reach every
    /// host, or the settings have no policy.
    fn policy(&self) -> Option<&OutgoingPolicy> {
        match self.access {
            OutgoingAccess::Unlimited => None,
            OutgoingAccess::Limited => self.settings().outgoing.as_ref(),
        }
    }

    /// Whether the caller must learn nothing about hosts beyond success and failure.
    fn hides_details(&self) -> bool {
        self.policy().is_some()
    }

    /// The HTTP client for a URL. Under the policy, it connects only to checked addresses. A proxy
    /// may resolve the names that a registry of the configuration redirects to.
    async fn client_for(&self, url: &Url) -> Result<Client, RegistryError> {
        let Some(policy) = self.policy() else { return Ok(self.client.clone()) };
        let build = |destination: &_| self.registry.pinned_client(&self.endpoint, destination);
        self.pinned_clients.client(policy, url, build).await.or_else(|error| match error {
            PinError::Client(error) => Err(error),
            // Networks that need a proxy often resolve no names of other networks.
            PinError::Refused(OutgoingRefusal::Unresolved)
                if self.settings().proxies.serves(url) && policy.names(&self.endpoint.root) =>
            {
                Ok(self.client.clone())
            }
            PinError::Refused(reason) => Err(refusal_error(&self.endpoint, url, reason)),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The model of the session.
    pub(crate) fn name(&self) -> &ModelName {
        &self.name
    }

    /// Whether the endpoint is a mirror, so that other endpoints can serve the request.
    pub(crate) fn is_mirror(&self) -> bool {
        self.endpoint.mirror_of.is_some()
    }

    /// The registry's host, for messages.
    pub(crate) fn host(&self) -> String {
        self.endpoint.host.clone()
    }

    /// Status for an operation without progress: the registry, and why its request is being
    /// retried.
    pub(crate) fn waiting_message(&self) -> String {
        let host = &self.endpoint.host;
        match &*lock(&self.last_failure) {
            Some(why) if !self.hides_details() => format!("{WAITING_PREFIX}{host}: {why}"),
            _ => format!("{WAITING_PREFIX}{host}"),
        }
    }

    /// Runs an operation and reports when it waits. `has_progress` is called at every progress
    /// interval. After `waiting_notice_delay` without progress, a report names the registry; it is
    /// repeated only if it changes.
    pub(crate) async fn with_waiting_notices<T>(
        &self,
        report: &Report,
        operation: impl Future<Output = Result<T, RegistryError>>,
        mut has_progress: impl FnMut() -> bool,
    ) -> Result<T, RegistryError> {
        let mut ticks = tokio::time::interval(self.settings().progress_interval);
        let (mut last, mut said) = (Instant::now(), None);
        tokio::pin!(operation);
        loop {
            tokio::select! {
                done = &mut operation => return done,
                _ = ticks.tick() => {}
            }
            if has_progress() {
                (last, said) = (Instant::now(), None);
            } else if last.elapsed() >= self.settings().waiting_notice_delay {
                let waiting = self.waiting_message();
                if said.as_ref() != Some(&waiting)
                    && report.try_send(Progress::status(&*waiting)).is_ok()
                {
                    said = Some(waiting);
                }
            }
        }
    }

    /// Largest number of connections of one download from this endpoint.
    pub(crate) fn connection_limit(&self) -> usize {
        let limit = self.settings().streams;
        self.endpoint.settings.streams.map_or(limit, |streams| streams.min(limit)).max(1)
    }

    /// The rate limits of this session.
    pub(crate) fn limits(&self) -> &[Arc<RateLimit>] {
        &self.limits
    }

    /// Accounts for transferred bytes and waits until they are within all rate limits.
    pub(crate) async fn throttle(&self, bytes: usize) {
        for limit in &self.limits {
            limit.throttle(bytes as u64).await;
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        self.registry.settings()
    }

    pub(crate) fn manifest_url(&self) -> Url {
        self.url(&["manifests", self.name.tag()])
    }

    pub(crate) fn blob_url(&self, digest: &Digest) -> Url {
        self.url(&["blobs", &digest.to_string()])
    }

    /// URL below the repository of the model: `/v2/[prefix/]namespace/model/parts…`.
    pub(crate) fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.root.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push("v2").extend(&self.endpoint.prefix);
            path.push(self.name.namespace()).push(self.name.model()).extend(parts);
        }
        // Mirrors of other programs expect the mirrored host in `ns`.
        if let Some(host) = &self.endpoint.mirror_of {
            url.query_pairs_mut().append_pair("ns", host);
        }
        url
    }

    /// Sends a request, authenticates if the registry demands it, and follows redirects. Returns
    /// any response except 401.
    pub(crate) async fn send(&self, request: &RequestSpec<'_>) -> Result<Response, RegistryError> {
        let (mut url, mut redirects, mut authenticated) = (request.url.clone(), 0, false);
        loop {
            let is_registry_origin = self.is_registry_origin(&url);
            let authorization =
                if is_registry_origin { self.current_authorization().await? } else { None };
            let response = self.send_once(request, &url, authorization.as_deref()).await?;
            if response.status() == StatusCode::UNAUTHORIZED && is_registry_origin {
                if authenticated {
                    return Err(match self.error_from_response(response).await {
                        RegistryError::Status { body, .. } => token_refused_error(&body),
                        error => error,
                    });
                }
                self.authenticate(response.headers(), authorization.as_deref()).await?;
                authenticated = true;
                continue;
            }
            let Some(next) = redirect(&response).filter(|_| request.follow) else {
                if !response.status().is_server_error() {
                    *lock(&self.last_failure) = None;
                }
                return Ok(response);
            };
            url = self.next_hop(&url, next)?;
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(RegistryError::Redirects {
                    url: display_url(&request.url),
                    max: MAX_REDIRECTS,
                });
            }
        }
    }

    /// The target of a redirect. Refuses a change from HTTPS to HTTP, and other schemes.
    pub(crate) fn next_hop(&self, from: &Url, location: &str) -> Result<Url, RegistryError> {
        let refuse = |to: String, why| RegistryError::Redirect { from: display_url(from), to, why };
        let next =
            from.join(location).map_err(|_| refuse("an address".into(), "is not a valid URL"))?;
        match next.scheme() {
            "https" => Ok(next),
            "http" if self.endpoint.is_unencrypted() || from.scheme() == "http" => Ok(next),
            "http" => Err(refuse(display_url(&next), "is not encrypted")),
            _ => Err(refuse(display_url(&next), "is not an HTTP URL")),
        }
    }

    pub(crate) async fn send_once(
        &self,
        request: &RequestSpec<'_>,
        url: &Url,
        authorization: Option<&str>,
    ) -> Result<Response, RegistryError> {
        let client = self.client_for(url).await?;
        let mut builder =
            client.request(request.method.clone(), url.clone()).headers(request.headers.clone());
        // Without compression, no response can expand when it is decompressed.
        builder = builder.header(ACCEPT_ENCODING, "identity");
        let own = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        authorization.into_iter().chain(own).for_each(|shown| {
            self.remember_secret(shown.split(' ').next_back().unwrap_or_default())
        });
        if let Some(authorization) = authorization {
            builder = builder.header(AUTHORIZATION, sensitive(authorization)?);
        }
        if let Some(via) = self.via.as_deref().filter(|_| self.is_registry_origin(url)) {
            builder = builder.header(VIA, via);
        }
        if let Some(body) = request.body {
            builder = builder.body(body());
        }
        let sent = builder.send();
        let stall_timeout = self.settings().stall_timeout;
        let answer = if request.body.is_some() {
            // The caller watches the progress of a body.
            sent.await
        } else {
            let stalled_error = |_| stalled_error(&request.method, url, stall_timeout);
            tokio::time::timeout(stall_timeout, sent).await.map_err(stalled_error)?
        };
        let response = answer.map_err(|e| {
            with_proxy_hint(self.settings(), transport_error(&request.method, url, &e), url, &e)
        })?;
        let encoding = response.headers().get(CONTENT_ENCODING).and_then(|v| v.to_str().ok());
        match encoding.map(str::trim) {
            None | Some("" | "identity") => Ok(response),
            Some(encoding) => Err(RegistryError::InvalidResponse {
                url: display_url(url),
                what: format!(
                    "the response has the unexpected Content-Encoding {}",
                    single_line(encoding, 20)
                ),
            }),
        }
    }

    /// The current `Authorization` value. A configured token is sent with the first request.
    async fn current_authorization(&self) -> Result<Option<Arc<str>>, RegistryError> {
        let shown = lock(&self.authorization).clone();
        let credentials = self.endpoint.settings.credentials.as_ref();
        match (shown, credentials.filter(|_| self.endpoint.withheld_credentials().is_none())) {
            (None, Some(Credentials::Token(secret))) => {
                let token = self.read_secret(secret).await?;
                Ok(Some(lock(&self.authorization).insert(format!("Bearer {token}").into()).clone()))
            }
            (shown, _) => Ok(shown),
        }
    }

    /// Gets a new `Authorization` value, unless another request has replaced `used` already.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        used: Option<&str>,
    ) -> Result<(), RegistryError> {
        if lock(&self.authorization).as_deref() != used {
            return Ok(());
        }
        let authorization = self.request_authorization(&Challenges::from_headers(headers)).await?;
        if used == Some(&authorization) {
            return Err(RegistryError::Unauthorized);
        }
        *lock(&self.authorization) = Some(authorization.into());
        Ok(())
    }

    /// Whether a URL belongs to the registry itself, so that it may receive credentials.
    pub(crate) fn is_registry_origin(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.root.origin()
    }

    /// Reads a response body of at most `limit` bytes.
    pub(crate) async fn read(
        &self,
        mut response: Response,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        let url = response.url().clone();
        let too_long = || RegistryError::InvalidResponse {
            url: display_url(&url),
            what: format!("the response has more than {limit} bytes"),
        };
        if response.content_length().is_some_and(|len| len > limit as u64) {
            return Err(too_long());
        }
        let stall_timeout = self.settings().stall_timeout;
        let mut bytes = BytesMut::new();
        let read_all = async {
            while let Some(piece) =
                response.chunk().await.map_err(|e| transport_error(&Method::GET, &url, &e))?
            {
                if bytes.len() + piece.len() > limit {
                    return Err(too_long());
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(())
        };
        let read = tokio::time::timeout(stall_timeout * BODY_TIMEOUT_FACTOR, read_all).await;
        match (read, bytes.len() as u64) {
            (Ok(read), _) => read.map(|()| bytes.freeze()),
            (Err(_), 0) => {
                Err(stalled_error(&Method::GET, &url, stall_timeout * BODY_TIMEOUT_FACTOR))
            }
            (Err(_), got) => {
                let seconds = (stall_timeout * BODY_TIMEOUT_FACTOR).as_secs();
                Err(RegistryError::TooSlow { url: display_url(&url), got, seconds })
            }
        }
    }

    /// Retry state for a request of this session.
    pub(crate) fn retry(&self) -> Retry {
        let retry = Retry::new(self.settings().retry_delay).reporting_to(&self.last_failure);
        if self.is_mirror() { retry.with_attempts(MIRROR_ATTEMPTS) } else { retry }
    }

    /// Returns a successful response, or the error of an unsuccessful one.
    pub(crate) async fn expect_success(
        &self,
        response: Response,
    ) -> Result<Response, RegistryError> {
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.error_from_response(response).await)
        }
    }

    /// Adds a secret that messages must redact.
    pub(crate) fn remember_secret(&self, secret: &str) {
        let mut secrets = lock(&self.secrets);
        if !secrets.contains(secret) {
            secrets.insert(secret.to_owned());
        }
    }

    /// Error of an unsuccessful response to a blob request. If the blob is missing, it names host,
    /// blob and model.
    pub(crate) async fn blob_error_from_response(
        &self,
        digest: &Digest,
        response: Response,
    ) -> RegistryError {
        let host = authority(response.url());
        let mut error = self.error_from_response(response).await;
        if let RegistryError::Status { code: 404 | 410, body, .. } = &mut error {
            *body = format!("{host} has no blob {} of {}: {body}", digest.short(), self.name);
        }
        error
    }

    /// Error of an unsuccessful response, with the redacted text of its body.
    pub(crate) async fn error_from_response(&self, mut response: Response) -> RegistryError {
        let status = response.status();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok());
        let secrets = lock(&self.secrets).clone();
        // Reads more than is shown, so that no secret is cut in half and then missed by the
        // redaction.
        let read_limit =
            MAX_ERROR_TEXT_BYTES + 2 * secrets.iter().map(String::len).max().unwrap_or_default();
        let mut bytes = Vec::new();
        let read = async {
            while let Ok(Some(piece)) = response.chunk().await {
                bytes.extend_from_slice(&piece);
                if bytes.len() >= read_limit {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(self.settings().stall_timeout, read).await;
        let mut body = match bytes.trim_ascii() {
            [] => default_refusal_text(status).to_owned(),
            [b'<', ..] => "a web page".to_owned(),
            bytes => {
                let text =
                    redact(&String::from_utf8_lossy(bytes), secrets.iter().map(String::as_str));
                single_line(&text, MAX_ERROR_TEXT_BYTES)
            }
        };
        if self.hides_details() {
            tracing::info!(host = self.endpoint.host, %status, body, "a registry refused a request");
            body = default_refusal_text(status).to_owned();
        }
        RegistryError::Status {
            status: status.to_string(),
            code: status.as_u16(),
            body,
            retry_after,
        }
    }
}

/// Text for an error response without a body.
fn default_refusal_text(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => "no reason given: ask the registry's administrator for permission",
        404 | 410 => "nothing found at this path",
        413 => "too large for the registry or a proxy before it",
        429 => "too many requests: retry later",
        508 => {
            "request loop between registries: correct mirror.upstreams, registry.default and registry.mirrors on each of them"
        }
        500.. => "no reason given: retry later, or ask the registry's administrator",
        _ => "no reason given",
    }
}

/// The target of a redirect response.
fn redirect(response: &Response) -> Option<&str> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    response.headers().get(LOCATION).filter(|_| is_redirect)?.to_str().ok()
}

/// Header value that logs do not show.
pub(crate) fn sensitive(text: &str) -> Result<HeaderValue, RegistryError> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|e| SetupProblem::Header { reason: e.to_string() })?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) fn stalled_error(method: &Method, url: &Url, stall_timeout: Duration) -> RegistryError {
    RegistryError::Stalled {
        method: method_name(method),
        url: display_url(url),
        seconds: stall_timeout.as_secs(),
    }
}

pub(crate) fn transport_error(method: &Method, url: &Url, error: &reqwest::Error) -> RegistryError {
    let mut cause = root_cause(error);
    let (host, problem) = (authority(url), TlsProblem::find(error));
    // A server without TLS answers the handshake with other bytes, or closes the connection.
    let is_unencrypted = match &problem {
        Some(problem) => *problem == TlsProblem::NotTls,
        None => cause.contains(HANDSHAKE_EOF_ERROR),
    };
    if error.is_connect() && url.scheme() == "https" && is_unencrypted {
        cause += &format!(
            ": if the server speaks plain HTTP, use --insecure, or set http = true in [registry.hosts.{host:?}]"
        );
    }
    let trusted = match &problem {
        Some(TlsProblem::AuthorityItself) => Some("this certificate"),
        Some(TlsProblem::UnknownAuthority) => Some("the certificate of its authority"),
        _ => None,
    };
    if let Some(advice) = problem.as_ref().and_then(TlsProblem::advice) {
        cause += &format!(": {advice}");
    }
    if let Some(what) = trusted {
        cause += &format!(
            ": to trust it, set ca = \"FILE.pem\" in [registry.hosts.{host:?}], or SSL_CERT_FILE, to {what}"
        );
    }
    // A retry would fail too.
    let is_permanent = problem.as_ref().is_some_and(TlsProblem::is_permanent);
    let (method, url) = (method_name(method), display_url(url));
    match is_permanent {
        true => RegistryError::Tls { method, url, cause },
        false => RegistryError::Transport { method, url, cause },
    }
}
