//! Answers: JSON objects, streams of them, and errors in the form of each dialect.

use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use puna_api::native::ErrorBody;
use puna_api::{anthropic, openai};
use serde::Serialize;

use super::journal::current_id;
use crate::canonical::Failure;

/// How a dialect says that a request failed.
pub(crate) trait ErrorForm: Send + Sync + 'static {
    /// What is said of an empty body.
    const EMPTY_BODY: &'static str;

    /// The answer to a failed request.
    fn error(failure: &Failure) -> Response;
}

/// Ollama's own dialect.
pub(crate) struct Native;

impl ErrorForm for Native {
    const EMPTY_BODY: &'static str = "missing request body";

    fn error(failure: &Failure) -> Response {
        json(status(failure), &error_body(failure))
    }
}

/// OpenAI's dialect.
pub(crate) struct OpenAi;

impl ErrorForm for OpenAi {
    const EMPTY_BODY: &'static str = "EOF";

    fn error(failure: &Failure) -> Response {
        json_plain(status(failure), &openai_error(failure))
    }
}

/// Anthropic's dialect.
pub(crate) struct Anthropic;

impl ErrorForm for Anthropic {
    const EMPTY_BODY: &'static str = "EOF";

    fn error(failure: &Failure) -> Response {
        json_plain(status(failure), &anthropic_error(failure, Some(current_id())))
    }
}

/// The error object of OpenAI's dialect.
pub(crate) fn openai_error(failure: &Failure) -> openai::ErrorBody {
    let mut body = openai::ErrorBody::new(failure.status, &failure.message);
    if failure.exceeds_context() {
        body.error.code = Some(openai::CONTEXT_LENGTH_EXCEEDED.into());
    }
    match failure.lengths {
        Some((tokens, context)) => body.with_lengths(tokens, context),
        None => body,
    }
}

/// The error object of Anthropic's dialect. Clients make room in a conversation by the words of a prompt that is too long.
pub(crate) fn anthropic_error(
    failure: &Failure,
    request_id: Option<String>,
) -> anthropic::ErrorBody {
    let message = match failure.lengths {
        Some((tokens, context)) => {
            format!("prompt is too long: {tokens} tokens > {context} maximum")
        }
        None if failure.is_too_long => format!("prompt is too long: {}", failure.message),
        None => failure.message.clone(),
    };
    let body = anthropic::ErrorBody::new(failure.status, message, request_id);
    match &failure.code {
        Some(code) => body.with_code(code),
        None => body,
    }
}

/// The native error object of a failure.
pub(crate) fn error_body(failure: &Failure) -> ErrorBody {
    let (n_prompt_tokens, n_ctx) = failure.lengths.unzip();
    ErrorBody { error: failure.message.clone(), n_prompt_tokens, n_ctx }
}

fn status(failure: &Failure) -> StatusCode {
    StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Seconds after which a server that was too busy may be asked again.
const RETRY_AFTER: u64 = 1;

/// A failure in a dialect's form; what handlers return as their error.
pub(crate) struct Refused<D>(Failure, PhantomData<D>);

impl<D> From<Failure> for Refused<D> {
    fn from(failure: Failure) -> Self {
        Self(failure, PhantomData)
    }
}

impl<D: ErrorForm> IntoResponse for Refused<D> {
    fn into_response(self) -> Response {
        let mut response = D::error(&self.0);
        let after = self.0.retry_after.or((self.0.status == 503).then_some(RETRY_AFTER));
        if let Some(seconds) = after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The content type of JSON in the native dialect.
pub(crate) const JSON: &str = "application/json; charset=utf-8";

/// A JSON answer of the native dialect.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    typed(status, JSON, body)
}

/// A JSON answer whose content type names no character set.
pub(crate) fn json_plain(status: StatusCode, body: &impl Serialize) -> Response {
    typed(status, "application/json", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, content_type)], bytes).into_response(),
        Err(e) => {
            tracing::error!(error = %e, "an answer could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Form of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// One object a line.
    Ndjson,
    /// Server-sent events.
    Sse,
    /// Server-sent events with names, which no cache may keep.
    NamedSse,
}

/// An answer whose body comes in pieces.
pub(crate) fn stream<S>(wire: Wire, pieces: S) -> Response
where
    S: Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
{
    let content_type = match wire {
        Wire::Ndjson => "application/x-ndjson",
        Wire::Sse | Wire::NamedSse => "text/event-stream",
    };
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if wire == Wire::NamedSse {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    response
}
