//! Routes for the stored models: list, show, copy and delete.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use puna_api::ollama::{
    CopyRequest, DeleteRequest, DeleteResponse, ListResponse, ModelDetails, ModelSummary,
    ShowRequest,
};
use puna_store::{DeleteOutcome, Entry, Listing, ModelRef, Store, StoreError};

use super::create::check_parameters;
use super::show;
use crate::api::rfc3339;
use crate::app::{App, api_details, store_error};
use crate::auth::caller::{Action, Caller};
use crate::canonical::ApiError;
use crate::http::{Client, ErrorResponse, JSON, Json, MAX_SETTINGS_BODY_BYTES, Ollama, json};
use crate::models::names::Name;
use crate::models::quota::QuotaAdmission;
use crate::remote::Description;

/// `GET /api/tags`
pub(crate) async fn tags(State(app): State<App>) -> Result<Response, ErrorResponse<Ollama>> {
    let (at, caller) = (app.clone(), Caller::current());
    let response = app.store(move |store| {
        let listed = store.listing()?;
        if caller.is_confined() {
            let entries = listed.entries.iter();
            let entries = entries.filter(|entry| caller.may(Action::Use, &entry.name));
            let own = Listing { entries: entries.cloned().collect(), errors: Vec::new() };
            return Ok(serde_json::to_vec(&summarize(store, &own).0).ok().map(Bytes::from));
        }
        if let Some(answer) = at.tags_cache().get(&listed) {
            return Ok(Some(answer));
        }
        let (list, is_whole) = summarize(store, &listed);
        let answer = serde_json::to_vec(&list).ok().map(Bytes::from);
        if let Some(answer) = answer.clone().filter(|_| is_whole) {
            at.tags_cache().insert(listed, answer);
        }
        Ok(answer)
    });
    let answer = response.await?.map_err(|e: StoreError| store_error(&e))?;
    let answer =
        answer.ok_or_else(|| ApiError::internal("cannot encode the list of models".to_owned()))?;
    Ok(([(header::CONTENT_TYPE, JSON)], answer).into_response())
}

/// Returns the response of `GET /api/tags`, for callers that have opened the store themselves.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn stored_models(store: &Store) -> Result<ListResponse, StoreError> {
    let listed = store.listing()?;
    Ok(summarize(store, &listed).0)
}

/// Summarizes a listing; also returns whether every model could be read.
fn summarize(store: &Store, listed: &Listing) -> (ListResponse, bool) {
    let mut is_whole = true;
    // A name with a manifest list has an entry for each stored manifest, as in Ollama.
    let mut models = Vec::with_capacity(listed.entries.len());
    for entry in &listed.entries {
        match entry.list {
            None => models.push(summary(store, entry, &mut is_whole)),
            Some(_) => {
                models.extend(entry.rows().iter().map(|row| summary(store, row, &mut is_whole)))
            }
        }
    }
    store.save_list_cache();
    let with_advice = |error: &StoreError| match error {
        StoreError::Unresponsive { .. } => error.to_string(),
        _ => format!("{error}: repair or delete that file to free the space of removed models"),
    };
    (ListResponse { models, warnings: listed.errors.iter().map(with_advice).collect() }, is_whole)
}

/// Summarizes one model. A model with missing blobs is listed too, so that it can be deleted.
fn summary(store: &Store, entry: &Entry, is_whole: &mut bool) -> ModelSummary {
    let name = entry.name.to_string();
    let mut summary = ModelSummary {
        model: name.clone(),
        name,
        modified_at: rfc3339(entry.modified),
        size: entry.size(),
        digest: entry.shown_digest().hex(),
        ..ModelSummary::default()
    };
    match store.summary(entry) {
        Ok(known) => {
            summary.details = ModelDetails {
                context_length: known.context_length,
                embedding_length: known.embedding_length,
                ..api_details(known.details.clone())
            };
            summary.capabilities = known.capabilities.clone();
            (summary.remote_model, summary.remote_host) =
                (known.remote_model.clone(), known.remote_host.clone());
        }
        // A model for another runner is listed with the properties from its manifest.
        Err(StoreError::NotRunnable { runner, format, .. }) => {
            summary.details = ModelDetails { runner, format, ..ModelDetails::default() };
        }
        Err(error) => {
            summary.details.runner.clone_from(&entry.runner);
            *is_whole = false;
            if store.is_first_report(&error.to_string()) {
                tracing::warn!(model = summary.name, %error, "cannot read a stored model");
            }
        }
    }
    summary
}

