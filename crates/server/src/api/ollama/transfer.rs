//! `POST /api/pull` and `POST /api/push`: transfers of models from and to registries.

use axum::extract::State;
use axum::response::Response;
use puna_api::ollama::{Progress, PullRequest};
use puna_gguf::escape_for_message;
use puna_registry::{FileUrl, Options, OutgoingAccess, RegistryError, Report};
use puna_store::{ModelRef, StoreError};
use tokio::sync::mpsc;

use super::progress_stream::{self, CHANNEL_LINES, ProgressLine};
use crate::app::{App, store_error};
use crate::auth::caller::Caller;
use crate::canonical::ApiError;
use crate::http::{CallerOutgoingAccess, ErrorResponse, Json, MAX_SETTINGS_BODY_BYTES, Ollama};
use crate::models::blob_access::VisibleBlobs;
use crate::models::names::{REMOTE_UNAVAILABLE, changed_reference};
use crate::models::quota::QuotaAdmission;

/// `POST /api/pull`
pub(crate) async fn pull(
    State(app): State<App>,
    CallerOutgoingAccess(access): CallerOutgoingAccess,
    Json(request, _): Json<Ollama, PullRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let given = if request.model.is_empty() { &request.name } else { &request.model };
    if let Some(file) = FileUrl::parse(given) {
        let file = file.map_err(ApiError::bad_request)?;
        // The name in the store follows from the file.
        Caller::current().check_server()?;
        let (last_only, options) = (request.stream == Some(false), options(&app, request, access)?);
        app.registry()
            .check_file(&file, &options)
            .await
            .map_err(|e| transfer_error(&e, &Caller::current()))?;
        let work = app.clone();
        let lines = spawn_reporting(async move |report| {
            work.registry().pull_file(work.shared_store(), &file, &options, report).await
        });
        return progress_stream::respond(&app, lines, last_only).await;
    }
    let (reference, last_only, options) = parse_request(&app, request, access)?;
    app.registry()
        .check_pull(&reference, &options)
        .await
        .map_err(|e| transfer_error(&e, &Caller::current()))?;
    let work = app.clone();
    let lines = spawn_reporting(async move |report| {
        work.registry().pull(work.shared_store(), &reference, &options, report).await
    });
    progress_stream::respond(&app, lines, last_only).await
}

/// `POST /api/push`
pub(crate) async fn push(
    State(app): State<App>,
    CallerOutgoingAccess(access): CallerOutgoingAccess,
    Json(request, _): Json<Ollama, PullRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    if request.model.is_empty() && request.name.is_empty() {
        return Err(ApiError::bad_request("model is required").into());
    }
    let (reference, last_only, options) = parse_request(&app, request, access)?;
    if reference.runner.is_some() && options.format == puna_registry::Format::Ollama {
        let what = reference.name;
        let reason = format!("cannot push {what} for one runner only: leave out the runner");
        return Err(ApiError::bad_request(reason).into());
    }
    app.registry()
        .check_push(&reference, &options)
        .await
        .map_err(|e| transfer_error(&e, &Caller::current()))?;
    let work = app.clone();
    let lines = spawn_reporting(async move |report| {
        work.registry().push(work.shared_store(), &reference, &options, report).await
    });
    progress_stream::respond(&app, lines, last_only).await
}

