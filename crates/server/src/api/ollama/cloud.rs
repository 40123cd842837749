//! Routes of ollama.com's services. They refuse or return empty results; the server sends nothing
//! to ollama.com.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json as value};

use crate::canonical::ApiError;
use crate::http::{ErrorFormat, Json, MAX_SETTINGS_BODY_BYTES, Ollama, json};

/// `GET /api/status`
pub(crate) async fn status() -> Response {
    json(StatusCode::OK, &value!({"cloud": {"disabled": true, "source": "config"}}))
}

/// Accounts: `POST /api/me`, `POST /api/signout`, `DELETE /api/user/keys/…`
pub(crate) async fn account() -> Response {
    Ollama::error(&ApiError::new(501, "not supported: ollama.com accounts"))
}

/// `POST /api/experimental/web_search`
pub(crate) async fn web_search(_: Json<Ollama, Value, MAX_SETTINGS_BODY_BYTES>) -> Response {
    Ollama::error(&ApiError::new(403, "ollama cloud is disabled: web search is unavailable"))
}

/// `POST /api/experimental/web_fetch`
pub(crate) async fn web_fetch(_: Json<Ollama, Value, MAX_SETTINGS_BODY_BYTES>) -> Response {
    Ollama::error(&ApiError::new(403, "ollama cloud is disabled: web fetch is unavailable"))
}

/// `GET /api/experimental/model-recommendations`
pub(crate) async fn recommendations() -> Response {
    json(StatusCode::OK, &value!({"recommendations": []}))
}
