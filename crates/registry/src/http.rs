//! One operation's conversation with a registry: addresses, credentials, redirects, and answers of bounded size.

mod proof;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use puna_store::{Digest, ModelName};
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue, LOCATION,
    RETRY_AFTER, VIA,
};
use reqwest::{Body, Client, Method, NoProxy, Proxy, Response, StatusCode, Url};

use crate::Registry;
use crate::address::{authority, hide, plain, shown, verb};
use crate::auth::Challenges;
use crate::endpoint::Endpoint;
use crate::error::RegistryError;
use crate::hosts::Credentials;
use crate::lock::lock;
use crate::rate::Limit;
use crate::retry::{Retry, Trouble};
use crate::settings::{Options, Progress, Report, Settings, WAITING, without_user};
use crate::tls;
use proof::no_token;

/// Redirects that are followed.
const MAX_HOPS: usize = 10;
/// Bytes of an error's text that are read and shown.
const MAX_REFUSAL: usize = 4 << 10;
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(20);
/// The same for a mirror, which others stand behind.
const CONNECT_MIRROR: Duration = Duration::from_secs(4);
/// Times the patience that a small answer may take as a whole.
const WHOLE: u32 = 4;
/// Attempts at one thing at a mirror, which others stand behind.
const MIRROR_ATTEMPTS: u32 = 3;
/// What is said of an answer that is no TLS. The next one is none either.
const NO_TLS: &str = "InvalidContentType";
/// What the other side shows is no certificate, or one that nobody trusts, or not any more.
const UNTRUSTED: &str = "invalid peer certificate";
/// … and of one that calls itself an authority's, as those do that sign themselves.
const OWN_AUTHORITY: &str = "CaUsedAsEndEntity";
/// Letters of a proxy's address that are shown.
const MAX_PROXY: usize = 200;
/// Addresses of this machine, which no proxy leads to.
const THIS_MACHINE: &str = "localhost,127.0.0.0/8,::1";

/// The connections of a client. Redirects are followed by [`Session`], which knows what is whose.
pub(crate) fn client(settings: &Settings, endpoint: &Endpoint) -> Result<Client, RegistryError> {
    let connect = if endpoint.mirror_of.is_some() { CONNECT_MIRROR } else { CONNECT };
    connections(settings, endpoint.settings.ca.as_deref(), connect)
}

/// The same for a host that is no registry, such as one that keeps a mirror's blobs.
pub(crate) fn client_of_host(settings: &Settings, host: &str) -> Result<Client, RegistryError> {
    let ca = settings.hosts.get(host).and_then(|host| host.ca.clone());
    connections(settings, ca.as_deref(), CONNECT)
}

fn connections(
    settings: &Settings,
    ca: Option<&Path>,
    connect: Duration,
) -> Result<Client, RegistryError> {
    let setup = |e: reqwest::Error| RegistryError::Setup(root_cause(&e));
    let mut builder = Client::builder()
        .user_agent(&settings.user_agent)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect)
        .tcp_keepalive(Duration::from_secs(30))
        .tls_backend_preconfigured(tls::config_with(ca)?)
        .no_proxy();
    let direct = format!("{THIS_MACHINE},{}", settings.proxies.direct);
    let direct = || NoProxy::from_string(&direct);
    if let Some(proxy) = &settings.proxies.http {
        let to = Proxy::http(proxy).map_err(|e| bad_proxy("HTTP_PROXY", proxy, &e))?;
        builder = builder.proxy(to.no_proxy(direct()));
    }
    if let Some(proxy) = &settings.proxies.https {
        let to = Proxy::https(proxy).map_err(|e| bad_proxy("HTTPS_PROXY", proxy, &e))?;
        builder = builder.proxy(to.no_proxy(direct()));
    }
    builder.build().map_err(setup)
}

