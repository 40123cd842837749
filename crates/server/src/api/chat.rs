//! Functions that the chat routes of all APIs share.

use std::sync::Arc;

use puna_api::KeepAlive;
use puna_api::ollama::Think;
use puna_store::Model;

use crate::api::generation_request::GenerationRequest;
use crate::api::image_urls::ImageUrl;
use crate::api::{check_images, has};
use crate::app::{AcquiredModel, App, RunningTask, key};
use crate::canonical::{ApiError, Event, GenerateTask, Task};
use crate::http::{Client, record_ignored_field};
use crate::models::names::Name;
use crate::options::{self, RequestOptions};
use crate::remote::{has_option, report_ignored_keep_alive};

/// Unloads the model for a client if a request without text says so by `keep_alive: 0`; returns
/// whether it does.
pub(crate) async fn unload_if_requested(
    app: &App,
    client: Client,
    model: &Model,
    keep_alive: Option<KeepAlive>,
    options: &RequestOptions,
) -> Result<bool, ApiError> {
    report_ignored_keep_alive(model, keep_alive);
    if !keep_alive.is_some_and(KeepAlive::is_zero) {
        return Ok(false);
    }
    options::check(options, &mut |name| record_ignored_field(format!("options.{name}")))?;
    app.models().unload(key(model), client).await;
    Ok(true)
}

/// Removes the request to think if the model cannot, and reports the `fields` that contained it as
/// ignored.
pub(crate) fn drop_unsupported_thinking(
    request: &mut GenerationRequest,
    model: &Model,
    fields: &[&str],
) {
    let is_asked = request.think.is_some_and(|think| think != Think::Off);
    if is_asked && !has(model, "thinking") {
        request.think = None;
        fields.iter().for_each(|field| record_ignored_field((*field).to_owned()));
    }
}

/// Finds the model of a chat.
pub(crate) async fn find_model(app: &App, given: &str) -> Result<(Name, Arc<Model>), ApiError> {
    if given.is_empty() {
        return Err(ApiError::bad_request("model is required"));
    }
    let name = Name::parse_runnable(given)?;
    let model = app.find(&name, || format!("model '{given}' not found")).await?;
    Ok((name, model))
}

/// Fetches the images that a request names by URL, if the configuration allows it and the model
/// accepts images. Otherwise the URLs stay, and the dialect refuses them or replaces them by a
/// text.
///
/// # Errors
/// Fails if the newest turn has an image that the model does not accept or that cannot be fetched.
pub(crate) async fn fetch_images(
    app: &App,
    client: Client,
    model: &str,
    places: Vec<ImageUrl<'_>>,
) -> Result<(), ApiError> {
    let Some(links) = app.image_fetcher().filter(|_| !places.is_empty()) else { return Ok(()) };
    let name = Name::parse_runnable(model)?;
    let model = app.find(&name, || format!("model '{}' not found", name.requested)).await?;
    check_images(&model, places.iter().filter(|place| place.is_newest()).count())?;
    if check_images(&model, 1).is_err() {
        return Ok(());
    }
    links.fetch_all(client.number, places).await
}

/// A checked request and its loaded model.
pub(crate) struct PreparedChat {
    loaded: AcquiredModel,
    generate: Box<GenerateTask>,
}

impl PreparedChat {
    pub(crate) async fn start(self) -> RunningTask {
        self.loaded.run(Task::Generate(self.generate)).await
    }

    /// Starts `answers` generations of the prompt concurrently.
    ///
    /// # Errors
    /// Fails if the generations together are too large.
    pub(crate) async fn start_replicas(self, answers: usize) -> Result<Vec<RunningTask>, ApiError> {
        let mut several = self.generate.replicate(answers)?;
        // The log-probabilities of the prompt are the same for all generations, and computing them
        // costs a prefill without the prefix cache.
        several.iter_mut().skip(1).for_each(|generate| generate.prompt_logprobs = None);
        self.loaded.run_all(several).await
    }

    /// Counts the prompt's tokens instead of generating.
    pub(crate) async fn count(self) -> Result<u64, ApiError> {
        match self.loaded.run(Task::Count(self.generate)).await.result().await? {
            Event::Counted(tokens) => Ok(tokens),
            _ => Err(ApiError::internal("the model runner sent no token count")),
        }
    }
}

/// Reports the request fields that are not sent to the server of a remote model.
pub(crate) fn report_ignored_fields(app: &App, model: &Model, request: &GenerationRequest) {
    let fields = [
        ("keep_alive", request.keep_alive.is_some()),
        ("truncate", request.names_overflow),
        ("shift", request.shift.is_some()),
    ];
    app.remotes().report_ignored_fields(model, &fields, &request.options.to_map(), has_option);
}

/// Checks a request and waits until its model is loaded.
pub(crate) async fn prepare(
    app: &App,
    client: Client,
    request: GenerationRequest,
    name: &Name,
    model: &Model,
) -> Result<PreparedChat, ApiError> {
    request.check_chat(model, name)?;
    let (load, run) = app.options(model, &request.options).await?;
    let (keep_alive, num_ctx) = (request.keep_alive, run.num_ctx);
    report_ignored_fields(app, model, &request);
    let generate = Box::new(request.for_model(model, run, app.config())?);
    let loaded = app.load(model, (load, num_ctx), keep_alive, client).await?;
    Ok(PreparedChat { loaded, generate })
}
