//! Generation of a sequence's tokens: sampling, constraints, forced tokens, limits, and the output
//! stream.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_sampler::{Sampler, Vocab, log_probs};
use puna_tokenizer::Tokenizer;

use crate::config::ModelInfo;
use crate::constraint::{ConstrainedSampler, NextTokenLimits, SamplingError};
use crate::error::NOT_A_NUMBER;
use crate::kv::PAGE_TOKENS;
use crate::media::NO_TOKEN;
use crate::output::{Emit, OutputStream};
use crate::repetition::Repetition;
use crate::request::{
    AnswerStage, Event, FinishReason, GenerationStats, PromptToken, Request, RequestId, Sink,
};
use crate::scheduler::SequenceState;
use crate::speculate::sequence_speculation::SequenceSpeculation;
use crate::speculate::{Draft, Drafter, Speculation};
use crate::vocab::SamplerVocab;

/// Tokens reserved for the end of reasoning before an answer that must be complete.
const MAX_REASONING_END_TOKENS: usize = 64;
/// Largest number of tokens of one character; reasoning is not ended within a character.
const MAX_CHARACTER_TOKENS: usize = 4;

/// What a sequence needs besides its [`SequenceState`]: request, sampler, speculation and output.
pub struct Generation {
    id: RequestId,
    pub request: Request,
    output: OutputStream,
    sampler: Sampler,
    constrained: Option<ConstrainedSampler>,
    /// Detector of repetition in constrained answers.
    repetition: Repetition,
    /// Tokens that come next instead of sampled ones.
    forced: VecDeque<u32>,
    /// Whether the engine has ended the reasoning.
    reasoning_ended: bool,
    /// Whether the text before a constrained answer repeats itself.
    is_repeating: bool,
    /// Logits of a deferred sample, while its token mask is not ready.
    deferred_logits: Option<Vec<f32>>,
    pub speculation: SequenceSpeculation,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// Number of prompt tokens found in the prefix cache.
    cached: usize,
    /// Number of tokens that context shifts dropped.
    shifted: usize,
}

/// Makes the sampler of a request, with the prompt as history. Tokens that the vocabulary
/// suppresses, and `never`, are not sampled.
pub(crate) fn sampler_of(
    request: &Request,
    tokenizer: &Arc<Tokenizer>,
    n_vocab: usize,
    never: Option<u32>,
) -> Sampler {
    let mut sampling = request.sampling.clone();
    let never = tokenizer.suppressed().iter().copied().chain(never);
    sampling.logit_bias.extend(never.map(|token| (token, f32::NEG_INFINITY)));
    let vocab: Arc<dyn Vocab> = Arc::new(SamplerVocab(Arc::clone(tokenizer)));
    let mut sampler = Sampler::with_vocab(&sampling, n_vocab, &vocab);
    let tokens = request.prompt.iter().filter(|token| **token != NO_TOKEN);
    tokens.for_each(|&token| sampler.accept(token));
    sampler
}

impl Generation {
    /// Makes the generation of a new request.
    pub fn new(
        id: RequestId,
        request: Request,
        sink: Box<dyn Sink>,
        tokenizer: &Arc<Tokenizer>,
        info: &ModelInfo,
        drafter: Box<dyn Drafter>,
        constrained: Option<ConstrainedSampler>,
    ) -> Self {
        let sampler = sampler_of(&request, tokenizer, info.n_vocab, None);
        let decoder = tokenizer.decoder().with_visible_tokens(&request.visible_control_tokens);
        // Text generated after an encoder's prompt starts a new text.
        let decoder = if info.start.is_some() { decoder.at_start() } else { decoder };
        // Drafters know tokens only.
        let has_media = !request.media.is_empty();
        let speculation = request.speculation.filter(|_| !has_media).unwrap_or(Speculation::OFF);
        Self {
            id,
            sampler,
            constrained,
            repetition: Repetition::default(),
            forced: VecDeque::new(),
            reasoning_ended: false,
            is_repeating: false,
            deferred_logits: None,
            speculation: SequenceSpeculation::new(speculation, drafter),
            submitted: Instant::now(),
            started: None,
            first_token: None,
            cached: 0,
            shifted: 0,
            output: OutputStream::new(&request, sink, decoder),
            request,
        }
    }

    /// Whether the sink takes an event now.
    pub fn is_ready(&self) -> bool {
        self.output.sink.ready()
    }

