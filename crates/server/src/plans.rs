//! Memory plans of stored models, from which their context windows are told without loading them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use puna_store::Digest;

use crate::lock::lock;
use crate::manager::Resident;
use crate::remote::Description;
use crate::runner::launch::Launcher;
use crate::runner::protocol::LoadSpec;
use crate::scheduler::{Key, LoadOptions, Memory, Need, Phase, planned_context};

/// Models of which plans are kept.
const KEPT: usize = 16_384;

/// How long a model that could not be read or planned is left alone. Its files may be repaired in place: neither its digest nor
/// its manifest changes then.
const RETRY: Duration = Duration::from_secs(60);

/// What is known of a model's size without loading it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// The context window of a request without options.
    pub(crate) n_ctx: Option<u64>,
    /// Tokens of the context that the model was trained for.
    pub(crate) n_ctx_train: Option<u64>,
    /// Elements of all tensors.
    pub(crate) n_params: Option<u64>,
    /// Bytes of all layers.
    pub(crate) bytes: Option<u64>,
    /// Tokens of the vocabulary.
    pub(crate) n_vocab: Option<u64>,
    /// Width of the hidden states.
    pub(crate) n_embd: Option<u64>,
}

/// Plans of stored models.
#[derive(Default)]
pub(crate) struct Plans {
    models: Mutex<HashMap<Digest, PlanState>>,
    /// One request plans at a time.
    pub(crate) planning: tokio::sync::Mutex<()>,
}

/// What is known of the model of a manifest.
enum PlanState {
    Planned(Arc<Plan>),
    /// The model could not be read at this time.
    Unreadable(Instant),
}

/// A model with what its loads would need.
pub(crate) struct Plan {
    /// Without the context window.
    pub(crate) size: Size,
    pub(crate) place: Place,
}

/// Where a model runs.
pub(crate) enum Place {
    /// In a runner of this server.
    Here {
        key: Key,
        spec: Box<LoadSpec>,
        /// The limit that the model's parameters or the configuration set.
        limit: Option<u32>,
        needs: Needs,
    },
    /// On another server.
    Remote {
        hosts: String,
        model: String,
        /// The limit that the model's parameters set.
        limit: Option<u64>,
        /// The context that the recipe states.
        stated: Option<u64>,
    },
}

/// What is loaded, and the machine's memory.
pub(crate) struct Machine {
    pub(crate) residents: Vec<Resident>,
    pub(crate) memory: Memory,
}

impl Plans {
    /// The plan of a manifest, if it was made before: `Some(None)` if its model could not be read a short time ago.
    pub(crate) fn get(&self, manifest: &Digest, now: Instant) -> Option<Option<Arc<Plan>>> {
        match lock(&self.models).get(manifest)? {
            PlanState::Planned(plan) => Some(Some(plan.clone())),
            PlanState::Unreadable(at) => (now.duration_since(*at) < RETRY).then_some(None),
        }
    }

    /// Keeps the plan of a manifest, or that its model cannot be read.
    pub(crate) fn keep(&self, manifest: Digest, plan: Option<Arc<Plan>>) {
        let mut models = lock(&self.models);
        if models.len() >= KEPT {
            models.clear();
        }
        models.insert(
            manifest,
            plan.map_or_else(|| PlanState::Unreadable(Instant::now()), PlanState::Planned),
        );
    }
}

/// What a model needs when it is loaded with some options.
#[derive(Default)]
pub(crate) struct Needs(Mutex<Vec<PlannedNeed>>);

struct PlannedNeed {
    options: LoadOptions,
    /// `None` where the load could not be planned.
    need: Option<Need>,
    at: Instant,
}

impl Needs {
    /// What is known of a load: `Some(None)` if it could not be planned a short time ago.
    fn get(&self, options: &LoadOptions, now: Instant) -> Option<Option<Need>> {
        let planned = lock(&self.0);
        let known = planned.iter().find(|planned| planned.options == *options)?;
        (known.need.is_some() || now.duration_since(known.at) < RETRY).then_some(known.need)
    }

    fn keep(&self, options: &LoadOptions, need: Option<Need>) {
        let mut planned = lock(&self.0);
        planned.retain(|planned| planned.options != *options);
        planned.push(PlannedNeed { options: options.clone(), need, at: Instant::now() });
    }
}

impl Plan {
    /// The context of a request without options, of a model that runs here: that of its runner, or of the runner that a request would
    /// load now.
    pub(crate) fn window(
        &self,
        launcher: &dyn Launcher,
        machine: &Machine,
        until: Instant,
    ) -> Option<u32> {
        let Place::Here { key, spec, limit, needs } = &self.place else { return None };
        let limited = |window: u32| limit.map_or(window, |limit| limit.min(window));
        let runs =
            |r: &&Resident| r.key == *key && matches!(r.phase, Phase::Loading | Phase::Ready);
        if let Some(resident) = machine.residents.iter().find(runs) {
            return Some(limited(resident.window));
        }
        let others =
            machine.residents.iter().filter(|r| r.key != *key && r.phase != Phase::Waiting);
        let others = others.map(|resident| resident.size).fold(0, u64::saturating_add);
        let window = planned_context(spec.options.clone(), machine.memory, others, |options| {
            let now = Instant::now();
            if let Some(need) = needs.get(options, now) {
                return need;
            }
            if now >= until {
                return None;
            }
            let planned =
                launcher.plan(&LoadSpec { options: options.clone(), ..LoadSpec::clone(spec) });
            let need = planned.ok().map(|memory| Need { total: memory.total(), cache: memory.kv });
            needs.keep(options, need);
            need
        });
        window.map(limited)
    }

    /// The model's size with its window on this server, and with what another server says of it.
    pub(crate) fn size(&self, window: Option<u32>, told: Description) -> Size {
        let Place::Remote { limit, stated, .. } = &self.place else {
            return Size { n_ctx: window.map(u64::from), ..self.size.clone() };
        };
        let window = told.n_ctx.or(*stated);
        let n_ctx = match limit.filter(|_| told.takes_limit) {
            Some(limit) => Some(window.map_or(limit, |window| window.min(limit))),
            None => window,
        };
        Size {
            n_ctx,
            n_ctx_train: told.n_ctx_train.or(self.size.n_ctx_train),
            n_embd: told.n_embd.or(self.size.n_embd),
            n_params: told.n_params,
            ..self.size.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_or_planned_is_left_alone_for_some_time() {
        let (plans, manifest) = (Plans::default(), Digest::of(b"manifest"));
        assert!(plans.get(&manifest, Instant::now()).is_none());
        let before = Instant::now();
        plans.keep(manifest, None);
        assert!(matches!(plans.get(&manifest, before), Some(None)), "it is not read again at once");
        let (needs, options) = (Needs::default(), LoadOptions::default());
        needs.keep(&options, None);
        assert_eq!(needs.get(&options, before), Some(None));
        let later = Instant::now() + RETRY;
        assert!(plans.get(&manifest, later).is_none(), "its file may have been repaired");
        assert_eq!(needs.get(&options, later), None);
        let need = Some(Need { total: 2, cache: 1 });
        needs.keep(&options, need);
        assert_eq!(needs.get(&options, later + RETRY), Some(need), "what is planned lasts");
        assert_eq!(lock(&needs.0).len(), 1);
    }
}
