//! `POST /api/chat`, and what chats of all dialects share.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::native::{ChatRequest, Think};
use puna_store::Model;

use crate::app::{AcquiredModel, App, RunningTask, key};
use crate::canonical::{ApiError, Event, Generate, Task};
use crate::dialect::native::{self, ChatEncoder};
use crate::dialect::{check_images, collect, has, respond};
use crate::http::{Client, ErrorResponse, Json, Native, note_ignored};
use crate::image_urls::ImageUrl;
use crate::model_names::Name;
use crate::options::{self, RequestOptions};
use crate::remote::{has_option, note_unheard};
use crate::request::GenerationRequest;

pub(super) async fn chat(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, ChatRequest>,
) -> Result<Response, ErrorResponse<Native>> {
    let (stream, return_adapted) = (request.stream.unwrap_or(true), request.return_adapted);
    let request = native::chat(request)?;
    let (name, model) = find(&app, &request.model).await?;
    let encoder = ChatEncoder::new(name.given.clone()).with_schema_violations(return_adapted);
    let empty = request.messages().is_empty();
    if empty && leaves(&app, &model, request.keep_alive, &request.options).await? {
        return Ok(encoder.empty("unload"));
    }
    let prepared = prepare(&app, client, request, &name, &model).await?;
    if empty {
        return Ok(encoder.empty("load"));
    }
    let running = prepared.start().await;
    if stream {
        return Ok(respond(vec![running], encoder).await?);
    }
    Ok(encoder.whole(collect(running).await?))
}

/// Whether a request without any text asks that its model leaves, which is seen to.
pub(super) async fn leaves(
    app: &App,
    model: &Model,
    keep_alive: Option<KeepAlive>,
    options: &RequestOptions,
) -> Result<bool, ApiError> {
    note_unheard(model, keep_alive);
    if !keep_alive.is_some_and(KeepAlive::is_zero) {
        return Ok(false);
    }
    options::check(options, &mut |name| note_ignored(format!("options.{name}")))?;
    app.models().expire(key(model)).await;
    Ok(true)
}

/// Leaves a wish to think out where the model cannot, and names the fields that had it.
pub(super) fn drop_wish_to_think(request: &mut GenerationRequest, model: &Model, fields: &[&str]) {
    let is_asked = request.think.is_some_and(|think| think != Think::Off);
    if is_asked && !has(model, "thinking") {
        request.think = None;
        fields.iter().for_each(|field| note_ignored((*field).to_owned()));
    }
}

/// The model of a chat.
pub(super) async fn find(app: &App, given: &str) -> Result<(Name, Arc<Model>), ApiError> {
    if given.is_empty() {
        return Err(ApiError::bad_request("model is required"));
    }
    let name = Name::parse_runnable(given)?;
    let model = app.find(&name, || format!("model '{given}' not found")).await?;
    Ok((name, model))
}

/// Fetches the images that a request for a model names by address, if the configuration allows that and the model sees.
/// Otherwise the addresses stay, and the dialect refuses them or puts a text in their place.
///
/// # Errors
/// The newest turn has an image, and the model sees none or the image cannot be fetched.
pub(super) async fn fetch_images(
    app: &App,
    model: &str,
    places: Vec<ImageUrl<'_>>,
) -> Result<(), ApiError> {
    let Some(links) = app.image_fetcher().filter(|_| !places.is_empty()) else { return Ok(()) };
    let name = Name::parse_runnable(model)?;
    let model = app.find(&name, || format!("model '{}' not found", name.given)).await?;
    check_images(&model, places.iter().filter(|place| place.is_newest()).count())?;
    if check_images(&model, 1).is_err() {
        return Ok(());
    }
    links.fetch_all(places).await
}

/// A chat whose model is in memory.
pub(super) struct Prepared {
    loaded: AcquiredModel,
    generate: Box<Generate>,
}

impl Prepared {
    pub(super) async fn start(self) -> RunningTask {
        self.loaded.run(Task::Generate(self.generate)).await
    }

    /// Starts so many answers side by side.
    ///
    /// # Errors
    /// Together they would be too large.
    pub(super) async fn start_several(self, answers: usize) -> Result<Vec<RunningTask>, ApiError> {
        let mut several = self.generate.replicate(answers)?;
        // The prompt's own are the same for all answers, and to score it is to compute it.
        several.iter_mut().skip(1).for_each(|generate| generate.prompt_logprobs = None);
        self.loaded.run_all(several).await
    }

    /// Counts the prompt's tokens instead.
    pub(super) async fn count(self) -> Result<u64, ApiError> {
        match self.loaded.run(Task::Count(self.generate)).await.result().await? {
            Event::Counted(tokens) => Ok(tokens),
            _ => Err(ApiError::internal("the model runner counted nothing")),
        }
    }
}

/// Names the fields of a request that the server of a remote model is not told.
pub(super) fn note_lost(app: &App, model: &Model, request: &GenerationRequest) {
    let fields = [
        ("keep_alive", request.keep_alive.is_some()),
        ("truncate", request.names_overflow),
        ("shift", request.shift.is_some()),
    ];
    app.remotes().note_lost(model, &fields, &request.options.to_map(), has_option);
}

/// Checks a chat and waits for its model.
pub(super) async fn prepare(
    app: &App,
    client: Client,
    request: GenerationRequest,
    name: &Name,
    model: &Model,
) -> Result<Prepared, ApiError> {
    request.check_chat(model, name)?;
    let (load, run) = app.options(model, &request.options).await?;
    let (keep_alive, num_ctx) = (request.keep_alive, run.num_ctx);
    note_lost(app, model, &request);
    let generate = Box::new(request.for_model(model, run, app.config())?);
    let loaded = app.load(model, (load, num_ctx), keep_alive, client).await?;
    Ok(Prepared { loaded, generate })
}