/// Whether an address is one that no proxy leads to.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A proxy that is none. What it was to be shown stays secret.
fn bad_proxy(variable: &'static str, proxy: &str, error: &reqwest::Error) -> RegistryError {
    let proxy = plain(without_user(proxy), MAX_PROXY);
    RegistryError::Proxy { variable, proxy, cause: root_cause(error) }
}

/// What is asked.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Makes the body, again for each attempt.
    pub(crate) body: Option<&'a (dyn Fn() -> Body + Send + Sync)>,
    /// Whether redirects are followed.
    pub(crate) follow: bool,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: None, follow: true }
    }

    /// With a body. Redirects of such requests are the caller's business.
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

/// The conversation of one pull or push with one registry about one model.
pub(crate) struct Session {
    registry: Registry,
    client: Client,
    endpoint: Endpoint,
    name: ModelName,
    limits: Vec<Arc<Limit>>,
    /// What requests are shown to be ours by.
    proof: Mutex<Option<Arc<str>>>,
    /// All that it has shown, and what that was made of: no message repeats it.
    secrets: Mutex<BTreeSet<String>>,
    /// Why something is tried again.
    trouble: Trouble,
    /// For whom it asks.
    via: Option<String>,
}

impl Session {
    pub(crate) fn new(
        registry: &Registry,
        name: ModelName,
        endpoint: Endpoint,
        limits: &[Arc<Limit>],
    ) -> Result<Self, RegistryError> {
        let client = registry.client(&endpoint)?;
        let limits = limits.iter().cloned().chain(registry.limit_of(&endpoint)).collect();
        let (registry, trouble, via) = (registry.clone(), Trouble::default(), None);
        let (proof, secrets) = (Mutex::default(), Mutex::default());
        Ok(Self { registry, client, endpoint, name, limits, proof, secrets, trouble, via })
    }

