//! Memory plans of stored models, from which their context windows follow without loading them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_mirror::{SharedTable, TableLimit};
use puna_store::Digest;

use crate::model_scheduler::{LoadOptions, Memory, MemoryNeed, ModelKey, Phase, planned_context};
use crate::models::manager::ResidentModel;
use crate::remote::Description;
use crate::runner::launch::Launcher;
use crate::runner::protocol::LoadSpec;
use crate::util::lock::lock;

/// Maximum number of models with a stored plan.
const MAX_PLANS: usize = 16_384;

/// Time until a model that could not be read or planned is tried again. Its files may be repaired
/// in place, which changes neither digest nor manifest.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Sizes of a model that are known without loading it. Fields are `None` if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelSize {
    /// Context window in tokens of a request without options.
    pub(crate) n_ctx: Option<u64>,
    /// Context length in tokens of the training.
    pub(crate) n_ctx_train: Option<u64>,
    /// Number of parameters.
    pub(crate) n_params: Option<u64>,
    /// Total bytes of all layers.
    pub(crate) bytes: Option<u64>,
    /// Size of the vocabulary.
    pub(crate) n_vocab: Option<u64>,
    /// Width of the hidden states.
    pub(crate) n_embd: Option<u64>,
}

/// Description of [`MemoryPlans`].
pub(crate) static PLANNED_MODELS: SharedTable = SharedTable {
    name: "memory plans of stored models",
    holders: &[
        "puna_server::models::memory_plans::MemoryPlans",
        "puna_server::models::memory_plans::LoadNeeds",
    ],
    limits: &[TableLimit::Entries(MAX_PLANS)],
    shares: &[TableLimit::Rule("none: what is missing is planned again")],
    when_full: "cleared",
    test: "a_client_with_many_models_does_not_hide_the_plan_of_another",
};

/// Memory plans by manifest digest.
#[derive(Default)]
pub(crate) struct MemoryPlans {
    models: Mutex<HashMap<Digest, PlanState>>,
    /// Held by the request that plans; one at a time.
    pub(crate) planning: tokio::sync::Mutex<()>,
}

/// State of the plan of a manifest.
enum PlanState {
    Planned(Arc<ModelPlan>),
    /// The model could not be read at this time.
    Unreadable(Instant),
}

/// A model with the memory that its loads need.
pub(crate) struct ModelPlan {
    /// Sizes without the context window.
    pub(crate) size: ModelSize,
    pub(crate) host: ModelHost,
}

/// Where a model runs.
pub(crate) enum ModelHost {
    /// In a runner of this server.
    Local {
        key: ModelKey,
        spec: Box<LoadSpec>,
        /// Context limit in tokens of the model's parameters or of the configuration.
        limit: Option<u32>,
        load_needs: LoadNeeds,
    },
    /// On another server.
    Remote {
        hosts: String,
        model: String,
        /// Context limit in tokens of the model's parameters.
        limit: Option<u64>,
        /// Context length in tokens that the Modelfile states.
        stated: Option<u64>,
    },
}

/// Models in memory, and the machine's memory.
pub(crate) struct MachineState {
    pub(crate) residents: Vec<ResidentModel>,
    pub(crate) memory: Memory,
}

impl MemoryPlans {
    /// Returns the plan of a manifest, if there is one. `Some(None)` means that the model could not
    /// be read a short time ago.
    pub(crate) fn get(&self, manifest: &Digest, now: Instant) -> Option<Option<Arc<ModelPlan>>> {
        match lock(&self.models).get(manifest)? {
            PlanState::Planned(plan) => Some(Some(plan.clone())),
            PlanState::Unreadable(at) => (now.duration_since(*at) < RETRY_INTERVAL).then_some(None),
        }
    }

    /// Stores the plan of a manifest; `None` if the model cannot be read.
    pub(crate) fn insert(&self, manifest: Digest, plan: Option<Arc<ModelPlan>>) {
        let mut models = lock(&self.models);
        if models.len() >= MAX_PLANS {
            models.clear();
        }
        models.insert(
            manifest,
            plan.map_or_else(|| PlanState::Unreadable(Instant::now()), PlanState::Planned),
        );
    }
}

/// Memory that a model needs for each set of load options planned so far.
#[derive(Default)]
pub(crate) struct LoadNeeds(Mutex<Vec<PlannedNeed>>);

struct PlannedNeed {
    options: LoadOptions,
    /// `None` if the load could not be planned.
    need: Option<MemoryNeed>,
    planned_at: Instant,
}

