//! Waits until a model is loaded for a request, and submits tasks to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_api::KeepAlive;
use puna_gguf::escape_for_display;
use puna_store::Model;

use super::running_task::{EventSource, RunningTask};
use super::{App, details, key, weights};
use crate::auth::owner::salted_namespace;
use crate::canonical::{ApiError, Event, GenerateTask, Task};
use crate::http::body_budget::{BodyReservation, take_reservation};
use crate::http::{Client, current_via};
use crate::metrics::ModelMetrics;
use crate::model_scheduler::LoadOptions;
use crate::models::manager::{AcquireRequest, Lease, ModelListing};
use crate::remote::Upstream;
use crate::runner::protocol::LoadSpec;

/// Executor of a model's tasks.
enum ModelBackend {
    Runner(Arc<Lease>),
    /// An upstream server.
    Remote(Arc<Upstream>),
}

/// A model that a request may use: loaded in a runner, or on another server.
pub(crate) struct AcquiredModel {
    backend: ModelBackend,
    client: Client,
    arrived: Instant,
    load_time: Duration,
    metrics: Arc<ModelMetrics>,
}

impl App {
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

    /// Rejects a model of an unknown architecture without starting a runner. The log names each
    /// model once.
    fn check_architecture(&self, model: &Model) -> Result<(), ApiError> {
        let architecture = &model.gguf_info.architecture;
        if puna_engine::is_supported_architecture(architecture) {
            return Ok(());
        }
        if self.unsupported_models().insert(&model.weights_digest) {
            tracing::warn!(model = %model.name, architecture, "this version does not support the architecture of the model");
        }
        Err(ApiError::bad_request(format!(
            "cannot run {}: this version does not support its architecture {} (`general.architecture`); update Puna, or use a model of one of these: {}",
            model.name,
            escape_for_display(architecture.as_bytes()),
            puna_engine::known_architectures().join(", ")
        )))
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
        self.check_architecture(model)?;
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
            client: client.number,
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
                let task = self.in_cache_namespace(task);
                let events = lease.submit(self.client.number, task, reservation).await;
                EventSource::Runner { events, _lease: lease.clone() }
            }
            ModelBackend::Remote(upstream) => {
                EventSource::Remote(upstream.submit(task, reservation))
            }
        };
        let metrics = self.metrics.clone().start_task(self.arrived);
        RunningTask { events, arrived: self.arrived, load_time: self.load_time, metrics }
    }

    /// Sets the namespace of a task's cached prefixes: that of the client, with the salt of the
    /// request.
    fn in_cache_namespace(&self, mut task: Task) -> Task {
        if let Task::Generate(generate) = &mut task {
            let own = self.client.cache_namespace;
            let salted = generate.cache_salt.take().map(|salt| salted_namespace(own, &salt));
            generate.cache_namespace = salted.unwrap_or(own);
        }
        task
    }

    /// Submits several generations of the current request side by side.
    ///
    /// # Errors
    /// The body budget has no memory for that many prompts.
    pub(crate) async fn run_all(
        &self,
        generations: Vec<GenerateTask>,
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
    pub(crate) async fn detokenize(&self, tokens: Vec<u32>) -> Result<String, ApiError> {
        match self.run_with_reservation(Task::Detokenize(tokens), None).await.result().await? {
            Event::Text(text) => Ok(text),
            _ => Err(ApiError::internal("the model runner sent no text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::options::RequestOptions;
    use crate::runner::tests::{Fake, FakeLauncher};

    #[tokio::test]
    async fn a_model_of_an_unknown_architecture_starts_no_runner() {
        let models = tempfile::tempdir().unwrap();
        let config = Config::with_models(models.path());
        let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
        let cria = app.shared_store().resolve(&"cria".parse().unwrap()).unwrap();
        let load = async |architecture: &str| {
            let mut info = (*cria.gguf_info).clone();
            info.architecture = architecture.to_owned();
            let model = Model { gguf_info: info.into(), ..cria.clone() };
            let (options, run) = app.options(&model, &RequestOptions::default()).await.unwrap();
            app.load(&model, (options, run.num_ctx), None, Client::default()).await.map(drop)
        };
        for architecture in ["", "../x", "quantum"] {
            let error = load(architecture).await.unwrap_err();
            let wanted = format!(
                "cannot run cria:latest: this version does not support its architecture `{architecture}`"
            );
            assert_eq!(error.status, 400);
            assert!(error.message.starts_with(&wanted), "{error}");
        }
        assert!(app.models().list().await.is_empty());
        // Layouts of Ollama's library have architectures of their own.
        for architecture in ["llama", "gptoss", "mllama"] {
            assert_eq!(load(architecture).await, Ok(()), "{architecture}");
        }
    }
}
