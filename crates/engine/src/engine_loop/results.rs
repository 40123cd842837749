//! Processing of step output: sampling, acceptance of draft tokens, checkpoints, finished sequences.

use std::time::Instant;

use super::{EngineLoop, MASK_WAIT, SequenceRows};
use crate::error::EngineError;
use crate::sequence::RequestId;
use crate::speculate::draft_source::StepRows;

impl EngineLoop {
    /// Samples sequences whose sampling was deferred, if their masks are ready by `end`. Returns the number of sampled tokens.
    pub(super) fn resume_deferred_sampling(&mut self, end: Instant) -> u64 {
        let (mut ended, mut generated) = (Vec::new(), 0);
        for s in &mut self.running {
            let (drawn, open) = s.resume_deferred_sampling(&self.tokenizer, end);
            generated += u64::from(drawn);
            if !open {
                ended.push(s.id);
            }
        }
        self.remove_finished(&ended);
        if generated > 0 {
            self.stats.lock().expect("nobody panics with the statistics").generated_tokens +=
                generated;
        }
        generated
    }

    /// Removes finished sequences.
    pub(super) fn remove_finished(&mut self, ended: &[RequestId]) {
        for id in ended {
            if let Some(at) = self.running.iter().position(|s| s.id == *id) {
                let mut sequence = self.running.swap_remove(at);
                self.release(&mut sequence);
            }
        }
    }

    /// Advances the sequences of a step. Returns the number of accepted draft tokens.
    pub(super) fn process_step_output(
        &mut self,
        parts: &[SequenceRows],
        cols: usize,
        prompt_rows: usize,
    ) -> Result<usize, EngineError> {
        let mut ended = Vec::new();
        let (mut generated, mut all_true) = (0, 0);
        let end = Instant::now() + MASK_WAIT;
        for part in parts {
            let s = &mut self.running[part.running];
            let mut open = s.score(
                &self.executor.backend.result()[part.scores.start * cols..part.scores.end * cols],
                cols,
            );
            let copies = part.prompt && self.pages.has_states();
            let is_place = copies
                && s.pages.next_checkpoint(s.computed, s.tokens.len()) == s.computed + part.rows;
            let mut step = StepRows { past: s.computed, first: part.first_row, output: None };
            s.computed += part.rows;
            if is_place {
                s.pages.copy_state(&mut self.pages, &mut *self.executor.backend, s.computed);
            }
            open = open && s.prefill_progress();
            if open && !part.outputs.is_empty() {
                let rows = &self.executor.backend.result()
                    [part.outputs.start * cols..part.outputs.end * cols];
                let accepted;
                (accepted, open) =
                    s.accept_draft(rows, cols, part.draft.as_ref(), &self.tokenizer, end);
                // Deferred sampling says nothing about the draft.
                if let Some(draft) = part.draft.as_ref().filter(|_| !s.is_sample_deferred()) {
                    self.speculator.record_verified(s, draft.kind, draft.tokens.len(), accepted);
                }
                step.output = Some(part.outputs.start + accepted);
                generated += accepted + usize::from(!s.is_sample_deferred());
                all_true += accepted;
            }
            self.speculator.record_step(s, self.executor.backend.extra_output(0), step);
            if !open {
                ended.push(s.id);
            }
        }
        let followed =
            self.speculator.update_cache(&self.running, (&mut self.executor, &self.pages));
        for s in &mut self.running {
            s.pages.publish(&mut self.pages, &s.tokens[..s.computed]);
        }
        self.remove_finished(&ended);
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += 1;
        stats.prompt_tokens += prompt_rows as u64;
        stats.generated_tokens += generated as u64;
        stats.speculated = self.speculator.counts;
        followed.map(|()| all_true)
    }
}
