//! Sends the requests for a model on another server: chooses the host and reports its errors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_api::KeepAlive;
use puna_registry::{redact, single_line};
use puna_store::Model;
use reqwest::Response;
use reqwest::header::{ACCEPT_ENCODING, RETRY_AFTER};
use serde_json::Value;
use tokio::time::timeout;

use super::client::Remotes;
use super::hosts::{Host, Protocol, check_loop, server_id};
use super::lines::{ResponseLines, connection_error};
use super::remote_error::{MAX_SHOWN_ERROR_CHARS, RemoteError};
use crate::canonical::ApiError;
use crate::http::VIA_HEADER;

/// Time for which a host that could not be reached is tried after all others.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(10);

/// Largest number of bytes of a remote server's error that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// A model on another server.
pub(crate) struct Upstream {
    pub(super) remotes: Arc<Remotes>,
    pub(super) hosts: Vec<Host>,
    /// Name of the model on the other server.
    pub(super) model: String,
    /// Servers that the request has passed through, from its `Via` header.
    pub(super) via: Vec<String>,
    /// How long the other server keeps the model loaded, if the request says so.
    pub(super) keep_alive: Option<KeepAlive>,
}

impl Remotes {
    /// Returns the servers of a model; `None` for a local model.
    ///
    /// # Errors
    /// Fails if the configuration allows none of its hosts, or if the request has passed through
    /// this server before.
    pub(crate) fn upstream(
        self: &Arc<Self>,
        model: &Model,
        via: Vec<String>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Option<Upstream>, ApiError> {
        let config = &model.config;
        if config.remote_host.is_empty() {
            return Ok(None);
        }
        check_loop(&via, &model.name.to_string())?;
        let hosts = self.hosts(&config.remote_host)?;
        let (remotes, model) = (self.clone(), config.remote_model.clone());
        Ok(Some(Upstream { remotes, hosts, model, via, keep_alive }))
    }
}

/// Counts a request to a host until it is dropped.
pub(super) struct InFlightRequest {
    remotes: Arc<Remotes>,
    base: String,
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.remotes.update_load(&self.base, |load| load.running = load.running.saturating_sub(1));
    }
}

/// A response; its body is still being read.
pub(super) struct RemoteResponse {
    pub(super) protocol: Protocol,
    pub(super) lines: ResponseLines,
    pub(super) sent_at: Instant,
    /// API key that was sent; error messages must not contain it.
    key: Option<String>,
    _in_flight: InFlightRequest,
}

impl RemoteResponse {
    /// Returns the error of a server that fails in the middle of its response, with the server's
    /// own message.
    pub(super) fn failure(&self, error: &RemoteError) -> ApiError {
        let message = shown_error(&error.text, self.key.as_deref());
        error.failure(502, format!("the remote server failed: {message}"))
    }
}

/// Returns a remote server's text as one line for a message: without characters that control a
/// terminal, without the key that was sent to it, and cut to [`MAX_SHOWN_ERROR_CHARS`].
fn shown_error(text: &str, key: Option<&str>) -> String {
    // The key is replaced in the whole text without control characters, so that neither a control
    // character inside the key nor the cut lets a part of it pass.
    let line = redact(&single_line(text, usize::MAX), key);
    line.chars().take(MAX_SHOWN_ERROR_CHARS).collect()
}

