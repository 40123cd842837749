//! Sending requests: which host is asked, and what is said of one that does not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_registry::redact;
use reqwest::header::{ACCEPT_ENCODING, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::time::timeout;

use super::Upstream;
use super::describe::Descriptions;
use super::hosts::{Allowed, Host, Protocol, instance};
use super::lines::Lines;
use super::remote_error::RemoteError;
use crate::canonical::ApiError;
use crate::config::Config;
use crate::http::VIA_HEADER;
use crate::lock::lock;
use crate::shutdown::ShutdownSignal;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a host that could not be reached is asked after all others.
const AWAY: Duration = Duration::from_secs(10);

/// Letters of another server's error that are shown.
const SHOWN: usize = 2000;

/// Bytes of another server's error that are read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// What is known about other servers.
pub(crate) struct Remotes {
    http: Option<Client>,
    allowed: Vec<Allowed>,
    /// How long a server may be silent; `None` is for ever.
    silence: Option<Duration>,
    load: Mutex<HashMap<String, Load>>,
    /// What servers say of their models.
    pub(super) descriptions: Descriptions,
    /// The end of this server.
    pub(super) end: ShutdownSignal,
}

/// What a host does for this server.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    running: usize,
    away: Option<Instant>,
}

impl Remotes {
    pub(crate) fn new(config: &Config, end: ShutdownSignal) -> Arc<Self> {
        let allowed = Allowed::all(&config.remotes, &config.remote_keys.0);
        let http = if allowed.is_empty() { None } else { client() };
        Arc::new(Self {
            http,
            allowed,
            silence: config.remote_timeout,
            load: Mutex::default(),
            descriptions: Descriptions::default(),
            end,
        })
    }

    /// What sends requests; `None` where no connection can be made.
    pub(super) fn http(&self) -> Option<&Client> {
        self.http.as_ref()
    }

    pub(super) fn allowed(&self) -> &[Allowed] {
        &self.allowed
    }

    /// Hosts in the order in which they are asked: those that can be reached first, then the least busy.
    pub(super) fn order<'a>(&self, hosts: &'a [Host]) -> Vec<&'a Host> {
        let (now, load) = (Instant::now(), lock(&self.load));
        let mut order: Vec<&Host> = hosts.iter().collect();
        order.sort_by_key(|host| {
            let load = load.get(&host.base).copied().unwrap_or_default();
            (load.away.is_some_and(|until| until > now), load.running)
        });
        order
    }

    fn change(&self, base: &str, with: impl FnOnce(&mut Load)) {
        with(lock(&self.load).entry(base.to_owned()).or_default());
    }
}

fn client() -> Option<Client> {
    let tls = puna_registry::tls_config().map_err(|error| error.to_string());
    let made = tls.and_then(|tls| {
        let builder = Client::builder().user_agent(concat!("puna/", env!("CARGO_PKG_VERSION")));
        // Another address could be anybody's, who is not to get the prompt, and still less the key.
        let builder = builder.redirect(Policy::none()).no_proxy().connect_timeout(CONNECT);
        builder.tls_backend_preconfigured(tls).build().map_err(|error| error.to_string())
    });
    made.inspect_err(
        |error| tracing::error!(%error, "no connections to remote servers can be made"),
    )
    .ok()
}

/// Counts a request to a host until it is dropped.
pub(super) struct Busy {
    remotes: Arc<Remotes>,
    base: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.remotes.change(&self.base, |load| load.running = load.running.saturating_sub(1));
    }
}

/// An answer that has begun.
pub(super) struct Answer {
    pub(super) protocol: Protocol,
    pub(super) lines: Lines,
    pub(super) asked: Instant,
    /// What the other server was shown.
    key: Option<String>,
    _busy: Busy,
}

impl Answer {
    /// The error of a server that fails amid its answer, in its words.
    pub(super) fn failure(&self, error: &RemoteError) -> ApiError {
        let said = redact(&error.text, self.key.as_deref());
        error.failure(502, format!("the remote server failed: {said}"))
    }
}

