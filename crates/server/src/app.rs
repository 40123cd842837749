//! What all routes share: the configuration, the store, the models in memory.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use puna_api::KeepAlive;
use puna_api::native::ModelDetails;
use puna_registry::Registry;
use puna_store::{Details, Listed, Model, Store, StoreError, Weights};
use puna_tasks::run_blocking;
use tokio::sync::mpsc;

use crate::canonical::{Event, Failure, Generate, RunOptions, Task};
use crate::config::Config;
use crate::end::End;
use crate::figures::{Figures, OfModel, Tally};
use crate::http::room::{Share, hand_over};
use crate::http::{Client, current_via, note_ignored};
use crate::kept::Responses;
use crate::links::Links;
use crate::manager::{About, Ask, Lease, Models, Patience};
use crate::memory;
use crate::names::Name;
use crate::options::{self, RequestOptions};
use crate::plans::Plans;
use crate::registry;
use crate::remote::{Remotes, Upstream};
use crate::runner::launch::Launcher;
use crate::runner::link::Events;
use crate::runner::protocol::LoadSpec;
use crate::scheduler::{Key, Limits, LoadOptions};
use crate::speculate::{Draft, Wish};
use crate::tidy;

/// Context of a model that does not say what it was trained with.
const DEFAULT_CONTEXT: u32 = 4096;

/// Tokens of a context at least where images may be in it.
const VISION_CONTEXT: u32 = 2048;

/// Tokens that there is room for beside a single conversation: so that several short ones, or what they leave behind, fit.
const SHARED: u32 = 16384;

/// What all routes share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    config: Config,
    store: Arc<Store>,
    registry: Registry,
    models: Models,
    responses: Arc<Responses>,
    figures: Arc<Figures>,
    links: Option<Links>,
    remotes: Arc<Remotes>,
    end: End,
    /// What serves `/v2`, once it does.
    mirror: OnceLock<crate::mirror::Registry>,
    /// What was last answered of all models.
    told: Told,
    launcher: Arc<dyn Launcher>,
    /// Memory plans of models that need not be loaded.
    plans: Plans,
}

/// An answer of all models, which holds as long as the list of them is the same.
#[derive(Default)]
pub(crate) struct Told(Mutex<Option<(Arc<Listed>, Bytes)>>);

