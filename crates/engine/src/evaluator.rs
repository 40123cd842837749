//! Runs single steps for measurements, perplexity and debugging, without queue, prefix tree or
//! sampling.

use std::ops::Range;

use puna_gguf::View;
use puna_graph::{Backend, OpTime, Segment, SegmentWindowPages, StepInput};
use puna_models::StepKind;

use crate::config::{EngineOptions, MemoryReport, ModelInfo};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::kv::PAGE_TOKENS;
use crate::media::{MediumLayout, PlacedMedium, SequenceMedia};

/// Output rows of a [`SequenceInput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// No rows.
    None,
    /// The last row.
    Last,
    /// All rows.
    All,
}

/// Tokens that continue a sequence.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// Number of the sequence, below [`EngineOptions::max_sequences`]; 0 if that is `None`.
    pub sequence: usize,
    /// Tokens to append.
    pub tokens: &'a [u32],
    /// Output rows.
    pub outputs: Outputs,
}

/// A model with steps that the caller runs.
pub struct Evaluator {
    executor: ModelExecutor,
    lengths: Vec<usize>,
    /// Number of tokens that the encoder has read, by sequence.
    encoder_tokens: Vec<usize>,
    media: Vec<SequenceMedia>,
}

impl Evaluator {
    /// Loads a model. Every sequence has pages for a full context, regardless of
    /// [`EngineOptions::cache_pages`].
    pub fn open(
        view: &View,
        backend: Box<dyn Backend>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let lengths = vec![0; options.max_sequences.map_or(1, |n| n.max(1))];
        let options = EngineOptions {
            cache_pages: None,
            states: Some(lengths.len()),
            window_pages: Some(usize::MAX),
            ..options.clone()
        };
        let encoder_tokens = vec![0; lengths.len()];
        let media = vec![SequenceMedia::default(); lengths.len()];
        let executor = ModelExecutor::new(view, backend, &options)?;
        Ok(Self { executor, lengths, encoder_tokens, media })
    }

