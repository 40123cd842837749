//! Context windows of stored models, as a request without options gets them.
//!
//! No model is loaded for this. A loaded model has the window of its runner. The memory of other
//! models is planned from the header of their file, which is also the first phase of a load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_engine::DIFFUSION_CONTEXT;
use puna_gguf::Gguf;
use puna_store::{Entry, GgufInfo, Model, Weights, embedded};
use tokio::time::timeout_at;

use crate::app::{App, key, weights};
use crate::http::CompatibilityReport;
use crate::models::memory;
use crate::models::memory_plans::{LoadNeeds, MachineState, ModelHost, ModelPlan, ModelSize};
use crate::options::RequestOptions;
use crate::remote::Description;

/// Time for new plans in one response. Models that take longer have no window in this response, but
/// in the next one.
const PLANNING_TIME: Duration = Duration::from_secs(2);

impl App {
    /// Returns the sizes of stored models, in the order of `entries`.
    pub(crate) async fn sizes(&self, entries: &[Entry]) -> Vec<ModelSize> {
        let machine = Arc::new(MachineState {
            residents: self.models().list().await,
            memory: memory::read(),
        });
        let until = Instant::now() + PLANNING_TIME;
        let mut plans = Vec::with_capacity(entries.len());
        let mut planning = None;
        for entry in entries {
            let digest = entry.shown_digest();
            let known = self.memory_plans().get(&digest, Instant::now());
            let plan = match known {
                Some(plan) => plan,
                None => {
                    if planning.is_none() {
                        planning = timeout_at(until.into(), self.memory_plans().planning.lock())
                            .await
                            .ok();
                    }
                    match planning.is_some() && Instant::now() < until {
                        true => {
                            let plan = self.plan(entry).await;
                            self.memory_plans().insert(digest, plan.clone());
                            plan
                        }
                        false => None,
                    }
                }
            };
            plans.push(plan);
        }
        drop(planning);
        let (app, planned) = (self.clone(), plans.clone());
        let windows = puna_tasks::run_blocking(move || {
            let one = |plan: &Option<Arc<ModelPlan>>| {
                plan.as_ref()?.window(app.launcher().as_ref(), &machine, until)
            };
            planned.iter().map(one).collect::<Vec<_>>()
        });
        let (windows, descriptions) = tokio::join!(windows, self.descriptions(&plans));
        let windows = windows.unwrap_or_else(|_| vec![None; plans.len()]);
        let all = entries.iter().zip(plans).zip(windows).zip(descriptions);
        all.map(|(((entry, plan), window), description)| match plan {
            Some(plan) => plan.size(window, description.unwrap_or_default()),
            None => ModelSize { bytes: Some(entry.size()), ..ModelSize::default() },
        })
        .collect()
    }

    /// Returns the sizes of one model.
    pub(crate) async fn size_of(&self, entry: &Entry) -> ModelSize {
        self.sizes(std::slice::from_ref(entry)).await.pop().unwrap_or_default()
    }

    /// Reads the inputs of a model's memory plan; `None` if the model is broken.
    async fn plan(&self, entry: &Entry) -> Option<Arc<ModelPlan>> {
        let wanted = entry.clone();
        let read = move |store: &puna_store::Store| {
            let model = store.resolve_entry(&wanted).ok()?;
            let n_vocab = vocabulary(&model);
            Some((model, n_vocab))
        };
        let (model, n_vocab) = self.store(read).await.ok()??;
        // Unknown parameters of the model are not reported as ignored fields of this request.
        let (options, run) = CompatibilityReport::default()
            .scope(self.options(&model, &RequestOptions::default()))
            .await
            .ok()?;
        let host = match model.weights {
            Weights::Remote => ModelHost::Remote {
                hosts: model.config.remote_host.clone(),
                model: model.config.remote_model.clone(),
                // The value that is sent to the remote server.
                limit: model
                    .params
                    .get("num_ctx")
                    .and_then(serde_json::Value::as_u64)
                    .filter(|limit| *limit > 0),
                stated: positive(model.config.context_length),
            },
            Weights::File(_) | Weights::Embedded => ModelHost::Local {
                key: key(&model),
                limit: match puna_engine::is_diffusion(&model.gguf_info.architecture) {
                    true => Some(run.num_ctx.unwrap_or(u32::MAX).min(DIFFUSION_CONTEXT as u32)),
                    false => run.num_ctx,
                },
                spec: Box::new(self.load_spec(&model, options)),
                load_needs: LoadNeeds::default(),
            },
        };
        Some(Arc::new(ModelPlan { size: size_without_window(&model, n_vocab), host }))
    }

    /// Fetches descriptions of remote models from their servers.
    async fn descriptions(&self, plans: &[Option<Arc<ModelPlan>>]) -> Vec<Option<Description>> {
        let remote = plans.iter().map(|plan| match plan.as_deref() {
            Some(ModelPlan { host: ModelHost::Remote { hosts, model, .. }, .. }) => {
                Some((hosts.clone(), model.clone()))
            }
            _ => None,
        });
        self.remotes().describe_all(remote.collect()).await
    }
}

/// Returns the number unless it is 0.
fn positive(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

fn size_without_window(model: &Model, n_vocab: Option<u64>) -> ModelSize {
    let GgufInfo { context_length, embedding_length, parameter_count, .. } = &*model.gguf_info;
    ModelSize {
        n_ctx: None,
        n_ctx_train: positive(*context_length),
        n_params: positive(*parameter_count),
        bytes: (model.weights != Weights::Remote).then_some(model.size),
        n_vocab,
        n_embd: positive(*embedding_length),
    }
}

/// Size of a model's vocabulary.
fn vocabulary(model: &Model) -> Option<u64> {
    let gguf = match weights(model) {
        Some(path) => Gguf::open(&path).ok()?,
        None if model.weights == Weights::Embedded => Gguf::from_bytes(embedded::weights()).ok()?,
        None => return None,
    };
    let tokens = gguf.metadata().get("tokenizer.ggml.tokens")?.as_array()?.len();
    positive(tokens as u64)
}
