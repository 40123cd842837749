//! `POST /api/create`: creates models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use puna_api::ollama::{CreateRequest, Progress};
use puna_registry::OutgoingAccess;
use puna_store::{
    BuiltModel, CreateHooks, Digest, FileTemplate, InProcessExecutor, JobExecutor, ModelName,
    ModelRef, ModelSource, Store, StoreError,
};
use serde_json::{Map, Value, json as value};
use tokio::sync::mpsc;

use super::blobs::space_error;
use super::progress_stream::{self, CHANNEL_LINES, ProgressLine};
use super::transfer;
use crate::api::check_readable;
use crate::app::{App, store_error};
use crate::auth::caller::{Action, Caller};
use crate::canonical::{ApiError, RunOptions};
use crate::file_worker::FileWorkerLauncher;
use crate::http::{CallerOutgoingAccess, ErrorResponse, Json, Ollama, record_ignored_field};
use crate::model_scheduler::LoadOptions;
use crate::models::disk_reserve::{ReserveExecutor, check_free_space};
use crate::models::quota::QuotaAdmission;
use crate::options::{self, RequestOptions};
use crate::runner::{check_draft, check_model, check_template, detect_template};
use crate::version::OLLAMA_VERSION;

pub(crate) async fn create(
    State(app): State<App>,
    CallerOutgoingAccess(access): CallerOutgoingAccess,
    Json(request, _): Json<Ollama, CreateRequest>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let given = if request.model.is_empty() { &request.name } else { &request.model };
    let ModelRef { name, runner, .. } =
        ModelRef::parse(given).map_err(|_| ApiError::bad_request("invalid model name"))?;
    if runner.is_some() {
        return Err(ApiError::bad_request(
            "invalid model name: a new model has no runner, leave it out",
        )
        .into());
    }
    let caller = Caller::current();
    caller.check_change(&name)?;
    let from = ModelRef::parse(&request.from).ok();
    if let Some(hidden) = from.filter(|from| !caller.may(Action::Use, &from.name)) {
        return Err(base_unavailable(&hidden.name).into());
    }
    let last_only = request.stream == Some(false);
    if !request.from.is_empty() && request.files.is_some() {
        // The weights come from the model in `from`.
        record_ignored_field("files".into());
    }
    check_parameters(request.parameters.as_ref())?;
    request.messages.iter().try_for_each(|message| check_readable(&message.images))?;
    let ranges = request.parameters.as_ref().map_or(Ok(()), puna_store::check_ranges);
    ranges.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let request = store_request(request);
    check_blobs(&app, &caller, &request).await?;
    if let Some(remote) = request.remote().map_err(|e| store_error(&e))? {
        app.remotes().check(&remote.host)?;
    }
    let (to, lines) = mpsc::channel::<ProgressLine>(CHANNEL_LINES);
    // The task continues when the client disconnects, so that the model is created.
    let work = app.clone();
    puna_tasks::spawn(async move {
        if let Err(failure) = create_or_pull(&work, &caller, name, request, access, &to).await {
            let _ = to.send(Err(failure)).await;
        }
    });
    progress_stream::respond(&app, lines, last_only).await
}

