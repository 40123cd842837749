//! Steps in which an encoder reads prompts, for models that have one: each prompt as a whole, whatever its length, in a step of its own
//! kind before those in which answers are written.

use std::time::Instant;

use puna_graph::StepInput;
use puna_models::StepKind;

use super::EngineLoop;
use crate::error::EngineError;
use crate::sequence::RequestId;

impl EngineLoop {
    /// Reads the prompts that are next, if there are such.
    pub(super) fn encode(&mut self) -> Result<(), EngineError> {
        if self.executor.info.start.is_none() {
            return Ok(());
        }
        let chosen = self.next_to_encode();
        for id in &chosen {
            if let Some(at) = self.running.iter().position(|s| s.id == *id) {
                self.preempt_until_fits(at, self.running[at].unread());
            }
        }
        let (input, read) = self.assemble_unread(&chosen);
        if read.is_empty() {
            return Ok(());
        }
        self.executor.prepare(StepKind::Encode, &input)?;
        let start = Instant::now();
        self.executor.run(StepKind::Encode, &input)?.ok_or(EngineError::CannotGenerate)?;
        self.record_prefill_rate(input.tokens.len(), start.elapsed().as_secs_f64());
        let mut left = Vec::new();
        for s in self.running.iter_mut().filter(|s| read.contains(&s.id)) {
            s.computed = s.unread();
            s.served += s.computed as u64;
            *self.served.entry(s.request.client).or_default() += s.computed as u64;
            s.pages.publish(&mut self.pages, &s.tokens[..s.computed]);
            if !s.prefill_progress() {
                left.push(s.id);
            }
        }
        self.remove_finished(&left);
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += 1;
        stats.prompt_tokens += input.tokens.len() as u64;
        Ok(())
    }

    /// The step that reads the prompts of these, but for those that were sent back to the queue; and whose they are.
    fn assemble_unread(&self, chosen: &[RequestId]) -> (StepInput, Vec<RequestId>) {
        let (mut input, mut read) = (StepInput::default(), Vec::new());
        for id in chosen {
            let Some(s) = self.running.iter().find(|s| s.id == *id) else { continue };
            let (first_row, rows) = (input.tokens.len(), s.unread());
            if s.pages.room() < rows {
                continue;
            }
            input.tokens.extend_from_slice(&s.tokens[..rows]);
            input.positions.extend(0..rows as u32);
            input.segments.push(s.pages.segment(&self.pages, first_row, rows, 0));
            input.adapter_scales.push(s.request.adapter_scales.clone());
            read.push(*id);
        }
        (input, read)
    }
}
