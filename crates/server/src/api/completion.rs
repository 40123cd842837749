//! Check of a prompt, for `/api/generate` and `/v1/completions`.

use std::sync::Arc;

use puna_api::KeepAlive;
use puna_store::Model;

use crate::api::chat::{report_ignored_fields, unload_if_requested};
use crate::api::generation_request::GenerationRequest;
use crate::app::{AcquiredModel, App, key};
use crate::canonical::{ApiError, GenerateTask, Input};
use crate::http::Client;
use crate::model_scheduler::{LoadOptions, ModelKey};
use crate::models::names::Name;

/// Action that a checked request asks for.
pub(crate) enum CheckedRequest {
    /// No further work: [`check`] has unloaded the model.
    Unloaded,
    /// Load the model without generating.
    Load(ModelRequest),
    Generate(ModelRequest, Box<GenerateTask>),
}

/// The model that a request needs, with its load options.
pub(crate) struct ModelRequest {
    model: Arc<Model>,
    load: LoadOptions,
    num_ctx: Option<u32>,
    keep_alive: Option<KeepAlive>,
}

impl ModelRequest {
    /// Key of the model in the scheduler.
    pub(crate) fn key(&self) -> ModelKey {
        key(&self.model)
    }

    /// Waits until the model is loaded.
    pub(crate) async fn load(self, app: &App, client: Client) -> Result<AcquiredModel, ApiError> {
        app.load(&self.model, (self.load, self.num_ctx), self.keep_alive, client).await
    }
}

/// Checks a request in Ollama's order of checks.
pub(crate) async fn check(
    app: &App,
    client: Client,
    request: GenerationRequest,
) -> Result<CheckedRequest, ApiError> {
    let missing = |name: &str| format!("model '{name}' not found");
    if request.model.is_empty() {
        return Err(ApiError::not_found(missing("")));
    }
    let name = Name::parse_runnable(&request.model)?;
    let model = app.find(&name, || missing(&name.requested)).await?;
    let keep_alive = request.keep_alive;
    let empty = matches!(&request.input, Input::Prompt(prompt) if prompt.text.is_empty());
    if empty && unload_if_requested(app, client, &model, keep_alive, &request.options).await? {
        return Ok(CheckedRequest::Unloaded);
    }
    request.check_prompt(&model, &name)?;
    let (load, run) = app.options(&model, &request.options).await?;
    let num_ctx = run.num_ctx;
    report_ignored_fields(app, &model, &request);
    let generate = request.for_model(&model, run, app.config())?;
    let model_request = ModelRequest { model, load, num_ctx, keep_alive };
    Ok(match empty {
        true => CheckedRequest::Load(model_request),
        false => CheckedRequest::Generate(model_request, Box::new(generate)),
    })
}