    /// Properties of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.executor.info
    }

    /// Planned memory.
    pub fn memory(&self) -> MemoryReport {
        self.executor.planned
    }

    /// The backend.
    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.executor.backend
    }

    /// Number of tokens of a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    /// Whether no sequence has tokens.
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|&n| n == 0)
    }

    /// Truncates a sequence to its first `len` tokens. Recurrent states cannot be rolled back: they
    /// are reset if `len` is 0 and unchanged otherwise.
    pub fn truncate(&mut self, sequence: usize, len: usize) {
        // The encoder's input is kept as a whole or not at all.
        let len = if len < self.encoder_tokens[sequence] { 0 } else { len };
        self.lengths[sequence] = self.lengths[sequence].min(len);
        self.encoder_tokens[sequence] = self.encoder_tokens[sequence].min(len);
        self.media[sequence].truncate(len);
    }

    /// Number of positions that a medium takes in a sequence of the model.
    pub fn media_positions(&self, layout: &MediumLayout) -> usize {
        let has_axes = self.executor.model.ropes().iter().any(|rope| !rope.axes.is_empty());
        if has_axes { layout.extent() } else { layout.rows }
    }

    /// Adds a medium to a sequence, behind its tokens and other media. The steps then have
    /// [`StepInput::NO_TOKEN`] for each of its rows.
    ///
    /// # Errors
    /// [`EngineError::MediaWidth`] if the rows do not fit the model.
    pub fn add_medium(&mut self, sequence: usize, medium: PlacedMedium) -> Result<(), EngineError> {
        let (rows, width) = (medium.layout.rows, self.executor.model.media_width());
        let values = medium.rows.as_ref().map_or(0, |rows| rows.len());
        if rows == 0 || values != rows * width {
            return Err(EngineError::MediaWidth { media: values / rows.max(1), width });
        }
        self.media[sequence].push(medium);
        Ok(())
    }

    /// Adds what a step needs of the media of a sequence, for its rows at these indices.
    fn add_media(
        &self,
        sequence: usize,
        indices: Range<usize>,
        has_rows: bool,
        input: &mut StepInput,
    ) {
        let media = &self.media[sequence];
        if has_rows {
            let width = self.executor.model.media_width();
            input.inputs.resize_with(1, Vec::new);
            media.add_rows(indices.clone(), width, &mut input.inputs[0]);
        }
        media.add_axis_positions(indices, input);
    }

    /// Runs the encoder of an encoder–decoder model, and returns hidden states of all rows. The
    /// decoder's tokens then begin with [`ModelInfo::start`].
    pub fn encode(&mut self, inputs: &[SequenceInput<'_>]) -> Result<&[f32], EngineError> {
        for feed in inputs {
            self.truncate(feed.sequence, 0);
            self.encoder_tokens[feed.sequence] = feed.tokens.len();
        }
        self.step(StepKind::Encode, inputs)?.ok_or(EngineError::CannotEmbed)
    }

    /// Runs a step, and returns the logits of the output rows.
    pub fn logits(&mut self, inputs: &[SequenceInput<'_>]) -> Result<&[f32], EngineError> {
        self.step(StepKind::Logits, inputs)?.ok_or(EngineError::CannotGenerate)
    }

    /// Runs a step, and returns the final hidden states of all rows. Encoders reset the sequence
    /// afterwards.
    pub fn hidden(&mut self, inputs: &[SequenceInput<'_>]) -> Result<&[f32], EngineError> {
        self.step(StepKind::Hidden, inputs)?.ok_or(EngineError::CannotEmbed)
    }

    /// Enables or disables timing of operations.
    pub fn measure(&mut self, on: bool) {
        self.executor.backend.measure(on);
    }

    /// Timings of operations.
    pub fn op_times(&self) -> Vec<OpTime> {
        self.executor.backend.op_times()
    }

    fn step(
        &mut self,
        want: StepKind,
        inputs: &[SequenceInput<'_>],
    ) -> Result<Option<&[f32]>, EngineError> {
        let input = self.step_input(inputs)?;
        let has_rows = !input.inputs.is_empty();
        let kind = match (want, has_rows) {
            (StepKind::Logits, true) => StepKind::MediaLogits,
            (_, true) => return Err(EngineError::NoMedia),
            (kind, false) => kind,
        };
        let cols = self.executor.run(kind, &input)?;
        if has_rows && cols.is_none() {
            return Err(EngineError::NoMedia);
        }
        for feed in inputs {
            self.lengths[feed.sequence] += feed.tokens.len();
        }
        Ok(cols.map(|_| self.executor.backend.result()))
    }

    /// Indices of the tokens of an input in its sequence.
    fn indices(&self, feed: &SequenceInput<'_>) -> Range<usize> {
        let first = if self.executor.info.causal { self.lengths[feed.sequence] } else { 0 };
        first..first + feed.tokens.len()
    }

    /// Checks that the tokens fit the context, are in the vocabulary, and are absent at media.
    fn check_tokens(&self, feed: &SequenceInput<'_>) -> Result<(), EngineError> {
        let (indices, n_ctx) = (self.indices(feed), self.executor.info.n_ctx);
        let n_vocab = self.executor.info.n_vocab;
        if indices.end > n_ctx {
            return Err(EngineError::PromptTooLong { tokens: indices.end, n_ctx });
        }
        let is_media = |at: usize| self.media[feed.sequence].is_in(&(at..at + 1));
        let is_unknown = |&(at, &token): &(usize, &u32)| match token {
            StepInput::NO_TOKEN => !is_media(at),
            token => token as usize >= n_vocab || is_media(at),
        };
        match indices.zip(feed.tokens).find(is_unknown) {
            Some((_, &token)) => Err(EngineError::UnknownToken { token, n_vocab }),
            None => Ok(()),
        }
    }

    /// Input of a step. It has an input with rows of media if a sequence has some in the step.
    fn step_input(&self, inputs: &[SequenceInput<'_>]) -> Result<StepInput, EngineError> {
        let has_media = inputs.iter().any(|feed| !self.media[feed.sequence].is_empty());
        let has_rows =
            inputs.iter().any(|feed| self.media[feed.sequence].is_in(&self.indices(feed)));
        let mut input = StepInput::default();
        for feed in inputs {
            self.check_tokens(feed)?;
            let indices = self.indices(feed);
            let first_row = input.tokens.len();
            input.tokens.extend_from_slice(feed.tokens);
            input.positions.extend(indices.clone().map(|p| p as u32));
            if has_media {
                self.add_media(feed.sequence, indices.clone(), has_rows, &mut input);
            }
            let rows = first_row as u32..input.tokens.len() as u32;
            match feed.outputs {
                Outputs::None => {}
                Outputs::Last => input.outputs.extend(rows.last()),
                Outputs::All => input.outputs.extend(rows),
            }
            input.segments.push(self.segment(feed.sequence, first_row, indices));
        }
        if input.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        Ok(input)
    }

    /// Segment of a sequence for the tokens at these indices. All pages are kept, since the
    /// sequence may be truncated.
    fn segment(&self, sequence: usize, first_row: usize, indices: Range<usize>) -> Segment {
        let each = self.executor.info.n_ctx.div_ceil(PAGE_TOKENS);
        let pages: Vec<u32> =
            (sequence * each..(sequence + 1) * each).map(|page| page as u32).collect();
        let mut segment = Segment {
            first_row,
            rows: indices.len(),
            cached_tokens: indices.start,
            window_pages: SegmentWindowPages { first: 0, pages: pages.clone() },
            pages,
            encoder_tokens: self.encoder_tokens[sequence],
            state: sequence as u32,
            ..Segment::default()
        };
        self.media[sequence].add_spans(&indices, &mut segment);
        segment
    }
}
