//! Routes of Anthropic's dialect: only the checks of requests so far.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value};

use super::chat;
use crate::app::App;
use crate::canonical::Failure;
use crate::http::{Anthropic, Json, Refused};

/// `POST /v1/messages`
pub(super) async fn messages(
    State(app): State<App>,
    Json(request, _): Json<Anthropic, Map<String, Value>>,
) -> Result<Response, Refused<Anthropic>> {
    let model = request.get("model").and_then(Value::as_str).unwrap_or_default();
    chat::find(&app, model).await?;
    Err(Failure::new(501, "messages are not supported yet: use /v1/chat/completions or /api/chat").into())
}
