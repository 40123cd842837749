//! Constrained decoding: a grammar that applies from the beginning of the answer.
//!
//! Another thread computes the next token mask while the model runs the next step
//! ([`MaskThreads`]). If the mask takes longer, the sequence stays out of steps until it is ready
//! ([`ConstrainedSampler::is_mask_ready`]), so that other sequences do not wait. Reasoning before
//! the answer is not constrained: the sink determines where the answer begins ([`AnswerStage`]),
//! and the token that would begin it is sampled again with the mask.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use puna_sampler::{Constraint, Grammar, GrammarCompiler, GrammarError, GrammarToken, Sampler};
use puna_tokenizer::Tokenizer;

use crate::error::NOT_A_NUMBER;
use crate::request::AnswerStage;

/// Number of rejected tokens that mix reasoning and answer after which sampling fails.
const MAX_MIXED_TOKENS: usize = 64;
/// Mask time from which a grammar uses the thread for slow grammars.
const SLOW_MASK: Duration = Duration::from_millis(20);

/// Compiles the grammars of a model, and computes token masks on two threads.
pub struct MaskThreads {
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    quick: MaskThread,
    slow: MaskThread,
}

/// A thread with its task queue; it starts with the first task.
#[derive(Default)]
struct MaskThread(Mutex<Option<Sender<MaskTask>>>);

/// A grammar that accepts a token and computes its mask, and the channel that returns it.
struct MaskTask {
    grammar: Box<Grammar>,
    token: u32,
    back: Sender<ReadyGrammar>,
}

/// A grammar with its mask.
struct ReadyGrammar {
    grammar: Box<Grammar>,
    took: Duration,
}

impl MaskThreads {
    pub fn new() -> Self {
        Self {
            grammars: OnceLock::new(),
            quick: MaskThread::default(),
            slow: MaskThread::default(),
        }
    }

    /// Compiles a constraint until `cancelled` is set; `whole` for an answer that must be complete.
    pub fn grammar(
        &self,
        constraint: &Constraint,
        tokenizer: &Tokenizer,
        whole: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, GrammarError> {
        let made = self.grammars.get_or_init(|| {
            let spellings = (0..tokenizer.vocab_size() as u32).map(|id| spelling(tokenizer, id));
            GrammarCompiler::new(spellings, tokenizer.eog())
        });
        let grammars = made.as_ref().map_err(Clone::clone)?;
        grammars.try_compile(constraint, whole, cancelled)
    }
}

impl MaskThread {
    /// Queues a grammar to accept a token and compute its mask.
    fn advance(&self, grammar: Box<Grammar>, token: u32) -> GrammarState {
        let (back, state) = channel();
        let mut task = MaskTask { grammar, token, back };
        let mut tasks = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // If the thread has ended, the task comes back for a new thread.
        for _ in 0..2 {
            let Some(thread) = tasks.take().or_else(start_thread) else { break };
            match thread.send(task) {
                Ok(()) => {
                    *tasks = Some(thread);
                    return GrammarState::Computing(state);
                }
                Err(error) => task = error.0,
            }
        }
        GrammarState::Lost
    }
}

/// Starts a mask thread, which ends with the sender.
fn start_thread() -> Option<Sender<MaskTask>> {
    let (tasks, queue) = channel::<MaskTask>();
    let work = move || {
        for MaskTask { mut grammar, token, back } in queue {
            let start = Instant::now();
            // The mask reports the error. The receiver may be gone if the sequence has ended.
            let _ = grammar.accept(token);
            grammar.prepare();
            let _ = back.send(ReadyGrammar { grammar, took: start.elapsed() });
        }
    };
    std::thread::Builder::new().name("puna-masks".into()).spawn(work).ok().map(|_| tasks)
}

fn spelling(tokenizer: &Tokenizer, id: u32) -> GrammarToken<'_> {
    let is_text = !tokenizer.is_control(id) && !tokenizer.is_eog(id);
    GrammarToken { bytes: if is_text { tokenizer.piece(id) } else { tokenizer.text(id) }, is_text }
}

/// Limits for the next token of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct NextTokenLimits {
    /// Number of tokens that the answer can still have, including the next; `None` without a limit.
    pub remaining: Option<usize>,
    /// Whether the answer repeats itself and must end.
    pub is_repeating: bool,
}

