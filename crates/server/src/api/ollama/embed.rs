//! `POST /api/embed` and the older `/api/embeddings`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::ollama::{
    EmbedInput, EmbedRequest, EmbedResponse, EmbeddingsRequest, EmbeddingsResponse,
};

use crate::api::embeddings::{
    EmbeddingRequest, TruncateMode, compute_embeddings, truncate_and_normalize_all,
};
use crate::app::App;
use crate::canonical::{ApiError, EmbedText};
use crate::http::{Client, ErrorResponse, Json, Ollama, json};
use crate::models::names::Name;

pub(crate) async fn embed(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, EmbedRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    if request.model.is_empty() {
        return Err(ApiError::not_found("model '' not found").into());
    }
    let name = Name::parse_runnable(&request.model)?;
    let inputs = EmbedInput::from_value(&request.input)
        .ok_or_else(|| ApiError::bad_request("invalid input type"))?;
    let embedding_request = EmbeddingRequest {
        inputs: inputs.0.into_iter().map(EmbedText::Text).collect(),
        truncate_mode: request
            .truncate
            .map_or(TruncateMode::TruncateByDefault, TruncateMode::Requested),
        options: request.options,
        keep_alive: request.keep_alive,
    };
    let mut answer = compute_embeddings(&app, client, &name, embedding_request).await?;
    truncate_and_normalize_all(&mut answer.vectors, request.dimensions);
    let answer = EmbedResponse {
        model: request.model,
        embeddings: std::mem::take(&mut answer.vectors),
        total_duration: answer.times.total,
        load_duration: answer.times.load,
        prompt_eval_count: answer.tokens,
        truncated_inputs: answer.cut.len() as u64,
        truncated_tokens: answer.cut_tokens(),
    };
    Ok(json(StatusCode::OK, &answer))
}

/// `POST /api/embeddings`: the vector of one text, without normalization.
pub(crate) async fn embeddings(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, EmbeddingsRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    if request.model.is_empty() {
        return Err(ApiError::bad_request("model is required").into());
    }
    let name = Name::parse_runnable(&request.model)?;
    let inputs =
        if request.prompt.is_empty() { Vec::new() } else { vec![EmbedText::Text(request.prompt)] };
    let (options, keep_alive, truncate_mode) =
        (request.options, request.keep_alive, TruncateMode::RefuseByDefault);
    let embedding_request = EmbeddingRequest { inputs, truncate_mode, options, keep_alive };
    let answer = compute_embeddings(&app, client, &name, embedding_request).await?;
    let first = answer.vectors.into_iter().next().unwrap_or_default();
    let embedding = first.into_iter().map(f64::from).collect();
    Ok(json(StatusCode::OK, &EmbeddingsResponse { embedding }))
}