impl Upstream {
    /// Sends a request, made for the protocol of each host, to the best of them; where none can be connected to, to the next.
    pub(super) async fn ask(
        &self,
        form: impl Fn(Protocol) -> Result<(&'static str, Value), ApiError>,
    ) -> Result<Answer, ApiError> {
        let http = self.remotes.http.as_ref();
        let http =
            http.ok_or_else(|| ApiError::internal("no connections to remote servers can be made"))?;
        let mut unreachable = Vec::new();
        for host in self.remotes.order(&self.hosts) {
            let (path, body) = form(host.protocol)?;
            self.remotes.change(&host.base, |load| load.running += 1);
            let busy = Busy { remotes: self.remotes.clone(), base: host.base.clone() };
            let asked = Instant::now();
            let mut request = http.post(format!("{}{path}", host.base)).json(&body);
            request = request.header(ACCEPT_ENCODING, "identity").header(VIA_HEADER, self.trail());
            if let Some(key) = &host.key {
                request = request.bearer_auth(key);
            }
            let sent = match self.remotes.silence {
                None => request.send().await,
                Some(silence) => timeout(silence, request.send()).await.map_err(|_| {
                    let text =
                        format!("{} has not answered for {} s", host.base, silence.as_secs());
                    ApiError::new(504, text)
                })?,
            };
            match sent {
                Ok(response) => {
                    self.remotes.change(&host.base, |load| load.away = None);
                    let lines = self.accepted(host, response).await?;
                    let (protocol, key) = (host.protocol, host.key.clone());
                    return Ok(Answer { protocol, lines, asked, key, _busy: busy });
                }
                Err(error) if error.is_connect() => {
                    let until = Instant::now() + AWAY;
                    self.remotes.change(&host.base, |load| load.away = Some(until));
                    unreachable.push(format!(
                        "{}: {}",
                        host.base,
                        puna_registry::root_cause(&error)
                    ));
                }
                Err(error) => return Err(broken(&error)),
            }
        }
        Err(ApiError::new(
            502,
            format!("no remote server can be reached: {}", unreachable.join("; ")),
        ))
    }

    /// The servers that the request has come through, with this one.
    fn trail(&self) -> String {
        self.via.iter().map(String::as_str).chain([instance()]).collect::<Vec<_>>().join(",")
    }

    /// The lines of an answer, if it is one.
    async fn accepted(&self, host: &Host, response: Response) -> Result<Lines, ApiError> {
        let status = response.status();
        let wait = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        let to =
            response.headers().get("location").and_then(|to| to.to_str().ok()).map(str::to_owned);
        let lines = Lines::new(response, self.remotes.silence);
        if status.is_success() {
            return Ok(lines);
        }
        let base = &host.base;
        if status.is_redirection() {
            let to = redact(&to.unwrap_or_default(), host.key.as_deref());
            let to: String = to.chars().take(SHOWN).collect();
            let text = format!(
                "{base} redirects to {to:?}, which is not followed: name that server in the model"
            );
            return Err(ApiError::new(502, text));
        }
        let text = lines.text(ERROR_BYTES_MAX).await;
        let error = serde_json::from_str(&text).ok().and_then(|value| RemoteError::of(&value));
        let error = error.unwrap_or_else(|| RemoteError::of_text(text));
        let said: String =
            redact(error.text.trim(), host.key.as_deref()).chars().take(SHOWN).collect();
        let failure = |status, text| ApiError { retry_after: wait, ..error.failure(status, text) };
        Err(match status.as_u16() {
            _ if error.exceeds_context() => failure(400, format!("{base}: {said}")),
            401 | 403 if host.key.is_some() => failure(
                502,
                format!("{base} refuses the key that this server has for it (remote_keys): {said}"),
            ),
            401 | 403 => failure(
                502,
                format!("{base} wants a key: the server's setting remote_keys has none for it"),
            ),
            status @ (400 | 404 | 413 | 422 | 429) => {
                failure(if status == 422 { 400 } else { status }, format!("{base}: {said}"))
            }
            503 => failure(503, format!("{base} is too busy: {said}")),
            508 => failure(508, said),
            status => failure(502, format!("{base} answered with status {status}: {said}")),
        })
    }
}

/// A connection that ended before the answer did.
pub(super) fn broken(error: &reqwest::Error) -> ApiError {
    let cause = puna_registry::root_cause(error);
    ApiError::new(502, format!("the connection to the remote server broke: {cause}"))
}
