//! State shared by all routes: the configuration, the store and the models in memory.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use puna_api::KeepAlive;
use puna_api::native::ModelDetails;
use puna_registry::Registry;
use puna_store::{Details, Listing, Model, Store, StoreError, Weights};
use puna_tasks::run_blocking;
use tokio::sync::mpsc;

use crate::canonical::{ApiError, Event, Generate, RunOptions, Task};
use crate::cleanup;
use crate::config::Config;
use crate::http::body_budget::{BodyReservation, take_reservation};
use crate::http::{Client, current_via, note_ignored};
use crate::image_urls::ImageFetcher;
use crate::manager::{AcquireRequest, Lease, ModelListing, ModelManager, RunnerTimeouts};
use crate::memory;
use crate::memory_plans::MemoryPlans;
use crate::metrics::{ModelMetrics, ServerMetrics, TaskMetrics};
use crate::model_names::Name;
use crate::options::{self, RequestOptions};
use crate::registry;
use crate::remote::{Remotes, Upstream};
use crate::response_store::ResponseStore;
use crate::runner::launch::Launcher;
use crate::runner::link::Events;
use crate::runner::protocol::LoadSpec;
use crate::scheduler::{Limits, LoadOptions, ModelKey};
use crate::shutdown::ShutdownSignal;
use crate::speculate::{Draft, SpeculateSetting};

/// Default context, in tokens, of a model without a training context in its metadata.
const DEFAULT_CONTEXT: u32 = 4096;

/// Minimum context in tokens of a model that accepts images.
const VISION_CONTEXT: u32 = 2048;

/// KV cache tokens beyond one conversation, for several short conversations and their cached
/// prefixes.
const SHARED_CACHE_TOKENS: u32 = 16384;

/// State shared by all routes. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    config: Config,
    store: Arc<Store>,
    registry: Registry,
    models: ModelManager,
    responses: Arc<ResponseStore>,
    metrics: Arc<ServerMetrics>,
    image_fetcher: Option<ImageFetcher>,
    remotes: Arc<Remotes>,
    shutdown_signal: ShutdownSignal,
    /// Serves `/v2` once the mirror is set up.
    mirror: OnceLock<crate::mirror::Registry>,
    /// Cached response of `GET /api/tags`.
    tags_cache: TagsCache,
    launcher: Arc<dyn Launcher>,
    /// Memory plans of stored models, made without loading them.
    plans: MemoryPlans,
}

/// Cached response that lists all models. It is valid while the store returns the same list.
#[derive(Default)]
pub(crate) struct TagsCache(Mutex<Option<(Arc<Listing>, Bytes)>>);

impl TagsCache {
    /// The cached response for `listed`, if it is the most recent one.
    pub(crate) fn get(&self, listed: &Arc<Listing>) -> Option<Bytes> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, listed)).map(|(_, answer)| answer.clone())
    }

    pub(crate) fn insert(&self, listed: Arc<Listing>, answer: Bytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((listed, answer));
    }
}

impl App {
    pub(crate) fn new(config: Config, launcher: Arc<dyn Launcher>) -> Result<Self, StoreError> {
        let store = Arc::new(config.store()?);
        let registry = Registry::new(registry::settings(&config));
        let limits = Limits {
            max_loaded: config.max_loaded_models,
            max_queue: config.max_queue,
            keep_alive: config.keep_alive,
        };
        let timeouts = RunnerTimeouts { load: config.load_timeout, step: config.step_timeout };
        let metrics = Arc::<ServerMetrics>::default();
        let models =
            ModelManager::start(limits, launcher.clone(), memory::read, timeouts, metrics.clone());
        let shutdown_signal = ShutdownSignal::default();
        let (responses, image_fetcher, remotes) = (
            Arc::default(),
            ImageFetcher::new(&config),
            Remotes::new(&config, shutdown_signal.clone()),
        );
        let (mirror, tags_cache, plans) =
            (OnceLock::new(), TagsCache::default(), MemoryPlans::default());
        Ok(Self(Arc::new(Inner {
            config,
            store,
            registry,
            models,
            responses,
            metrics,
            image_fetcher,
            remotes,
            shutdown_signal,
            mirror,
            tags_cache,
            launcher,
            plans,
        })))
    }

    /// Cached response of `GET /api/tags`.
    pub(crate) fn tags_cache(&self) -> &TagsCache {
        &self.0.tags_cache
    }