    /// Says for whom it asks.
    pub(crate) fn with_via(self, options: &Options) -> Self {
        Self { via: options.via.clone(), ..self }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The model that it is about.
    pub(crate) fn name(&self) -> &ModelName {
        &self.name
    }

    /// Whether others stand behind it.
    pub(crate) fn is_mirror(&self) -> bool {
        self.endpoint.mirror_of.is_some()
    }

    /// Its name, for messages.
    pub(crate) fn host(&self) -> String {
        self.endpoint.host.clone()
    }

    /// What somebody is told for whom nothing seems to happen: who is waited for, and why if it is known.
    pub(crate) fn waiting(&self) -> String {
        let host = &self.endpoint.host;
        match &*lock(&self.trouble) {
            Some(why) => format!("{WAITING}{host}: {why}"),
            None => format!("{WAITING}{host}"),
        }
    }

    /// Does a part of an operation. `moved` looks at every tick whether it goes on; when it has not for a while, it is told what is
    /// waited for, and again when that changes.
    pub(crate) async fn attended<T>(
        &self,
        report: &Report,
        work: impl Future<Output = Result<T, RegistryError>>,
        mut moved: impl FnMut() -> bool,
    ) -> Result<T, RegistryError> {
        let mut ticks = tokio::time::interval(self.settings().tick);
        let (mut last, mut said) = (Instant::now(), None);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => {}
            }
            if moved() {
                (last, said) = (Instant::now(), None);
            } else if last.elapsed() >= self.settings().quiet {
                let waiting = self.waiting();
                if said.as_ref() != Some(&waiting)
                    && report.try_send(Progress::status(&*waiting)).is_ok()
                {
                    said = Some(waiting);
                }
            }
        }
    }

    /// Connections of one download.
    pub(crate) fn streams(&self) -> usize {
        let most = self.settings().streams;
        self.endpoint.settings.streams.map_or(most, |streams| streams.min(most)).max(1)
    }

    /// The limits of speed that hold here.
    pub(crate) fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Waits until bytes that have moved are within all limits of speed.
    pub(crate) async fn pay(&self, bytes: usize) {
        for limit in &self.limits {
            limit.pay(bytes as u64).await;
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

    /// Below the model's address.
    pub(crate) fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.root.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().push("v2").extend(&self.endpoint.prefix);
            path.push(self.name.namespace()).push(self.name.model()).extend(parts);
        }
        // As mirrors of other programs are told for whom they stand.
        if let Some(host) = &self.endpoint.mirror_of {
            url.query_pairs_mut().append_pair("ns", host);
        }
        url
    }

    /// Asks, with a token if the registry wants one. Any status but 401 comes back as it is.
    pub(crate) async fn send(&self, ask: &Ask<'_>) -> Result<Response, RegistryError> {
        let (mut url, mut hops, mut proven) = (ask.url.clone(), 0, false);
        loop {
            let is_ours = self.is_ours(&url);
            let proof = if is_ours { self.proof().await? } else { None };
            let response = self.send_once(ask, &url, proof.as_deref()).await?;
            if response.status() == StatusCode::UNAUTHORIZED && is_ours {
                if proven {
                    return Err(match self.refusal(response).await {
                        RegistryError::Status { body, .. } => no_token(&body),
                        error => error,
                    });
                }
                self.prove(response.headers(), proof.as_deref()).await?;
                proven = true;
                continue;
            }
            let Some(next) = redirect(&response).filter(|_| ask.follow) else {
                if !response.status().is_server_error() {
                    *lock(&self.trouble) = None;
                }
                return Ok(response);
            };
            url = self.next_hop(&url, next)?;
            hops += 1;
            if hops > MAX_HOPS {
                return Err(RegistryError::Redirects { url: shown(&ask.url), most: MAX_HOPS });
            }
        }
    }

    /// Where a redirect leads, if it may.
    pub(crate) fn next_hop(&self, from: &Url, location: &str) -> Result<Url, RegistryError> {
        let refuse = |to: String, why| RegistryError::Redirect { from: shown(from), to, why };
        let next = from.join(location).map_err(|_| refuse("nowhere".into(), "is no address"))?;
        match next.scheme() {
            "https" => Ok(next),
            "http" if self.endpoint.is_plain() || from.scheme() == "http" => Ok(next),
            "http" => Err(refuse(shown(&next), "has no encryption")),
            _ => Err(refuse(shown(&next), "is no web address")),
        }
    }

    pub(crate) async fn send_once(
        &self,
        ask: &Ask<'_>,
        url: &Url,
        proof: Option<&str>,
    ) -> Result<Response, RegistryError> {
        let mut request =
            self.client.request(ask.method.clone(), url.clone()).headers(ask.headers.clone());
        // Nothing needs decompressing then, and nothing can blow up.
        request = request.header(ACCEPT_ENCODING, "identity");
        let own = ask.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        proof
            .into_iter()
            .chain(own)
            .for_each(|shown| self.guard(shown.split(' ').next_back().unwrap_or_default()));
        if let Some(proof) = proof {
            request = request.header(AUTHORIZATION, sensitive(proof)?);
        }
        if let Some(via) = self.via.as_deref().filter(|_| self.is_ours(url)) {
            request = request.header(VIA, via);
        }
        if let Some(body) = ask.body {
            request = request.body(body());
        }
        let sent = request.send();
        let patience = self.settings().patience;
        let answer = if ask.body.is_some() {
            // Whoever makes the body looks after its progress.
            sent.await
        } else {
            let stalled = |_| stalled(&ask.method, url, patience);
            tokio::time::timeout(patience, sent).await.map_err(stalled)?
        };
        let response =
            answer.map_err(|e| self.unconnected(transport(&ask.method, url, &e), url, &e))?;
        let encoding = response.headers().get(CONTENT_ENCODING).and_then(|v| v.to_str().ok());
        match encoding.map(str::trim) {
            None | Some("" | "identity") => Ok(response),
            Some(encoding) => Err(RegistryError::Answer {
                url: shown(url),
                what: format!(
                    "the answer is compressed ({}), which was not asked for",
                    plain(encoding, 20)
                ),
            }),
        }
    }

    /// An error of sending, which names the proxy that may be the matter.
    fn unconnected(&self, error: RegistryError, url: &Url, sent: &reqwest::Error) -> RegistryError {
        let proxies = &self.settings().proxies;
        let (variable, proxy) = match url.scheme() {
            "https" => ("HTTPS_PROXY", &proxies.https),
            _ => ("HTTP_PROXY", &proxies.http),
        };
        match (error, proxy) {
            (RegistryError::Transport { method, url: shown, cause }, Some(proxy))
                if sent.is_connect() && !is_this_machine(url) =>
            {
                let proxy = plain(without_user(proxy), MAX_PROXY);
                let cause = format!(
                    "{cause} (by the proxy {proxy} of {variable}, unless NO_PROXY names the host)"
                );
                RegistryError::Transport { method, url: shown, cause }
            }
            (error, _) => error,
        }
    }

    /// What the registry has been shown, or is to be shown unasked.
    async fn proof(&self) -> Result<Option<Arc<str>>, RegistryError> {
        let shown = lock(&self.proof).clone();
        match (shown, &self.endpoint.settings.credentials) {
            (None, Some(Credentials::Token(secret))) => {
                let token = self.secret(secret).await?;
                Ok(Some(lock(&self.proof).insert(format!("Bearer {token}").into()).clone()))
            }
            (shown, _) => Ok(shown),
        }
    }

    /// Has what proves who asks, unless another request has got that since `used` was shown.
    async fn prove(&self, headers: &HeaderMap, used: Option<&str>) -> Result<(), RegistryError> {
        if lock(&self.proof).as_deref() != used {
            return Ok(());
        }
        let proof = self.new_proof(&Challenges::of(headers)).await?;
        if used == Some(&proof) {
            return Err(RegistryError::Unauthorized);
        }
        *lock(&self.proof) = Some(proof.into());
        Ok(())
    }

    /// Whether an address is the registry's own, so that it may see the token.
    pub(crate) fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.root.origin()
    }

    /// The body of an answer, of at most `limit` bytes.
    pub(crate) async fn read(
        &self,
        mut response: Response,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        let url = response.url().clone();
        let too_long = || RegistryError::Answer {
            url: shown(&url),
            what: format!("the answer has more than {limit} bytes"),
        };
        if response.content_length().is_some_and(|len| len > limit as u64) {
            return Err(too_long());
        }
        let patience = self.settings().patience;
        let mut bytes = BytesMut::new();
        let whole = async {
            while let Some(piece) =
                response.chunk().await.map_err(|e| transport(&Method::GET, &url, &e))?
            {
                if bytes.len() + piece.len() > limit {
                    return Err(too_long());
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(())
        };
        let read = tokio::time::timeout(patience * WHOLE, whole).await;
        match (read, bytes.len() as u64) {
            (Ok(read), _) => read.map(|()| bytes.freeze()),
            (Err(_), 0) => Err(stalled(&Method::GET, &url, patience * WHOLE)),
            (Err(_), got) => {
                let seconds = (patience * WHOLE).as_secs();
                Err(RegistryError::Drips { url: shown(&url), got, seconds })
            }
        }
    }

    /// The attempts at one thing.
    pub(crate) fn retry(&self) -> Retry {
        let retry = Retry::new(self.settings().pause).telling(&self.trouble);
        if self.is_mirror() { retry.at_most(MIRROR_ATTEMPTS) } else { retry }
    }

    /// An answer that is a success.
    pub(crate) async fn expect_success(
        &self,
        response: Response,
    ) -> Result<Response, RegistryError> {
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.refusal(response).await)
        }
    }

    /// Has messages not repeat a secret.
    pub(crate) fn guard(&self, secret: &str) {
        let mut secrets = lock(&self.secrets);
        if !secrets.contains(secret) {
            secrets.insert(secret.to_owned());
        }
    }

    /// The error of an answer that is no success, when a blob was asked for: who has not which of which model.
    pub(crate) async fn refusal_of(&self, digest: &Digest, response: Response) -> RegistryError {
        let host = authority(response.url());
        let mut error = self.refusal(response).await;
        if let RegistryError::Status { code: 404 | 410, body, .. } = &mut error {
            *body =
                format!("{host} has no blob {} of {}, and says: {body}", digest.short(), self.name);
        }
        error
    }

    /// The error of an answer that is no success.
    pub(crate) async fn refusal(&self, mut response: Response) -> RegistryError {
        let status = response.status();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.trim().parse().ok());
        let secrets = lock(&self.secrets).clone();
        // So much more that no half of a secret is left of one that begins among what is shown.
        let enough = MAX_REFUSAL + 2 * secrets.iter().map(String::len).max().unwrap_or_default();
        let mut bytes = Vec::new();
        let read = async {
            while let Ok(Some(piece)) = response.chunk().await {
                bytes.extend_from_slice(&piece);
                if bytes.len() >= enough {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(self.settings().patience, read).await;
        let body = match bytes.trim_ascii() {
            [] => silent(status).to_owned(),
            [b'<', ..] => "a page for browsers".to_owned(),
            bytes => {
                let text =
                    hide(&String::from_utf8_lossy(bytes), secrets.iter().map(String::as_str));
                plain(&text, MAX_REFUSAL)
            }
        };
        RegistryError::Status {
            status: status.to_string(),
            code: status.as_u16(),
            body,
            retry_after,
        }
    }
}

/// What is said of a refusal that says nothing itself.
fn silent(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => {
            "the registry does not say why: ask those who run it whether you may do this there"
        }
        404 | 410 => "the registry has nothing at this address",
        413 => "this is more than the registry, or a proxy before it, takes",
        429 => "the registry has too much to do: try again later",
        500.. => "the registry does not say why: try again later, or ask those who run it",
        _ => "the registry does not say why",
    }
}

