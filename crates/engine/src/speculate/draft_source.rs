//! Sources of drafts besides the text itself: the kinds of draft models.

use puna_models::{DraftCache, DraftMethod};

use super::blocks::BlockDrafter;
use super::chain::ChainDrafter;
use super::model::{DraftRequest, DraftTokens, ModelDrafter};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::kv::PagePool;
use crate::request::RequestId;
use crate::scheduler::SequenceState;

/// A loaded draft model.
pub enum DraftSource {
    /// Separate model.
    Model(Box<ModelDrafter>),
    /// Companion that drafts token by token (MTP, EAGLE-3).
    Chain(ChainDrafter),
    /// Companion that drafts blocks of tokens (DFlash).
    Block(BlockDrafter),
}

/// Rows of one sequence in a step that has run.
#[derive(Debug, Clone, Copy)]
pub struct StepRows {
    /// Tokens of the sequence before the step.
    pub cached_tokens: usize,
    /// First row of the sequence among the rows of the step.
    pub first: usize,
    /// Row of the latest accepted token among the output rows of the step.
    pub output: Option<usize>,
}

impl DraftSource {
    /// The companion draft model that was loaded with its target.
    pub fn companion(drafter: &DraftMethod) -> Self {
        match drafter {
            DraftMethod::Chain { state_dim, cache } => {
                Self::Chain(ChainDrafter::new(*state_dim, *cache))
            }
            DraftMethod::Block(form) => Self::Block(BlockDrafter::new(form.clone())),
        }
    }

    /// Largest number of tokens of a draft.
    pub fn max_tokens(&self) -> usize {
        match self {
            Self::Model(_) | Self::Chain(_) => usize::MAX,
            Self::Block(drafter) => drafter.max_tokens(),
        }
    }

    /// Number of KV positions behind the computed ones that a draft step writes.
    pub fn lookahead(&self) -> usize {
        match self {
            Self::Model(_) => 0,
            // Further positions are in the same page, since drafts end with the page.
            Self::Chain(drafter) => usize::from(drafter.attends_to() == DraftCache::Own),
            Self::Block(drafter) => drafter.rows(),
        }
    }

    /// Median seconds to draft one token; 0 before the first measurement.
    pub fn token_seconds(&self) -> f64 {
        match self {
            Self::Model(drafter) => drafter.token_seconds(),
            Self::Chain(drafter) => drafter.token_seconds(),
            Self::Block(drafter) => drafter.token_seconds(),
        }
    }

    /// Seconds before the first token of a draft: to compute the tokens that the draft model has
    /// not seen yet (beyond the prompt), or to compute a block.
    pub fn setup_seconds(&self, id: RequestId, tokens: &[u32]) -> f64 {
        match self {
            Self::Model(drafter) => drafter.prefill_seconds(id, tokens),
            Self::Chain(_) => 0.0,
            Self::Block(drafter) => drafter.block_seconds(),
        }
    }

    /// Drafts for several sequences. `model` is the executor of the target model and its pages.
    pub fn draft(
        &mut self,
        requests: &[DraftRequest<'_>],
        model: (&mut ModelExecutor, &PagePool),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        match self {
            Self::Model(drafter) => drafter.draft(requests, is_end),
            Self::Chain(drafter) => drafter.draft(requests, model, is_end),
            Self::Block(drafter) => drafter.draft(requests, model, is_end),
        }
    }

    /// Records the hidden states (`extra_output`) that a step computed for a sequence.
    pub fn record_step(&mut self, s: &SequenceState, extra_output: &[f32], step: StepRows) {
        if let Self::Chain(drafter) = self {
            drafter.record_step(s.id, s.computed, extra_output, step);
        }
    }

    /// Computes the draft model's own keys and values for the rows of the step, before other
    /// sequences can match its pages in the prefix tree.
    pub fn update_cache(
        &mut self,
        sequences: &[SequenceState],
        model: (&mut ModelExecutor, &PagePool),
    ) -> Result<(), EngineError> {
        match self {
            Self::Model(_) | Self::Block(_) => Ok(()),
            Self::Chain(drafter) => {
                let found = |id| sequences.iter().find(|s| s.id == id);
                drafter.update_cache(|id| found(id).map(|s| (&s.tokens[..], &s.pages)), model)
            }
        }
    }

    /// Removes a sequence that has ended or is preempted.
    pub fn remove(&mut self, id: RequestId, tokens: &[u32]) {
        match self {
            Self::Model(drafter) => drafter.remove(id, tokens),
            Self::Chain(drafter) => drafter.remove(id),
            Self::Block(_) => {}
        }
    }
}
