//! An answer on its way from masks to tokens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_graph::{RecentPages, Segment, StepInput};
use puna_models::{Order, Unmasking};
use puna_sampler::{Mt19937, Sampler, TokenLogprobs, log_probs};
use puna_tokenizer::Tokenizer;

use super::confidence::{sureness, surest};
use super::schedule::{Block, Blocks};
use crate::job::{Event, Finish, Job, Sink, Summary};
use crate::options::ModelInfo;
use crate::output::{Emit, OutputStream};
use crate::sequence::{JobId, NOT_A_NUMBER, sampler_of};
use crate::speculate::Speculated;

/// A job of a diffusion model.
pub struct DiffusionSequence {
    pub id: JobId,
    pub job: Job,
    /// The last turn that was its own; 0 before the first.
    pub turn: u64,
    /// The prompt and the whole answer, masks where it is not known yet.
    tokens: Vec<u32>,
    /// What was asked of each token of the answer, from when it is there until it is told.
    logprobs: Vec<Option<TokenLogprobs>>,
    unmasking: Unmasking,
    order: Order,
    blocks: Blocks,
    /// The one that is being filled.
    block: Option<Block>,
    sampler: Sampler,
    chances: Mt19937,
    output: OutputStream,
    /// Tokens of the answer that were told.
    told: usize,
    submitted: Instant,
    started: Option<Instant>,
    /// When the first step was over.
    first: Option<Instant>,
}

/// A place for which a token was drawn.
struct Drawn {
    place: usize,
    token: u32,
    logprobs: Option<TokenLogprobs>,
}

impl DiffusionSequence {
    /// A job as it arrives, of a model that works like this.
    pub fn new(
        id: JobId,
        job: Job,
        sink: Box<dyn Sink>,
        tokenizer: &Arc<Tokenizer>,
        info: &ModelInfo,
        unmasking: Unmasking,
    ) -> Self {
        let room = job.context_in(info.n_ctx).saturating_sub(job.prompt.len());
        let length = job.max_tokens.unwrap_or(super::LENGTH).min(room);
        let mut tokens = job.prompt.clone();
        tokens.resize(job.prompt.len() + length, unmasking.mask);
        // A place that is filled is one that is known.
        let sampler = sampler_of(&job, tokenizer, info.n_vocab, Some(unmasking.mask));
        let longest = super::longest_block(info.n_vocab, info.n_ctx);
        let mut blocks = super::blocks(&job, &unmasking, length, longest);
        Self {
            id,
            turn: 0,
            tokens,
            logprobs: vec![None; length],
            unmasking,
            order: job.diffusion.algorithm.unwrap_or(unmasking.order),
            block: blocks.next(),
            blocks,
            chances: Mt19937::new(sampler.seed()),
            sampler,
            output: OutputStream::new(&job, sink, tokenizer.decoder().showing(&job.shown)),
            told: 0,
            submitted: Instant::now(),
            started: None,
            first: None,
            job,
        }
    }

    /// Whether the listener takes more.
    pub fn ready(&self) -> bool {
        self.output.sink.ready()
    }

    /// Whether it has had a step.
    pub fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    /// Its next step: the whole text, and the rows that say what the masks of its block are. `None` where nothing is left to fill.
    pub fn step(&mut self) -> Option<StepInput> {
        let masked = self.masked();
        if masked.is_empty() {
            return None;
        }
        self.started.get_or_insert_with(Instant::now);
        let rows = self.tokens.len();
        let shift = usize::from(self.unmasking.is_shifted);
        // No prompt is empty, so that every place has one before it.
        let row = |place: usize| (place - shift) as u32;
        let (pages, recent) = (Vec::new(), RecentPages::default());
        Some(StepInput {
            tokens: self.tokens.clone(),
            positions: (0..rows as u32).collect(),
            segments: vec![Segment {
                first_row: 0,
                rows,
                past: 0,
                encoded: 0,
                pages,
                recent,
                state: 0,
            }],
            adapter_scales: vec![self.job.adapter_scales.clone()],
            outputs: masked.into_iter().map(row).collect(),
            ..StepInput::default()
        })
    }

    /// The masked places of its block, in the whole text.
    fn masked(&self) -> Vec<usize> {
        let Some(block) = &self.block else { return Vec::new() };
        let prompt = self.job.prompt.len();
        let all = block.places.clone().map(|place| prompt + place);
        all.filter(|&place| self.tokens[place] == self.unmasking.mask).collect()
    }

