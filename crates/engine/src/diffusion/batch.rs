//! Whose turn it is: one step of one answer after each round of the loop.

use std::collections::{HashMap, HashSet};

use puna_models::Want;

use super::DiffusionSequence;
use crate::engine_loop::EngineLoop;
use crate::error::EngineError;

/// The jobs of a diffusion model.
#[derive(Default)]
pub struct DiffusionSequences {
    all: Vec<DiffusionSequence>,
    turns: u64,
    /// The last turn of each client that has a job here: jobs of one step do not take it with them.
    last: HashMap<u64, u64>,
}

impl DiffusionSequences {
    pub fn push(&mut self, canvas: DiffusionSequence) {
        self.all.push(canvas);
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Forgets a job.
    pub fn cancel(&mut self, id: crate::sequence::JobId) {
        self.all.retain(|canvas| canvas.id != id);
    }

    /// Ends all of them.
    pub fn fail(&mut self, reason: &str) {
        self.all.drain(..).for_each(|mut canvas| canvas.fail(reason));
    }

    /// How many have begun, and how many have not.
    pub fn counts(&self) -> (usize, usize) {
        let begun = self.all.iter().filter(|canvas| canvas.has_begun()).count();
        (begun, self.all.len() - begun)
    }

    /// The one whose turn it is: of the client whose last turn is longest ago the one whose own is, the earliest of new ones. No
    /// more than `most` are on their way at once, and who does not take what there is waits.
    fn next(&mut self, most: usize) -> Option<usize> {
        let clients: HashSet<u64> = self.all.iter().map(|canvas| canvas.job.client).collect();
        self.last.retain(|client, _| clients.contains(client));
        let last =
            |canvas: &DiffusionSequence| self.last.get(&canvas.job.client).copied().unwrap_or(0);
        let may_begin = self.counts().0 < most;
        let takes =
            |canvas: &DiffusionSequence| canvas.ready() && (may_begin || canvas.has_begun());
        let all = self.all.iter().enumerate().filter(|(_, canvas)| takes(canvas));
        all.min_by_key(|(_, canvas)| (last(canvas), canvas.turn, canvas.id)).map(|(at, _)| at)
    }
}

impl EngineLoop {
    /// Tells what is known of answers, and computes a step of one. Returns whether there was anything to do.
    pub fn unmask_step(&mut self) -> bool {
        if self.diffusion.is_empty() {
            return false;
        }
        let told = self.tell_canvases();
        let most = self.max_sequences().unwrap_or(usize::MAX);
        let Some(at) = self.diffusion.next(most) else { return told };
        if let Err(reason) = self.unmask(at) {
            self.diffusion.all.remove(at).fail(&reason);
            return true;
        }
        self.tell_canvases();
        true
    }

    /// A step of one answer.
    fn unmask(&mut self, at: usize) -> Result<(), String> {
        let canvas = &mut self.diffusion.all[at];
        let is_first = !canvas.has_begun();
        self.diffusion.turns += 1;
        canvas.turn = self.diffusion.turns;
        self.diffusion.last.insert(canvas.job.client, canvas.turn);
        let Some(input) = canvas.step() else { return Ok(()) };
        let ran = self.executor.run(Want::Logits, &input).map_err(|error| error.to_string())?;
        let cols = ran.ok_or_else(|| EngineError::CannotGenerate.to_string())?;
        let canvas = &mut self.diffusion.all[at];
        canvas.fill(self.executor.backend.result(), cols)?;
        let prompt = canvas.job.prompt.len() as u64;
        if !canvas.progress() {
            self.diffusion.all.remove(at);
        }
        let mut stats = self.stats.lock().expect("nobody panics with the statistics");
        stats.steps += 1;
        stats.prompt_tokens += if is_first { prompt } else { 0 };
        Ok(())
    }

    /// Tells listeners what they take; those whose answer has ended leave. Returns whether anything was told.
    fn tell_canvases(&mut self) -> bool {
        let (mut all, mut open) = (0, true);
        self.diffusion.all.retain_mut(|canvas| {
            let (told, goes_on) = canvas.tell(&self.tokenizer);
            all += told as u64;
            open &= goes_on;
            goes_on
        });
        self.stats.lock().expect("nobody panics with the statistics").generated_tokens += all;
        all > 0 || !open
    }
}
