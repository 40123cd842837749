//! A sequence: its tokens, pages, sampler and output stream.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_sampler::{Sampler, Vocab, log_probs};
use puna_tokenizer::Tokenizer;

use crate::constraint::{Constrained, Room, SampleDeferred};
use crate::job::{Event, Finish, Job, PromptToken, Sink, Stage, Summary};
use crate::options::ModelInfo;
use crate::output::{Emit, OutputStream};
use crate::pages::{PAGE_TOKENS, PrefixTreeKey};
use crate::repetition::Repetition;
use crate::sequence_pages::SequencePages;
use crate::speculate::guesser::Guesser;
use crate::speculate::{Drafter, Guess, Speculation};
use crate::vocab::SamplerVocab;

/// Error for logits of which none is a number.
pub const NOT_A_NUMBER: &str =
    "the model's output is not a number anywhere: the file may be damaged";

/// Tokens reserved for the end of reasoning before an answer that must be complete.
const THOUGHT_END_MAX: usize = 64;
/// Largest number of tokens of one character; reasoning is not ended within a character.
const CHARACTER_MAX: usize = 4;

/// Number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// A waiting or running request.
pub struct Sequence {
    pub id: JobId,
    pub job: Job,
    output: OutputStream,
    /// Tokens of the context: prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Number of tokens in the KV cache.
    pub computed: usize,
    /// Key of the prefix tree.
    pub origin: PrefixTreeKey,
    pub held: SequencePages,
    sampler: Sampler,
    constrained: Option<Constrained>,
    /// Detector of repetition in constrained answers.
    repetition: Repetition,
    /// Context size.
    context: usize,
    /// Tokens that come next instead of sampled ones.
    forced: VecDeque<u32>,
    /// Whether the engine has ended the reasoning.
    thought_ended: bool,
    /// Whether the text before a constrained answer repeats itself.
    is_circling: bool,
    /// Logits of a deferred sample, whose token mask is not ready.
    postponed: Option<Vec<f32>>,
    pub guesser: Guesser,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    pub cached: usize,
    generated: usize,
    /// Number of prompt tokens whose log-probabilities are sent.
    scored: usize,
    shifted: usize,
    /// Computed prompt rows, plus the smallest count of the client's sequences at admission, for fairness.
    pub served: u64,
    /// Number of the last step with a row of this sequence.
    pub last_step: u64,
    /// Number of the first admission, for preemption; 0 before.
    pub admitted: u64,
}

/// Makes the sampler of a request, with the prompt as history. Tokens that the vocabulary suppresses, and `never`, are not sampled.
pub(crate) fn sampler_of(
    job: &Job,
    tokenizer: &Arc<Tokenizer>,
    n_vocab: usize,
    never: Option<u32>,
) -> Sampler {
    let mut sampling = job.sampling.clone();
    let never = tokenizer.suppressed().iter().copied().chain(never);
    sampling.logit_bias.extend(never.map(|token| (token, f32::NEG_INFINITY)));
    let vocab: Arc<dyn Vocab> = Arc::new(SamplerVocab(Arc::clone(tokenizer)));
    let mut sampler = Sampler::with_vocab(&sampling, n_vocab, &vocab);
    job.prompt.iter().for_each(|&token| sampler.accept(token));
    sampler
}

