//! Routes of Anthropic's dialect: messages, token counts and the list of models.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::anthropic::{
    CountResponse, MessagesRequest, Model, ModelList, THREAD_NOT_FOUND, Thread,
};
use puna_store::Entry;

use crate::api::anthropic::{MessagesEncoder, SEARCH, left_out, to_request, wishes_to_think};
use crate::api::generation_request::GenerationRequest;
use crate::api::image_urls::{self, Author};
use crate::api::{chat, rfc3339};
use crate::api::{collect, has, respond_when};
use crate::app::{App, key};
use crate::canonical::ApiError;
use crate::http::{Anthropic, Client, ErrorResponse, Json, json_plain, record_ignored_field};
use crate::models::memory_plans::ModelSize;
use crate::models::names::Name;

/// `POST /v1/messages`
pub(crate) async fn messages(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Anthropic, MessagesRequest>,
) -> Result<Response, ErrorResponse<Anthropic>> {
    left_out(&request.tools).into_iter().for_each(record_ignored_field);
    if !request.model.is_empty() && request.max_tokens < 1 {
        return Err(ApiError::bad_request("max_tokens is required and must be positive").into());
    }
    let stop = request.stop_sequences.clone().unwrap_or_default();
    let searches = request.tools.iter().any(|tool| tool.kind.starts_with(SEARCH));
    let (model, stream, render_only) =
        (request.model.clone(), request.stream, request.debug_render_only);
    let encoder = move |()| MessagesEncoder::new(model, stop, searches);
    let (name, model, request) = check_request(&app, client, request).await?;
    let key = (!render_only).then(|| key(&model));
    let task_app = app.clone();
    let started = async move {
        let prepared = chat::prepare(&task_app, client, request, &name, &model).await?;
        Ok(([prepared.start().await], ()))
    };
    if stream {
        return Ok(respond_when(&app, key, started, encoder(()), |_, ()| ()).await?);
    }
    let ([running], ()) = started.await?;
    Ok(encoder(()).whole(collect(running).await?))
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Anthropic, MessagesRequest>,
) -> Result<Response, ErrorResponse<Anthropic>> {
    let (name, model, request) = check_request(&app, client, request).await?;
    let input_tokens = chat::prepare(&app, client, request, &name, &model).await?.count().await?;
    Ok(json_plain(StatusCode::OK, &CountResponse { input_tokens }))
}

/// Checks a request; returns the model and the canonical request.
async fn check_request(
    app: &App,
    client: Client,
    mut request: MessagesRequest,
) -> Result<(Name, Arc<puna_store::Model>, GenerationRequest), ApiError> {
    if request.model.is_empty() {
        return Err(ApiError::bad_request("model is required"));
    }
    check_thread(request.thread.as_ref())?;
    let contents = request.messages.iter_mut();
    let contents = contents.map(|message| (Author::of_role(&message.role), &mut message.content));
    chat::fetch_images(app, client, &request.model, image_urls::in_anthropic(contents.collect()))
        .await?;
    let thinking_fields = wishes_to_think(&request);
    let mut request = to_request(request)?;
    let (name, model) = chat::find_model(app, &request.model).await?;
    // Unlike on other routes, a request to think does not fail on a model that cannot think.
    if !has(&model, "thinking") {
        request.think = None;
        thinking_fields.into_iter().for_each(|field| record_ignored_field(field.into()));
    }
    Ok((name, model, request))
}

/// Refuses to continue a stored conversation: the server stores none, and the request has only the
/// newest messages.
fn check_thread(thread: Option<&Thread>) -> Result<(), ApiError> {
    if thread.is_none_or(|thread| thread.kind != "continue") {
        return Ok(());
    }
    let text = "thread is not supported: send all messages, without thread";
    Err(ApiError { code: Some(THREAD_NOT_FOUND.into()), ..ApiError::new(404, text) })
}

/// Query of `GET /v1/models`: which page of the list is wanted.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct PageQuery {
    limit: Option<String>,
    after_id: Option<String>,
    before_id: Option<String>,
}

/// Default number of models on a page.
const DEFAULT_PAGE_MODELS: usize = 20;

/// `GET /v1/models` in Anthropic's dialect.
pub(crate) async fn models(
    app: &App,
    entries: &[Entry],
    page: &PageQuery,
) -> Result<Response, ApiError> {
    let limit = page.limit.as_deref().map_or(Ok(DEFAULT_PAGE_MODELS), str::parse);
    let limit = limit.ok().filter(|limit| (1..=1000).contains(limit));
    let limit =
        limit.ok_or_else(|| ApiError::bad_request("limit must be a number from 1 to 1000"))?;
    let at = |id: &Option<String>| {
        let id = id.as_ref()?;
        entries.iter().position(|entry| entry.name.to_string() == *id)
    };
    let (shown, has_more) = match (at(&page.after_id), at(&page.before_id)) {
        (None, Some(before)) => {
            let from = before.saturating_sub(limit);
            (&entries[from..before], from > 0)
        }
        (after, _) => {
            let rest = &entries[after.map_or(0, |after| after + 1)..];
            (&rest[..rest.len().min(limit)], rest.len() > limit)
        }
    };
    let models = shown.iter().zip(app.sizes(shown).await);
    let data: Vec<_> =
        models.map(|(entry, size)| model(entry, entry.name.to_string(), &size)).collect();
    let id = |model: Option<&Model>| model.map(|model| model.id.clone());
    let list = ModelList { first_id: id(data.first()), last_id: id(data.last()), data, has_more };
    Ok(json_plain(StatusCode::OK, &list))
}

/// Describes a model in Anthropic's dialect.
pub(crate) fn model(entry: &Entry, id: String, size: &ModelSize) -> Model {
    let created_at = rfc3339(entry.modified);
    Model {
        kind: "model".into(),
        display_name: id.clone(),
        id,
        created_at,
        max_input_tokens: size.n_ctx,
        context_length: size.n_ctx,
    }
}
