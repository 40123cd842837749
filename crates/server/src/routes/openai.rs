//! Routes of OpenAI's dialect.

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use puna_api::native::EmbedInput;
use puna_api::openai::{
    ChatCompletionRequest, CompletionRequest, EmbedRequest, Embedding, EmbeddingData, EmbeddingList,
    EmbeddingUsage, Model, ModelList,
};
use puna_store::Entry;
use serde_json::Value;

use super::embed::{Wanted, check_finite, shorten, vectors};
use super::generate::{self, Started};
use super::{anthropic, chat};
use crate::app::{App, store_failure};
use crate::canonical::Failure;
use crate::dialect::completion::{self, CompletionEncoder};
use crate::dialect::openai::{ChatEncoder, to_native};
use crate::dialect::{self, collect, respond};
use crate::http::{Anthropic, Client, Dialect, Json, OpenAi, Refused, json_plain};
use crate::names::Name;

/// `POST /v1/chat/completions`
pub(super) async fn chat_completions(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<OpenAi, ChatCompletionRequest>,
) -> Result<Response, Refused<OpenAi>> {
    let stream = request.stream;
    let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
    let request = to_native(request)?;
    dialect::logprobs(request.logprobs, request.top_logprobs)?;
    let (name, model) = chat::find(&app, &request.model).await?;
    let prepared = chat::prepare(&app, client, request, &name, &model).await?;
    let encoder = ChatEncoder::new(name.given, include_usage);
    let running = prepared.start();
    if stream {
        return Ok(respond(vec![running], encoder).await?);
    }
    Ok(encoder.whole(collect(running).await?))
}

/// `POST /v1/completions`
pub(super) async fn completions(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<OpenAi, CompletionRequest>,
) -> Result<Response, Refused<OpenAi>> {
    let stream = request.stream;
    let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
    let request = completion::to_native(request)?;
    let encoder = CompletionEncoder::new(request.model.clone(), include_usage);
    Ok(match generate::start(&app, client, request).await? {
        Started::Nothing(reason) => encoder.empty(reason),
        Started::Running(running) if stream => respond(vec![running], encoder).await?,
        Started::Running(running) => encoder.whole(collect(running).await?),
    })
}

/// `POST /v1/responses`: only its checks so far.
pub(super) async fn responses(
    State(app): State<App>,
    Json(request, _): Json<OpenAi, serde_json::Map<String, Value>>,
) -> Result<Response, Refused<OpenAi>> {
    let model = request.get("model").and_then(Value::as_str).unwrap_or_default();
    chat::find(&app, model).await?;
    Err(Failure::new(501, "responses are not supported yet: use /v1/chat/completions").into())
}

/// `POST /v1/audio/transcriptions`: no model takes sound so far.
pub(super) async fn transcriptions() -> Refused<OpenAi> {
    Failure::bad_request("no model of this server takes audio input").into()
}

/// `POST /v1/embeddings`
pub(super) async fn embeddings(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<OpenAi, EmbedRequest>,
) -> Result<Response, Refused<OpenAi>> {
    let base64 = match request.encoding_format.to_lowercase().as_str() {
        "" | "float" => false,
        "base64" => true,
        _ => {
            let given = &request.encoding_format;
            let text = format!(
                "Invalid value for 'encoding_format' = {given}. Supported values: ['float', 'base64']."
            );
            return Err(Failure::bad_request(text).into());
        }
    };
    let inputs = match &request.input {
        // Unlike the native route, an empty text is embedded.
        Value::String(text) => vec![text.clone()],
        Value::Null => Vec::new(),
        list => EmbedInput::from_value(list).ok_or_else(|| Failure::bad_request("invalid input type"))?.0,
    };
    if inputs.is_empty() {
        return Err(Failure::bad_request("invalid input").into());
    }
    if request.model.is_empty() {
        return Err(Failure::not_found("model '' not found").into());
    }
    let name = Name::to_run(&request.model)?;
    let wanted = Wanted { inputs, truncate: true, options: None, keep_alive: None };
    let mut answer = vectors(&app, client, &name, wanted).await?;
    answer.vectors.iter_mut().for_each(|v| shorten(v, request.dimensions));
    check_finite(&answer.vectors)?;
    let one = |(index, vector): (usize, Vec<f32>)| {
        let embedding = match base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                EmbeddingData::Base64(puna_api::base64_encode(&bytes))
            }
            false => EmbeddingData::Floats(vector),
        };
        Embedding { object: "embedding".into(), embedding, index }
    };
    let answer = EmbeddingList {
        object: "list".into(),
        data: answer.vectors.into_iter().enumerate().map(one).collect(),
        model: request.model,
        usage: EmbeddingUsage { prompt_tokens: answer.tokens, total_tokens: answer.tokens },
    };
    Ok(json_plain(StatusCode::OK, &answer))
}

/// `GET /v1/models`
pub(super) async fn models(
    State(app): State<App>,
    headers: HeaderMap,
    Query(page): Query<anthropic::Page>,
) -> Result<Response, Refused<OpenAi>> {
    let entries = app.store(|store| store.list()).await?.map_err(|e| store_failure(&e))?;
    if anthropic::is_meant(&headers) {
        return Ok(anthropic::models(&entries, &page).unwrap_or_else(|failure| Anthropic::error(&failure)));
    }
    let data = entries.iter().map(|entry| wire_model(entry, entry.name.to_string())).collect();
    Ok(json_plain(StatusCode::OK, &ModelList { object: "list".into(), data }))
}

/// `GET /v1/models/…`
pub(super) async fn model(
    State(app): State<App>,
    headers: HeaderMap,
    Path(given): Path<String>,
) -> Result<Response, Refused<OpenAi>> {
    let anthropic = anthropic::is_meant(&headers);
    let name = Name::parse(&given, "remote model details are unavailable")?;
    let stored = name.stored.clone();
    match app.store(move |store| store.find(&stored)).await?.map_err(|e| store_failure(&e))? {
        Some(entry) if anthropic => Ok(json_plain(StatusCode::OK, &anthropic::model(&entry, given))),
        Some(entry) => Ok(json_plain(StatusCode::OK, &wire_model(&entry, given))),
        None => {
            let failure = Failure::not_found(format!("model '{}' not found", name.stored));
            if anthropic { Ok(Anthropic::error(&failure)) } else { Err(failure.into()) }
        }
    }
}

fn wire_model(entry: &Entry, id: String) -> Model {
    let created = jiff::Timestamp::try_from(entry.modified).map_or(0, |t| t.as_second());
    Model { id, object: "model".into(), created, owned_by: entry.name.namespace().to_owned() }
}
