//! Signs of life.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use puna_api::native::VersionResponse;

use crate::{OLLAMA_VERSION, VERSION};

/// `GET /`: health checks of many tools compare the text.
pub(super) async fn root() -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], "Ollama is running").into_response()
}

/// `GET /health`: 200 for as long as requests are taken.
pub(super) async fn health() -> Response {
    let kind = header::HeaderValue::from_static("application/json; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], r#"{"status":"ok"}"#).into_response()
}

/// `GET /api/version`
pub(super) async fn version() -> Response {
    let body = VersionResponse { version: OLLAMA_VERSION.into(), puna: VERSION.into() };
    let mut response = Json(body).into_response();
    let kind = header::HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