impl Told {
    /// The answer of a list, if that was the last one.
    pub(crate) fn of(&self, listed: &Arc<Listed>) -> Option<Bytes> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, listed)).map(|(_, answer)| answer.clone())
    }

    pub(crate) fn keep(&self, listed: Arc<Listed>, answer: Bytes) {
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
        let patience = Patience { load: config.load_timeout, step: config.step_timeout };
        let figures = Arc::<Figures>::default();
        let models =
            Models::start(limits, launcher.clone(), memory::read, patience, figures.clone());
        let end = End::default();
        let (responses, links, remotes) =
            (Arc::default(), Links::new(&config), Remotes::new(&config, end.clone()));
        let (mirror, told, plans) = (OnceLock::new(), Told::default(), Plans::default());
        Ok(Self(Arc::new(Inner {
            config,
            store,
            registry,
            models,
            responses,
            figures,
            links,
            remotes,
            end,
            mirror,
            told,
            launcher,
            plans,
        })))
    }

    /// What was last answered of all models.
    pub(crate) fn told(&self) -> &Told {
        &self.0.told
    }

    /// Makes the folder of blobs where nothing was ever stored: commands of this machine see by it that they can share files with
    /// the server instead of sending them. A store that cannot be written is served as it is.
    pub(crate) fn make_folder(&self) {
        if let Err(error) = self.0.store.make_folder() {
            tracing::debug!(%error, "the folder of blobs is not made");
        }
    }

    /// Removes in the background what Puna has left unfinished, now and every hour, unless that is not wanted.
    pub(crate) fn clean_up(&self) {
        let Config { no_prune, mirror, .. } = self.config();
        // A mirror does so for the store that it serves.
        let is_served = mirror.serve && mirror.storage.is_none();
        if !(*no_prune || is_served) {
            puna_tasks::spawn(tidy::clean_up_hourly(self.0.store.clone()));
        }
    }

    /// Starts runners, and plans the memory of models without one.
    pub(crate) fn launcher(&self) -> &Arc<dyn Launcher> {
        &self.0.launcher
    }

    /// Memory plans of stored models.
    pub(crate) fn plans(&self) -> &Plans {
        &self.0.plans
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn models(&self) -> &Models {
        &self.0.models
    }

    /// Responses that later requests can go on from.
    pub(crate) fn responses(&self) -> &Arc<Responses> {
        &self.0.responses
    }

    /// Fetches images that are named by address, where that is allowed.
    pub(crate) fn links(&self) -> Option<&Links> {
        self.0.links.as_ref()
    }

    /// What serves `/v2` beside the other routes.
    pub(crate) fn mirror(&self) -> Option<&crate::mirror::Registry> {
        self.0.mirror.get()
    }

    /// Says what serves `/v2`, once.
    pub(crate) fn serve_mirror(&self, registry: crate::mirror::Registry) {
        let _ = self.0.mirror.set(registry);
    }

    /// Other servers that models may be on.
    pub(crate) fn remotes(&self) -> &Arc<Remotes> {
        &self.0.remotes
    }

    /// The end of the server.
    pub(crate) fn end(&self) -> &End {
        &self.0.end
    }

    /// Tells everything that still runs why it ends, and ends all runners.
    pub(crate) async fn shutdown(&self) {
        self.0.end.begin();
        self.models().shutdown().await;
    }

    /// What is counted.
    pub(crate) fn figures(&self) -> &Arc<Figures> {
        &self.0.figures
    }

    /// Does something with the store on a thread that may wait for the disk.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let app = self.clone();
        let done = run_blocking(move || work(&app.0.store)).await;
        done.map_err(|e| Failure::internal(format!("internal error in the store: {e}")))
    }

    /// The store itself, for work that lasts.
    pub(crate) fn shared_store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// The client of model registries.
    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The stored model of a name; `missing` is said if there is none.
    pub(crate) async fn find(
        &self,
        name: &Name,
        missing: impl FnOnce() -> String,
    ) -> Result<Arc<Model>, Failure> {
        let (stored, runner) = (name.stored.clone(), name.runner.clone());
        match self.store(move |store| store.resolve_for(&stored, runner.as_deref())).await? {
            Ok(model) => Ok(Arc::new(model)),
            Err(StoreError::NotFound(_)) => Err(Failure::not_found(missing())),
            Err(error) => Err(store_failure(&error)),
        }
    }

    /// Options of a request over those of the model over the server's.
    pub(crate) async fn options(
        &self,
        model: &Model,
        request: &RequestOptions,
    ) -> Result<(LoadOptions, RunOptions), Failure> {
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
        if let Wish::Mode(mode) = config.speculate {
            run.speculate = mode;
        }
        let mut unknown = |name: &str| note_ignored(format!("options.{name}"));
        let asked = options::apply(&model.params, request, &mut load, &mut run, &mut unknown)?;
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
        if puna_engine::fills_masks(&model.facts.architecture) {
            refuse_draft(model, asked.as_deref())?;
            if request.named.contains_key("draft_num_predict") {
                note_ignored("options.draft_num_predict".into());
            }
            return Ok((load, run));
        }
        if !embeds && run.speculate.takes_drafts() && run.draft_num_predict != Some(0) {
            load.draft = self.draft(model, asked).await?;
        }
        Ok((load, run))
    }

    /// The draft model that is asked for, else the model's own, else that of the configuration.
    async fn draft(&self, model: &Model, asked: Option<String>) -> Result<Option<Draft>, Failure> {
        let asked = asked.filter(|name| !name.is_empty());
        if let Some(name) = &asked {
            return self.stored_draft(name).await.map(Some);
        }
        if let Some(path) = &model.draft {
            let name = format!("the DRAFT of {}", model.name);
            return Ok(Some(Draft { name, weights: Some(path.clone()), optional: false }));
        }
        let Wish::Model(name) = &self.config().speculate else { return Ok(None) };
        if name.contains('/') && Path::new(name).is_file() {
            return Ok(Some(Draft {
                name: name.clone(),
                weights: Some(name.into()),
                optional: true,
            }));
        }
        match self.stored_draft(name).await {
            Ok(draft) => {
                Ok(Some(Draft { optional: true, ..draft }).filter(|d| !is_weights(model, d)))
            }
            Err(failure) => {
                tracing::warn!(draft = name, "PUNA_SPECULATE: {failure}; going without");
                Ok(None)
            }
        }
    }

    async fn stored_draft(&self, name: &str) -> Result<Draft, Failure> {
        let missing = || {
            format!(
                "draft model '{name}' not found: give the name of a model, or one of {}",
                Wish::MODES
            )
        };
        let found = self.find(&Name::to_run(name)?, missing).await?;
        if found.facts.pooling.is_some() {
            let reason = format!("'{name}' cannot be a draft model: it makes embeddings, not text");
            return Err(Failure::bad_request(reason));
        }
        Ok(Draft { name: found.name.to_string(), weights: weights(&found), optional: false })
    }

    /// What a runner is told to load a model with these options.
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

    /// Waits until a model is in memory for a client, whose context is limited to some tokens, if it says so.
    pub(crate) async fn load(
        &self,
        model: &Model,
        (options, num_ctx): (LoadOptions, Option<u32>),
        keep_alive: Option<KeepAlive>,
        client: Client,
    ) -> Result<Loaded, Failure> {
        let arrived = Instant::now();
        if let Some(upstream) = self.remotes().upstream(model, current_via(), keep_alive)? {
            let (source, figures) =
                (Source::Remote(Arc::new(upstream)), self.figures().of(&model.name.to_string()));
            return Ok(Loaded { source, client, arrived, load: arrived.elapsed(), figures });
        }
        if let Some(mirror) = self.mirror() {
            mirror.used(&model.name);
        }
        let spec = self.load_spec(model, options);
        let about = About {
            name: model.name.to_string(),
            digest: model.digest.hex(),
            details: details(model),
        };
        let figures = self.figures().of(&about.name);
        let waiting = figures.clone().wait();
        let ask = Ask { client: client.0, key: key(model), spec, num_ctx, keep_alive, about };
        let lease = self.models().acquire(ask).await;
        waiting.over(lease.is_ok());
        Ok(Loaded {
            source: Source::Runner(Arc::new(lease?)),
            client,
            arrived,
            load: arrived.elapsed(),
            figures,
        })
    }
}

