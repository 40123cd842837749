//! Routes of OpenAI's Responses API.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use puna_api::ollama::Message;
use puna_api::responses::ResponsesRequest;
use serde_json::{Value, json};

use crate::api::chat;
use crate::api::generation_request::GenerationRequest;
use crate::api::image_urls::{self, Author, MessageContent};
use crate::api::openai;
use crate::api::openai::responses::{
    Keep, ResponseEncoder, left_out, replay, take_additional_tools, to_request,
};
use crate::api::{collect, respond_when};
use crate::app::{App, key};
use crate::canonical::ApiError;
use crate::http::{
    self, Client, ErrorResponse, Json, OpenAi, Owner, StreamFormat, json_plain,
    record_ignored_field,
};

/// `POST /v1/responses`
pub(crate) async fn create(
    State(app): State<App>,
    client: Client,
    owner: Owner,
    Json(mut request, _): Json<OpenAi, ResponsesRequest>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let mut chat = to_chat(&app, client, &mut request, owner).await?;
    left_out(&request.tools).into_iter().for_each(record_ignored_field);
    let (name, model) = chat::find_model(&app, &request.model).await?;
    openai::set_defaults(&mut chat.options, &model, &[openai::TEMPERATURE]);
    chat::drop_unsupported_thinking(&mut chat, &model, &["reasoning.effort"]);
    // The instructions belong to this response only and are not stored.
    let instructed = request.instructions.as_ref().is_some_and(|text| !text.is_empty());
    let messages = chat.messages().iter().skip(usize::from(instructed)).cloned().collect();
    let new_keep =
        || Keep { owner, client: client.number, responses: app.responses().clone(), messages };
    let keep = (request.store != Some(false)).then(new_keep);
    let (stream, empty) = (request.stream, chat.messages().is_empty());
    let key = (!request.debug_render_only).then(|| key(&model));
    let encoder = move |()| ResponseEncoder::new(request, keep);
    let task_app = app.clone();
    let prepared = async move { chat::prepare(&task_app, client, chat, &name, &model).await };
    if empty {
        prepared.await?;
        return Ok(encoder(()).empty());
    }
    let started = async move { Ok(([prepared.await?.start().await], ())) };
    if stream {
        return Ok(respond_when(&app, key, started, encoder(()), |_, ()| ()).await?);
    }
    let ([running], ()) = started.await?;
    Ok(encoder(()).whole(collect(running).await?))
}

/// `POST /v1/responses/input_tokens`
pub(crate) async fn input_tokens(
    State(app): State<App>,
    client: Client,
    owner: Owner,
    Json(mut request, _): Json<OpenAi, ResponsesRequest>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let chat = to_chat(&app, client, &mut request, owner).await?;
    let (name, model) = chat::find_model(&app, &request.model).await?;
    let input_tokens = chat::prepare(&app, client, chat, &name, &model).await?.count().await?;
    let answer = json!({"object": "response.input_tokens", "input_tokens": input_tokens});
    Ok(json_plain(StatusCode::OK, &answer))
}

/// Converts the request to a canonical one and resolves references to stored items and responses.
async fn to_chat(
    app: &App,
    client: Client,
    request: &mut ResponsesRequest,
    owner: Owner,
) -> Result<GenerationRequest, ApiError> {
    if request.model.is_empty() {
        return Err(ApiError::bad_request("model is required"));
    }
    take_additional_tools(request);
    let earlier = earlier_messages(app, request.previous_response_id.as_deref(), owner)?;
    for item in request.input.as_array_mut().into_iter().flatten() {
        let Some(id) = item["id"].as_str().filter(|_| item["type"] == "item_reference") else {
            continue;
        };
        match app.responses().item(id, owner) {
            Some(stored) => *item = stored,
            // `to_request` reports the missing item, because it knows the item's index.
            None => break,
        }
    }
    let contents = request.input.as_array_mut().into_iter().flatten().flat_map(item_contents);
    chat::fetch_images(app, client, &request.model, image_urls::in_openai(contents.collect()))
        .await?;
    let chat = to_request(request, &earlier)?;
    // The input is part of `chat` now; the response repeats only the other fields.
    request.input = Value::Null;
    Ok(chat)
}

/// Returns the content fields of an input item, with the author of each.
fn item_contents(item: &mut Value) -> impl Iterator<Item = MessageContent<'_>> {
    let kind = item["type"].as_str().unwrap_or_default();
    let author = match kind {
        _ if kind.ends_with("_output") => Author::Tool,
        _ if kind.ends_with("_call") => Author::Assistant,
        _ => Author::of_role(item["role"].as_str().unwrap_or_default()),
    };
    let fields = item.as_object_mut().into_iter().flatten();
    // The `type` of a call shows that the assistant has answered.
    let fields =
        fields.filter(|(field, _)| matches!(field.as_str(), "content" | "output" | "type"));
    fields.map(move |(_, value)| (author, value))
}

/// Returns the messages of the response that a request continues.
fn earlier_messages(app: &App, id: Option<&str>, owner: Owner) -> Result<Vec<Message>, ApiError> {
    let Some(id) = id else { return Ok(Vec::new()) };
    match app.responses().get(id, owner) {
        Some(stored) => Ok(stored.messages.clone()),
        None => Err(ApiError::bad_request(format!(
            "previous response {id:?} not found: it was not stored, or was evicted"
        ))),
    }
}

fn missing(id: &str) -> ApiError {
    ApiError::not_found(format!("response {id:?} not found"))
}

/// `GET /v1/responses/…`
pub(crate) async fn retrieve(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    let Query(fields) = query.map_err(|error| ApiError::bad_request(error.body_text()))?;
    let (stream, after) = read_query(fields)?;
    let stored = app.responses().get(&id, owner).ok_or_else(|| missing(&id))?;
    if !stream {
        return Ok(json_plain(StatusCode::OK, &stored.response));
    }
    let events = Ok(Bytes::from(replay(&stored, after)));
    Ok(http::stream(StreamFormat::NamedSse, tokio_stream::iter([events])))
}

/// Parses the query: whether to stream, and after which event to start. Other fields are reported
/// as ignored.
fn read_query(fields: Vec<(String, String)>) -> Result<(bool, Option<u64>), ApiError> {
    let (mut stream, mut after) = (false, None);
    for (name, value) in fields {
        match (&*name, &*value) {
            ("stream", "true" | "True" | "1") => stream = true,
            ("stream", "false" | "False" | "0" | "") => stream = false,
            ("stream", _) => return Err(ApiError::bad_request("stream must be true or false")),
            ("starting_after", number) => {
                let wrong = |_| {
                    ApiError::bad_request("starting_after must be the sequence_number of an event")
                };
                after = Some(number.parse().map_err(wrong)?);
            }
            _ => record_ignored_field(name),
        }
    }
    if after.is_some() && !stream {
        record_ignored_field("starting_after".to_owned());
    }
    Ok((stream, after))
}

/// `DELETE /v1/responses/…`
pub(crate) async fn delete(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
) -> Result<Response, ErrorResponse<OpenAi>> {
    if !app.responses().delete(&id, owner) {
        return Err(missing(&id).into());
    }
    Ok(json_plain(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}
