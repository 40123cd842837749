//! Maintenance of the store: `POST /api/verify`, `POST /api/prune` and `GET /api/downloads`.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::ollama::{
    Download, DownloadsResponse, Leftover, Progress, PruneRequest, PruneResponse, VerifyRequest,
};
use puna_registry::OutgoingAccess;
use puna_store::{
    DEFAULT_HOST, Damage, Digest, Entry, InvalidManifest, Layer, LeftoverKind, Manifest, ModelName,
    ModelRef, PruneOptions, PruneOutcome, Store, StoreError, StoreLocation, StoredChild,
};
use tokio::sync::mpsc;

use crate::api::ollama::progress_stream::{self, CHANNEL_LINES, ProgressLine};
use crate::api::ollama::transfer;
use crate::api::rfc3339;
use crate::app::{App, store_error};
use crate::auth::caller::{Action, Caller};
use crate::canonical::ApiError;
use crate::http::{
    CallerOutgoingAccess, ErrorResponse, Json, MAX_SETTINGS_BODY_BYTES, Ollama, json,
};
use crate::models::names::{REMOTE_UNAVAILABLE, changed_reference};

/// Interval between progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(60);

/// `POST /api/verify`
pub(super) async fn verify(
    State(app): State<App>,
    CallerOutgoingAccess(access): CallerOutgoingAccess,
    Json(request, _): Json<Ollama, VerifyRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let model = match request.model.as_str() {
        "" => {
            Caller::current().check_server()?;
            None
        }
        given => {
            ModelRef::parse(given).map_err(|error| ApiError::bad_request(error.to_string()))?;
            Some(changed_reference(given, REMOTE_UNAVAILABLE)?.name)
        }
    };
    let last_only = request.stream == Some(false);
    let repair = request.repair.then_some(Repair { insecure: request.insecure, access });
    let (to, lines) = mpsc::channel::<ProgressLine>(CHANNEL_LINES);
    let (work, caller) = (app.clone(), Caller::current());
    puna_tasks::spawn(async move {
        // A repair may store a newer version of the model, within the caller's quota.
        let verified = caller.run_as(verify_models(&work, model, repair, &to));
        let last = match verified.await {
            Ok(()) => Ok(status("success")),
            Err(failure) => Err(failure),
        };
        let _ = to.send(last).await;
    });
    progress_stream::respond(&app, lines, last_only).await
}

/// Settings for fetching damaged blobs again.
#[derive(Clone, Copy)]
struct Repair {
    /// Whether plain HTTP is allowed.
    insecure: bool,
    /// Rights of the caller.
    access: OutgoingAccess,
}

/// Damaged models, with the damaged blobs of each.
type DamagedModels = Vec<(Entry, HashMap<Digest, Damage>)>;