/// Tokens that there is room for in a model's cache, where so many conversations may run at once.
fn shared_cache(num_ctx: u32, parallel: Option<u32>) -> u32 {
    parallel.map_or(SHARED, |most| num_ctx.saturating_mul(most).min(SHARED)).max(num_ctx)
}

/// The file of a model's weights; `None` is the model inside this program, or one of another server.
pub(crate) fn weights(model: &Model) -> Option<PathBuf> {
    match &model.weights {
        Weights::File(path) => Some(path.clone()),
        Weights::Embedded | Weights::Remote => None,
    }
}

/// Whether a draft model is the model itself.
fn is_weights(model: &Model, draft: &Draft) -> bool {
    weights(model) == draft.weights
}

/// What models are told apart by in memory.
pub(crate) fn key(model: &Model) -> Key {
    let adapters = model.adapters.iter().map(|path| path.display().to_string());
    Key([model.weights_digest.to_string()]
        .into_iter()
        .chain(adapters)
        .collect::<Vec<_>>()
        .join(" "))
}

/// What a model is, in the API's form.
pub(crate) fn details(model: &Model) -> ModelDetails {
    api_details(model.details())
}

/// The same of what a list knows.
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

/// An error of the store as an answer.
pub(crate) fn store_failure(error: &StoreError) -> Failure {
    let status = match error {
        StoreError::NotFound(_) => 404,
        error if error.is_bad_request() => 400,
        _ => 500,
    };
    Failure::new(status, error.to_string())
}

/// Who does the work of a model.
enum Source {
    Runner(Arc<Lease>),
    /// Another server.
    Remote(Arc<Upstream>),
}

/// What comes of a task.
enum Answers {
    /// The runner stays while there is more.
    Runner {
        events: Events,
        _lease: Arc<Lease>,
    },
    Remote(mpsc::Receiver<Event>),
}

/// A model that a request may use: in memory, or on another server.
pub(crate) struct Loaded {
    source: Source,
    client: Client,
    arrived: Instant,
    load: Duration,
    figures: Arc<OfModel>,
}

impl Loaded {
    /// Has a task done on it: that of the request which is being answered, whose memory goes with it.
    pub(crate) async fn run(&self, task: Task) -> Running {
        self.run_holding(task, hand_over().map(Arc::new)).await
    }

    async fn run_holding(&self, task: Task, share: Option<Arc<Share>>) -> Running {
        let answers = match &self.source {
            Source::Runner(lease) => {
                let events = lease.submit(self.client.0, task, share).await;
                Answers::Runner { events, _lease: lease.clone() }
            }
            Source::Remote(upstream) => Answers::Remote(upstream.submit(task, share)),
        };
        let tally = self.figures.clone().begin(self.arrived);
        Running { answers, arrived: self.arrived, load: self.load, tally }
    }

    /// Has generations of the request done on it side by side.
    ///
    /// # Errors
    /// There is no memory for so many.
    pub(crate) async fn run_all(
        &self,
        generations: Vec<Generate>,
    ) -> Result<Vec<Running>, Failure> {
        let mut share = hand_over();
        if let Some(share) = &mut share {
            // The request had the prompt once.
            generations
                .iter()
                .skip(1)
                .try_for_each(|generate| share.take(generate.text_bytes()))?;
        }
        let share = share.map(Arc::new);
        let mut running = Vec::with_capacity(generations.len());
        for generate in generations {
            running.push(self.run_holding(Task::Generate(Box::new(generate)), share.clone()).await);
        }
        Ok(running)
    }