    /// Starts the sequence, or continues it after preemption, with `cached` tokens in the KV cache.
    pub fn start(&mut self, cached: usize) {
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.cached = cached;
        }
        // The logits of a deferred sample are computed again.
        self.deferred_logits = None;
    }

    /// Continues after a context shift that dropped tokens.
    pub fn shift(&mut self, dropped: usize) {
        self.shifted += dropped;
        self.speculation.reset();
        self.deferred_logits = None;
    }

    /// Sends the log-probabilities of the prompt tokens that follow `rows` of logits (`cols`
    /// columns). Returns `false` if the client has disconnected.
    pub fn send_prompt_logprobs(
        &mut self,
        state: &mut SequenceState,
        rows: &[f32],
        cols: usize,
    ) -> bool {
        let requested = self.request.prompt_logprobs;
        let Some(top) = requested.filter(|_| state.has_prompt_logprobs_left()) else {
            return true;
        };
        let mut tokens = Vec::new();
        if state.scored == 0 {
            tokens.push(PromptToken { token: self.request.prompt[0], logprobs: None, rank: 0 });
        }
        let next = state.scored.max(1);
        for (row, &token) in rows.chunks_exact(cols).zip(&self.request.prompt[next..]) {
            let own = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            let above = row.iter().filter(|logit| **logit > own).count();
            tokens.push(PromptToken {
                token,
                logprobs: Some(log_probs(row, token, top)),
                rank: u32::try_from(above + 1).unwrap_or(u32::MAX),
            });
        }
        state.scored += tokens.len();
        tokens.is_empty() || self.output.sink.send(Event::Prompt(tokens))
    }

    /// Sends the progress of the prefill. Returns `false` if the client has disconnected.
    pub fn prefill_progress(&mut self, state: &SequenceState) -> bool {
        if state.generated > 0 {
            return true;
        }
        self.output.sink.send(Event::Prefill { done: state.computed, total: state.tokens.len() })
    }

    /// Largest number of draft tokens in the next step: with the sampled token behind them, within
    /// the limits of the answer, the context and the sink. Drafts end with the page: once it is
    /// full, the tree can replace it by a page with the same tokens that another step size
    /// computed, and later tokens must see the same page as without drafts.
    pub fn max_draft_tokens(&self, state: &SequenceState) -> usize {
        let max_tokens = self.request.max_tokens;
        let left = max_tokens.map_or(usize::MAX, |max| max.saturating_sub(state.generated));
        let max = self.speculation.settings.max_tokens.unwrap_or(usize::MAX);
        let sink = self.output.sink.piece_capacity().saturating_sub(1);
        let page = PAGE_TOKENS - 1 - state.computed % PAGE_TOKENS;
        let context = state.context.saturating_sub(state.tokens.len());
        max.min(sink).min(page).min(left.saturating_sub(1)).min(context)
    }

    /// Samples from the rows of a step (`cols` logits each) in order, as long as each sample equals
    /// the draft token that the next row was computed for. Returns the number of accepted draft
    /// tokens, and whether the sequence continues. If the token mask is not ready by `end`, the
    /// sample is deferred.
    pub fn accept_draft(
        &mut self,
        state: &mut SequenceState,
        rows: &[f32],
        cols: usize,
        draft: Option<&Draft>,
        tokenizer: &Tokenizer,
        end: Instant,
    ) -> (usize, bool) {
        // Counted before sampling, since the sample that ends the sequence sends the counts.
        if let Some(draft) = draft {
            self.speculation.counts.add_draft(draft.kind, draft.tokens.len());
        }
        let mut logits = Vec::with_capacity(cols);
        let mut accepted = 0;
        for row in rows.chunks_exact(cols) {
            logits.clear();
            logits.extend_from_slice(row);
            if !self.is_mask_ready_by(end) {
                self.deferred_logits = Some(logits);
                return (accepted, true);
            }
            if !self.advance(state, &mut logits, tokenizer) {
                return (accepted, false);
            }
            let Some(draft) = draft else { break };
            if draft.tokens.get(accepted) != state.tokens.last() {
                break;
            }
            self.speculation.counts.add_accepted(draft.kind, 1);
            state.computed += 1;
            accepted += 1;
        }
        (accepted, true)
    }

    fn is_mask_ready_by(&mut self, end: Instant) -> bool {
        self.constrained.as_mut().is_none_or(|constrained| constrained.is_mask_ready(end))
    }

    /// Whether a sample is deferred.
    pub fn is_sample_deferred(&self) -> bool {
        self.deferred_logits.is_some()
    }

    /// Completes a deferred sample, if its token mask is ready by `end` and the sink is ready.
    /// Returns whether a token was sampled, and whether the sequence continues.
    pub fn resume_deferred_sampling(
        &mut self,
        state: &mut SequenceState,
        tokenizer: &Tokenizer,
        end: Instant,
    ) -> (bool, bool) {
        if self.deferred_logits.is_none() || !self.is_ready() || !self.is_mask_ready_by(end) {
            return (false, true);
        }
        let logits = self.deferred_logits.take();
        let is_running = logits.map(|mut logits| self.advance(state, &mut logits, tokenizer));
        (true, is_running.unwrap_or(true))
    }

    /// Samples the next token from `logits` and emits it. Returns `false` if the sequence has
    /// ended.
    fn advance(
        &mut self,
        state: &mut SequenceState,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> bool {
        self.first_token.get_or_insert_with(Instant::now);
        if self.request.max_tokens == Some(0) {
            self.finish(state, FinishReason::Length);
            return false;
        }
        let raw = self.request.logprobs.map(|_| logits.to_vec());
        let sampled = match self.next_forced() {
            Some(token) => Ok(token),
            None => self.sample(state, logits, tokenizer),
        };
        let token = match sampled {
            Ok(token) => token,
            Err(SamplingError::Grammar(reason)) => {
                self.output.sink.send(Event::Refused(reason));
                return false;
            }
            Err(SamplingError::ReasoningStuck) => {
                self.fail("the model did not end its reasoning");
                return false;
            }
            Err(SamplingError::Other(reason)) => {
                self.fail(&reason);
                return false;
            }
        };
        self.sampler.accept(token);
        state.generated += 1;
        state.tokens.push(token);
        if let Some(constrained) = self.constrained.as_mut().filter(|_| !tokenizer.is_eog(token)) {
            if constrained.answer_has_begun() {
                self.repetition.push(token);
            }
            constrained.accept(token);
        }
        let logprobs = raw.zip(self.request.logprobs).map(|(raw, top)| log_probs(&raw, token, top));
        match self.output.emit_token(token, logprobs, tokenizer) {
            Emit::Continue => {}
            Emit::Finished(finish) => {
                self.finish(state, finish);
                return false;
            }
            // Repeated reasoning before a constrained answer ends, and the answer begins.
            Emit::Satisfied
                if self
                    .constrained
                    .as_ref()
                    .is_some_and(|constrained| !constrained.answer_has_begun()) =>
            {
                self.is_repeating = true;
            }
            Emit::Satisfied => {
                self.finish(state, FinishReason::End);
                return false;
            }
            Emit::Disconnected => return false,
        }
        if self.request.max_tokens.is_some_and(|max| state.generated >= max) {
            self.finish(state, FinishReason::Length);
            return false;
        }
        true
    }

    /// Next token that the sink demands instead of a sampled one.
    fn next_forced(&mut self) -> Option<u32> {
        if self.forced.is_empty() && self.output.decoder.held().is_empty() {
            self.forced.extend(self.output.sink.forced());
        }
        self.forced.pop_front()
    }

    /// Samples from `logits`, within the grammar if there is one.
    fn sample(
        &mut self,
        state: &SequenceState,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> Result<u32, SamplingError> {
        let Some(mut constrained) = self.constrained.take() else {
            return self.sampler.try_sample(logits).ok_or_else(|| NOT_A_NUMBER.into());
        };
        let sampled =
            self.sample_constrained(&mut constrained, self.answer_limits(state), logits, tokenizer);
        self.constrained = Some(constrained);
        sampled
    }

    /// Samples within the grammar. If the model would end the text within its reasoning, the engine
    /// ends the reasoning instead.
    fn sample_constrained(
        &mut self,
        constrained: &mut ConstrainedSampler,
        limits: NextTokenLimits,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> Result<u32, SamplingError> {
        if let Some(token) = self.begin_answer_in_time(constrained, limits) {
            return Ok(token);
        }
        let OutputStream { sink, decoder, .. } = &self.output;
        let ends_in_reasoning = Cell::new(false);
        let stage = |token| -> AnswerStage {
            if !tokenizer.is_eog(token) {
                return sink.stage(&decoder.clone().push(token));
            }
            let stage = sink.stage("");
            if stage != AnswerStage::BeforeAnswer {
                return stage;
            }
            ends_in_reasoning.set(true);
            AnswerStage::Mixed
        };
        let had_begun = constrained.answer_has_begun();
        let sampled = constrained.sample(logits, &mut self.sampler, limits, stage);
        if constrained.answer_has_begun() && !had_begun {
            self.output.sink.begin_answer();
            return sampled;
        }
        let is_stuck = matches!(sampled, Err(SamplingError::ReasoningStuck));
        if (is_stuck || ends_in_reasoning.get())
            && !self.reasoning_ended
            && self.output.decoder.held().is_empty()
        {
            self.reasoning_ended = true;
            self.forced.extend(self.output.sink.reasoning_end_tokens());
            if let Some(token) = self.forced.pop_front() {
                return Ok(token);
            }
        }
        if !is_stuck {
            return sampled;
        }
        tracing::warn!(
            request = self.id.0,
            "reasoning repeats without end; starting the constrained answer"
        );
        self.output.sink.begin_answer();
        constrained.sample_answer(logits, &mut self.sampler, limits)
    }

    /// Limits for the next token of the answer.
    fn answer_limits(&self, state: &SequenceState) -> NextTokenLimits {
        let by_limit = self.request.max_tokens.map(|max| max.saturating_sub(state.generated));
        // The last token of a context is not computed.
        let by_context =
            (!self.request.shift).then(|| (state.context + 1).saturating_sub(state.tokens.len()));
        let remaining = by_limit.into_iter().chain(by_context).min();
        NextTokenLimits { remaining, is_repeating: self.repetition.is_found() }
    }

    /// Begins an answer that must be complete while enough tokens remain for it. Returns the first
    /// token that ends the reasoning, or `None` if there is none to end or the time has not come.
    fn begin_answer_in_time(
        &mut self,
        constrained: &mut ConstrainedSampler,
        limits: NextTokenLimits,
    ) -> Option<u32> {
        if constrained.answer_has_begun() {
            return None;
        }
        if self.is_repeating {
            return self.begin_answer(constrained);
        }
        let (shortest, remaining) = (constrained.shortest()?, limits.remaining?);
        if remaining > shortest + MAX_REASONING_END_TOKENS {
            return None;
        }
        let OutputStream { sink, decoder, .. } = &mut self.output;
        if !self.reasoning_ended
            && decoder.held().is_empty()
            && sink.stage("") == AnswerStage::BeforeAnswer
        {
            let end =
                if sink.answer_ends_reasoning() { Vec::new() } else { sink.reasoning_end_tokens() };
            if remaining > shortest + end.len() + MAX_CHARACTER_TOKENS {
                return None;
            }
            if !end.is_empty() && remaining >= shortest + end.len() {
                self.reasoning_ended = true;
                self.forced.extend(end);
                return self.forced.pop_front();
            }
        }
        if remaining <= shortest {
            sink.begin_answer();
            constrained.begin_answer();
        }
        None
    }

    /// Begins a constrained answer. Returns the first token that ends the reasoning, or `None` if
    /// the answer begins now.
    fn begin_answer(&mut self, constrained: &mut ConstrainedSampler) -> Option<u32> {
        let OutputStream { sink, decoder, .. } = &mut self.output;
        if !decoder.held().is_empty() {
            return None;
        }
        if !self.reasoning_ended
            && sink.stage("") == AnswerStage::BeforeAnswer
            && !sink.answer_ends_reasoning()
        {
            self.reasoning_ended = true;
            self.forced.extend(sink.reasoning_end_tokens());
            if let Some(token) = self.forced.pop_front() {
                return Some(token);
            }
        }
        sink.begin_answer();
        constrained.begin_answer();
        None
    }

    /// Sends the end with its statistics.
    pub fn finish(&mut self, state: &SequenceState, finish: FinishReason) {
        let stats = self.stats(state, finish);
        self.output.finish(stats);
    }

    /// Sends an error.
    pub fn fail(&mut self, reason: &str) {
        self.output.fail(reason);
    }

    fn stats(&self, state: &SequenceState, finish: FinishReason) -> GenerationStats {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        GenerationStats {
            finish,
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.cached,
            prefill: first - started,
            generated_tokens: state.generated,
            decode: if state.generated == 0 { Duration::ZERO } else { now - first },
            queued: started - self.submitted,
            draft_stats: self.speculation.counts,
            shifted_tokens: self.shifted,
            tokens: state.text(),
        }
    }
}