/// Where an answer redirects to.
fn redirect(response: &Response) -> Option<&str> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    response.headers().get(LOCATION).filter(|_| is_redirect)?.to_str().ok()
}

/// A header that no log shows.
pub(crate) fn sensitive(text: &str) -> Result<HeaderValue, RegistryError> {
    let mut value = HeaderValue::from_str(text).map_err(|e| RegistryError::Setup(e.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) fn stalled(method: &Method, url: &Url, patience: Duration) -> RegistryError {
    RegistryError::Stalled { method: verb(method), url: shown(url), seconds: patience.as_secs() }
}

pub(crate) fn transport(method: &Method, url: &Url, error: &reqwest::Error) -> RegistryError {
    let mut cause = root_cause(error);
    let host = authority(url);
    // What a server without TLS answers to its beginning is no record of it, or nothing.
    let is_plain = [NO_TLS, "handshake eof"].iter().any(|words| cause.contains(words));
    let is_untrusted = cause.contains(UNTRUSTED);
    if error.is_connect() && url.scheme() == "https" && is_plain {
        cause += &format!(
            ": does it speak plain HTTP? Then use --insecure, or set http = true in [registry.hosts.{host:?}]"
        );
    }
    if is_untrusted {
        let what =
            if cause.contains(OWN_AUTHORITY) { "this very certificate" } else { "its authority" };
        cause += &format!(
            ": if it is the right one, name {what} by ca = \"FILE.pem\" in [registry.hosts.{host:?}] or by SSL_CERT_FILE"
        );
    }
    let final_word = is_untrusted || cause.contains(NO_TLS);
    let (method, url) = (verb(method), shown(url));
    match final_word {
        true => RegistryError::Tls { method, url, cause },
        false => RegistryError::Transport { method, url, cause },
    }
}

/// The words of the innermost cause, which is the one that tells something.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