impl Upstream {
    /// Sends a request to the first host that accepts a connection, in the order of
    /// [`Remotes::order`]. `form` makes path and body for the protocol of a host.
    pub(super) async fn send_request(
        &self,
        form: impl Fn(Protocol) -> Result<(&'static str, Value), ApiError>,
    ) -> Result<RemoteResponse, ApiError> {
        let http = self.remotes.http();
        let http = http.ok_or_else(|| {
            ApiError::internal("cannot connect to remote servers: see the server log")
        })?;
        let mut unreachable = Vec::new();
        for host in self.remotes.order(&self.hosts) {
            let (path, body) = form(host.protocol)?;
            self.remotes.update_load(&host.base, |load| load.running += 1);
            let in_flight =
                InFlightRequest { remotes: self.remotes.clone(), base: host.base.clone() };
            let sent_at = Instant::now();
            let mut request = http.post(format!("{}{path}", host.base)).json(&body);
            request =
                request.header(ACCEPT_ENCODING, "identity").header(VIA_HEADER, self.via_header());
            if let Some(key) = &host.key {
                request = request.bearer_auth(key);
            }
            let sent = match self.remotes.silence_timeout {
                None => request.send().await,
                Some(silence_timeout) => {
                    timeout(silence_timeout, request.send()).await.map_err(|_| {
                        let text = format!(
                            "{} has not answered for {} s",
                            host.base,
                            silence_timeout.as_secs()
                        );
                        ApiError::new(504, text)
                    })?
                }
            };
            match sent {
                Ok(response) => {
                    self.remotes.update_load(&host.base, |load| load.unreachable_until = None);
                    let lines = self.check_status(host, response).await?;
                    let (protocol, key) = (host.protocol, host.key.clone());
                    return Ok(RemoteResponse {
                        protocol,
                        lines,
                        sent_at,
                        key,
                        _in_flight: in_flight,
                    });
                }
                Err(error) if error.is_connect() => {
                    let until = Instant::now() + UNREACHABLE_DELAY;
                    self.remotes
                        .update_load(&host.base, |load| load.unreachable_until = Some(until));
                    unreachable.push(format!(
                        "{}: {}",
                        host.base,
                        puna_registry::root_cause(&error)
                    ));
                }
                Err(error) => return Err(connection_error(&error)),
            }
        }
        Err(ApiError::new(
            502,
            format!("cannot reach any remote server: {}", unreachable.join("; ")),
        ))
    }

    /// Returns the servers that the request has passed through, with this one last.
    fn via_header(&self) -> String {
        self.via.iter().map(String::as_str).chain([server_id()]).collect::<Vec<_>>().join(",")
    }

    /// Returns the lines of a successful response, or the error that the status and the body
    /// report.
    async fn check_status(
        &self,
        host: &Host,
        response: Response,
    ) -> Result<ResponseLines, ApiError> {
        let status = response.status();
        let wait = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        let to =
            response.headers().get("location").and_then(|to| to.to_str().ok()).map(str::to_owned);
        let lines = ResponseLines::new(response, self.remotes.silence_timeout);
        if status.is_success() {
            return Ok(lines);
        }
        let base = &host.base;
        if status.is_redirection() {
            let to = shown_error(&to.unwrap_or_default(), host.key.as_deref());
            let text = format!(
                "{base} redirects to {to:?}, which is not followed: use that address in the model"
            );
            return Err(ApiError::new(502, text));
        }
        let text = lines.into_text(MAX_ERROR_BYTES).await;
        let error = serde_json::from_str(&text).ok().and_then(|value| RemoteError::of(&value));
        let error = error.unwrap_or_else(|| RemoteError::of_text(text));
        let message = shown_error(&error.text, host.key.as_deref());
        let failure = |status, text| ApiError { retry_after: wait, ..error.failure(status, text) };
        Err(match status.as_u16() {
            _ if error.exceeds_context() => failure(400, format!("{base}: {message}")),
            401 | 403 if host.key.is_some() => failure(
                502,
                format!("{base} rejects this server's key for it (remote_keys): {message}"),
            ),
            401 | 403 => failure(
                502,
                format!("{base} requires a key: add one to this server's setting remote_keys"),
            ),
            status @ (400 | 404 | 413 | 422 | 429) => {
                failure(if status == 422 { 400 } else { status }, format!("{base}: {message}"))
            }
            503 => failure(503, format!("{base} is too busy: {message}")),
            508 => failure(508, message),
            status => failure(502, format!("{base} answered with status {status}: {message}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_remote_servers_have_no_control_characters_and_no_key() {
        let text = "\x1b]0;PWNED\x07 bad\r\nkey k\x1bey-1\u{9b}31m \u{202e}x\n";
        assert_eq!(shown_error(text, Some("key-1")), "]0;PWNED bad  key …31m x");
        let cut = format!("{}key-1", "x".repeat(MAX_SHOWN_ERROR_CHARS - 2));
        assert!(!shown_error(&cut, Some("key-1")).contains('k'));
        let long = "é".repeat(MAX_SHOWN_ERROR_CHARS + 5);
        assert_eq!(shown_error(&long, None).chars().count(), MAX_SHOWN_ERROR_CHARS);
    }
}