/// `POST /api/show`
pub(crate) async fn show(
    State(app): State<App>,
    headers: HeaderMap,
    Json(request, _): Json<Ollama, ShowRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let given = if request.model.is_empty() { &request.name } else { &request.model };
    if given.is_empty() {
        return Err(ApiError::bad_request("model is required").into());
    }
    check_parameters(request.options.as_ref())?;
    let name = Name::parse(given, "remote model details are unavailable")?;
    let model = app.find(&name, || format!("model '{}' not found", name.full())).await?;
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let basename = agent.starts_with("GitHubCopilotChat/").then(|| given.clone());
    let prefer_jinja = app.config().go_template == Some(false);
    let description = match show::lacks_info(&model) {
        true => {
            app.remotes().describe_one(&model.config.remote_host, &model.config.remote_model).await
        }
        false => Description::default(),
    };
    let shown = app
        .store(move |_| show::show(&model, &request, prefer_jinja, basename, &description))
        .await??;
    Ok(json(StatusCode::OK, &shown))
}

/// `POST /api/copy`
pub(crate) async fn copy(
    State(app): State<App>,
    Json(request, _): Json<Ollama, CopyRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let parse = |what: &str, text: &str| {
        let invalid = |_| ApiError::bad_request(format!("{what} {text:?} is invalid"));
        ModelRef::parse(text).map_err(invalid)
    };
    let source = parse("source", &request.source)?;
    let destination = parse("destination", &request.destination)?;
    if destination.runner.is_some() {
        let what = &request.destination;
        return Err(ApiError::bad_request(format!(
            "destination {what:?} is invalid: leave out the runner"
        ))
        .into());
    }
    let caller = Caller::current();
    caller.check_change(&destination.name)?;
    if !caller.may(Action::Use, &source.name) {
        return Err(ApiError::not_found(format!("model {:?} not found", request.source)).into());
    }
    let _admitted =
        match QuotaAdmission::of(app.mirror(), app.uploaded_blobs(), app.shared_store(), &caller) {
            Some(admission) => {
                let (from, to) = (source.clone(), destination.name.clone());
                let plan =
                    move |store: &Store| store.plan_copy(&from.name, from.runner.as_deref(), &to);
                // The copy itself reports a source that is absent or damaged.
                match app.store(plan).await? {
                    Ok(new) => Some(admission.admit(&new).await.map_err(|e| store_error(&e))?),
                    Err(_) => None,
                }
            }
            None => None,
        };
    let copy = move |store: &Store| {
        store.copy_for(&source.name, source.runner.as_deref(), &destination.name)
    };
    match app.store(copy).await? {
        Ok(()) => Ok(StatusCode::OK.into_response()),
        Err(StoreError::NotFound(_)) => {
            Err(ApiError::not_found(format!("model {:?} not found", request.source)).into())
        }
        Err(error) => Err(store_error(&error).into()),
    }
}

/// `DELETE /api/delete`
pub(crate) async fn delete(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Ollama, DeleteRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let given = if request.model.is_empty() { request.name } else { request.model };
    if given.is_empty() {
        return Err(ApiError::bad_request("model is required").into());
    }
    let invalid = |_| ApiError::bad_request(format!("name {given:?} is invalid"));
    let ModelRef { name, runner, .. } = ModelRef::parse(&given).map_err(invalid)?;
    if runner.is_some() {
        let reason = format!("cannot remove {name} for one runner only: leave out the runner");
        return Err(ApiError::bad_request(reason).into());
    }
    Caller::current().check_change(&name)?;
    let deleted = name.to_string();
    let done = app.store(move |store| store.delete(&name)).await?;
    if done.is_ok() {
        // A removed name cannot be used to unload the model later.
        let running = app.models().list().await.into_iter();
        for model in running.filter(|model| model.listing.name.eq_ignore_ascii_case(&deleted)) {
            app.models().unload(model.key, client).await;
        }
    }
    match done {
        Ok(DeleteOutcome { blocked_by: None, trash_error: None }) => {
            Ok(StatusCode::OK.into_response())
        }
        Ok(DeleteOutcome { blocked_by: Some(error), .. }) => {
            // The entry may belong to another namespace.
            let reason = match Caller::current().is_confined() {
                true => "an entry of the store cannot be read: see the server log".to_owned(),
                false => error.to_string(),
            };
            let warning = format!("the space of the model was not freed: {reason}");
            Ok(json(StatusCode::OK, &DeleteResponse { warning }))
        }
        Ok(DeleteOutcome { trash_error: Some(reason), .. }) => {
            let warning = format!(
                "the model was removed without the trash, so `puna prune --undo` cannot restore it: {reason}"
            );
            Ok(json(StatusCode::OK, &DeleteResponse { warning }))
        }
        Err(StoreError::NotFound(_)) => {
            Err(ApiError::not_found(format!("model '{given}' not found")).into())
        }
        Err(error) => Err(store_error(&error).into()),
    }
}