    /// The text of tokens.
    pub(crate) async fn text(&self, tokens: Vec<u32>) -> Result<String, Failure> {
        match self.run_holding(Task::Detokenize(tokens), None).await.end().await? {
            Event::Text(text) => Ok(text),
            _ => Err(Failure::internal("the model runner sent no text")),
        }
    }
}

/// A request that is being answered. Dropping it cancels the request.
pub(crate) struct Running {
    answers: Answers,
    arrived: Instant,
    load: Duration,
    tally: Tally,
}

impl Running {
    /// The next event; after an end there is none.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event, as a poll.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = match &mut self.answers {
            Answers::Runner { events, .. } => ready!(events.poll_next(cx)),
            Answers::Remote(events) => ready!(events.poll_recv(cx)),
        };
        if let Some(event) = &event {
            self.tally.take(event);
        }
        Poll::Ready(event)
    }

    /// Waits for the end; one by an error is an error.
    pub(crate) async fn end(&mut self) -> Result<Event, Failure> {
        while let Some(event) = self.next().await {
            match event {
                Event::Error(failure) => return Err(failure),
                event if event.is_end() => return Ok(event),
                _ => {}
            }
        }
        Err(Failure::internal("the model runner ended a request without saying so"))
    }

    /// Time since the request arrived.
    pub(crate) fn total(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Time until the model was ready.
    pub(crate) fn load(&self) -> Duration {
        self.load
    }
}

/// Says that a diffusion model takes no draft model: to who asks for one; one that came with the model or the server is left out.
fn refuse_draft(model: &Model, asked: Option<&str>) -> Result<(), Failure> {
    let architecture = &model.facts.architecture;
    if let Some(name) = asked.filter(|name| !name.is_empty()) {
        return Err(Failure::bad_request(format!(
            "draft_model '{name}': a model of architecture {architecture} fills masked places and guesses nothing ahead; \
             leave the option out"
        )));
    }
    if model.draft.is_some() {
        tracing::warn!(model = %model.name, "a model of architecture {architecture} takes no draft model; going without its DRAFT");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runner::tests::{Fake, FakeLauncher};

    #[tokio::test]
    async fn models_that_see_have_a_floor_of_contexts() {
        let models = tempfile::tempdir().unwrap();
        for automatic in [None, Some(128), Some(4096)] {
            let mut config = Config::with_models(models.path());
            config.context_length = automatic;
            let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
            let mut blind = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
            // What the model itself wants would count, too.
            blind.params.clear();
            let mut seeing = blind.clone();
            let facts = puna_store::Facts { vision: true, ..(*seeing.facts).clone() };
            seeing.facts = facts.into();
            for asked in [None, Some(128), Some(2047), Some(2048), Some(3000)] {
                let given = asked.map(|tokens| json!({"num_ctx": tokens}));
                let given =
                    RequestOptions::named(given.as_ref().and_then(|given| given.as_object()));
                let wanted = asked.or(automatic);
                let of = async |model: &Model| app.options(model, &given).await.unwrap().1.num_ctx;
                assert_eq!(of(&blind).await, wanted);
                // What nobody asked for stays nobody's.
                assert_eq!(of(&seeing).await, wanted.map(|tokens| tokens.max(VISION_CONTEXT)));
            }
        }
    }

    #[tokio::test]
    async fn a_diffusion_model_goes_without_a_draft_model_and_refuses_one_that_is_asked_for() {
        let models = tempfile::tempdir().unwrap();
        let mut config = Config::with_models(models.path());
        config.speculate = Wish::Model("cria".into());
        let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
        let writing = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
        let mut filling = Model { draft: Some("small.gguf".into()), ..writing.clone() };
        let draft = async |model: &Model, name: &str| {
            let given = json!({"draft_model": name, "draft_num_predict": 4});
            app.options(model, &RequestOptions::named(given.as_object()))
                .await
                .map(|(load, _)| load.draft.map(|draft| draft.name))
        };
        assert!(
            draft(&filling, "")
                .await
                .unwrap()
                .is_some_and(|name| name.starts_with("the DRAFT of "))
        );
        filling.facts =
            puna_store::Facts { architecture: "dream".into(), ..(*filling.facts).clone() }.into();
        assert_eq!(draft(&filling, "").await.unwrap(), None);
        let error = draft(&filling, "cria").await.unwrap_err().to_string();
        assert!(
            error.starts_with(
                "draft_model 'cria': a model of architecture dream fills masked places"
            ),
            "{error}"
        );
    }
}
