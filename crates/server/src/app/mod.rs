//! State shared by all routes: the configuration, the store and the models in memory.
//!
//! - `options` merges the options of a request, its model and the server;
//! - `acquired_model` waits for a model and submits tasks to it; `running_task` has their events;
//! - `stored_model` has properties of stored models.

mod acquired_model;
mod options;
mod running_task;
mod stored_model;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use puna_registry::Registry;
use puna_store::{Listing, Model, Store, StoreError};
use puna_tasks::run_blocking;

pub(crate) use acquired_model::AcquiredModel;
pub(crate) use running_task::RunningTask;
pub(crate) use stored_model::{api_details, details, key, store_error, weights};

use crate::api::image_urls::ImageFetcher;
use crate::api::openai::responses::ResponseStore;
use crate::canonical::ApiError;
use crate::config::Config;
use crate::metrics::ServerMetrics;
use crate::model_scheduler::Limits;
use crate::models::blob_access::UploadedBlobs;
use crate::models::manager::{ModelManager, RunnerTimeouts};
use crate::models::memory_plans::MemoryPlans;
use crate::models::names::Name;
use crate::models::unsupported::UnsupportedModels;
use crate::models::{cleanup, memory, registry_client_settings};
use crate::remote::Remotes;
use crate::runner::launch::Launcher;
use crate::util::shutdown::ShutdownSignal;

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
    mirror: OnceLock<crate::mirror::MirrorService>,
    /// Cached response of `GET /api/tags`.
    tags_cache: TagsCache,
    launcher: Arc<dyn Launcher>,
    /// Memory plans of stored models, made without loading them.
    plans: MemoryPlans,
    uploaded_blobs: UploadedBlobs,
    unsupported_models: UnsupportedModels,
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
        let mut settings = registry_client_settings::settings(&config);
        if let Some(worker) = launcher.file_worker() {
            registry_client_settings::read_in_worker(&mut settings, worker);
        }
        let registry = Registry::new(settings);
        Self::with_client(config, launcher, registry)
    }

    /// Like [`App::new`], with a registry client of its own.
    pub(crate) fn with_client(
        config: Config,
        launcher: Arc<dyn Launcher>,
        registry: Registry,
    ) -> Result<Self, StoreError> {
        let store = Arc::new(config.store()?);
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
        let uploaded_blobs = UploadedBlobs::default();
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
            uploaded_blobs,
            unsupported_models: UnsupportedModels::default(),
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

    /// Blobs that limited callers have uploaded.
    pub(crate) fn uploaded_blobs(&self) -> &UploadedBlobs {
        &self.0.uploaded_blobs
    }

    /// Models of unknown architectures that the log has named.
    pub(crate) fn unsupported_models(&self) -> &UnsupportedModels {
        &self.0.unsupported_models
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
    pub(crate) fn mirror(&self) -> Option<&crate::mirror::MirrorService> {
        self.0.mirror.get()
    }

    /// Sets the mirror that serves `/v2`. Only the first call has an effect.
    pub(crate) fn serve_mirror(&self, registry: crate::mirror::MirrorService) {
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
        let Some(stored) = name.visible().cloned() else {
            return Err(ApiError::not_found(missing()));
        };
        let runner = name.runner.clone();
        match self.store(move |store| store.resolve_for(&stored, runner.as_deref())).await? {
            Ok(model) => Ok(Arc::new(model)),
            Err(StoreError::NotFound(_)) => Err(ApiError::not_found(missing())),
            Err(error) => Err(store_error(&error)),
        }
    }
}
