//! Request bodies: read under a limit, decoded whatever their `Content-Type` says.

use std::marker::PhantomData;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use puna_api::decode::{DecodeError, from_slice};
use puna_api::json::SyntaxError;
use serde::de::DeserializeOwned;

use super::Dialect;
use crate::canonical::Failure;

/// Bytes of a JSON body at most: room for a few large images.
const MAX_BODY: usize = 128 << 20;

/// How long the next piece of a body may take.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });

/// A request decoded from a JSON body; what is wrong with it is told in the dialect's form.
pub(crate) struct Json<D, T>(pub(crate) T, pub(crate) PhantomData<D>);

impl<D: Dialect, T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<D, T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let decoded = read_limited(request, MAX_BODY).await.and_then(|body| decode::<D, T>(&body));
        decoded.map(|value| Self(value, PhantomData)).map_err(|failure| D::error(&failure))
    }
}

fn decode<D: Dialect, T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    from_slice(body).map_err(|error| match error {
        DecodeError::Syntax(SyntaxError::Empty) => Failure::bad_request(D::EMPTY_BODY),
        error => Failure::bad_request(error.to_string()),
    })
}

/// The whole body, unless it is longer than `limit` bytes.
async fn read_limited(request: Request<Body>, limit: usize) -> Result<Bytes, Failure> {
    let too_large = || Failure::new(413, format!("request body too large: the limit is {} MiB", limit >> 20));
    let claimed = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if claimed.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(data) = next_piece(&mut body).await? {
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.into())
}

/// The next piece of a body, `None` at its proper end. A client that sends nothing for long has its request refused.
pub(crate) async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Failure> {
    loop {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
        match frame.map_err(|_| Failure::new(408, "the request body did not arrive in time"))? {
            None => return Ok(None),
            Some(Err(e)) => return Err(Failure::bad_request(format!("the request body broke off: {e}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}
