//! `POST /api/generate`

use axum::extract::State;
use axum::response::Response;
use puna_api::KeepAlive;
use puna_api::native::GenerateRequest;

use crate::app::{App, Loaded, key};
use crate::canonical::{Failure, Generate, Task};
use crate::dialect::native::{self, GenerateEncoder};
use crate::dialect::{self, collect, respond};
use crate::http::{Client, Json, Native, Refused};
use crate::names::Name;
use crate::remote::{has_option, note_unheard};

pub(super) async fn generate(
    State(app): State<App>,
    client: Client,
    Json(request, _): Json<Native, GenerateRequest>,
) -> Result<Response, Refused<Native>> {
    let stream = request.stream.unwrap_or(true);
    let with_context = !request.raw;
    let encoder = GenerateEncoder { model: request.model.clone(), with_context };
    Ok(match start(&app, client, request).await? {
        Started::Nothing(reason) => encoder.empty(reason),
        Started::Ready(loaded, generate) => {
            let running = loaded.run(Task::Generate(generate));
            match stream {
                true => respond(vec![running], encoder).await?,
                false => encoder.whole(collect(running).await?),
            }
        }
    })
}

/// What became of a request.
pub(super) enum Started {
    /// Nothing is to be generated: `load` or `unload`.
    Nothing(&'static str),
    /// The model is in memory.
    Ready(Loaded, Box<Generate>),
}

/// Checks a request in the original's order and waits for the model.
pub(super) async fn start(app: &App, client: Client, request: GenerateRequest) -> Result<Started, Failure> {
    dialect::logprobs(request.logprobs, request.top_logprobs)?;
    let missing = |name: &str| format!("model '{name}' not found");
    if request.model.is_empty() {
        return Err(Failure::not_found(missing("")));
    }
    let name = Name::to_run(&request.model)?;
    let model = app.find(&name, || missing(&name.given)).await?;
    if request.prompt.is_empty() {
        note_unheard(&model, request.keep_alive);
    }
    if request.prompt.is_empty() && request.keep_alive.is_some_and(KeepAlive::is_zero) {
        app.models().expire(key(&model));
        return Ok(Started::Nothing("unload"));
    }
    native::check_generate(&request, &model, &name)?;
    let (load, run) = app.options(&model, request.options.as_ref()).await?;
    let (empty, keep_alive, num_ctx) = (request.prompt.is_empty(), request.keep_alive, run.num_ctx);
    let fields = [
        ("keep_alive", keep_alive.is_some()),
        ("truncate", request.truncate.is_some()),
        ("shift", request.shift.is_some()),
    ];
    app.remotes().note_lost(&model, &fields, request.options.as_ref(), has_option);
    let generate = native::generate(request, &model, run, app.config())?;
    let loaded = app.load(&model, (load, num_ctx), keep_alive, client).await?;
    if empty {
        return Ok(Started::Nothing("load"));
    }
    Ok(Started::Ready(loaded, Box::new(generate)))
}
