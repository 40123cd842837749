//! A line in the log for each request: what was asked for, how it ended and how long that took. What was said is never in it.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::Dialect;
use crate::canonical::Failure;
use crate::ids;

/// The header that names the servers that a request came through.
pub(crate) const VIA_HEADER: &str = "puna-via";

/// Longest name that a client may give a request, in letters.
const MAX_ID: usize = 128;

tokio::task_local! {
    static CURRENT: String;
    static VIA: Vec<String>;
}

/// The servers of this kind that the request came through which is being answered.
pub(crate) fn current_via() -> Vec<String> {
    VIA.try_with(Clone::clone).unwrap_or_default()
}

/// The name of the request that is being answered; a new one outside of any.
pub(crate) fn current_id() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_else(|_| ids::hex("req_"))
}

/// The name of the API key that a request came with; travels with the answer.
#[derive(Debug, Clone)]
pub(crate) struct KeyName(pub(crate) String);

/// What is known of a request. Written down when it is dropped: with its answer's last byte, or when its client leaves.
pub(crate) struct Entry {
    id: String,
    via: Vec<String>,
    method: Method,
    path: String,
    client: IpAddr,
    key: Option<String>,
    begun: Instant,
    status: u16,
    /// Until the answer's first byte.
    first: Option<Duration>,
    bytes: u64,
    whole: bool,
}

impl Entry {
    pub(crate) fn begin(request: &Request, client: IpAddr) -> Self {
        Self {
            id: given_id(request.headers()).unwrap_or_else(|| ids::hex("req_")),
            via: via(request.headers()),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            client,
            key: None,
            begun: Instant::now(),
            status: Failure::LEFT,
            first: None,
            bytes: 0,
            whole: false,
        }
    }

    /// Waits for the answer; the request has its name meanwhile.
    pub(crate) async fn follow(mut self, answer: impl Future<Output = Response>) -> Response {
        let mut response =
            CURRENT.scope(self.id.clone(), VIA.scope(std::mem::take(&mut self.via), answer)).await;
        self.status = response.status().as_u16();
        self.key = response.extensions_mut().remove().map(|KeyName(name)| name);
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            if response.extensions_mut().remove() == Some(Dialect::Anthropic) {
                response.headers_mut().insert("request-id", id.clone());
            }
            response.headers_mut().insert("x-request-id", id);
        }
        // No body follows: nobody asks for its end.
        self.whole = self.method == Method::HEAD || response.body().is_end_stream();
        response.map(|body| Body::new(Followed { body, entry: self }))
    }
}

/// What other servers wrote down on the way.
fn via(headers: &HeaderMap) -> Vec<String> {
    let text = headers.get(VIA_HEADER).and_then(|via| via.to_str().ok()).unwrap_or_default();
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A name that the client gave its request, where it can be shown.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let shown = !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|b| b.is_ascii_graphic());
    shown.then(|| id.to_owned())
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Self { id, method, path, client, status, bytes, .. } = self;
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let (ms, first_ms) = (milliseconds(self.begun.elapsed()), self.first.map(milliseconds));
        let (key, left) = (self.key.as_deref(), (!self.whole).then_some(true));
        // Programs ask again and again how things are.
        let looked =
            *status < 400 && matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        match looked {
            true => tracing::debug!(status, ms, bytes, %client, key, id, left, "{method} {path}"),
            false => {
                tracing::info!(status, ms, first_ms, bytes, %client, key, id, left, "{method} {path}")
            }
        }
    }
}

/// An answer's body whose bytes are counted.
struct Followed {
    body: Body,
    entry: Entry,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Self { body, entry } = &mut *self;
        if let Some(Ok(data)) = frame.as_ref().map(|frame| frame.as_ref().map(Frame::data_ref)) {
            entry.bytes += data.map_or(0, |data| data.len() as u64);
            entry.first.get_or_insert_with(|| entry.begun.elapsed());
        }
        entry.whole |= frame.is_none() || body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
