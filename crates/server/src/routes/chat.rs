//! `POST /api/chat`, and what chats of all dialects share.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::native::{ChatRequest, Think};
use puna_store::Model;
use serde_json::{Map, Value};

use crate::app::{App, Loaded, Running, key};
use crate::canonical::{Event, Failure, Generate, Task};
use crate::dialect::native::{self, ChatEncoder};
use crate::dialect::{self, check_images, collect, has, respond};
use crate::http::{Client, Json, Native, Refused, note_ignored};
use crate::links::Place;
use crate::names::Name;
use crate::options;
use crate::remote::{has_option, note_unheard};

pub(super) async fn chat(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, ChatRequest>,
) -> Result<Response, Refused<Native>> {
    dialect::logprobs(request.logprobs, request.top_logprobs)?;
    let (name, model) = find(&app, &request.model).await?;
    let encoder = ChatEncoder::new(name.given.clone());
    let (stream, empty) = (request.stream.unwrap_or(true), request.messages.is_empty());
    if empty && leaves(&app, &model, request.keep_alive, request.options.as_ref()).await? {
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
    options: Option<&Map<String, Value>>,
) -> Result<bool, Failure> {
    note_unheard(model, keep_alive);
    if !keep_alive.is_some_and(KeepAlive::is_zero) {
        return Ok(false);
    }
    options::check(options, &mut |name| note_ignored(format!("options.{name}")))?;
    app.models().expire(key(model)).await;
    Ok(true)
}

/// Leaves a wish to think out where the model cannot, and names the fields that had it.
pub(super) fn drop_wish_to_think(request: &mut ChatRequest, model: &Model, fields: &[&str]) {
    let is_asked = request.think.is_some_and(|think| think != Think::Off);
    if is_asked && !has(model, "thinking") {
        request.think = None;
        fields.iter().for_each(|field| note_ignored((*field).to_owned()));
    }
}

/// The model of a chat.
pub(super) async fn find(app: &App, given: &str) -> Result<(Name, Arc<Model>), Failure> {
    if given.is_empty() {
        return Err(Failure::bad_request("model is required"));
    }
    let name = Name::to_run(given)?;
    let model = app.find(&name, || format!("model '{given}' not found")).await?;
    Ok((name, model))
}

/// Fetches the images that a request for a model names by address, if the configuration allows that and the model sees; else
/// those stay where they are, for the dialect to refuse.
pub(super) async fn fetch_images(app: &App, model: &str, places: Vec<Place<'_>>) -> Result<(), Failure> {
    let Some(links) = app.links().filter(|_| !places.is_empty()) else { return Ok(()) };
    let name = Name::to_run(model)?;
    let model = app.find(&name, || format!("model '{}' not found", name.given)).await?;
    check_images(&model, places.len())?;
    links.fetch_all(places).await
}

/// A chat whose model is in memory.
pub(super) struct Prepared {
    loaded: Loaded,
    generate: Box<Generate>,
}

impl Prepared {
    pub(super) async fn start(self) -> Running {
        self.loaded.run(Task::Generate(self.generate)).await
    }

    /// Sends calls while their arguments are generated, and calls that are cut off.
    pub(super) fn with_partial_calls(mut self) -> Self {
        self.generate.stream_calls = true;
        self
    }

    /// Starts so many answers side by side.
    ///
    /// # Errors
    /// Together they would be too large.
    pub(super) async fn start_several(self, answers: usize) -> Result<Vec<Running>, Failure> {
        let mut several = self.generate.several(answers)?;
        // The prompt's own are the same for all answers, and to score it is to compute it.
        several.iter_mut().skip(1).for_each(|generate| generate.prompt_logprobs = None);
        self.loaded.run_all(several).await
    }

    /// Refuses a prompt that is too long, unless the request allows to cut it.
    pub(super) fn cut_only_if(mut self, truncate: Option<bool>) -> Self {
        self.generate.truncate = truncate.unwrap_or(false);
        self
    }

    /// Counts the prompt's tokens instead.
    pub(super) async fn count(self) -> Result<u64, Failure> {
        match self.loaded.run(Task::Count(self.generate)).await.end().await? {
            Event::Counted(tokens) => Ok(tokens),
            _ => Err(Failure::internal("the model runner counted nothing")),
        }
    }
}

/// Checks a chat and waits for its model.
pub(super) async fn prepare(
    app: &App,
    client: Client,
    request: ChatRequest,
    name: &Name,
    model: &Model,
) -> Result<Prepared, Failure> {
    native::check_chat(&request, model, name)?;
    let (load, run) = app.options(model, request.options.as_ref()).await?;
    let (keep_alive, num_ctx) = (request.keep_alive, run.num_ctx);
    let fields = [
        ("keep_alive", keep_alive.is_some()),
        ("truncate", request.truncate.is_some()),
        ("shift", request.shift.is_some()),
    ];
    app.remotes().note_lost(model, &fields, request.options.as_ref(), has_option);
    let generate = Box::new(native::chat(request, model, run, app.config())?);
    let loaded = app.load(model, (load, num_ctx), keep_alive, client).await?;
    Ok(Prepared { loaded, generate })
}