    /// Creates the blobs directory of an empty store. Commands on this machine detect by it that
    /// they can share files with the server instead of uploading them. A read-only store is served
    /// as it is.
    pub(crate) fn create_blobs_dir(&self) {
        if let Err(error) = self.0.store.create_blob_dir() {
            tracing::debug!(%error, "cannot create the blobs directory");
        }
    }

    /// Starts the hourly removal of files from interrupted work, unless pruning is disabled.
    pub(crate) fn clean_up(&self) {
        let Config { no_prune, mirror, .. } = self.config();
        // The mirror cleans up the store that it serves.
        let is_served = mirror.serve && mirror.storage.is_none();
        if !(*no_prune || is_served) {
            puna_tasks::spawn(cleanup::clean_up_hourly(self.0.store.clone()));
        }
    }

    /// Starts runner processes, and plans a model's memory without one.
    pub(crate) fn launcher(&self) -> &Arc<dyn Launcher> {
        &self.0.launcher
    }

    /// Memory plans of stored models.
    pub(crate) fn memory_plans(&self) -> &MemoryPlans {
        &self.0.plans
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn models(&self) -> &ModelManager {
        &self.0.models
    }

    /// Stored responses for `previous_response_id`.
    pub(crate) fn responses(&self) -> &Arc<ResponseStore> {
        &self.0.responses
    }

    /// Fetches images that requests name by URL; `None` if the configuration disables it.
    pub(crate) fn image_fetcher(&self) -> Option<&ImageFetcher> {
        self.0.image_fetcher.as_ref()
    }

    /// The mirror that serves the routes `/v2` of this server.
    pub(crate) fn mirror(&self) -> Option<&crate::mirror::Registry> {
        self.0.mirror.get()
    }

    /// Sets the mirror that serves `/v2`. Only the first call has an effect.
    pub(crate) fn serve_mirror(&self, registry: crate::mirror::Registry) {
        let _ = self.0.mirror.set(registry);
    }

    /// Other servers that run remote models.
    pub(crate) fn remotes(&self) -> &Arc<Remotes> {
        &self.0.remotes
    }

    /// Signals the shutdown of the server.
    pub(crate) fn shutdown_signal(&self) -> &ShutdownSignal {
        &self.0.shutdown_signal
    }

    /// Signals shutdown to all running work, then ends all runners.
    pub(crate) async fn shutdown(&self) {
        self.0.shutdown_signal.begin();
        self.models().shutdown().await;
    }

    /// The metrics of the server.
    pub(crate) fn metrics(&self) -> &Arc<ServerMetrics> {
        &self.0.metrics
    }

    /// Runs `work` with the store on a thread that may block on the disk.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = self.clone();
        let done = run_blocking(move || work(&app.0.store)).await;
        done.map_err(|e| ApiError::internal(format!("internal error in the store: {e}")))
    }

    /// The store itself, for long-running work.
    pub(crate) fn shared_store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// The client for model registries.
    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Resolves a name to a stored model. `missing` makes the message of the 404 error.
    pub(crate) async fn find(
        &self,
        name: &Name,
        missing: impl FnOnce() -> String,
    ) -> Result<Arc<Model>, ApiError> {
        let (stored, runner) = (name.stored.clone(), name.runner.clone());
        match self.store(move |store| store.resolve_for(&stored, runner.as_deref())).await? {
            Ok(model) => Ok(Arc::new(model)),
            Err(StoreError::NotFound(_)) => Err(ApiError::not_found(missing())),
            Err(error) => Err(store_error(&error)),
        }
    }

    /// Merges options: the request's override the model's, which override the server's.
    pub(crate) async fn options(
        &self,
        model: &Model,
        request: &RequestOptions,
    ) -> Result<(LoadOptions, RunOptions), ApiError> {
        let config = self.config();
        let embeds = model.facts.pooling.is_some();
        let trained = u32::try_from(model.facts.context_length).ok().filter(|tokens| *tokens > 0);
        let num_ctx = trained.unwrap_or(DEFAULT_CONTEXT);
        let mut load = LoadOptions {
            num_ctx,
            cache: if embeds { num_ctx } else { shared_cache(num_ctx, config.num_parallel) },
            num_batch: None,
            num_thread: 0,
            parallel: config.num_parallel,
            deterministic: config.deterministic,
            draft: None,
        };
        let mut run = RunOptions {
            num_predict: -1,
            num_keep: 4,
            num_ctx: config.context_length,
            ..RunOptions::default()
        };
        if let SpeculateSetting::Mode(mode) = config.speculate {
            run.speculate = mode;
        }
        let mut unknown = |name: &str| note_ignored(format!("options.{name}"));
        let requested = options::apply(&model.params, request, &mut load, &mut run, &mut unknown)?;
        if let Some(tokens) = &mut run.num_ctx
            && *tokens < VISION_CONTEXT
            && model.capabilities().iter().any(|capability| capability == "vision")
        {
            *tokens = VISION_CONTEXT;
        }
        if model.weights == Weights::Remote {
            run.given = model.params.clone();
            run.given.extend(request.to_map());
            run.given.retain(|_, value| !value.is_null());
            return Ok((load, run));
        }
        if puna_engine::is_diffusion(&model.facts.architecture) {
            reject_draft(model, requested.as_deref())?;
            if request.named.contains_key("draft_num_predict") {
                note_ignored("options.draft_num_predict".into());
            }
            return Ok((load, run));
        }
        if !embeds && run.speculate.uses_draft_model() && run.draft_num_predict != Some(0) {
            load.draft = self.draft(model, requested).await?;
        }
        Ok((load, run))
    }

