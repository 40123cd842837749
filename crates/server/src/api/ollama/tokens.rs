//! `POST /api/tokenize` and `POST /api/detokenize`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::ollama::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
use serde_json::{Map, Value};

use crate::api::Times;
use crate::api::chat;
use crate::app::App;
use crate::canonical::{ApiError, Event, Task, TokenizeTask};
use crate::http::{Client, ErrorResponse, Json, Ollama, json};
use crate::options::RequestOptions;
use crate::runner::MAX_TEXT_BYTES;

/// Maximum bytes of the body of a request to tokenize. JSON escapes take three bytes for each byte
/// of most texts at most.
const MAX_TOKENIZE_BODY_BYTES: usize = 3 * MAX_TEXT_BYTES + (64 << 10);

pub(crate) async fn tokenize(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, TokenizeRequest, MAX_TOKENIZE_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let TokenizeRequest { model, text, content, add_special, parse_special, keep_alive, options } =
        request;
    if !model.is_empty() && text.is_some() && content.is_some() {
        return Err(
            ApiError::bad_request("text and content are the same field: send one of them").into()
        );
    }
    let missing = || missing_field(&model, "text");
    let text = text.or(content).map_or_else(missing, Ok)?;
    let task = Task::Tokenize(TokenizeTask { text, add_special, parse_special });
    let (event, times) = run_task(&app, client, &model, options, keep_alive, task).await?;
    let Event::Tokens(tokens) = event else {
        return Err(ApiError::internal("the model runner sent no tokens").into());
    };
    let (total_duration, load_duration) = (times.total, times.load);
    Ok(json(StatusCode::OK, &TokenizeResponse { model, tokens, total_duration, load_duration }))
}

pub(crate) async fn detokenize(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, DetokenizeRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let DetokenizeRequest { model, tokens, keep_alive, options } = request;
    let task = Task::Detokenize(tokens.map_or_else(|| missing_field(&model, "tokens"), Ok)?);
    let (event, times) = run_task(&app, client, &model, options, keep_alive, task).await?;
    let Event::Text(text) = event else {
        return Err(ApiError::internal("the model runner sent no text").into());
    };
    let (total_duration, load_duration) = (times.total, times.load);
    Ok(json(StatusCode::OK, &DetokenizeResponse { model, text, total_duration, load_duration }))
}

/// Error for a missing field; a missing `model` comes first.
fn missing_field<T>(model: &str, field: &str) -> Result<T, ApiError> {
    let field = if model.is_empty() { "model" } else { field };
    Err(ApiError::bad_request(format!("{field} is required")))
}

/// Runs a task on a model; returns its last event and its times.
async fn run_task(
    app: &App,
    client: Client,
    model: &str,
    options: Option<Map<String, Value>>,
    keep_alive: Option<KeepAlive>,
    task: Task,
) -> Result<(Event, Times), ApiError> {
    let (_, model) = chat::find_model(app, model).await?;
    let (load, run) = app.options(&model, &RequestOptions::named(options.as_ref())).await?;
    let mut running =
        app.load(&model, (load, run.num_ctx), keep_alive, client).await?.run(task).await;
    let event = running.result().await?;
    Ok((event, Times::of(&running)))
}
