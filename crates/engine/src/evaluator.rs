//! Steps by hand: for measuring and for looking inside, without queue, prefix tree or sampling.

use puna_gguf::View;
use puna_graph::{Backend, OpTime, RecentPages, Segment, StepInput};
use puna_models::Want;

use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::options::{EngineOptions, MemoryReport, ModelInfo};
use crate::pages::PAGE_TOKENS;

/// Which rows of a [`Feed`] have a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// Tokens that continue a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Feed<'a> {
    /// The sequence's number, below [`EngineOptions::max_sequences`]; 0 where that is open.
    pub sequence: usize,
    /// What comes next.
    pub tokens: &'a [u32],
    /// What is wanted.
    pub outputs: Outputs,
}

/// A model whose sequences the caller feeds step by step.
pub struct Evaluator {
    executor: ModelExecutor,
    lengths: Vec<usize>,
    /// How many of these an encoder has read.
    encoded: Vec<usize>,
}

impl Evaluator {
    /// Loads a model. Every sequence has pages for a whole context, whatever [`EngineOptions::cache_pages`] says.
    pub fn open(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let lengths = vec![0; options.max_sequences.map_or(1, |n| n.max(1))];
        let options = EngineOptions {
            cache_pages: None,
            states: Some(lengths.len()),
            recent_pages: Some(usize::MAX),
            ..options.clone()
        };
        let encoded = vec![0; lengths.len()];
        Ok(Self { executor: ModelExecutor::new(view, backend, &options)?, lengths, encoded })
    }

    /// Figures of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.executor.info
    }

    /// What was planned.
    pub fn memory(&self) -> MemoryReport {
        self.executor.planned
    }

    /// The backend.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.executor.backend
    }

    /// Tokens of a sequence so far.
    pub fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    /// Whether nothing was fed yet.
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|&n| n == 0)
    }

    /// Forgets what follows the first `len` tokens of a sequence. Recurrent states forget all or nothing: where `len` is not zero,
    /// they stay as they are.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        // What an encoder has read is there as a whole or not at all.
        let len = if len < self.encoded[sequence] { 0 } else { len };
        self.lengths[sequence] = self.lengths[sequence].min(len);
        self.encoded[sequence] = self.encoded[sequence].min(len);
    }

    /// Has the encoder of a model read what sequences begin with, where it has one: hidden states of all rows. What follows is fed from
    /// [`ModelInfo::start`] on.
    pub fn encode(&mut self, feeds: &[Feed<'_>]) -> Result<&[f32], EngineError> {
        for feed in feeds {
            self.truncate(feed.sequence, 0);
            self.encoded[feed.sequence] = feed.tokens.len();
        }
        self.step(Want::Encode, feeds)?.ok_or(EngineError::CannotEmbed)
    }

    /// One step: logits of the wanted rows, one after the other.
    pub fn logits(&mut self, feeds: &[Feed<'_>]) -> Result<&[f32], EngineError> {
        self.step(Want::Logits, feeds)?.ok_or(EngineError::CannotGenerate)
    }

    /// One step: final hidden states of all rows. Encoders forget the sequence afterwards.
    pub fn hidden(&mut self, feeds: &[Feed<'_>]) -> Result<&[f32], EngineError> {
        self.step(Want::Hidden, feeds)?.ok_or(EngineError::CannotEmbed)
    }

    /// Starts or ends measuring operations.
    pub fn measure(&mut self, on: bool) {
        self.executor.backend.measure(on);
    }

    /// What was measured.
    pub fn measured(&self) -> Vec<OpTime> {
        self.executor.backend.measured()
    }

    fn step(&mut self, want: Want, feeds: &[Feed<'_>]) -> Result<Option<&[f32]>, EngineError> {
        let info = &self.executor.info;
        let each = info.n_ctx.div_ceil(PAGE_TOKENS);
        let mut input = StepInput::default();
        for feed in feeds {
            let past = if info.causal { self.lengths[feed.sequence] } else { 0 };
            let tokens = past + feed.tokens.len();
            if tokens > info.n_ctx {
                return Err(EngineError::PromptTooLong { tokens, n_ctx: info.n_ctx });
            }
            if let Some(&token) = feed.tokens.iter().find(|&&t| t as usize >= info.n_vocab) {
                return Err(EngineError::UnknownToken { token, n_vocab: info.n_vocab });
            }
            let first_row = input.tokens.len();
            input.tokens.extend_from_slice(feed.tokens);
            input.positions.extend((past..tokens).map(|p| p as u32));
            let rows = first_row as u32..input.tokens.len() as u32;
            match feed.outputs {
                Outputs::None => {}
                Outputs::Last => input.outputs.extend(rows.last()),
                Outputs::All => input.outputs.extend(rows),
            }
            let pages: Vec<u32> =
                (feed.sequence * each..(feed.sequence + 1) * each).map(|p| p as u32).collect();
            // All are kept, as what was fed may be forgotten again.
            let recent = RecentPages { first: 0, pages: pages.clone() };
            let (rows, state) = (feed.tokens.len(), feed.sequence as u32);
            let encoded = self.encoded[feed.sequence];
            input.segments.push(Segment { first_row, rows, past, pages, recent, encoded, state });
        }
        if input.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let cols = self.executor.run(want, &input)?;
        for feed in feeds {
            self.lengths[feed.sequence] += feed.tokens.len();
        }
        Ok(cols.map(|_| self.executor.backend.result()))
    }
}