    /// Turns masks into tokens by the logits of a step, `cols` for each masked place.
    ///
    /// # Errors
    /// Why no token can be drawn.
    pub fn fill(&mut self, rows: &[f32], cols: usize) -> Result<(), &'static str> {
        self.first.get_or_insert_with(Instant::now);
        let masked = self.masked();
        let Some(block) = &mut self.block else { return Ok(()) };
        let due = block.due(masked.len());
        let places = masked.into_iter().zip(rows.chunks_exact(cols));
        let drawn = match self.order {
            Order::Origin => self.draw_by_chance(places, due)?,
            _ => self.draw_surest(places, due)?,
        };
        for Drawn { place, token, logprobs } in drawn {
            self.tokens[place] = token;
            self.sampler.accept(token);
            self.logprobs[place - self.job.prompt.len()] = logprobs;
        }
        if self.masked().is_empty() {
            self.block = self.blocks.next();
        }
        Ok(())
    }

    /// Draws for all places and keeps the `due` surest.
    fn draw_surest<'a>(
        &mut self,
        places: impl Iterator<Item = (usize, &'a [f32])>,
        due: usize,
    ) -> Result<Vec<Drawn>, &'static str> {
        let (mut drawn, mut sure) = (Vec::new(), Vec::new());
        for (place, logits) in places {
            let one = self.draw(place, logits)?;
            sure.push(sureness(self.order, logits, one.token, &mut self.chances));
            drawn.push(Some(one));
        }
        Ok(surest(&sure, due).into_iter().filter_map(|number| drawn[number].take()).collect())
    }

    /// Draws for each place with the chance that as many as are `due` have on average.
    fn draw_by_chance<'a>(
        &mut self,
        places: impl ExactSizeIterator<Item = (usize, &'a [f32])>,
        due: usize,
    ) -> Result<Vec<Drawn>, &'static str> {
        let chance = due as f32 / places.len() as f32;
        let mut drawn = Vec::new();
        for (place, logits) in places {
            if self.chances.next_f32() < chance {
                drawn.push(self.draw(place, logits)?);
            }
        }
        Ok(drawn)
    }

    fn draw(&mut self, place: usize, logits: &[f32]) -> Result<Drawn, &'static str> {
        let token = self.sampler.try_sample(&mut logits.to_vec()).ok_or(NOT_A_NUMBER)?;
        let logprobs = self.job.logprobs.map(|top| log_probs(logits, token, top));
        Ok(Drawn { place, token, logprobs })
    }

    /// Tells what has no masks before it, as far as the listener takes it. Returns how many tokens that were, and whether the
    /// answer goes on.
    pub fn tell(&mut self, tokenizer: &Tokenizer) -> (usize, bool) {
        let before = self.told;
        let open = loop {
            let Some(&token) = self.tokens.get(self.job.prompt.len() + self.told) else {
                self.finish(Finish::Length);
                break false;
            };
            if token == self.unmasking.mask || !self.ready() {
                break true;
            }
            let ends =
                self.output.sink.forced().first().is_some_and(|&forced| tokenizer.is_eog(forced));
            if ends {
                self.finish(Finish::End);
                break false;
            }
            self.told += 1;
            let logprobs = self.logprobs[self.told - 1].take();
            match self.output.emit_token(token, logprobs, tokenizer) {
                Emit::Continue => {}
                Emit::Finished(finish) => {
                    self.finish(finish);
                    break false;
                }
                Emit::Satisfied => {
                    self.finish(Finish::End);
                    break false;
                }
                Emit::Disconnected => break false,
            }
        };
        (self.told - before, open)
    }

    /// Says that the prompt was read, as it is in every step: who no longer listens is known by the answer, `false`.
    pub fn progress(&mut self) -> bool {
        let total = self.job.prompt.len();
        self.output.sink.send(Event::Prefill { done: total, total })
    }

    fn finish(&mut self, finish: Finish) {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first.unwrap_or(now);
        self.tokens.truncate(self.job.prompt.len() + self.told);
        self.output.finish(Summary {
            finish,
            prompt_tokens: self.job.prompt.len(),
            cached_tokens: 0,
            prefill: first - started,
            generated_tokens: self.told,
            decode: if self.told == 0 { Duration::ZERO } else { now - first },
            queued: started - self.submitted,
            speculated: Speculated::default(),
            shifted_tokens: 0,
            tokens: std::mem::take(&mut self.tokens),
        });
    }

    /// Tells the listener that it failed.
    pub fn fail(&mut self, reason: &str) {
        self.output.fail(reason);
    }
}
