//! `POST /api/generate`, and the check of prompts that `/v1/completions` shares.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::native::GenerateRequest;
use puna_store::Model;

use super::chat::{report_ignored_fields, unload_if_requested};
use crate::api::generation_request::GenerationRequest;
use crate::api::ollama::{self, GenerateEncoder};
use crate::api::{collect, respond};
use crate::app::{AcquiredModel, App, key};
use crate::canonical::{ApiError, Generate, Input, Task};
use crate::http::{Client, ErrorResponse, Json, Native};
use crate::model_names::Name;
use crate::scheduler::{LoadOptions, ModelKey};

pub(super) async fn generate(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, GenerateRequest>,
) -> Result<Response, ErrorResponse<Native>> {
    let stream = request.stream.unwrap_or(true);
    let with_context = !request.raw;
    let encoder = GenerateEncoder::new(request.model.clone(), with_context);
    let encoder = encoder.with_schema_violations(request.return_adapted);
    Ok(match check(&app, ollama::convert_generate(request)?).await? {
        CheckedRequest::Unloaded => encoder.empty("unload"),
        CheckedRequest::Load(model_request) => {
            model_request.load(&app, client).await?;
            encoder.empty("load")
        }
        CheckedRequest::Generate(model_request, generate) => {
            let running =
                model_request.load(&app, client).await?.run(Task::Generate(generate)).await;
            match stream {
                true => respond(vec![running], encoder).await?,
                false => encoder.whole(collect(running).await?),
            }
        }
    })
}

/// Action that a checked request asks for.
pub(super) enum CheckedRequest {
    /// No further work: [`check`] has unloaded the model.
    Unloaded,
    /// Load the model without generating.
    Load(ModelRequest),
    Generate(ModelRequest, Box<Generate>),
}

/// The model that a request needs, with its load options.
pub(super) struct ModelRequest {
    model: Arc<Model>,
    load: LoadOptions,
    num_ctx: Option<u32>,
    keep_alive: Option<KeepAlive>,
}

impl ModelRequest {
    /// Key of the model in the scheduler.
    pub(super) fn key(&self) -> ModelKey {
        key(&self.model)
    }

    /// Waits until the model is loaded.
    pub(super) async fn load(self, app: &App, client: Client) -> Result<AcquiredModel, ApiError> {
        app.load(&self.model, (self.load, self.num_ctx), self.keep_alive, client).await
    }
}

/// Checks a request in Ollama's order of checks.
pub(super) async fn check(
    app: &App,
    request: GenerationRequest,
) -> Result<CheckedRequest, ApiError> {
    let missing = |name: &str| format!("model '{name}' not found");
    if request.model.is_empty() {
        return Err(ApiError::not_found(missing("")));
    }
    let name = Name::parse_runnable(&request.model)?;
    let model = app.find(&name, || missing(&name.given)).await?;
    let keep_alive = request.keep_alive;
    let empty = matches!(&request.input, Input::Prompt(prompt) if prompt.text.is_empty());
    if empty && unload_if_requested(app, &model, keep_alive, &request.options).await? {
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
