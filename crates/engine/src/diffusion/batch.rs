//! Scheduling of diffusion requests: one denoising step of one request in each iteration of the
//! engine loop.

use std::collections::{HashMap, HashSet};

use puna_models::StepKind;
use puna_tokenizer::Tokenizer;

use super::DiffusionSequence;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::request::RequestId;

/// The requests of a diffusion model.
#[derive(Default)]
pub struct DiffusionSequences {
    all: Vec<DiffusionSequence>,
    /// Number of steps so far.
    steps: u64,
    /// Number of the last step of each client with requests, so that a client's share does not grow
    /// with its requests.
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
    pub fn cancel(&mut self, id: RequestId) {
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

    /// Index of the request for the next step: the least recently served one of the least recently
    /// served client; the earliest of new ones. At most `max_running` requests run, and requests
    /// with slow sinks wait.
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

    /// Emits known tokens of all requests, and runs a step of one. Returns the work that was done.
    pub fn step(
        &mut self,
        executor: &mut ModelExecutor,
        tokenizer: &Tokenizer,
        max_running: usize,
    ) -> DenoisingWork {
        let mut work = DenoisingWork::default();
        if self.all.is_empty() {
            return work;
        }
        self.emit_tokens(tokenizer, &mut work);
        let Some(at) = self.next(max_running) else { return work };
        work.progressed = true;
        match self.run_step(at, executor, &mut work) {
            Ok(()) => self.emit_tokens(tokenizer, &mut work),
            Err(reason) => self.all.remove(at).fail(&reason),
        }
        work
    }

    /// Runs a step of one request.
    fn run_step(
        &mut self,
        at: usize,
        executor: &mut ModelExecutor,
        work: &mut DenoisingWork,
    ) -> Result<(), String> {
        let sequence = &mut self.all[at];
        let is_first = !sequence.has_begun();
        self.steps += 1;
        sequence.last_step = self.steps;
        self.last.insert(sequence.request.client, sequence.last_step);
        let Some(input) = sequence.step() else { return Ok(()) };
        let ran = executor.run(StepKind::Logits, &input).map_err(|error| error.to_string())?;
        let cols = ran.ok_or_else(|| EngineError::CannotGenerate.to_string())?;
        sequence.unmask(executor.backend.result(), cols)?;
        work.steps += 1;
        work.prompt_tokens += if is_first { sequence.request.prompt.len() as u64 } else { 0 };
        if !sequence.progress() {
            self.all.remove(at);
        }
        Ok(())
    }

    /// Emits tokens to ready sinks, and removes finished requests.
    fn emit_tokens(&mut self, tokenizer: &Tokenizer, work: &mut DenoisingWork) {
        self.all.retain_mut(|sequence| {
            let (tokens, continues) = sequence.emit_known(tokenizer);
            work.generated_tokens += tokens as u64;
            work.progressed |= tokens > 0 || !continues;
            continues
        });
    }
}

/// Work of one call of [`DiffusionSequences::step`].
#[derive(Debug, Default)]
pub struct DenoisingWork {
    /// Whether a step ran, or a token was emitted, or a request ended.
    pub progressed: bool,
    pub steps: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
}