    /// Chooses the draft model: the requested one, else the model's own, else the configured one.
    async fn draft(
        &self,
        model: &Model,
        requested: Option<String>,
    ) -> Result<Option<Draft>, ApiError> {
        let requested = requested.filter(|name| !name.is_empty());
        if let Some(name) = &requested {
            return self.stored_draft(name).await.map(Some);
        }
        if let Some(path) = &model.draft {
            let name = format!("the DRAFT of {}", model.name);
            return Ok(Some(Draft { name, weights: Some(path.clone()), optional: false }));
        }
        let SpeculateSetting::Model(name) = &self.config().speculate else { return Ok(None) };
        if name.contains('/') && Path::new(name).is_file() {
            return Ok(Some(Draft {
                name: name.clone(),
                weights: Some(name.into()),
                optional: true,
            }));
        }
        match self.stored_draft(name).await {
            Ok(draft) => {
                Ok(Some(Draft { optional: true, ..draft }).filter(|d| !has_same_weights(model, d)))
            }
            Err(failure) => {
                tracing::warn!(draft = name, error = %failure, "cannot use the draft model of PUNA_SPECULATE; loading without it");
                Ok(None)
            }
        }
    }

    async fn stored_draft(&self, name: &str) -> Result<Draft, ApiError> {
        let missing = || {
            format!(
                "draft model '{name}' not found: use the name of a model, or one of {}",
                SpeculateSetting::MODES
            )
        };
        let found = self.find(&Name::parse_runnable(name)?, missing).await?;
        if found.facts.pooling.is_some() {
            let reason = format!("'{name}' cannot be a draft model: it is an embedding model");
            return Err(ApiError::bad_request(reason));
        }
        Ok(Draft { name: found.name.to_string(), weights: weights(&found), optional: false })
    }

    /// Specification from which a runner loads a model with these options.
    pub(crate) fn load_spec(&self, model: &Model, options: LoadOptions) -> LoadSpec {
        let config = self.config();
        LoadSpec {
            weights: weights(model),
            adapters: model.adapters.clone(),
            options,
            kv_cache_type: config.kv_cache_type.clone(),
            kernels: config.kernels.clone(),
            threads: config.threads,
        }
    }

    /// Waits until a model is in memory for a client. `num_ctx` limits the context of the request,
    /// in tokens.
    pub(crate) async fn load(
        &self,
        model: &Model,
        (options, num_ctx): (LoadOptions, Option<u32>),
        keep_alive: Option<KeepAlive>,
        client: Client,
    ) -> Result<AcquiredModel, ApiError> {
        let arrived = Instant::now();
        if let Some(upstream) = self.remotes().upstream(model, current_via(), keep_alive)? {
            let (backend, metrics) = (
                ModelBackend::Remote(Arc::new(upstream)),
                self.metrics().model(&model.name.to_string()),
            );
            return Ok(AcquiredModel {
                backend,
                client,
                arrived,
                load_time: arrived.elapsed(),
                metrics,
            });
        }
        if let Some(mirror) = self.mirror() {
            mirror.record_use(&model.name);
        }
        let spec = self.load_spec(model, options);
        let listing = ModelListing {
            name: model.name.to_string(),
            digest: model.digest.hex(),
            details: details(model),
        };
        let metrics = self.metrics().model(&listing.name);
        let waiting = metrics.clone().start_model_wait();
        let request = AcquireRequest {
            client: client.0,
            key: key(model),
            spec,
            num_ctx,
            keep_alive,
            listing,
        };
        let lease = self.models().acquire(request).await;
        waiting.finish(lease.is_ok());
        Ok(AcquiredModel {
            backend: ModelBackend::Runner(Arc::new(lease?)),
            client,
            arrived,
            load_time: arrived.elapsed(),
            metrics,
        })
    }
}

