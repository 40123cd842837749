//! The context windows of stored models: what a request without options gets. No model is loaded to find out: of one that is loaded
//! the runner's window counts, of others its memory is planned from the file's header, as a load does first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_engine::DIFFUSION_CONTEXT;
use puna_gguf::Gguf;
use puna_store::{Entry, Facts, Model, Weights, embedded};
use tokio::time::timeout_at;

use crate::app::{App, key, weights};
use crate::http::Ignored;
use crate::memory;
use crate::options::RequestOptions;
use crate::plans::{Machine, Needs, Place, Plan, Size};
use crate::remote::Description;

/// Time for models that were not planned before, in one answer. Those that take longer are told without a window; the next answer
/// has them.
const PLANNING_TIME: Duration = Duration::from_secs(2);

impl App {
    /// What is known of the sizes of stored models, in their order.
    pub(crate) async fn sizes(&self, entries: &[Entry]) -> Vec<Size> {
        let machine =
            Arc::new(Machine { residents: self.models().list().await, memory: memory::read() });
        let until = Instant::now() + PLANNING_TIME;
        let mut plans = Vec::with_capacity(entries.len());
        let mut planning = None;
        for entry in entries {
            let digest = entry.shown_digest();
            let known = self.plans().get(&digest, Instant::now());
            let plan = match known {
                Some(plan) => plan,
                None => {
                    if planning.is_none() {
                        planning =
                            timeout_at(until.into(), self.plans().planning.lock()).await.ok();
                    }
                    match planning.is_some() && Instant::now() < until {
                        true => {
                            let plan = self.plan(entry).await;
                            self.plans().keep(digest, plan.clone());
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
            let one = |plan: &Option<Arc<Plan>>| {
                plan.as_ref()?.window(app.launcher().as_ref(), &machine, until)
            };
            planned.iter().map(one).collect::<Vec<_>>()
        });
        let (windows, told) = tokio::join!(windows, self.descriptions(&plans));
        let windows = windows.unwrap_or_else(|_| vec![None; plans.len()]);
        let all = entries.iter().zip(plans).zip(windows).zip(told);
        all.map(|(((entry, plan), window), told)| match plan {
            Some(plan) => plan.size(window, told.unwrap_or_default()),
            None => Size { bytes: Some(entry.size()), ..Size::default() },
        })
        .collect()
    }

    /// What is known of one model's size.
    pub(crate) async fn size_of(&self, entry: &Entry) -> Size {
        self.sizes(std::slice::from_ref(entry)).await.pop().unwrap_or_default()
    }

    /// Reads what a plan of a model needs; `None` if the model is broken.
    async fn plan(&self, entry: &Entry) -> Option<Arc<Plan>> {
        let wanted = entry.clone();
        let read = move |store: &puna_store::Store| {
            let model = store.resolve_entry(&wanted).ok()?;
            let n_vocab = vocabulary(&model);
            Some((model, n_vocab))
        };
        let (model, n_vocab) = self.store(read).await.ok()??;
        // What of the model's own parameters nobody knows is no matter of this request.
        let (options, run) = Ignored::default()
            .during(self.options(&model, &RequestOptions::default()))
            .await
            .ok()?;
        let place = match model.weights {
            Weights::Remote => Place::Remote {
                hosts: model.config.remote_host.clone(),
                model: model.config.remote_model.clone(),
                // As it is sent there.
                limit: model
                    .params
                    .get("num_ctx")
                    .and_then(serde_json::Value::as_u64)
                    .filter(|limit| *limit > 0),
                stated: positive(model.config.context_length),
            },
            Weights::File(_) | Weights::Embedded => Place::Here {
                key: key(&model),
                limit: match puna_engine::fills_masks(&model.facts.architecture) {
                    true => Some(run.num_ctx.unwrap_or(u32::MAX).min(DIFFUSION_CONTEXT as u32)),
                    false => run.num_ctx,
                },
                spec: Box::new(self.load_spec(&model, options)),
                needs: Needs::default(),
            },
        };
        Some(Arc::new(Plan { size: size_without_window(&model, n_vocab), place }))
    }

    /// What other servers say of the models that they run.
    async fn descriptions(&self, plans: &[Option<Arc<Plan>>]) -> Vec<Option<Description>> {
        let remote = plans.iter().map(|plan| match plan.as_deref() {
            Some(Plan { place: Place::Remote { hosts, model, .. }, .. }) => {
                Some((hosts.clone(), model.clone()))
            }
            _ => None,
        });
        self.remotes().describe_all(remote.collect()).await
    }
}

/// The number, if it is one of something.
fn positive(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

fn size_without_window(model: &Model, n_vocab: Option<u64>) -> Size {
    let Facts { context_length, embedding_length, parameter_count, .. } = &*model.facts;
    Size {
        n_ctx: None,
        n_ctx_train: positive(*context_length),
        n_params: positive(*parameter_count),
        bytes: (model.weights != Weights::Remote).then_some(model.size),
        n_vocab,
        n_embd: positive(*embedding_length),
    }
}

/// Tokens of a model's vocabulary.
fn vocabulary(model: &Model) -> Option<u64> {
    let gguf = match weights(model) {
        Some(path) => Gguf::open(&path).ok()?,
        None if model.weights == Weights::Embedded => Gguf::from_bytes(embedded::weights()).ok()?,
        None => return None,
    };
    let tokens = gguf.metadata().get("tokenizer.ggml.tokens")?.as_array()?.len();
    positive(tokens as u64)
}