async fn verify_models(
    app: &App,
    model: Option<ModelName>,
    repair: Option<Repair>,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<(), ApiError> {
    let mut invalid = report_invalid_manifests(app, model.as_ref(), to).await?;
    let mut entries = Vec::new();
    if invalid.is_empty() || model.is_none() {
        entries = entries_to_verify(app, model.clone()).await?;
        if let ([entry], Some(_)) = (&entries[..], &model)
            && entry.is_embedded()
        {
            let text = format!("{} is built into the program and has no files", entry.name);
            send_progress(to, status(text)).await;
            return Ok(());
        }
    }
    if let Some(repair) = repair {
        let mut remaining = Vec::new();
        for file in invalid {
            match pull_again(app, &file, repair, to).await {
                Some(name) => entries.extend(stored_entry(app, &name).await?),
                None => remaining.push(file),
            }
        }
        invalid = remaining;
    }
    let mut still_damaged = find_damaged_models(app, entries, to).await?;
    if let Some(repair) = repair {
        let (mut remaining, mut repaired) = (Vec::new(), HashSet::new());
        for (entry, mut damages) in still_damaged {
            // Blobs that models share were repaired with the first of the models.
            damages.retain(|digest, _| !repaired.contains(digest));
            if damages.is_empty() {
                continue;
            }
            send_progress(to, status(format!("repairing {}", entry.name))).await;
            match fetch_damaged_blobs(app, &entry, &damages, repair, to).await {
                Ok(()) => {
                    let still =
                        find_damaged_models(app, stored_entry(app, &entry.name).await?, to).await?;
                    let is_still = |digest: &Digest| {
                        still.iter().any(|(_, damages)| damages.contains_key(digest))
                    };
                    repaired.extend(damages.into_keys().filter(|digest| !is_still(digest)));
                    remaining.extend(still);
                }
                Err(failure) => {
                    send_progress(
                        to,
                        status(format!("cannot repair {}: {}", entry.name, failure.message)),
                    )
                    .await;
                    remaining.push((entry, damages));
                }
            }
        }
        still_damaged = remaining;
    }
    match still_damaged.is_empty() && invalid.is_empty() {
        true => Ok(()),
        false => Err(damage_error(&still_damaged, &invalid, repair)),
    }
}

/// Returns the models to verify: one, or all.
async fn entries_to_verify(app: &App, model: Option<ModelName>) -> Result<Vec<Entry>, ApiError> {
    let entries = app.store(move |store| match model {
        Some(name) => store.get(&name).map(|entry| vec![entry]),
        None => store.list(),
    });
    entries.await?.map_err(|error| match error {
        puna_store::StoreError::NotFound(name) => {
            ApiError::not_found(format!("model '{name}' not found"))
        }
        error => store_error(&error),
    })
}

/// Reports and returns the invalid manifest files of `model`, or all.
async fn report_invalid_manifests(
    app: &App,
    model: Option<&ModelName>,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<Vec<InvalidManifest>, ApiError> {
    let found =
        app.store(|store| store.invalid_manifests()).await?.map_err(|error| store_error(&error))?;
    let is_selected = |file: &InvalidManifest| match model {
        Some(model) => file.name.as_ref().is_some_and(|name| name.same(model)),
        None => true,
    };
    let found: Vec<_> = found.into_iter().filter(is_selected).collect();
    for file in &found {
        send_progress(to, status(file.error.to_string())).await;
    }
    Ok(found)
}

/// Pulls a model with an invalid manifest again; returns its name on success.
async fn pull_again(
    app: &App,
    file: &InvalidManifest,
    repair: Repair,
    to: &mpsc::Sender<ProgressLine>,
) -> Option<ModelName> {
    let name = file.name.clone()?;
    send_progress(to, status(format!("repairing {name}"))).await;
    let from = ModelRef { http: repair.insecure, ..ModelRef::of(name.clone()) };
    match transfer::pull_model(app, &Caller::current(), &from, repair.access, to).await {
        Ok(()) => Some(name),
        Err(failure) => {
            send_progress(to, status(format!("cannot repair {name}: {}", failure.message))).await;
            None
        }
    }
}

/// Returns the stored entry of a model; empty if it is not stored.
async fn stored_entry(app: &App, name: &ModelName) -> Result<Vec<Entry>, ApiError> {
    let name = name.clone();
    let found = app.store(move |store| store.find(&name)).await?;
    Ok(found.map_err(|error| store_error(&error))?.into_iter().collect())
}

/// Verifies the blobs of models, reports each damaged blob and returns the damaged models.
async fn find_damaged_models(
    app: &App,
    entries: Vec<Entry>,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<DamagedModels, ApiError> {
    let entries: Vec<_> = entries.into_iter().filter(|entry| !entry.is_embedded()).collect();
    let line = match &entries[..] {
        [one] => format!("verifying {}", one.name),
        all => format!("verifying {} models", all.len()),
    };
    let layers: Vec<Layer> = entries.iter().flat_map(|entry| entry.blobs().cloned()).collect();
    let progress = to.clone();
    let damages = app.store(move |store| verify_blobs(store, &layers, line, &progress)).await?;
    let mut damaged = Vec::new();
    for entry in entries {
        let of_entry: HashMap<_, _> = entry
            .blobs()
            .filter_map(|layer| Some((layer.digest, damages.get(&layer.digest)?.clone())))
            .collect();
        for (digest, damage) in &of_entry {
            send_progress(to, status(format!("{}: {digest} {damage}", entry.name))).await;
        }
        if !of_entry.is_empty() {
            damaged.push((entry, of_entry));
        }
    }
    Ok(damaged)
}

fn verify_blobs(
    store: &Store,
    layers: &[Layer],
    line: String,
    to: &mpsc::Sender<ProgressLine>,
) -> HashMap<Digest, Damage> {
    let sizes: HashMap<Digest, u64> =
        layers.iter().map(|layer| (layer.digest, layer.size)).collect();
    let total = sizes.values().fold(0, |sum: u64, size| sum.saturating_add(*size));
    let (done, last) = (AtomicU64::new(0), std::sync::Mutex::new(Instant::now()));
    let at = |completed| Progress { status: line.clone(), total, completed, ..Progress::default() };
    let damages = store.find_damage(layers, &|bytes| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // If another thread holds the lock, that thread sends the progress line.
        if let Ok(mut last) = last.try_lock()
            && last.elapsed() >= PROGRESS_INTERVAL
        {
            *last = Instant::now();
            // A slow client misses progress lines.
            let _ = to.try_send(Ok(at(done)));
        }
        !to.is_closed()
    });
    let _ = to.blocking_send(Ok(at(total)));
    damages
}

/// Fetches the damaged blobs of a model again.
async fn fetch_damaged_blobs(
    app: &App,
    entry: &Entry,
    damages: &HashMap<Digest, Damage>,
    repair: Repair,
    to: &mpsc::Sender<ProgressLine>,
) -> Result<(), ApiError> {
    if let StoreLocation::ReadOnly(folder) = &entry.location {
        let folder = folder.display();
        return Err(ApiError::bad_request(format!(
            "{folder} is read-only here: repair it on the server that writes it"
        )));
    }
    let store: Arc<Store> = app.shared_store().clone();
    let digests: Vec<_> = damages.keys().copied().collect();
    let displaced = move || {
        digests.iter().map(|digest| store.displace_blob(digest)).collect::<Result<Vec<_>, _>>()
    };
    let displaced = app.store(move |_| displaced()).await?.map_err(|error| store_error(&error))?;
    let mut fetched = Ok(());
    for runner in damaged_runners(entry, damages) {
        let from = ModelRef { http: repair.insecure, runner, ..ModelRef::of(entry.name.clone()) };
        fetched = fetched
            .and(transfer::pull_model(app, &Caller::current(), &from, repair.access, to).await);
    }
    // Blobs that were not fetched are put back: a damaged blob may still be useful to its owner.
    app.store(move |_| drop(displaced)).await?;
    fetched
}

/// Returns the runners with damaged blobs in a manifest list. A single manifest has one entry,
/// `None`.
fn damaged_runners(entry: &Entry, damages: &HashMap<Digest, Damage>) -> Vec<Option<String>> {
    let Some(list) = &entry.list else { return vec![None] };
    let is_damaged = |stored: &&StoredChild| {
        stored
            .manifest
            .iter()
            .flat_map(Manifest::blobs)
            .any(|layer| damages.contains_key(&layer.digest))
    };
    let damaged = list.children.iter().filter(is_damaged);
    damaged
        .map(|stored| Some(stored.child.runner.clone()).filter(|runner| !runner.is_empty()))
        .collect()
}

/// Error that lists the damaged models and names a remedy.
fn damage_error(
    still_damaged: &DamagedModels,
    invalid: &[InvalidManifest],
    repair: Option<Repair>,
) -> ApiError {
    let nameless = invalid.iter().filter(|file| file.name.is_none());
    let nameless: Vec<_> = nameless.map(|file| file.error.to_string()).collect();
    let named = invalid.iter().filter_map(|file| file.name.as_ref());
    let models: Vec<&ModelName> =
        still_damaged.iter().map(|(entry, _)| &entry.name).chain(named).collect();
    let names: Vec<_> = models.iter().map(ToString::to_string).collect();
    if names.is_empty() {
        return ApiError::internal(format!("{}: move it out of the store", nameless.join("; ")));
    }
    let advice = match repair {
        Some(_) => "create them again, or remove them with `puna rm`",
        None => "`puna verify --repair` fetches models from their registry again",
    };
    // The store does not record whether a model was pulled by plain HTTP. Models of Ollama's
    // registry never were.
    let is_secure = |model: &&ModelName| model.host().eq_ignore_ascii_case(DEFAULT_HOST);
    let insecure_advice =
        match repair.is_some_and(|repair| repair.insecure) || models.iter().all(is_secure) {
            true => "",
            false => "; add --insecure for models that were pulled with --insecure",
        };
    let what = if names.len() == 1 { "is" } else { "are" };
    ApiError::internal(format!("{} {what} damaged: {advice}{insecure_advice}", names.join(", ")))
}

async fn send_progress(to: &mpsc::Sender<ProgressLine>, progress: Progress) {
    let _ = to.send(Ok(progress)).await;
}

fn status(status: impl Into<String>) -> Progress {
    Progress { status: status.into(), ..Progress::default() }
}

/// `POST /api/prune`
pub(super) async fn prune(
    State(app): State<App>,
    Json(request, _): Json<Ollama, PruneRequest, MAX_SETTINGS_BODY_BYTES>,
) -> Result<Response, ErrorResponse<Ollama>> {
    if request.undo && request.empty_trash {
        let text = "undo and empty_trash exclude each other: send one of them";
        return Err(ApiError::bad_request(text).into());
    }
    let answer =
        app.store(move |store| run_prune(store, &request)).await?.map_err(|e| store_error(&e))?;
    Ok(json(StatusCode::OK, &answer))
}

/// Runs the requested action: restore or empty the trash, or remove garbage.
fn run_prune(store: &Store, request: &PruneRequest) -> Result<PruneResponse, StoreError> {
    let dry_run = request.dry_run;
    if request.undo {
        let restored = store.restore_trash(dry_run)?;
        let paths =
            |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
        let (back, taken) = (paths(&restored.files), paths(&restored.skipped_names));
        return Ok(PruneResponse {
            restored: back,
            taken,
            bytes: restored.bytes,
            ..PruneResponse::default()
        });
    }
    if request.empty_trash {
        let bytes = if dry_run { store.trash_bytes() } else { store.empty_trash(Duration::ZERO) };
        return Ok(PruneResponse { bytes, ..PruneResponse::default() });
    }
    let pruned = store.prune(PruneOptions { dry_run, partial: request.partial })?;
    Ok(PruneResponse { trash: store.trash_bytes(), ..prune_response(&pruned) })
}

fn prune_response(pruned: &PruneOutcome) -> PruneResponse {
    let kind = |kind| match kind {
        LeftoverKind::Blob => ("blob", "no model uses it"),
        LeftoverKind::Download => ("download", "an interrupted download, older than two weeks"),
        LeftoverKind::Temporary => ("temporary", "left by an interrupted operation"),
    };
    let leftover = |leftover: &puna_store::Leftover| {
        let (kind, reason) = kind(leftover.kind);
        Leftover {
            file: leftover.file.display().to_string(),
            kind: kind.into(),
            size: leftover.bytes,
            reason: reason.into(),
        }
    };
    PruneResponse {
        removed: pruned.removed.iter().map(leftover).collect(),
        bytes: pruned.bytes(),
        young: pruned.young,
        held: pruned.in_use,
        warning: pruned
            .blocked_by
            .as_ref()
            .map(|error| format!("nothing is removed: {error}"))
            .unwrap_or_default(),
        ..PruneResponse::default()
    }
}

/// `GET /api/downloads`
pub(super) async fn downloads(State(app): State<App>) -> Result<Response, ErrorResponse<Ollama>> {
    let pulls = app.store(|store| store.pulls()).await?.map_err(|e| store_error(&e))?;
    let download = |pull: puna_store::UnfinishedPull| Download {
        model: pull.name.to_string(),
        total: pull.total,
        completed: pull.completed,
        running: pull.is_running,
        began_at: rfc3339(pull.began),
    };
    let caller = Caller::current();
    let pulls = pulls.into_iter().filter(|pull| caller.may(Action::Use, &pull.name));
    let downloads = pulls.map(download).collect();
    Ok(json(StatusCode::OK, &DownloadsResponse { downloads }))
}
