//! Scheduling of diffusion requests: one denoising step of one request in each iteration of the engine loop.

use std::collections::{HashMap, HashSet};

use puna_models::StepKind;

use super::DiffusionSequence;
use crate::engine_loop::EngineLoop;
use crate::error::EngineError;

/// The requests of a diffusion model.
#[derive(Default)]
pub struct DiffusionSequences {
    all: Vec<DiffusionSequence>,
    turns: u64,
    /// Number of the last step of each client with requests, so that a client's share does not grow with its requests.
    last: HashMap<u64, u64>,
}

impl DiffusionSequences {
    pub fn push(&mut self, sequence: DiffusionSequence) {
        self.all.push(sequence);
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Removes a request.
    pub fn cancel(&mut self, id: crate::sequence::RequestId) {
        self.all.retain(|sequence| sequence.id != id);
    }

    /// Fails all requests.
    pub fn fail(&mut self, reason: &str) {
        self.all.drain(..).for_each(|mut sequence| sequence.fail(reason));
    }

    /// Numbers of running and waiting requests.
    pub fn counts(&self) -> (usize, usize) {
        let begun = self.all.iter().filter(|sequence| sequence.has_begun()).count();
        (begun, self.all.len() - begun)
    }

    /// Index of the request for the next step: the least recently served one of the least recently served client; the earliest of
    /// new ones. At most `max_running` requests run, and requests with slow sinks wait.
    fn next(&mut self, max_running: usize) -> Option<usize> {
        let clients: HashSet<u64> =
            self.all.iter().map(|sequence| sequence.request.client).collect();
        self.last.retain(|client, _| clients.contains(client));
        let last = |sequence: &DiffusionSequence| {
            self.last.get(&sequence.request.client).copied().unwrap_or(0)
        };
        let may_begin = self.counts().0 < max_running;
        let takes =
            |sequence: &DiffusionSequence| sequence.ready() && (may_begin || sequence.has_begun());
        let all = self.all.iter().enumerate().filter(|(_, sequence)| takes(sequence));
        all.min_by_key(|(_, sequence)| (last(sequence), sequence.last_step, sequence.id))
            .map(|(at, _)| at)
    }
}

impl EngineLoop {
    /// Emits known tokens of all requests, and runs a step of one. Returns whether there was work.
    pub fn denoising_step(&mut self) -> bool {
        if self.diffusion.is_empty() {
            return false;
        }
        let told = self.emit_tokens();
        let max_running = self.max_sequences().unwrap_or(usize::MAX);
        let Some(at) = self.diffusion.next(max_running) else { return told };
        if let Err(reason) = self.run_step(at) {
            self.diffusion.all.remove(at).fail(&reason);
            return true;
        }
        self.emit_tokens();
        true
    }

    /// Runs a step of one request.
    fn run_step(&mut self, at: usize) -> Result<(), String> {
        let sequence = &mut self.diffusion.all[at];
        let is_first = !sequence.has_begun();
        self.diffusion.turns += 1;
        sequence.last_step = self.diffusion.turns;
        self.diffusion.last.insert(sequence.request.client, sequence.last_step);
        let Some(input) = sequence.step() else { return Ok(()) };
        let ran = self.executor.run(StepKind::Logits, &input).map_err(|error| error.to_string())?;
        let cols = ran.ok_or_else(|| EngineError::CannotGenerate.to_string())?;
        let sequence = &mut self.diffusion.all[at];
        sequence.unmask(self.executor.backend.result(), cols)?;
        let prompt = sequence.request.prompt.len() as u64;
        if !sequence.progress() {
            self.diffusion.all.remove(at);
        }
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += 1;
        stats.prompt_tokens += if is_first { prompt } else { 0 };
        Ok(())
    }

    /// Emits tokens to ready sinks, and removes finished requests. Returns whether any token was emitted.
    fn emit_tokens(&mut self) -> bool {
        let (mut all, mut open) = (0, true);
        self.diffusion.all.retain_mut(|sequence| {
            let (told, goes_on) = sequence.emit_known(&self.tokenizer);
            all += told as u64;
            open &= goes_on;
            goes_on
        });
        self.stats.lock().expect("nobody panics with the statistics").generated_tokens += all;
        all > 0 || !open
    }
}
