//! Routes of OpenAI's dialect: chat, completions, embeddings and models.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::openai::{
    ChatCompletionRequest, CompletionRequest, EmbedRequest, Embedding, EmbeddingData,
    EmbeddingList, EmbeddingUsage, Model, ModelList, ModelMeta,
};
use puna_store::Entry;
use serde_json::Value;

use crate::api::anthropic::routes as anthropic;
use crate::api::chat;
use crate::api::completion::{CheckedRequest, check};
use crate::api::embeddings::{
    EmbeddingRequest, TruncateMode, compute_embeddings, truncate_and_normalize_all,
};
use crate::api::image_urls::{self, Author};
use crate::api::openai::completions::{self, CompletionEncoder};
use crate::api::openai::{self, ChatEncoder, to_request};
use crate::api::{AnswerEncoder, collect_all, respond_when};
use crate::app::{App, key, store_error};
use crate::auth::caller::{Action, Caller};
use crate::canonical::{ApiError, EmbedText};
use crate::http::{Client, Dialect, ErrorResponse, Json, OpenAi, json_plain};
use crate::models::memory_plans::ModelSize;
use crate::models::names::Name;

/// `POST /v1/chat/completions`
pub(crate) async fn chat_completions(
    State(app): State<App>,
    client: Client,
    Json(mut request, _): Json<OpenAi, ChatCompletionRequest>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let contents = request.messages.iter_mut();
    let contents = contents.map(|message| (Author::of_role(&message.role), &mut message.content));
    chat::fetch_images(&app, client, &request.model, image_urls::in_openai(contents.collect()))
        .await?;
    let stream = request.stream;
    let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
    let answers = openai::count("n", request.n)?;
    let sounds = openai::has_sound(&request.messages);
    let thinking_fields = openai::wishes_to_think(&request);
    let custom_names = openai::custom_names(&request);
    let mut request = to_request(request)?;
    let (name, model) = chat::find_model(&app, &request.model).await?;
    if sounds {
        return Err(ApiError::bad_request("model does not support audio input").into());
    }
    openai::set_defaults(&mut request.options, &model, &[openai::TEMPERATURE, openai::TOP_P]);
    chat::drop_unsupported_thinking(&mut request, &model, &thinking_fields);
    let key = (!request.render_only).then(|| key(&model));
    let given = name.requested.clone();
    let encoder =
        move |()| ChatEncoder::new(given, include_usage, answers).with_custom_tools(custom_names);
    let task_app = app.clone();
    let started = async move {
        let prepared = chat::prepare(&task_app, client, request, &name, &model).await?;
        Ok((prepared.start_replicas(answers).await?, ()))
    };
    if stream {
        return Ok(respond_when(&app, key, started, encoder(()), |_, ()| ()).await?);
    }
    let (running, ()) = started.await?;
    Ok(encoder(()).whole(collect_all(running).await?))
}

/// `POST /v1/completions`
pub(crate) async fn completions(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<OpenAi, CompletionRequest>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let stream = request.stream;
    let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
    let (mut request, wanted) = completions::to_request(request)?;
    if let Ok((_, model)) = chat::find_model(&app, &request.model).await {
        openai::set_defaults(&mut request.options, &model, &[openai::TEMPERATURE, openai::TOP_P]);
    }
    let (model, wanted, render_only) =
        (request.model.clone(), Arc::new(wanted), request.render_only);
    let all = wanted.clone();
    let mut encoder = CompletionEncoder::new(model, include_usage, all);
    let (model_request, first) = match check(&app, client, request).await? {
        CheckedRequest::Unloaded => return Ok(encoder.empty("unload")),
        CheckedRequest::Load(model_request) => {
            model_request.load(&app, client).await?;
            return Ok(encoder.empty("load"));
        }
        CheckedRequest::Generate(model_request, first) => (model_request, first),
    };
    let key = (!render_only).then(|| model_request.key());
    let task_app = app.clone();
    let started = async move {
        let loaded = model_request.load(&task_app, client).await?;
        let mut read = Vec::new();
        for (i, tokens) in wanted.unread() {
            read.push((i, loaded.detokenize(tokens).await?));
        }
        Ok((loaded.run_all(wanted.generations(&first)?).await?, read))
    };
    if stream {
        return Ok(respond_when(&app, key, started, encoder, CompletionEncoder::set_read).await?);
    }
    let (running, read) = started.await?;
    encoder.set_read(read);
    let all = collect_all(running).await?;
    Ok(match all.first().and_then(|first| first.rendered.clone()) {
        Some(prompt) => encoder.rendered(prompt),
        None => encoder.whole(all),
    })
}