/// Size of a model's KV cache in tokens when up to `parallel` conversations run at once.
fn shared_cache(num_ctx: u32, parallel: Option<u32>) -> u32 {
    parallel
        .map_or(SHARED_CACHE_TOKENS, |most| num_ctx.saturating_mul(most).min(SHARED_CACHE_TOKENS))
        .max(num_ctx)
}

/// The file of a model's weights. `None` for the embedded model and for remote models.
pub(crate) fn weights(model: &Model) -> Option<PathBuf> {
    match &model.weights {
        Weights::File(path) => Some(path.clone()),
        Weights::Embedded | Weights::Remote => None,
    }
}

/// Whether a draft model has the same weights as the model.
fn has_same_weights(model: &Model, draft: &Draft) -> bool {
    weights(model) == draft.weights
}

/// Key that identifies a model in memory: its weights and adapters.
pub(crate) fn key(model: &Model) -> ModelKey {
    let adapters = model.adapters.iter().map(|path| path.display().to_string());
    ModelKey(
        [model.weights_digest.to_string()]
            .into_iter()
            .chain(adapters)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// Details of a model for API responses.
pub(crate) fn details(model: &Model) -> ModelDetails {
    api_details(model.details())
}

/// Converts details from a store listing for API responses.
pub(crate) fn api_details(details: Details) -> ModelDetails {
    ModelDetails {
        parent_model: details.parent_model,
        format: details.format,
        family: details.family,
        families: details.families,
        parameter_size: details.parameter_size,
        quantization_level: details.quantization_level,
        context_length: 0,
        embedding_length: 0,
        runner: details.runner,
    }
}

/// Converts a store error to an API error.
pub(crate) fn store_error(error: &StoreError) -> ApiError {
    let status = match error {
        StoreError::NotFound(_) => 404,
        error if error.is_bad_request() => 400,
        _ => 500,
    };
    ApiError::new(status, error.to_string())
}

/// Executor of a model's tasks.
enum ModelBackend {
    Runner(Arc<Lease>),
    /// An upstream server.
    Remote(Arc<Upstream>),
}

/// Source of a task's events.
enum EventSource {
    /// The lease keeps the runner loaded until all events have arrived.
    Runner {
        events: Events,
        _lease: Arc<Lease>,
    },
    Remote(mpsc::Receiver<Event>),
}

/// A model that a request may use: loaded in a runner, or on another server.
pub(crate) struct AcquiredModel {
    backend: ModelBackend,
    client: Client,
    arrived: Instant,
    load_time: Duration,
    metrics: Arc<ModelMetrics>,
}

impl AcquiredModel {
    /// Submits the task of the current request, together with the request's memory reservation.
    pub(crate) async fn run(&self, task: Task) -> RunningTask {
        self.run_with_reservation(task, take_reservation().map(Arc::new)).await
    }

    async fn run_with_reservation(
        &self,
        task: Task,
        reservation: Option<Arc<BodyReservation>>,
    ) -> RunningTask {
        let events = match &self.backend {
            ModelBackend::Runner(lease) => {
                let events = lease.submit(self.client.0, task, reservation).await;
                EventSource::Runner { events, _lease: lease.clone() }
            }
            ModelBackend::Remote(upstream) => {
                EventSource::Remote(upstream.submit(task, reservation))
            }
        };
        let metrics = self.metrics.clone().start_task(self.arrived);
        RunningTask { events, arrived: self.arrived, load_time: self.load_time, metrics }
    }

    /// Submits several generations of the current request side by side.
    ///
    /// # Errors
    /// The body budget has no memory for that many prompts.
    pub(crate) async fn run_all(
        &self,
        generations: Vec<Generate>,
    ) -> Result<Vec<RunningTask>, ApiError> {
        let mut reservation = take_reservation();
        if let Some(reservation) = &mut reservation {
            // The reservation already covers the prompt once.
            generations
                .iter()
                .skip(1)
                .try_for_each(|generate| reservation.reserve(generate.text_bytes()))?;
        }
        let reservation = reservation.map(Arc::new);
        let mut running = Vec::with_capacity(generations.len());
        for generate in generations {
            running.push(
                self.run_with_reservation(Task::Generate(Box::new(generate)), reservation.clone())
                    .await,
            );
        }
        Ok(running)
    }

    /// Detokenizes tokens.
    pub(crate) async fn text(&self, tokens: Vec<u32>) -> Result<String, ApiError> {
        match self.run_with_reservation(Task::Detokenize(tokens), None).await.result().await? {
            Event::Text(text) => Ok(text),
            _ => Err(ApiError::internal("the model runner sent no text")),
        }
    }
}

/// A task that a runner or an upstream executes. Dropping it cancels the task.
pub(crate) struct RunningTask {
    events: EventSource,
    arrived: Instant,
    load_time: Duration,
    metrics: TaskMetrics,
}

impl RunningTask {
    /// Returns the next event; `None` after the final one.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = match &mut self.events {
            EventSource::Runner { events, .. } => ready!(events.poll_next(cx)),
            EventSource::Remote(events) => ready!(events.poll_recv(cx)),
        };
        if let Some(event) = &event {
            self.metrics.record(event);
        }
        Poll::Ready(event)
    }

    /// Waits for the final event. An error event becomes `Err`.
    pub(crate) async fn result(&mut self) -> Result<Event, ApiError> {
        while let Some(event) = self.next().await {
            match event {
                Event::Error(failure) => return Err(failure),
                event if event.is_end() => return Ok(event),
                _ => {}
            }
        }
        Err(ApiError::internal("the model runner ended the request without a result"))
    }

    /// Time since the request arrived.
    pub(crate) fn total(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Time until the model was ready.
    pub(crate) fn load_time(&self) -> Duration {
        self.load_time
    }
}

/// Rejects a requested draft model for a diffusion model. A draft model of the model or of the
/// configuration is ignored.
fn reject_draft(model: &Model, requested: Option<&str>) -> Result<(), ApiError> {
    let architecture = &model.facts.architecture;
    if let Some(name) = requested.filter(|name| !name.is_empty()) {
        return Err(ApiError::bad_request(format!(
            "draft_model '{name}': diffusion models (architecture {architecture}) do not support draft models: leave it out"
        )));
    }
    if model.draft.is_some() {
        tracing::warn!(model = %model.name, architecture, "diffusion models do not support draft models; DRAFT not used");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runner::tests::{Fake, FakeLauncher};

    #[tokio::test]
    async fn vision_models_have_a_minimum_context() {
        let models = tempfile::tempdir().unwrap();
        for automatic in [None, Some(128), Some(4096)] {
            let mut config = Config::with_models(models.path());
            config.context_length = automatic;
            let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
            let mut text_model = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
            // The model's own parameters would count as well.
            text_model.params.clear();
            let mut vision_model = text_model.clone();
            let facts = puna_store::Facts { vision: true, ..(*vision_model.facts).clone() };
            vision_model.facts = facts.into();
            for requested in [None, Some(128), Some(2047), Some(2048), Some(3000)] {
                let given = requested.map(|tokens| json!({"num_ctx": tokens}));
                let given =
                    RequestOptions::named(given.as_ref().and_then(|given| given.as_object()));
                let wanted = requested.or(automatic);
                let of = async |model: &Model| app.options(model, &given).await.unwrap().1.num_ctx;
                assert_eq!(of(&text_model).await, wanted);
                // A context that was not requested stays unset.
                assert_eq!(
                    of(&vision_model).await,
                    wanted.map(|tokens| tokens.max(VISION_CONTEXT))
                );
            }
        }
    }

    #[tokio::test]
    async fn a_diffusion_model_ignores_draft_models_and_rejects_requested_ones() {
        let models = tempfile::tempdir().unwrap();
        let mut config = Config::with_models(models.path());
        config.speculate = SpeculateSetting::Model("cria".into());
        let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
        let text_model = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
        let mut diffusion_model = Model { draft: Some("small.gguf".into()), ..text_model.clone() };
        let draft = async |model: &Model, name: &str| {
            let given = json!({"draft_model": name, "draft_num_predict": 4});
            app.options(model, &RequestOptions::named(given.as_object()))
                .await
                .map(|(load, _)| load.draft.map(|draft| draft.name))
        };
        assert!(
            draft(&diffusion_model, "")
                .await
                .unwrap()
                .is_some_and(|name| name.starts_with("the DRAFT of "))
        );
        diffusion_model.facts =
            puna_store::Facts { architecture: "dream".into(), ..(*diffusion_model.facts).clone() }
                .into();
        assert_eq!(draft(&diffusion_model, "").await.unwrap(), None);
        let error = draft(&diffusion_model, "cria").await.unwrap_err().to_string();
        assert!(
            error.starts_with(
                "draft_model 'cria': diffusion models (architecture dream) do not support draft models"
            ),
            "{error}"
        );
    }
}
