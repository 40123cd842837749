//! Responses: JSON objects, streams, and errors in the format of each dialect.

use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use puna_api::ollama::ErrorBody;
use puna_api::{anthropic, openai};
use serde::Serialize;

use super::request_scope::current_id;
use crate::canonical::ApiError;

/// Error format of a dialect.
pub(crate) trait ErrorFormat: Send + Sync + 'static {
    /// Message for an empty body.
    const EMPTY_BODY: &'static str;

    /// Converts an error to a response.
    fn error(failure: &ApiError) -> Response;
}

/// Ollama's own dialect.
pub(crate) struct Ollama;

impl ErrorFormat for Ollama {
    const EMPTY_BODY: &'static str = "missing request body";

    fn error(failure: &ApiError) -> Response {
        json(status(failure), &error_body(failure))
    }
}

/// OpenAI's dialect.
pub(crate) struct OpenAi;

impl ErrorFormat for OpenAi {
    const EMPTY_BODY: &'static str = "EOF";

    fn error(failure: &ApiError) -> Response {
        json_plain(status(failure), &openai_error(failure))
    }
}

/// Anthropic's dialect.
pub(crate) struct Anthropic;

impl ErrorFormat for Anthropic {
    const EMPTY_BODY: &'static str = "EOF";

    fn error(failure: &ApiError) -> Response {
        json_plain(status(failure), &anthropic_error(failure, Some(current_id())))
    }
}

/// The error object of OpenAI's dialect.
pub(crate) fn openai_error(failure: &ApiError) -> openai::ErrorBody {
    let mut body = openai::ErrorBody::new(failure.status, &failure.message);
    if failure.exceeds_context() {
        body.error.code = Some(openai::CONTEXT_LENGTH_EXCEEDED.into());
    }
    match failure.lengths {
        Some((tokens, context)) => body.with_lengths(tokens, context),
        None => body,
    }
}

/// The error object of Anthropic's dialect. Clients recognize a prompt that is too long by this
/// wording, and shorten the conversation.
pub(crate) fn anthropic_error(
    failure: &ApiError,
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

/// The error object of Ollama's dialect.
pub(crate) fn error_body(failure: &ApiError) -> ErrorBody {
    let (n_prompt_tokens, n_ctx) = failure.lengths.unzip();
    ErrorBody { error: failure.message.clone(), n_prompt_tokens, n_ctx }
}

fn status(failure: &ApiError) -> StatusCode {
    StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// `Retry-After` in seconds of a busy server.
const BUSY_RETRY_AFTER_SECONDS: u64 = 1;

/// An error in a dialect's format: the error type of handlers.
pub(crate) struct ErrorResponse<D>(ApiError, PhantomData<D>);

impl<D> From<ApiError> for ErrorResponse<D> {
    fn from(failure: ApiError) -> Self {
        Self(failure, PhantomData)
    }
}

impl<D: ErrorFormat> IntoResponse for ErrorResponse<D> {
    fn into_response(self) -> Response {
        let mut response = D::error(&self.0);
        let after =
            self.0.retry_after.or((self.0.status == 503).then_some(BUSY_RETRY_AFTER_SECONDS));
        if let Some(seconds) = after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Content type of JSON in Ollama's dialect.
pub(crate) const JSON: &str = "application/json; charset=utf-8";

/// A JSON response of Ollama's dialect.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    typed(status, JSON, body)
}

/// A JSON response without a character set in its content type.
pub(crate) fn json_plain(status: StatusCode, body: &impl Serialize) -> Response {
    typed(status, "application/json", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, content_type)], bytes).into_response(),
        Err(e) => {
            tracing::error!(error = %e, "cannot encode a response");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Format of a streamed response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// One JSON object per line.
    Ndjson,
    /// Server-sent events.
    Sse,
    /// Server-sent events with names and `Cache-Control: no-cache`.
    NamedSse,
}

/// A streamed response.
pub(crate) fn stream<S>(format: StreamFormat, pieces: S) -> Response
where
    S: Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
{
    let content_type = match format {
        StreamFormat::Ndjson => "application/x-ndjson",
        StreamFormat::Sse | StreamFormat::NamedSse => "text/event-stream",
    };
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if format == StreamFormat::NamedSse {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    response
}