impl LoadNeeds {
    /// Returns the planned memory of a load. `Some(None)` means that it could not be planned a
    /// short time ago.
    fn get(&self, options: &LoadOptions, now: Instant) -> Option<Option<MemoryNeed>> {
        let planned = lock(&self.0);
        let known = planned.iter().find(|planned| planned.options == *options)?;
        (known.need.is_some() || now.duration_since(known.planned_at) < RETRY_INTERVAL)
            .then_some(known.need)
    }

    fn insert(&self, options: &LoadOptions, need: Option<MemoryNeed>) {
        let mut planned = lock(&self.0);
        planned.retain(|planned| planned.options != *options);
        planned.push(PlannedNeed { options: options.clone(), need, planned_at: Instant::now() });
    }
}

impl ModelPlan {
    /// Context window of a request without options for a model on this server: that of its runner,
    /// or of the runner that a request would load now. Plans nothing after `until`.
    pub(crate) fn window(
        &self,
        launcher: &dyn Launcher,
        machine: &MachineState,
        until: Instant,
    ) -> Option<u32> {
        let ModelHost::Local { key, spec, limit, load_needs } = &self.host else {
            return None;
        };
        let limited = |window: u32| limit.map_or(window, |limit| limit.min(window));
        let runs =
            |r: &&ResidentModel| r.key == *key && matches!(r.phase, Phase::Loading | Phase::Ready);
        if let Some(resident) = machine.residents.iter().find(runs) {
            return Some(limited(resident.window));
        }
        let others =
            machine.residents.iter().filter(|r| r.key != *key && r.phase != Phase::Waiting);
        let others = others.map(|resident| resident.size).fold(0, u64::saturating_add);
        let window = planned_context(spec.options.clone(), machine.memory, others, |options| {
            let now = Instant::now();
            if let Some(need) = load_needs.get(options, now) {
                return need;
            }
            if now >= until {
                return None;
            }
            let planned =
                launcher.plan(&LoadSpec { options: options.clone(), ..LoadSpec::clone(spec) });
            let need =
                planned.ok().map(|memory| MemoryNeed { total: memory.total(), cache: memory.kv });
            load_needs.insert(options, need);
            need
        });
        window.map(limited)
    }

    /// Sizes of the model with its context window here, or with a remote server's description.
    pub(crate) fn size(&self, window: Option<u32>, description: Description) -> ModelSize {
        let ModelHost::Remote { limit, stated, .. } = &self.host else {
            return ModelSize { n_ctx: window.map(u64::from), ..self.size.clone() };
        };
        let window = description.n_ctx.or(*stated);
        let n_ctx = match limit.filter(|_| description.takes_limit) {
            Some(limit) => Some(window.map_or(limit, |window| window.min(limit))),
            None => window,
        };
        ModelSize {
            n_ctx,
            n_ctx_train: description.n_ctx_train.or(self.size.n_ctx_train),
            n_embd: description.n_embd.or(self.size.n_embd),
            n_params: description.n_params,
            ..self.size.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_models_does_not_hide_the_plan_of_another() {
        let plans = MemoryPlans::default();
        let (other, now) = (Digest::of(b"other"), Instant::now());
        plans.insert(other, None);
        (0..=MAX_PLANS).for_each(|n| plans.insert(Digest::of(&n.to_le_bytes()), None));
        assert!(lock(&plans.models).len() <= MAX_PLANS);
        // It is planned again, and then found.
        assert!(plans.get(&other, now).is_none());
        plans.insert(other, None);
        assert!(plans.get(&other, now).is_some());
    }

    #[test]
    fn failed_plans_are_retried_after_the_retry_interval() {
        let (plans, manifest) = (MemoryPlans::default(), Digest::of(b"manifest"));
        assert!(plans.get(&manifest, Instant::now()).is_none());
        let before = Instant::now();
        plans.insert(manifest, None);
        assert!(matches!(plans.get(&manifest, before), Some(None)), "it is not read again at once");
        let (load_needs, options) = (LoadNeeds::default(), LoadOptions::default());
        load_needs.insert(&options, None);
        assert_eq!(load_needs.get(&options, before), Some(None));
        let later = Instant::now() + RETRY_INTERVAL;
        assert!(plans.get(&manifest, later).is_none(), "its file may have been repaired");
        assert_eq!(load_needs.get(&options, later), None);
        let need = Some(MemoryNeed { total: 2, cache: 1 });
        load_needs.insert(&options, need);
        assert_eq!(
            load_needs.get(&options, later + RETRY_INTERVAL),
            Some(need),
            "what is planned lasts"
        );
        assert_eq!(lock(&load_needs.0).len(), 1);
    }
}