/// Creates the model. If its base model is not stored, pulls that first.
async fn create_or_pull(
    app: &App,
    caller: &Caller,
    name: ModelName,
    request: puna_store::CreateRequest,
    access: OutgoingAccess,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<(), ApiError> {
    let request = Arc::new(request);
    let missing = match try_create(app, caller, &name, &request, to).await? {
        Err(error @ StoreError::NotFound(_)) => error,
        made => return made.map_err(|e| create_failure(&e, caller)),
    };
    let from = request.from.as_deref().and_then(|from| ModelRef::parse(from).ok());
    let Some(from) = from.filter(|from| from.source == ModelSource::Any) else {
        return Err(create_failure(&missing, caller));
    };
    if !caller.may(Action::Change, &from.name) {
        return Err(base_unavailable(&from.name));
    }
    transfer::pull_model(app, caller, &from, access, to).await?;
    try_create(app, caller, &name, &request, to).await?.map_err(|e| create_failure(&e, caller))
}

/// Permits the use of uploaded files. A blob that the caller may not know of is answered like one
/// that does not exist.
async fn check_blobs(
    app: &App,
    caller: &Caller,
    request: &puna_store::CreateRequest,
) -> Result<(), ApiError> {
    let files = request.files.iter().chain([&request.adapters, &request.draft_files]);
    let named = files.flat_map(|files| files.values());
    // The store refuses what is no digest.
    let digests: Vec<Digest> =
        named.chain(&request.imatrix).filter_map(|digest| digest.parse().ok()).collect();
    if !caller.is_confined() || digests.is_empty() {
        return Ok(());
    }
    let (owner, work) = (caller.clone(), app.clone());
    let checked = app.store(move |store| {
        for digest in digests {
            if !work.uploaded_blobs().is_visible(store, &owner, &digest)? {
                return Err(StoreError::BlobMissing(digest));
            }
        }
        Ok(())
    });
    checked.await?.map_err(|error| create_failure(&error, caller))
}

/// Error of a base model that the API key may not use, or may not pull because it is not stored.
fn base_unavailable(name: &ModelName) -> ApiError {
    ApiError::new(
        403,
        format!(
            "the API key may not use {name}, or it is not stored here and the key may not pull it"
        ),
    )
}

/// Builds a model, then stores it under its name if the quota of the namespace allows it.
async fn try_create(
    app: &App,
    caller: &Caller,
    name: &ModelName,
    request: &Arc<puna_store::CreateRequest>,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<Result<(), StoreError>, ApiError> {
    let (name, request, to) = (name.clone(), request.clone(), to.clone());
    let (keep_unused, worker) = (app.config().no_prune, app.launcher().file_worker());
    let is_confined = caller.is_confined();
    let lines = to.clone();
    let build = move |store: &Store| {
        let mut progress = |line| _ = to.blocking_send(Ok(api_progress(line)));
        if is_confined {
            check_free_space(store.free_bytes(), 0)?;
        }
        let executor: &dyn JobExecutor = match &worker {
            Some(worker) => worker,
            None => &InProcessExecutor,
        };
        let free = || store.free_bytes();
        let within_reserve = ReserveExecutor { executor, free: &free };
        let base = CreateHooks {
            keep_unused,
            version: Some(OLLAMA_VERSION),
            hides_stored_layers: is_confined,
            executor: Some(if is_confined { &within_reserve } else { executor }),
            ..CreateHooks::default()
        };
        match &worker {
            Some(worker) => build_with_worker(store, &name, &request, base, worker, &mut progress),
            None => build_in_process(store, &name, &request, base, &mut progress),
        }
    };
    let built = match app.store(build).await? {
        Ok(built) => built,
        Err(error) => return Ok(Err(error)),
    };
    let _admitted = match QuotaAdmission::of(
        app.mirror(),
        app.uploaded_blobs(),
        app.shared_store(),
        caller,
    ) {
        Some(admission) => match admission.admit(built.description()).await {
            Ok(guard) => Some(guard),
            Err(refused) => {
                if let Err(error) = app.store(|store| store.discard_built_model(built)).await? {
                    tracing::warn!(%error, "cannot remove the blobs of a model that exceeds a quota");
                }
                return Ok(Err(refused));
            }
        },
        None => None,
    };
    let used = built.description().blobs.iter().map(|(digest, _)| *digest).collect();
    let name = move |store: &Store| {
        let mut progress = |line| _ = lines.blocking_send(Ok(api_progress(line)));
        store.name_built_model(built, keep_unused, &mut progress)
    };
    let created = app.store(name).await?;
    if created.is_ok() {
        app.uploaded_blobs().forget_used(caller, &used);
    }
    Ok(created)
}

fn api_progress(line: puna_store::Progress) -> Progress {
    Progress {
        status: line.status,
        digest: line.digest.unwrap_or_default(),
        total: line.total.unwrap_or(0),
        completed: line.completed.unwrap_or(0),
    }
}

/// Builds a model; sandboxed processes read files and templates.
fn build_with_worker(
    store: &Store,
    name: &ModelName,
    request: &puna_store::CreateRequest,
    base: CreateHooks<'_>,
    worker: &FileWorkerLauncher,
    progress: &mut dyn FnMut(puna_store::Progress),
) -> Result<BuiltModel, StoreError> {
    let check_template = |text: &str| worker.check_template(text);
    let check_model = |weights: &Path, adapters: &[PathBuf]| worker.check_model(weights, adapters);
    let check_draft = |weights: &Path, draft: &Path| worker.check_draft(weights, draft);
    let detect_template = |file: &FileTemplate| worker.detect_template(file);
    let hooks = CreateHooks {
        check_template: Some(&check_template),
        check_model: Some(&check_model),
        check_draft: Some(&check_draft),
        detect_template: Some(&detect_template),
        ..base
    };
    store.build_model(name, request, &hooks, progress)
}

/// Builds a model in this process, for tests that cannot start processes.
fn build_in_process(
    store: &Store,
    name: &ModelName,
    request: &puna_store::CreateRequest,
    base: CreateHooks<'_>,
    progress: &mut dyn FnMut(puna_store::Progress),
) -> Result<BuiltModel, StoreError> {
    let hooks = CreateHooks {
        check_template: Some(&check_template),
        check_model: Some(&check_model),
        check_draft: Some(&check_draft),
        detect_template: Some(&detect_template),
        ..base
    };
    store.build_model(name, request, &hooks, progress)
}

/// Refuses parameters with which every request to the model would fail.
pub(crate) fn check_parameters(parameters: Option<&Map<String, Value>>) -> Result<(), ApiError> {
    let (mut load, mut run) = (LoadOptions::default(), RunOptions::default());
    let mut unknown = |name: &str| record_ignored_field(format!("parameters.{name}"));
    options::apply(
        &Map::new(),
        &RequestOptions::named(parameters),
        &mut load,
        &mut run,
        &mut unknown,
    )?;
    run.sampling
        .normalize(run.num_ctx.unwrap_or(u32::MAX))
        .map_err(|e| ApiError::bad_request(e.to_string()))
}

/// Maps an error of the store: an impossible request is the client's error, a store that cannot be
/// written is the server's.
fn create_failure(error: &StoreError, caller: &Caller) -> ApiError {
    match error {
        StoreError::NotFound(name) => {
            ApiError::internal(format!("pull model manifest: {name}: file does not exist"))
        }
        StoreError::QuantizeSource | StoreError::QuantizeType(_) => {
            ApiError::bad_request(error.to_string())
        }
        error => space_error(error, caller),
    }
}

fn store_request(request: CreateRequest) -> puna_store::CreateRequest {
    let text = |text: String| Some(text).filter(|t| !t.is_empty());
    let quantize =
        if request.quantize.is_empty() { request.quantization } else { request.quantize };
    puna_store::CreateRequest {
        from: text(request.from),
        files: request.files,
        adapters: request.adapters,
        draft_files: request.draft_files,
        draft_quantize: text(request.draft_quantize),
        template: text(request.template),
        system: text(request.system),
        license: request.license.map(|l| l.0).unwrap_or_default(),
        parameters: request.parameters.unwrap_or_default(),
        messages: request.messages.iter().map(|message| value!(message)).collect(),
        quantize: text(quantize),
        imatrix: text(request.imatrix),
        renderer: text(request.renderer),
        parser: text(request.parser),
        requires: text(request.requires),
        remote_host: text(request.remote_host),
        info: request.info.unwrap_or_default(),
        ..puna_store::CreateRequest::default()
    }
}
