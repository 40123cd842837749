//! Request bodies: read under a limit, decoded whatever their `Content-Type` says.

use std::io::Read;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use puna_api::decode::{DecodeError, from_slice_noting};
use puna_api::json::SyntaxError;
use ruzstd::decoding::StreamingDecoder;
use serde::de::DeserializeOwned;

use super::Dialect;
use crate::canonical::Failure;
use crate::lock::lock;

/// Bytes of a JSON body at most: room for a few large images.
const MAX_BODY: usize = 128 << 20;

/// Bytes of a decompressed body at most.
const MAX_UNPACKED: usize = 20 << 20;

/// Bytes that decompressing may look back at most.
const MAX_WINDOW: u64 = 8 << 20;

/// How every frame of zstd begins.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Characters of an ignored field's name that are told.
const MAX_NAME: usize = 64;

/// How long the next piece of a body may take.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 60_000 });

/// A request decoded from a JSON body; what is wrong with it is told in the dialect's form.
pub(crate) struct Json<D, T>(pub(crate) T, pub(crate) PhantomData<D>);

impl<D: Dialect, T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<D, T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let ignored = request.extensions().get::<Ignored>().cloned().unwrap_or_default();
        let decoded = read_body(request).await.and_then(|body| decode::<D, T>(&body));
        match decoded {
            Ok((value, fields)) => {
                ignored.note(fields);
                Ok(Self(value, PhantomData))
            }
            Err(failure) => Err(D::error(&failure)),
        }
    }
}

/// Fields of a request's body that nobody looked at, for the answer to name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored(Arc<Mutex<Vec<String>>>);

impl Ignored {
    fn note(&self, fields: Vec<String>) {
        *lock(&self.0) = fields;
    }

    /// As a header's value, if there are any.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let fields = lock(&self.0);
        let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        let names: Vec<String> =
            fields.iter().map(|name| name.chars().take(MAX_NAME).map(plain).collect()).collect();
        HeaderValue::from_str(&names.join(", ")).ok().filter(|_| !names.is_empty())
    }
}

fn decode<D: Dialect, T: DeserializeOwned>(body: &[u8]) -> Result<(T, Vec<String>), Failure> {
    from_slice_noting(body).map_err(|error| match error {
        DecodeError::Syntax(SyntaxError::Empty) => Failure::bad_request(D::EMPTY_BODY),
        error => Failure::bad_request(error.to_string()),
    })
}

/// The whole body, unless it is too long; decompressed, if it says that it is compressed.
pub(crate) async fn read_body(request: Request<Body>) -> Result<Bytes, Failure> {
    let encoding = request.headers().get(CONTENT_ENCODING).cloned();
    let body = read_limited(request, MAX_BODY).await?;
    match encoding.as_ref().map(|encoding| encoding.to_str().unwrap_or("?")) {
        None | Some("" | "identity") => Ok(body),
        Some("zstd") => {
            let decoded = tokio::task::spawn_blocking(move || unpack(&body)).await;
            decoded.map_err(|e| Failure::internal(format!("internal error while decompressing: {e}")))?
        }
        Some(other) => Err(Failure::bad_request(format!(
            "request bodies in Content-Encoding {other} are not understood: send them as they are, or as zstd"
        ))),
    }
}

/// Decompresses a body, of which no more is kept than is allowed whatever it claims.
fn unpack(body: &[u8]) -> Result<Bytes, Failure> {
    let wrong = |what: String| Failure::bad_request(format!("invalid zstd body: {what}"));
    if !body.starts_with(&ZSTD_MAGIC) {
        return Err(Failure::bad_request("invalid input: magic number mismatch"));
    }
    let decoder =
        StreamingDecoder::new_with_max_window_size(body, MAX_WINDOW).map_err(|e| wrong(e.to_string()))?;
    let mut unpacked = Vec::new();
    decoder.take(MAX_UNPACKED as u64 + 1).read_to_end(&mut unpacked).map_err(|e| wrong(e.to_string()))?;
    if unpacked.len() > MAX_UNPACKED {
        return Err(Failure::bad_request("http: request body too large"));
    }
    Ok(unpacked.into())
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
