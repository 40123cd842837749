//! Processing of a step's results: sampling, acceptance of draft tokens, output, state checkpoints,
//! and the end of sequences.

use std::time::{Duration, Instant};

use puna_models::StepKind;

use super::EngineLoop;
use super::execute::StepOutput;
use crate::error::EngineError;
use crate::scheduler::SequenceRows;
use crate::speculate::draft_source::StepRows;
use crate::speculate::speculator::StepTiming;

/// Time that the loop waits for token masks while no other sequence can take a step.
const IDLE_MASK_WAIT: Duration = Duration::from_millis(2);
/// Time that a step waits for token masks. If a mask takes longer, the sampling
/// of its sequence is deferred to later steps.
const STEP_MASK_WAIT: Duration = Duration::from_millis(20);

/// Tokens that a sequence gained in a step.
#[derive(Debug, Default)]
struct SequenceProgress {
    /// Number of accepted draft tokens.
    accepted: usize,
    /// Number of generated tokens, accepted ones included.
    generated: usize,
    /// Whether the sequence has ended.
    ended: bool,
}

impl EngineLoop {
    /// Samples from the results of a step, and sends the output. Sequences that end leave the
    /// engine.
    pub(super) fn emit(&mut self, output: StepOutput) -> Result<(), EngineError> {
        let deadline = Instant::now() + STEP_MASK_WAIT;
        let (mut ended, mut generated, mut accepted) = (Vec::new(), 0, 0);
        for rows in &output.sequences {
            let advance = self.advance(rows, output.cols, deadline);
            generated += advance.generated;
            accepted += advance.accepted;
            if advance.ended {
                ended.push(rows.id);
            }
        }
        self.executor.copy(self.scheduler.pages.take_copies());
        let mut updated = Ok(());
        if output.kind == StepKind::Logits {
            let executor_and_pages = (&mut self.executor, &self.scheduler.pages);
            updated = self.speculator.update_cache(self.scheduler.running(), executor_and_pages);
        }
        self.scheduler.publish_pages();
        self.remove_ended(&ended);
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += 1;
        stats.prompt_tokens += output.prompt_rows as u64;
        stats.generated_tokens += generated as u64;
        stats.draft_stats = self.speculator.counts;
        updated?;
        if output.prompt_rows == 0 {
            self.speculator.record_timing(StepTiming { accepted, ..output.timing });
        }
        Ok(())
    }

    /// Advances one sequence of a step.
    fn advance(&mut self, rows: &SequenceRows, cols: usize, deadline: Instant) -> SequenceProgress {
        let mut advance = SequenceProgress { ended: true, ..SequenceProgress::default() };
        let (running, pages) = self.scheduler.running_mut();
        let Some(s) = running.iter_mut().find(|s| s.id == rows.id) else { return advance };
        let Some(generation) = self.generations.get_mut(&rows.id) else { return advance };
        let backend = &*self.executor.backend;
        let prompt_logits =
            &backend.result()[rows.prompt_logits.start * cols..rows.prompt_logits.end * cols];
        let mut is_running = generation.send_prompt_logprobs(s, prompt_logits, cols);
        let makes_checkpoint = rows.prompt
            && pages.has_states()
            && s.pages.next_checkpoint(s.computed, s.tokens.len()) == s.computed + rows.rows;
        let mut step = StepRows { cached_tokens: s.computed, first: rows.first_row, output: None };
        s.computed += rows.rows;
        if makes_checkpoint {
            s.pages.add_checkpoint(pages, s.computed);
        }
        is_running = is_running && generation.prefill_progress(s);
        if is_running && !rows.outputs.is_empty() {
            let logits = &backend.result()[rows.outputs.start * cols..rows.outputs.end * cols];
            let draft = rows.draft.as_ref();
            (advance.accepted, is_running) =
                generation.accept_draft(s, logits, cols, draft, &self.tokenizer, deadline);
            let is_deferred = generation.is_sample_deferred();
            // A deferred sample has not verified the draft yet.
            if let Some(draft) = draft.filter(|_| !is_deferred) {
                let (drafted, accepted) = (draft.tokens.len(), advance.accepted);
                self.speculator.record_verified(generation, draft.kind, drafted, accepted);
            }
            step.output = Some(rows.outputs.start + advance.accepted);
            advance.generated = advance.accepted + usize::from(!is_deferred);
        }
        self.speculator.record_step(s, backend.extra_output(0), step);
        advance.ended = !is_running;
        advance
    }

    /// Resumes deferred sampling, if the token masks are ready by `deadline`.
    /// Returns the number of sampled tokens.
    pub(super) fn resume_deferred_sampling(&mut self, deadline: Instant) -> u64 {
        let (mut ended, mut generated) = (Vec::new(), 0);
        for s in self.scheduler.running_mut().0 {
            let Some(generation) = self.generations.get_mut(&s.id) else { continue };
            let (sampled, is_running) =
                generation.resume_deferred_sampling(s, &self.tokenizer, deadline);
            generated += u64::from(sampled);
            if !is_running {
                ended.push(s.id);
            }
        }
        self.remove_ended(&ended);
        if generated > 0 {
            let mut stats = self.stats.lock().expect("nobody panics with the statistics");
            stats.generated_tokens += generated;
        }
        generated
    }

    /// Waits up to [`IDLE_MASK_WAIT`] if only token masks delay the next step. Returns whether it
    /// waited.
    pub(super) fn poll_masks(&mut self) -> bool {
        let waits = self.scheduler.running().iter().any(|s| {
            self.generations.get(&s.id).is_some_and(|g| g.is_sample_deferred() && g.is_ready())
        });
        waits && {
            self.resume_deferred_sampling(Instant::now() + IDLE_MASK_WAIT);
            true
        }
    }
}
