//! Descriptions of loaded models and their runners.

use std::collections::BTreeMap;
use std::time::SystemTime;

use puna_api::ollama::ModelDetails;

use crate::model_scheduler::{ModelKey, Phase};
use crate::runner::protocol::{Counts, Heartbeat};

/// Description of a model in listings of loaded models.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ModelListing {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) details: ModelDetails,
}

/// A model in memory, or on its way there.
#[derive(Debug, Clone)]
pub(crate) struct ResidentModel {
    pub(crate) key: ModelKey,
    pub(crate) listing: ModelListing,
    /// Other names under which requests used it.
    pub(crate) aliases: Vec<String>,
    pub(crate) size: u64,
    /// Tokens of one conversation, limited by the most recent request.
    pub(crate) context: u32,
    /// Tokens of one conversation where a request sets no limit.
    pub(crate) window: u32,
    /// When it is unloaded unless a request uses it; `None` is never.
    pub(crate) expires: Option<SystemTime>,
    /// Restrictions of its runner, such as `landlock, seccomp`; `None` until it has closed its
    /// sandbox.
    pub(crate) sandbox: Option<String>,
    /// Loading state.
    pub(crate) phase: Phase,
}

/// Totals and present state of all runners.
#[derive(Debug, Default)]
pub(crate) struct RunnersSnapshot {
    /// Requests that wait for a model.
    pub(crate) waiting: usize,
    /// By the name under which the model was loaded.
    pub(crate) models: BTreeMap<String, RunnerTotals>,
}

/// Totals and present state of one model's runners.
#[derive(Debug, Default)]
pub(crate) struct RunnerTotals {
    /// Sums over all runners of the model, including ended ones.
    pub(crate) counts: Counts,
    /// Latest heartbeat of each running runner.
    pub(crate) current: Vec<Heartbeat>,
}
