//! State of a diffusion request: its masked and unmasked positions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_graph::{Segment, StepInput};
use puna_models::{UnmaskOrder, Unmasking};
use puna_sampler::{Mt19937, Sampler, TokenLogprobs, log_probs};
use puna_tokenizer::Tokenizer;

use super::confidence::{confidence, most_confident};
use super::schedule::{Block, Blocks};
use crate::config::ModelInfo;
use crate::error::NOT_A_NUMBER;
use crate::generation::sampler_of;
use crate::output::{Emit, OutputStream};
use crate::request::{Event, FinishReason, GenerationStats, Request, RequestId, Sink};
use crate::speculate::DraftStats;

/// A request of a diffusion model.
pub struct DiffusionSequence {
    pub id: RequestId,
    pub request: Request,
    /// Number of its last step; 0 before the first.
    pub last_step: u64,
    /// Prompt and answer, with mask tokens at masked positions.
    tokens: Vec<u32>,
    /// Log-probabilities of unmasked tokens that are not emitted yet, by position in the answer.
    logprobs: Vec<Option<TokenLogprobs>>,
    unmasking: Unmasking,
    order: UnmaskOrder,
    blocks: Blocks,
    /// Current block.
    block: Option<Block>,
    sampler: Sampler,
    random: Mt19937,
    output: OutputStream,
    /// Number of emitted tokens.
    emitted: usize,
    submitted: Instant,
    started: Option<Instant>,
    /// End of the first step.
    first_step: Option<Instant>,
}

/// Token sampled for a masked position.
struct SampledToken {
    position: usize,
    token: u32,
    logprobs: Option<TokenLogprobs>,
}

impl DiffusionSequence {
    /// Makes the state of a new request.
    pub fn new(
        id: RequestId,
        request: Request,
        sink: Box<dyn Sink>,
        tokenizer: &Arc<Tokenizer>,
        info: &ModelInfo,
        unmasking: Unmasking,
    ) -> Self {
        let room = request.context_in(info.n_ctx).saturating_sub(request.prompt.len());
        let length = request.max_tokens.unwrap_or(super::LENGTH).min(room);
        let mut tokens = request.prompt.clone();
        tokens.resize(request.prompt.len() + length, unmasking.mask);
        // The mask token is never sampled.
        let sampler = sampler_of(&request, tokenizer, info.n_vocab, Some(unmasking.mask));
        let longest = super::longest_block(info.n_vocab, info.n_ctx);
        let mut blocks = super::blocks(&request, &unmasking, length, longest);
        Self {
            id,
            last_step: 0,
            tokens,
            logprobs: vec![None; length],
            unmasking,
            order: request.diffusion.algorithm.unwrap_or(unmasking.order),
            block: blocks.next(),
            blocks,
            random: Mt19937::new(sampler.seed()),
            sampler,
            output: OutputStream::new(
                &request,
                sink,
                tokenizer.decoder().with_visible_tokens(&request.visible_control_tokens),
            ),
            emitted: 0,
            submitted: Instant::now(),
            started: None,
            first_step: None,
            request,
        }
    }

    /// Whether the sink takes an event now.
    pub fn ready(&self) -> bool {
        self.output.sink.ready()
    }

    /// Whether its first step has run.
    pub fn has_begun(&self) -> bool {
        self.started.is_some()
    }

    /// Input of the next step: the whole text, with an output row for each masked position of the
    /// block. `None` if no position is masked.
    pub fn step(&mut self) -> Option<StepInput> {
        let masked = self.masked_positions();
        if masked.is_empty() {
            return None;
        }
        self.started.get_or_insert_with(Instant::now);
        let rows = self.tokens.len();
        let shift = usize::from(self.unmasking.is_shifted);
        // Prompts are not empty, so that every position of the answer has one before it.
        let row = |position: usize| (position - shift) as u32;
        Some(StepInput {
            tokens: self.tokens.clone(),
            positions: (0..rows as u32).collect(),
            segments: vec![Segment { rows, ..Segment::default() }],
            adapter_scales: vec![self.request.adapter_scales.clone()],
            outputs: masked.into_iter().map(row).collect(),
            ..StepInput::default()
        })
    }

    /// Masked positions of the block, in the whole text.
    fn masked_positions(&self) -> Vec<usize> {
        let Some(block) = &self.block else { return Vec::new() };
        let prompt = self.request.prompt.len();
        let all = block.positions.clone().map(|position| prompt + position);
        all.filter(|&position| self.tokens[position] == self.unmasking.mask).collect()
    }