/// Pulls a model as part of other work. Progress goes to the client, which may disconnect without
/// cancelling the pull.
pub(crate) async fn pull_model(
    app: &App,
    caller: &Caller,
    from: &ModelRef,
    access: OutgoingAccess,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<(), ApiError> {
    let (report, mut progress) = mpsc::channel::<puna_registry::Progress>(CHANNEL_LINES);
    let runner = from.runner.clone();
    let keep_unused = app.config().no_prune;
    let admission =
        QuotaAdmission::of(app.mirror(), app.uploaded_blobs(), app.shared_store(), caller);
    let reuse = VisibleBlobs::of(app.uploaded_blobs(), app.shared_store(), caller);
    let options = Options { keep_unused, runner, access, admission, reuse, ..Options::default() };
    let forward = async {
        while let Some(progress) = progress.recv().await {
            // "success" must be the last line of the client's own work.
            if progress.status != "success" {
                let _ = to.send(Ok(progress_line(progress))).await;
            }
        }
    };
    let pulled = app.registry().pull(app.shared_store(), from, &options, report);
    tokio::join!(pulled, forward).0.map_err(|error| transfer_error(&error, caller))
}

/// Error of a transfer: 403 for a host that the caller may not reach, 413 beyond a quota, 507 for a
/// full disk, else 500 as Ollama answers. A caller with namespaces does not learn how much space
/// the server has.
fn transfer_error(error: &RegistryError, caller: &Caller) -> ApiError {
    if let Some((what, needed)) = error.missing_space() {
        let text = match caller.is_confined() {
            true => format!(
                "not enough space for {what}: it needs {needed} bytes, which the server does not have; pull a smaller model, or ask its administrator"
            ),
            false => error.to_string(),
        };
        return ApiError::new(507, text);
    }
    match error {
        RegistryError::Store(refused @ StoreError::NotAdmitted(_)) => store_error(refused),
        RegistryError::Unreachable { .. } => ApiError::new(403, error.to_string()),
        error => ApiError::internal(error.to_string()),
    }
}

/// Checks the mirror that a request names. An empty one means no mirror.
fn check_mirror(app: &App, mirror: &str) -> Result<(), ApiError> {
    let checked = if mirror.is_empty() { Ok(()) } else { app.registry().check_address(mirror) };
    checked.map_err(|_| {
        ApiError::bad_request(format!(
            "invalid mirror \"{}\": use HOST, HOST:PORT, or an http or https URL without a user name, such as https://registry.example.com:5000",
            escape_for_message(mirror)
        ))
    })
}

/// Parses a request: the model, whether the client wants one object instead of lines, and the
/// options.
fn parse_request(
    app: &App,
    request: PullRequest,
    access: OutgoingAccess,
) -> Result<(ModelRef, bool, Options), ApiError> {
    let given = if request.model.is_empty() { &request.name } else { &request.model };
    let reference = changed_reference(given, REMOTE_UNAVAILABLE)?;
    let last_only = request.stream == Some(false);
    let options = Options { runner: reference.runner.clone(), ..options(app, request, access)? };
    Ok((reference, last_only, options))
}

/// Parses the options of a request.
fn options(app: &App, request: PullRequest, access: OutgoingAccess) -> Result<Options, ApiError> {
    let caller = Caller::current();
    request.mirror.as_deref().map_or(Ok(()), |mirror| check_mirror(app, mirror))?;
    Ok(Options {
        insecure: request.insecure,
        keep_unused: app.config().no_prune,
        mirror: request.mirror,
        limit_rate: request.limit_rate.filter(|rate| *rate > 0),
        format: request.format.parse().map_err(|problem: String| ApiError::bad_request(problem))?,
        via: None,
        runner: None,
        all_runners: request.all_runners,
        access,
        admission: QuotaAdmission::of(
            app.mirror(),
            app.uploaded_blobs(),
            app.shared_store(),
            &caller,
        ),
        reuse: VisibleBlobs::of(app.uploaded_blobs(), app.shared_store(), &caller),
    })
}

/// Runs work that reports progress, in a task. The task is cancelled when the receiver of the lines
/// is dropped.
fn spawn_reporting<F>(
    work: impl FnOnce(Report) -> F + Send + 'static,
) -> mpsc::Receiver<ProgressLine>
where
    F: Future<Output = Result<(), RegistryError>> + Send,
{
    let (to, lines) = mpsc::channel::<ProgressLine>(CHANNEL_LINES);
    let caller = Caller::current();
    puna_tasks::spawn(async move {
        let (report, mut progress) = mpsc::channel(CHANNEL_LINES);
        let forward = async {
            while let Some(progress) = progress.recv().await {
                let _ = to.send(Ok(progress_line(progress))).await;
            }
        };
        let both = async { tokio::join!(work(report), forward).0 };
        let done = tokio::select! {
            done = both => done,
            () = to.closed() => return,
        };
        if let Err(error) = done {
            let _ = to.send(Err(transfer_error(&error, &caller))).await;
        }
    });
    lines
}

fn progress_line(progress: puna_registry::Progress) -> Progress {
    Progress {
        status: progress.status,
        digest: progress.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        total: progress.total,
        completed: progress.completed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_without_its_size_to_callers_with_namespaces() {
        let full = RegistryError::NoSpace { what: "the model".into(), needed: 9000, free: 4321 };
        for error in [full.clone(), RegistryError::PullManifest(Box::new(full))] {
            let of = |namespaces: &[String]| transfer_error(&error, &Caller::new(namespaces));
            let (all, confined) = (of(&[]), of(&["bob".into()]));
            assert_eq!((all.status, confined.status), (507, 507));
            assert!(all.message.contains("4321 free"), "{all}");
            let text = confined.message;
            assert!(text.contains("9000 bytes") && !text.contains("4321"), "{text}");
        }
    }
}
