//! Routes for health checks and the version.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use puna_api::ollama::VersionResponse;
use serde_json::json as value;

use crate::http::json;
use crate::version::{OLLAMA_VERSION, VERSION};

/// `GET /`: health checks of many tools compare this text.
pub(super) async fn root() -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], "Ollama is running").into_response()
}

/// `GET /health`: 200 while the server accepts requests.
pub(super) async fn health() -> Response {
    json(StatusCode::OK, &value!({"status": "ok"}))
}

/// `GET /api/version`
pub(super) async fn version() -> Response {
    json(StatusCode::OK, &VersionResponse { version: OLLAMA_VERSION.into(), puna: VERSION.into() })
}