    /// Unmasks positions by the logits of a step, `cols` for each masked position.
    ///
    /// # Errors
    ///
    /// No token can be sampled.
    pub fn unmask(&mut self, rows: &[f32], cols: usize) -> Result<(), &'static str> {
        self.first_step.get_or_insert_with(Instant::now);
        let masked = self.masked_positions();
        let Some(block) = &mut self.block else { return Ok(()) };
        let count = block.unmask_count(masked.len());
        let positions = masked.into_iter().zip(rows.chunks_exact(cols));
        let sampled = match self.order {
            UnmaskOrder::Origin => self.sample_random_positions(positions, count)?,
            _ => self.sample_most_confident(positions, count)?,
        };
        for SampledToken { position, token, logprobs } in sampled {
            self.tokens[position] = token;
            self.sampler.accept(token);
            self.logprobs[position - self.request.prompt.len()] = logprobs;
        }
        if self.masked_positions().is_empty() {
            self.block = self.blocks.next();
        }
        Ok(())
    }

    /// Samples all positions, and keeps the `count` most confident tokens.
    fn sample_most_confident<'a>(
        &mut self,
        positions: impl Iterator<Item = (usize, &'a [f32])>,
        count: usize,
    ) -> Result<Vec<SampledToken>, &'static str> {
        let (mut sampled, mut confidences) = (Vec::new(), Vec::new());
        for (position, logits) in positions {
            let one = self.sample(position, logits)?;
            confidences.push(confidence(self.order, logits, one.token, &mut self.random));
            sampled.push(Some(one));
        }
        Ok(most_confident(&confidences, count)
            .into_iter()
            .filter_map(|number| sampled[number].take())
            .collect())
    }

    /// Samples each position with a probability that gives `count` positions on average.
    fn sample_random_positions<'a>(
        &mut self,
        positions: impl ExactSizeIterator<Item = (usize, &'a [f32])>,
        count: usize,
    ) -> Result<Vec<SampledToken>, &'static str> {
        let probability = count as f32 / positions.len() as f32;
        let mut sampled = Vec::new();
        for (position, logits) in positions {
            if self.random.next_f32() < probability {
                sampled.push(self.sample(position, logits)?);
            }
        }
        Ok(sampled)
    }

    fn sample(&mut self, position: usize, logits: &[f32]) -> Result<SampledToken, &'static str> {
        let token = self.sampler.try_sample(&mut logits.to_vec()).ok_or(NOT_A_NUMBER)?;
        let logprobs = self.request.logprobs.map(|top| log_probs(logits, token, top));
        Ok(SampledToken { position, token, logprobs })
    }

    /// Emits tokens up to the first mask while the sink is ready. Returns their number, and whether
    /// the request continues.
    pub fn emit_known(&mut self, tokenizer: &Tokenizer) -> (usize, bool) {
        let before = self.emitted;
        let is_running = loop {
            let Some(&token) = self.tokens.get(self.request.prompt.len() + self.emitted) else {
                self.finish(FinishReason::Length);
                break false;
            };
            if token == self.unmasking.mask || !self.ready() {
                break true;
            }
            let ends =
                self.output.sink.forced().first().is_some_and(|&forced| tokenizer.is_eog(forced));
            if ends {
                self.finish(FinishReason::End);
                break false;
            }
            self.emitted += 1;
            let logprobs = self.logprobs[self.emitted - 1].take();
            match self.output.emit_token(token, logprobs, tokenizer) {
                Emit::Continue => {}
                Emit::Finished(finish) => {
                    self.finish(finish);
                    break false;
                }
                Emit::Satisfied => {
                    self.finish(FinishReason::End);
                    break false;
                }
                Emit::Disconnected => break false,
            }
        };
        (self.emitted - before, is_running)
    }

    /// Sends the progress of the prefill, which is complete in every step. Returns `false` if the
    /// client has disconnected.
    pub fn progress(&mut self) -> bool {
        let total = self.request.prompt.len();
        self.output.sink.send(Event::Prefill { done: total, total })
    }

    fn finish(&mut self, finish: FinishReason) {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_step.unwrap_or(now);
        self.tokens.truncate(self.request.prompt.len() + self.emitted);
        self.output.finish(GenerationStats {
            finish,
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: 0,
            prefill: first - started,
            generated_tokens: self.emitted,
            decode: if self.emitted == 0 { Duration::ZERO } else { now - first },
            queued: started - self.submitted,
            draft_stats: DraftStats::default(),
            shifted_tokens: 0,
            tokens: std::mem::take(&mut self.tokens),
        });
    }

    /// Sends an error.
    pub fn fail(&mut self, reason: &str) {
        self.output.fail(reason);
    }
}