/// Samples tokens of a sequence under its grammar.
pub struct ConstrainedSampler {
    state: GrammarState,
    /// Number of tokens of the shortest answer, if known.
    shortest: Option<usize>,
    masks: Arc<MaskThreads>,
    /// Whether the answer has begun.
    answer_begun: bool,
    /// Whether a mask took longer than [`SLOW_MASK`].
    slow: bool,
    /// Buffer for logits that sampling before the answer may change.
    scratch: Vec<f32>,
}

/// Reason why no token was sampled.
#[derive(Debug)]
pub enum SamplingError {
    /// The grammar cannot be followed.
    Grammar(String),
    /// The model neither continues nor ends its reasoning.
    ReasoningStuck,
    /// Another error.
    Other(String),
}

impl From<GrammarError> for SamplingError {
    fn from(error: GrammarError) -> Self {
        Self::Grammar(error.to_string())
    }
}

impl From<&str> for SamplingError {
    fn from(reason: &str) -> Self {
        Self::Other(reason.to_owned())
    }
}

/// State of a sequence's grammar.
enum GrammarState {
    /// The mask can be read.
    Ready(Box<Grammar>),
    /// A mask thread computes the mask.
    Computing(Receiver<ReadyGrammar>),
    /// The mask thread has failed.
    Lost,
}

impl ConstrainedSampler {
    pub fn new(mut grammar: Grammar, masks: Arc<MaskThreads>) -> Self {
        let shortest = grammar.shortest_end();
        let state = GrammarState::Ready(Box::new(grammar));
        Self { state, shortest, masks, answer_begun: false, slow: false, scratch: Vec::new() }
    }

    /// Number of tokens of the shortest answer including its end token, if known.
    pub fn shortest(&self) -> Option<usize> {
        self.shortest
    }

    /// Begins the answer.
    pub fn begin_answer(&mut self) {
        (self.answer_begun, self.scratch) = (true, Vec::new());
    }

    /// Whether the answer has begun.
    pub fn answer_has_begun(&self) -> bool {
        self.answer_begun
    }

    /// Waits until `end` at most for the token mask, and returns whether it is ready.
    pub fn is_mask_ready(&mut self, end: Instant) -> bool {
        let GrammarState::Computing(back) = &self.state else { return true };
        match back.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(advanced) => self.take_back(advanced),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => self.state = GrammarState::Lost,
        }
        true
    }

    fn take_back(&mut self, ReadyGrammar { grammar, took }: ReadyGrammar) {
        self.slow |= took > SLOW_MASK;
        self.state = GrammarState::Ready(grammar);
    }

    /// Samples a token: without mask before the answer, then with it. `stage` returns the part of
    /// the output that a token would belong to.
    ///
    /// # Errors
    ///
    /// No token can be sampled.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        sampler: &mut Sampler,
        limits: NextTokenLimits,
        stage: impl Fn(u32) -> AnswerStage,
    ) -> Result<u32, SamplingError> {
        if !self.answer_begun
            && let Some(token) = sample_before_answer(logits, &mut self.scratch, sampler, stage)?
        {
            return Ok(token);
        }
        self.sample_answer(logits, sampler, limits)
    }

    /// Samples a token of the answer. If too few tokens would remain behind it to complete the
    /// answer, or the grammar has reached its limits of memory or work, the next token of the
    /// shortest end is taken instead, regardless of biases.
    ///
    /// # Errors
    ///
    /// No token can be sampled.
    pub fn sample_answer(
        &mut self,
        logits: &mut [f32],
        sampler: &mut Sampler,
        limits: NextTokenLimits,
    ) -> Result<u32, SamplingError> {
        self.begin_answer();
        if !logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            return Err(NOT_A_NUMBER.into());
        }
        let grammar = self.grammar()?;
        if (limits.is_repeating || grammar.must_end())
            && let Some(token) = grammar.next_end_token()
        {
            return Ok(token);
        }
        grammar.mask(logits)?;
        // Logit biases apply after the mask.
        let sampled = sampler.try_sample(logits);
        let Some(remaining) = limits.remaining else {
            return Ok(sampled.ok_or(GrammarError::NoToken)?);
        };
        let must_end = match sampled {
            Some(token) => !grammar.can_end_within(token, remaining),
            None => grammar.shortest_end().is_some_and(|shortest| shortest >= remaining),
        };
        let ending = if must_end { grammar.next_end_token() } else { None };
        Ok(ending.or(sampled).ok_or(GrammarError::NoToken)?)
    }

    /// Accepts a sampled token, and starts to compute the next mask.
    pub fn accept(&mut self, token: u32) {
        if !self.answer_begun {
            return;
        }
        self.state = match std::mem::replace(&mut self.state, GrammarState::Lost) {
            GrammarState::Ready(grammar) if self.slow => self.masks.slow.advance(grammar, token),
            GrammarState::Ready(grammar) => self.masks.quick.advance(grammar, token),
            away => away,
        };
    }

    fn grammar(&mut self) -> Result<&mut Grammar, SamplingError> {
        if let GrammarState::Computing(back) = &self.state {
            match back.recv() {
                Ok(advanced) => self.take_back(advanced),
                Err(_) => self.state = GrammarState::Lost,
            }
        }
        match &mut self.state {
            GrammarState::Ready(grammar) => Ok(grammar),
            _ => Err("the grammar thread has stopped".into()),
        }
    }
}

