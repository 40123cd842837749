//! Access log: one line per request with path, status and duration. It never contains request or
//! response content.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Method};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::dialect::Dialect;
use super::request_scope;
use crate::canonical::ApiError;
use crate::util::random_ids;

/// Name of the request's API key. Travels as an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct KeyName(pub(crate) String);

/// Log entry of a request. It is written on drop: after the last byte of the response, or when the
/// client disconnects.
pub(crate) struct LogEntry {
    id: String,
    via: Vec<String>,
    method: Method,
    path: String,
    client: IpAddr,
    key: Option<String>,
    start: Instant,
    status: u16,
    /// Time until the first byte of the response.
    first_byte: Option<Duration>,
    bytes: u64,
    complete: bool,
}

impl LogEntry {
    pub(crate) fn begin(request: &Request, client: IpAddr) -> Self {
        Self {
            id: request_scope::client_request_id(request.headers())
                .unwrap_or_else(|| random_ids::hex("req_")),
            via: request_scope::via(request.headers()),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            client,
            key: None,
            start: Instant::now(),
            status: ApiError::CLIENT_CLOSED_REQUEST,
            first_byte: None,
            bytes: 0,
            complete: false,
        }
    }

    /// Awaits the response, with the request id and its `Via` servers as task-local values.
    pub(crate) async fn record(mut self, answer: impl Future<Output = Response>) -> Response {
        let via = std::mem::take(&mut self.via);
        let mut response = request_scope::scope(self.id.clone(), via, answer).await;
        self.status = response.status().as_u16();
        self.key = response.extensions_mut().remove().map(|KeyName(name)| name);
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            if response.extensions_mut().remove() == Some(Dialect::Anthropic) {
                response.headers_mut().insert("request-id", id.clone());
            }
            response.headers_mut().insert("x-request-id", id);
        }
        // An empty body is never polled, so its end would not be seen.
        self.complete = self.method == Method::HEAD || response.body().is_end_stream();
        response.map(|body| Body::new(LoggedBody { body, entry: self }))
    }
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        let Self { id, method, path, client, status, bytes, .. } = self;
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let (ms, first_ms) =
            (milliseconds(self.start.elapsed()), self.first_byte.map(milliseconds));
        let (key, left) = (self.key.as_deref(), (!self.complete).then_some(true));
        // Successful reads are frequent polls, which go to the debug level.
        let is_poll =
            *status < 400 && matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        match is_poll {
            true => tracing::debug!(status, ms, bytes, %client, key, id, left, "{method} {path}"),
            false => {
                tracing::info!(status, ms, first_ms, bytes, %client, key, id, left, "{method} {path}")
            }
        }
    }
}

/// Response body that counts its bytes for the log entry.
struct LoggedBody {
    body: Body,
    entry: LogEntry,
}

impl HttpBody for LoggedBody {
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
            entry.first_byte.get_or_insert_with(|| entry.start.elapsed());
        }
        entry.complete |= frame.is_none() || body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