impl Sequence {
    /// Makes a waiting sequence.
    pub fn new(
        id: JobId,
        job: Job,
        sink: Box<dyn Sink>,
        tokenizer: &Arc<Tokenizer>,
        info: &ModelInfo,
        drafter: Box<dyn Drafter>,
        constrained: Option<Constrained>,
    ) -> Self {
        let sampler = sampler_of(&job, tokenizer, info.n_vocab, None);
        let decoder = tokenizer.decoder().showing(&job.shown);
        // Text generated after an encoder's prompt starts a new text.
        let decoder = if info.start.is_some() { decoder.at_start() } else { decoder };
        let read: &[u32] = if info.start.is_some() { &job.prompt } else { &[] };
        Self {
            id,
            tokens: job.prompt.iter().copied().chain(info.start).collect(),
            computed: 0,
            origin: PrefixTreeKey { adapter_scales: job.adapter_scales.clone(), read: read.into() },
            held: SequencePages::default(),
            sampler,
            constrained,
            repetition: Repetition::default(),
            context: job.context_in(info.n_ctx),
            forced: VecDeque::new(),
            thought_ended: false,
            is_circling: false,
            postponed: None,
            guesser: Guesser::new(job.speculation.unwrap_or(Speculation::OFF), drafter),
            submitted: Instant::now(),
            started: None,
            first_token: None,
            cached: 0,
            generated: 0,
            scored: 0,
            shifted: 0,
            served: 0,
            last_step: 0,
            admitted: 0,
            output: OutputStream::new(&job, sink, decoder),
            job,
        }
    }

    /// Context size in an engine with context size `n_ctx`.
    pub fn context(&self, n_ctx: usize) -> usize {
        self.job.context_in(n_ctx)
    }

    /// Whether the sink takes an event now.
    pub fn ready(&self) -> bool {
        self.output.sink.ready()
    }

    /// Number of tokens that the encoder has to read; 0 once they are in the cache.
    pub fn unread(&self) -> usize {
        if self.computed == 0 { self.origin.read.len() } else { 0 }
    }

    /// Whether only the latest token is not computed.
    pub fn is_decoding(&self) -> bool {
        self.generated > 0 && self.computed + 1 == self.tokens.len()
    }