/// Samples a token before the answer; `None` if the token would begin the answer.
fn sample_before_answer(
    logits: &mut [f32],
    scratch: &mut Vec<f32>,
    sampler: &mut Sampler,
    stage: impl Fn(u32) -> AnswerStage,
) -> Result<Option<u32>, SamplingError> {
    let mut passed = Vec::new();
    while passed.len() < MAX_MIXED_TOKENS {
        let mut trial = sampler.clone();
        scratch.clear();
        scratch.extend_from_slice(logits);
        let Some(token) = trial.try_sample(scratch) else {
            if passed.is_empty() {
                return Err(NOT_A_NUMBER.into());
            }
            break;
        };
        match stage(token) {
            AnswerStage::BeforeAnswer | AnswerStage::Complete => {
                *sampler = trial;
                return Ok(Some(token));
            }
            AnswerStage::Answer => return Ok(None),
            AnswerStage::Mixed => {
                let logit = &mut logits[token as usize];
                passed.push((token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
    }
    passed.into_iter().for_each(|(token, logit)| logits[token as usize] = logit);
    Err(SamplingError::ReasoningStuck)
}

impl fmt::Debug for ConstrainedSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstrainedSampler")
            .field("answer_begun", &self.answer_begun)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar() -> Grammar {
        let spell = |bytes, is_text| GrammarToken { bytes, is_text };
        let tokens = [spell(&b"a"[..], true), spell(b"<end>", false)];
        let grammars = GrammarCompiler::new(tokens.into_iter(), &[1]).unwrap();
        grammars.compile(&Constraint::Regex("a*".into())).unwrap()
    }

    #[test]
    fn token_masks_have_a_deadline_and_slow_grammars_have_their_own_thread() {
        let mut constrained = ConstrainedSampler::new(grammar(), Arc::new(MaskThreads::new()));
        let soon = || Instant::now() + Duration::from_millis(1);
        assert!(constrained.is_mask_ready(soon()));
        for (took, slow) in [(Duration::ZERO, false), (2 * SLOW_MASK, true), (Duration::ZERO, true)]
        {
            let (back, state) = channel();
            constrained.state = GrammarState::Computing(state);
            assert!(!constrained.is_mask_ready(soon()));
            back.send(ReadyGrammar { grammar: Box::new(grammar()), took }).unwrap();
            assert!(constrained.is_mask_ready(soon()) && constrained.slow == slow);
        }
        // A slow grammar delays only the thread of slow grammars.
        constrained.answer_begun = true;
        constrained.accept(0);
        assert!(
            lock(&constrained.masks.slow).is_some() && lock(&constrained.masks.quick).is_none()
        );
        constrained.grammar().unwrap();
    }

    fn lock(line: &MaskThread) -> std::sync::MutexGuard<'_, Option<Sender<MaskTask>>> {
        line.0.lock().unwrap()
    }
}