/// `POST /v1/embeddings`
pub(crate) async fn embeddings(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<OpenAi, EmbedRequest>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let base64 = match request.encoding_format.to_lowercase().as_str() {
        "" | "float" => false,
        "base64" => true,
        _ => {
            let given = &request.encoding_format;
            let text = format!(
                "Invalid value for 'encoding_format' = {given}. Supported values: ['float', 'base64']."
            );
            return Err(ApiError::bad_request(text).into());
        }
    };
    let inputs = match &request.input {
        // Unlike on the native route, an empty text is embedded.
        Value::String(text) => vec![EmbedText::Text(text.clone())],
        Value::Null => Vec::new(),
        Value::Array(list) => {
            embed_texts(list).ok_or_else(|| ApiError::bad_request("invalid input type"))?
        }
        _ => return Err(ApiError::bad_request("invalid input type").into()),
    };
    if inputs.is_empty() {
        return Err(ApiError::bad_request("invalid input").into());
    }
    if request.model.is_empty() {
        return Err(ApiError::not_found("model '' not found").into());
    }
    let name = Name::parse_runnable(&request.model)?;
    let wanted = EmbeddingRequest {
        inputs,
        truncate_mode: TruncateMode::TruncateByDefault,
        options: None,
        keep_alive: None,
    };
    let mut answer = compute_embeddings(&app, client, &name, wanted).await?;
    truncate_and_normalize_all(&mut answer.vectors, request.dimensions);
    let usage = EmbeddingUsage {
        prompt_tokens: answer.tokens,
        total_tokens: answer.tokens,
        truncated_inputs: answer.cut.len() as u64,
        truncated_tokens: answer.cut_tokens(),
    };
    let cut = answer.cut;
    let one = |(index, vector): (usize, Vec<f32>)| {
        let embedding = match base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                EmbeddingData::Base64(puna_api::base64_encode(&bytes))
            }
            false => EmbeddingData::Floats(vector),
        };
        let cut = cut.iter().find(|(input, _)| *input == index);
        let truncated_tokens = cut.map_or(0, |(_, tokens)| *tokens);
        Embedding { object: "embedding".into(), embedding, index, truncated_tokens }
    };
    let answer = EmbeddingList {
        object: "list".into(),
        data: answer.vectors.into_iter().enumerate().map(one).collect(),
        model: request.model,
        usage,
    };
    Ok(json_plain(StatusCode::OK, &answer))
}

/// Parses the input: a list of texts, the tokens of one text, or a list of token lists.
fn embed_texts(list: &[Value]) -> Option<Vec<EmbedText>> {
    let tokens = |list: &[Value]| {
        let token = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        list.iter().map(token).collect::<Option<Vec<_>>>().map(EmbedText::Tokens)
    };
    if list.first().is_some_and(Value::is_number) {
        return Some(vec![tokens(list)?]);
    }
    let one = |value: &Value| match value {
        Value::String(text) => Some(EmbedText::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => tokens(list),
        _ => None,
    };
    list.iter().map(one).collect()
}

/// `GET /v1/models`
pub(crate) async fn models(
    State(app): State<App>,
    Extension(dialect): Extension<Dialect>,
    page: Result<Query<anthropic::PageQuery>, QueryRejection>,
) -> Response {
    list_models(&app, dialect, page).await.unwrap_or_else(|failure| dialect.error(failure))
}

async fn list_models(
    app: &App,
    dialect: Dialect,
    page: Result<Query<anthropic::PageQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let mut entries = app.store(|store| store.list()).await?.map_err(|e| store_error(&e))?;
    let caller = Caller::current();
    entries.retain(|entry| caller.may(Action::Use, &entry.name));
    if dialect == Dialect::Anthropic {
        let Query(page) = page.map_err(|error| ApiError::bad_request(error.body_text()))?;
        return anthropic::models(app, &entries, &page).await;
    }
    let sizes = app.sizes(&entries).await;
    let models = entries.iter().zip(sizes);
    let data =
        models.map(|(entry, size)| model_object(entry, entry.name.to_string(), size)).collect();
    Ok(json_plain(StatusCode::OK, &ModelList { object: "list".into(), data }))
}

/// `GET /v1/models/…`
pub(crate) async fn model(
    State(app): State<App>,
    Extension(dialect): Extension<Dialect>,
    Path(given): Path<String>,
) -> Response {
    find_model(&app, dialect, given).await.unwrap_or_else(|failure| dialect.error(failure))
}

async fn find_model(app: &App, dialect: Dialect, given: String) -> Result<Response, ApiError> {
    let name = Name::parse(&given, "remote model details are unavailable")?;
    let missing = || ApiError::not_found(format!("model '{}' not found", name.full()));
    let stored = name.visible().cloned().ok_or_else(missing)?;
    let found = app.store(move |store| store.find(&stored)).await?.map_err(|e| store_error(&e))?;
    let entry = found.ok_or_else(missing)?;
    let size = app.size_of(&entry).await;
    Ok(match dialect {
        Dialect::Anthropic => json_plain(StatusCode::OK, &anthropic::model(&entry, given, &size)),
        _ => json_plain(StatusCode::OK, &model_object(&entry, given, size)),
    })
}

fn model_object(entry: &Entry, id: String, size: ModelSize) -> Model {
    let created = jiff::Timestamp::try_from(entry.modified).map_or(0, |t| t.as_second());
    let ModelSize { n_ctx, n_ctx_train, n_params, bytes, n_vocab, n_embd } = size;
    Model {
        id,
        object: "model".into(),
        created,
        owned_by: entry.name.namespace().to_owned(),
        context_length: n_ctx,
        max_model_len: n_ctx,
        meta: ModelMeta { n_ctx, n_ctx_train, n_vocab, n_embd, n_params, size: bytes },
    }
}