    /// Starts the sequence with `cached` tokens in the KV cache.
    pub fn start(&mut self, cached: usize) {
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.cached = cached;
        }
        self.computed = cached;
        // The logits of a deferred sample are computed again.
        self.postponed = None;
    }

    /// Whether log-probabilities of prompt tokens are still to be sent.
    pub fn is_scored(&self) -> bool {
        self.job.prompt_logprobs.is_some() && self.scored < self.job.prompt.len()
    }

    /// Number of first tokens that can come from the cache; the logits of the next token are needed.
    pub fn known(&self) -> usize {
        let all = self.tokens.len() - 1;
        if self.is_scored() { self.scored.saturating_sub(1).min(all) } else { all }
    }

    /// Range of the next `rows` tokens whose logits give log-probabilities of the following prompt tokens.
    pub fn scoring(&self, rows: usize) -> Range<usize> {
        if !self.is_scored() {
            return 0..0;
        }
        let first = self.computed.max(self.scored.saturating_sub(1));
        first..(self.computed + rows).min(self.job.prompt.len() - 1).max(first)
    }

    /// Sends the log-probabilities of the prompt tokens that follow `rows` of logits (`cols` columns). Returns `false` if the client has
    /// disconnected.
    pub fn score(&mut self, rows: &[f32], cols: usize) -> bool {
        let Some(top) = self.job.prompt_logprobs.filter(|_| self.is_scored()) else { return true };
        let mut tokens = Vec::new();
        if self.scored == 0 {
            tokens.push(PromptToken { token: self.job.prompt[0], logprobs: None, rank: 0 });
        }
        let next = self.scored.max(1);
        for (row, &token) in rows.chunks_exact(cols).zip(&self.job.prompt[next..]) {
            let own = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            let above = row.iter().filter(|logit| **logit > own).count();
            tokens.push(PromptToken {
                token,
                logprobs: Some(log_probs(row, token, top)),
                rank: u32::try_from(above + 1).unwrap_or(u32::MAX),
            });
        }
        self.scored += tokens.len();
        tokens.is_empty() || self.output.sink.send(Event::Prompt(tokens))
    }

    /// Sends the progress of the prefill. Returns `false` if the client has disconnected.
    pub fn prefill_progress(&mut self) -> bool {
        if self.generated > 0 {
            return true;
        }
        self.output.sink.send(Event::Prefill { done: self.computed, total: self.tokens.len() })
    }

    /// Largest number of draft tokens in the next step: with the sampled token behind them, within the limits of the answer, the context
    /// and the sink. Drafts end with the page: once it is full, the tree can replace it by a page with the same tokens that another
    /// step size computed, and later tokens must see the same page as without drafts.
    pub fn guesses_at_most(&self, n_ctx: usize) -> usize {
        let left = self.job.max_tokens.map_or(usize::MAX, |max| max.saturating_sub(self.generated));
        let most = self.guesser.speculation.most.unwrap_or(usize::MAX);
        let room = self
            .output
            .sink
            .room()
            .saturating_sub(1)
            .min(PAGE_TOKENS - 1 - self.computed % PAGE_TOKENS);
        most.min(room)
            .min(left.saturating_sub(1))
            .min(self.context(n_ctx).saturating_sub(self.tokens.len()))
    }

    /// Draws from the rows of a step (`cols` logits each) in order, as long as each draw is the token that the next row
    /// was computed for. Returns how many tokens of the guess came true, and whether the sequence goes on. Where it is not
    /// known by `end` what fits the answer's form, the draw is postponed.
    pub fn advance_through(
        &mut self,
        rows: &[f32],
        cols: usize,
        guess: Option<&Guess>,
        tokenizer: &Tokenizer,
        end: Instant,
    ) -> (usize, bool) {
        // Counted as it happens: the draw that ends the sequence sends the counts.
        if let Some(guess) = guess {
            self.guesser.counts.guessed(guess.kind, guess.tokens.len());
        }
        let mut logits = Vec::with_capacity(cols);
        let mut accepted = 0;
        for row in rows.chunks_exact(cols) {
            logits.clear();
            logits.extend_from_slice(row);
            if !self.knows_form_by(end) {
                self.postponed = Some(logits);
                return (accepted, true);
            }
            if !self.advance(&mut logits, tokenizer) {
                return (accepted, false);
            }
            let Some(guess) = guess else { break };
            if guess.tokens.get(accepted) != self.tokens.last() {
                break;
            }
            self.guesser.counts.accepted(guess.kind, 1);
            self.computed += 1;
            accepted += 1;
        }
        (accepted, true)
    }

    fn knows_form_by(&mut self, end: Instant) -> bool {
        self.constrained.as_mut().is_none_or(|constrained| constrained.is_known_by(end))
    }

    /// Whether a draw is postponed.
    pub fn is_postponed(&self) -> bool {
        self.postponed.is_some()
    }

    /// Makes up for a postponed draw, if what it needs is known by `end` and the listener takes it. Returns whether a token was
    /// drawn, and whether the sequence goes on.
    pub fn resume_deferred_sampling(
        &mut self,
        tokenizer: &Tokenizer,
        end: Instant,
    ) -> (bool, bool) {
        if self.postponed.is_none() || !self.ready() || !self.knows_form_by(end) {
            return (false, true);
        }
        let drawn = self.postponed.take().map(|mut logits| self.advance(&mut logits, tokenizer));
        (true, drawn.unwrap_or(true))
    }

    /// Draws the next token from `logits` and reports it; `false` when the sequence has ended.
    pub fn advance(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) -> bool {
        self.first_token.get_or_insert_with(Instant::now);
        if self.job.max_tokens == Some(0) {
            self.finish(Finish::Length);
            return false;
        }
        let raw = self.job.logprobs.map(|_| logits.to_vec());
        let drawn = match self.next_forced() {
            Some(token) => Ok(token),
            None => self.draw(logits, tokenizer),
        };
        let token = match drawn {
            Ok(token) => token,
            Err(SampleDeferred::Form(reason)) => {
                self.output.sink.send(Event::Refused(reason));
                return false;
            }
            Err(SampleDeferred::Thinks) => {
                self.fail("the model does not stop thinking before it answers");
                return false;
            }
            Err(SampleDeferred::Other(reason)) => {
                self.fail(&reason);
                return false;
            }
        };
        self.sampler.accept(token);
        self.generated += 1;
        self.tokens.push(token);
        if let Some(constrained) = self.constrained.as_mut().filter(|_| !tokenizer.is_eog(token)) {
            if constrained.is_open() {
                self.repetition.push(token);
            }
            constrained.accept(token);
        }
        let logprobs = raw.zip(self.job.logprobs).map(|(raw, top)| log_probs(&raw, token, top));
        match self.output.emit_token(token, logprobs, tokenizer) {
            Emit::Continue => {}
            Emit::Finished(finish) => {
                self.finish(finish);
                return false;
            }
            // The answer of a form still comes behind a thought that goes round in circles.
            Emit::Satisfied
                if self.constrained.as_ref().is_some_and(|constrained| !constrained.is_open()) =>
            {
                self.is_circling = true;
            }
            Emit::Satisfied => {
                self.finish(Finish::End);
                return false;
            }
            Emit::Disconnected => return false,
        }
        if self.job.max_tokens.is_some_and(|max| self.generated >= max) {
            self.finish(Finish::Length);
            return false;
        }
        true
    }

    /// The token that the listener wants next, if it wants one.
    fn next_forced(&mut self) -> Option<u32> {
        if self.forced.is_empty() && self.output.decoder.held().is_empty() {
            self.forced.extend(self.output.sink.forced());
        }
        self.forced.pop_front()
    }

    /// Draws from `logits`, within the answer's form where it has one.
    fn draw(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) -> Result<u32, SampleDeferred> {
        let Some(mut constrained) = self.constrained.take() else {
            return self.sampler.try_sample(logits).ok_or_else(|| NOT_A_NUMBER.into());
        };
        let drawn = self.draw_constrained(&mut constrained, logits, tokenizer);
        self.constrained = Some(constrained);
        drawn
    }

    /// Draws within the answer's form. A thought that would be the end is ended, and the answer goes on.
    fn draw_constrained(
        &mut self,
        constrained: &mut Constrained,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) -> Result<u32, SampleDeferred> {
        let room = self.room();
        if let Some(token) = self.begin_in_time(constrained, room) {
            return Ok(token);
        }
        let OutputStream { sink, decoder, .. } = &self.output;
        let breaks_off = Cell::new(false);
        let stage = |token| -> Stage {
            if !tokenizer.is_eog(token) {
                return sink.stage(&decoder.clone().push(token));
            }
            let stage = sink.stage("");
            if stage != Stage::Before {
                return stage;
            }
            breaks_off.set(true);
            Stage::Mixed
        };
        let was_open = constrained.is_open();
        let drawn = constrained.draw(logits, &mut self.sampler, room, stage);
        if constrained.is_open() && !was_open {
            self.output.sink.begin_answer();
            return drawn;
        }
        let stays = matches!(drawn, Err(SampleDeferred::Thinks));
        if (stays || breaks_off.get())
            && !self.thought_ended
            && self.output.decoder.held().is_empty()
        {
            self.thought_ended = true;
            self.forced.extend(self.output.sink.end_thought());
            if let Some(token) = self.forced.pop_front() {
                return Ok(token);
            }
        }
        if !stays {
            return drawn;
        }
        tracing::warn!(
            job = self.id.0,
            "a thought that does not end is broken off: the answer's form begins"
        );
        self.output.sink.begin_answer();
        constrained.draw_answer(logits, &mut self.sampler, room)
    }

    /// The tokens that the answer can still have.
    fn room(&self) -> Room {
        let by_limit = self.job.max_tokens.map(|most| most.saturating_sub(self.generated));
        // The last token of a context need not be computed.
        let by_context =
            (!self.job.shift).then(|| (self.context + 1).saturating_sub(self.tokens.len()));
        let left = by_limit.into_iter().chain(by_context).min();
        Room { left, is_repeating: self.repetition.is_found() }
    }

    /// Ends what comes before an answer that must be whole, where only just enough tokens are left for it: the first token
    /// of a thought's end, or none, and the answer has begun where nothing may come before it any more.
    fn begin_in_time(&mut self, constrained: &mut Constrained, room: Room) -> Option<u32> {
        if constrained.is_open() {
            return None;
        }
        if self.is_circling {
            return self.begin_now(constrained);
        }
        let (shortest, left) = (constrained.shortest()?, room.left?);
        if left > shortest + THOUGHT_END_MAX {
            return None;
        }
        let OutputStream { sink, decoder, .. } = &mut self.output;
        if !self.thought_ended && decoder.held().is_empty() && sink.stage("") == Stage::Before {
            let end = if sink.answer_ends_thought() { Vec::new() } else { sink.end_thought() };
            if left > shortest + end.len() + CHARACTER_MAX {
                return None;
            }
            if !end.is_empty() && left >= shortest + end.len() {
                self.thought_ended = true;
                self.forced.extend(end);
                return self.forced.pop_front();
            }
        }
        if left <= shortest {
            sink.begin_answer();
            constrained.open();
        }
        None
    }

    /// Begins an answer of a form: with the first token of a thought's end, or none where it can begin at once.
    fn begin_now(&mut self, constrained: &mut Constrained) -> Option<u32> {
        let OutputStream { sink, decoder, .. } = &mut self.output;
        if !decoder.held().is_empty() {
            return None;
        }
        if !self.thought_ended && sink.stage("") == Stage::Before && !sink.answer_ends_thought() {
            self.thought_ended = true;
            self.forced.extend(sink.end_thought());
            if let Some(token) = self.forced.pop_front() {
                return Some(token);
            }
        }
        sink.begin_answer();
        constrained.open();
        None
    }

    /// Tells the listener that it is over.
    pub fn finish(&mut self, finish: Finish) {
        let summary = self.summary(finish);
        self.output.finish(summary);
    }

    /// Tells the listener that it failed.
    pub fn fail(&mut self, reason: &str) {
        self.output.fail(reason);
    }

    /// Tokens that stay whatever is dropped: what an encoder has read, and the token that the answer begins with.
    fn least(&self) -> usize {
        if self.origin.read.is_empty() { 0 } else { self.origin.read.len() + 1 }
    }

    /// Whether something of the answer would be left: where a prompt fills the context, dropping its one token would only have that
    /// drawn again.
    pub fn can_shift(&self) -> bool {
        self.job.shift && self.tokens.len() > self.least() + 1
    }

    /// Drops the older half of what follows the kept beginning; the rest is computed anew.
    pub fn shift(&mut self) {
        let least = self.least();
        let keep = self.job.keep.max(least).min(self.tokens.len() - 1);
        let dropped = ((self.tokens.len() - keep) / 2).max(1);
        self.tokens.drain(keep..keep + dropped);
        self.shifted += dropped;
        self.guesser.forget();
        self.computed = 0;
    }

    /// Prompt and answer, as somebody may go on with them: the token that answers begin with where an encoder reads prompts is part of
    /// neither.
    fn text(&self) -> Vec<u32> {
        let read = self.origin.read.len();
        let behind = if read > 0 { read + 1 } else { 0 };
        self.tokens[..read].iter().chain(&self.tokens[behind..]).copied().collect()
    }

    fn summary(&self, finish: Finish) -> Summary {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Summary {
            finish,
            prompt_tokens: self.job.prompt.len(),
            cached_tokens: self.cached,
            prefill: first - started,
            generated_tokens: self.generated,
            decode: if self.generated == 0 { Duration::ZERO } else { now - first },
            queued: started - self.submitted,
            speculated: self.guesser.counts,
            shifted_tokens: self.shifted,
            tokens: self.text(),
        }
    }
}
