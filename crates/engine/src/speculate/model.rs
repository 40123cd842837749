//! A second, small model that guesses what the first will say.
//!
//! It has its own weights, cache and prefix tree, and follows each sequence that asks it: before it guesses it reads the
//! tokens that it has not seen. It guesses greedily, one token after the other, as long as it is confident. What it
//! computed for its own guesses stays in its cache if they come true.

use std::collections::HashMap;
use std::time::Instant;

use puna_graph::{Backend, StepInput};
use puna_models::{Want, is_companion};
use puna_tokenizer::Tokenizer;

use puna_gguf::View;

use super::rolling_median::Newest;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::options::{EngineOptions, MemoryReport};
use crate::pages::{PAGE_TOKENS, Pages, PrefixTreeKey};
use crate::sequence::JobId;
use crate::sequence_pages::SequencePages;
use crate::speculate::Speculation;

/// Guesses end before a token that the model itself gives less than this probability.
const CONFIDENT: f32 = 0.4;
/// Rows of a step that only reads what was missed, where other sequences wait.
const SHORT_CHUNK: usize = 64;
/// Steps of up to this many rows a sequence are taken for ones that guess.
const GUESSING_ROWS: usize = 4;
pub(super) const TIMES: usize = 9;

/// A draft model: a small model that is to guess for another, or one that guesses with parts of its model.
pub struct DraftModel {
    /// Its file.
    pub view: View,
    /// Where it runs: a backend of its own. One that guesses with parts of its model leaves it and runs where that does.
    pub backend: Box<dyn Backend>,
}

impl DraftModel {
    /// Whether it guesses with parts of its model, and does not run alone.
    pub fn is_companion(&self) -> bool {
        is_companion(self.view.metadata())
    }
}

/// The draft model at work.
pub struct Drafts {
    executor: ModelExecutor,
    pages: Pages,
    num_batch: usize,
    followed: HashMap<JobId, Follower>,
    /// Seconds of a step that guesses.
    times: Newest,
    /// Seconds a token of a step that reads.
    reading: Newest,
}

/// The draft model's view of a sequence.
#[derive(Debug, Default)]
struct Follower {
    held: SequencePages,
    /// The sequence's tokens that it has seen.
    seen: usize,
    /// Guesses that it has computed behind them.
    ahead: Vec<u32>,
    /// It has read the prompt. What it reads later, because it was not asked for a while, counts against it.
    has_read: bool,
}

/// A sequence that wants to know what may come next.
pub struct DraftRequest<'a> {
    pub id: JobId,
    pub tokens: &'a [u32],
    /// Tokens to guess at most.
    pub most: usize,
    /// Guess however little the model is sure.
    pub always: bool,
    /// The model's pages of it.
    pub held: &'a SequencePages,
}

impl DraftRequest<'_> {
    /// Whether a token of this chance is guessed.
    pub(super) fn takes(&self, token: u32, chance: f32, is_end: impl Fn(u32) -> bool) -> bool {
        (chance >= CONFIDENT || self.always) && !is_end(token)
    }
}

/// A question on its way through the rounds.
struct Asked<'a> {
    question: &'a DraftRequest<'a>,
    at: usize,
    /// What comes next.
    feed: Vec<u32>,
    /// Tokens of the first feed whose time counts as spent on guessing.
    counted: usize,
    guess: Vec<u32>,
}

/// What was guessed, and what it took.
#[derive(Debug, Default)]
pub struct DraftTokens {
    /// A list for each question, perhaps empty.
    pub guesses: Vec<Vec<u32>>,
    /// Seconds spent on guessing.
    pub guessing: f64,
}

impl DraftTokens {
    /// Whether a guess goes on with this token, if it is one, up to `most` of them: what does not is the answer to question `at`.
    pub(super) fn goes_on(
        &mut self,
        at: usize,
        guess: &mut Vec<u32>,
        token: Option<u32>,
        most: usize,
    ) -> bool {
        guess.extend(token);
        let goes_on = token.is_some() && guess.len() < most;
        if !goes_on {
            self.guesses[at] = std::mem::take(guess);
        }
        goes_on
    }
}

impl Drafts {
    /// Loads a draft model for a model with this tokenizer.
    pub fn open(
        draft: DraftModel,
        name: &str,
        tokenizer: &Tokenizer,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        check_tokens(&draft.view, name, tokenizer)?;
        let options = options_of(options);
        let executor = ModelExecutor::new(&draft.view, draft.backend, &options)?;
        writes_in_order(&executor)?;
        if !executor.info.can_generate || !executor.info.causal {
            return Err(EngineError::CannotGenerate);
        }
        can_take_back(&executor)?;
        let pages = Pages::of(&executor.model, &options);
        let num_batch = options.num_batch.max(1);
        Ok(Self {
            executor,
            pages,
            num_batch,
            followed: HashMap::new(),
            times: Newest::default(),
            reading: Newest::default(),
        })
    }

    /// What loading a draft model with the options of its model takes.
    pub fn plan(draft: DraftModel, options: &EngineOptions) -> Result<MemoryReport, EngineError> {
        let options = options_of(options);
        let mut executor = ModelExecutor::bare(&draft.view, draft.backend, &options, None)?;
        writes_in_order(&executor)?;
        can_take_back(&executor)?;
        executor.memory(&options)
    }

    /// What was planned.
    pub fn planned(&self) -> MemoryReport {
        self.executor.planned
    }

    /// Seconds that guessing a token takes; nothing is known at first.
    pub fn token_seconds(&self) -> f64 {
        self.times.median().unwrap_or(0.0)
    }

    /// Seconds that it takes to read what it missed of a sequence, beyond the prompt.
    pub fn missed_seconds(&self, id: JobId, tokens: &[u32]) -> f64 {
        let follower = self.followed.get(&id).filter(|follower| follower.has_read);
        let missed = follower.map_or(0, |follower| tokens.len().saturating_sub(follower.seen + 1));
        if missed < GUESSING_ROWS {
            0.0
        } else {
            missed as f64 * self.reading.median().unwrap_or(0.0)
        }
    }

    /// Guesses for some sequences, a step for all of them at a time.
    pub fn ask(
        &mut self,
        questions: &[DraftRequest<'_>],
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut answers = DraftTokens { guesses: vec![Vec::new(); questions.len()], guessing: 0.0 };
        let mut asked = self.compute_missed_tokens(questions)?;
        while !asked.is_empty() {
            let input = self.input(&asked, true);
            self.executor.prepare(Want::Logits, &input)?;
            let start = Instant::now();
            let Some(cols) = self.executor.run(Want::Logits, &input)? else { break };
            let seconds = start.elapsed().as_secs_f64();
            let rows = input.tokens.len();
            if rows <= GUESSING_ROWS * asked.len() {
                self.times.push(seconds, TIMES);
                answers.guessing += seconds;
            } else {
                self.reading.push(seconds / rows as f64, TIMES);
                let counted: usize = asked.iter().map(|asked| asked.counted).sum();
                answers.guessing += seconds * counted as f64 / rows as f64;
            }
            let rows = self.executor.backend.result().chunks_exact(cols);
            for (asked, row) in asked.iter_mut().zip(rows) {
                let follower =
                    self.followed.get_mut(&asked.question.id).expect("whoever asks is followed");
                follower.take(&asked.feed, asked.question.tokens.len());
                follower.has_read = true;
                asked.feed.clear();
                let (token, chance) = likeliest(row);
                if asked.question.takes(token, chance, &is_end) {
                    asked.guess.push(token);
                    asked.feed.push(token);
                }
            }
            asked.retain_mut(|a| {
                let goes_on = !a.feed.is_empty() && a.guess.len() < a.question.most;
                if !goes_on {
                    answers.guesses[a.at] = std::mem::take(&mut a.guess);
                }
                goes_on
            });
        }
        Ok(answers)
    }

    /// Computes the tokens that the draft model has not seen yet. Sequences that are still behind, or without free pages, get no draft.
    fn compute_missed_tokens<'a>(
        &mut self,
        questions: &'a [DraftRequest<'a>],
    ) -> Result<Vec<Asked<'a>>, EngineError> {
        let mut budget = if questions.len() > 1 { SHORT_CHUNK } else { self.num_batch };
        let (mut ready, mut behind) = (Vec::new(), Vec::new());
        for (at, question) in questions.iter().enumerate() {
            let n = question.tokens.len();
            if n == 0 || question.most == 0 || n + question.most > self.executor.info.n_ctx {
                self.leave(question.id, question.tokens);
                continue;
            }
            let follower = self.followed.entry(question.id).or_insert_with(|| {
                let known = &question.tokens[..n - 1];
                // A draft model goes without adapters.
                let (pages, backend) = (&mut self.pages, &mut *self.executor.backend);
                let (held, seen) = SequencePages::find(
                    pages,
                    backend,
                    &PrefixTreeKey::default(),
                    known,
                    std::iter::empty(),
                );
                Follower { held, seen, ahead: Vec::new(), has_read: false }
            });
            follower.settle(question.tokens);
            // Also where it is never behind: pages behind its windows come back.
            follower.held.publish(&mut self.pages, &question.tokens[..follower.seen]);
            let lacking = (n + question.most).saturating_sub(follower.held.room());
            if lacking.div_ceil(PAGE_TOKENS) > self.pages.available(&[]) {
                continue;
            }
            let missed = &question.tokens[follower.seen..];
            let feed = missed[..missed.len().min(budget)].to_vec();
            let ahead = if feed.len() == missed.len() { question.most } else { 0 };
            if !follower.held.grow(&mut self.pages, follower.seen + feed.len() + ahead) {
                continue;
            }
            budget -= feed.len();
            let list = if feed.len() == missed.len() { &mut ready } else { &mut behind };
            let counted = if follower.has_read { feed.len() } else { 1 };
            list.push(Asked { question, at, feed, counted, guess: Vec::new() });
        }
        behind.retain(|asked| !asked.feed.is_empty());
        if !behind.is_empty() {
            let input = self.input(&behind, false);
            self.executor.run(Want::Logits, &input)?;
            for asked in &behind {
                let follower =
                    self.followed.get_mut(&asked.question.id).expect("whoever asks is followed");
                follower.take(&asked.feed, asked.question.tokens.len());
                follower.held.publish(&mut self.pages, &asked.question.tokens[..follower.seen]);
            }
        }
        Ok(ready)
    }

    fn input(&self, asked: &[Asked<'_>], outputs: bool) -> StepInput {
        let mut input = StepInput::default();
        for asked in asked {
            let follower = &self.followed[&asked.question.id];
            let (first_row, rows) = (input.tokens.len(), asked.feed.len());
            let past = follower.seen + follower.ahead.len();
            input.tokens.extend_from_slice(&asked.feed);
            input.positions.extend((past..past + rows).map(|p| p as u32));
            if outputs {
                input.outputs.push((first_row + rows - 1) as u32);
            }
            input.segments.push(follower.held.segment(&self.pages, first_row, rows, past));
        }
        input
    }

    /// A sequence ends or starts anew: what was computed for it stays for others.
    pub fn leave(&mut self, id: JobId, tokens: &[u32]) {
        if let Some(mut follower) = self.followed.remove(&id) {
            follower.settle(tokens);
            follower.held.release(&mut self.pages, &tokens[..follower.seen]);
        }
    }
}

impl Follower {
    /// Counts tokens that were computed: first the sequence's own, of which there are `n`, then guesses.
    fn take(&mut self, fed: &[u32], n: usize) {
        let own = fed.len().min(n - self.seen);
        self.seen += own;
        self.ahead.extend_from_slice(&fed[own..]);
    }

    /// Compares what it guessed with what came. The newest token is to be computed (again): what follows it is wanted.
    fn settle(&mut self, tokens: &[u32]) {
        let came = &tokens[self.seen.min(tokens.len())..];
        let equal = self.ahead.iter().zip(came).take_while(|(a, b)| a == b).count();
        self.seen = (self.seen + equal).min(tokens.len().saturating_sub(1));
        self.ahead.clear();
    }
}

/// The token with the largest logit, and its probability.
pub(super) fn likeliest(logits: &[f32]) -> (u32, f32) {
    let best =
        (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap_or(0);
    let top = logits.get(best).copied().unwrap_or(0.0);
    // What is 17 below adds less than a part in 2^24.
    let near = logits.iter().map(|&l| l - top).filter(|&l| l > -17.0);
    let sum = near.map(f32::exp).sum::<f32>();
    // Less than the 1 of the largest: there are no numbers.
    (best as u32, if sum >= 1.0 { 1.0 / sum } else { 0.0 })
}

/// Options of a draft model: those of its model, but for what is the model's own.
fn options_of(options: &EngineOptions) -> EngineOptions {
    EngineOptions { speculation: Speculation::OFF, adapters: Vec::new(), ..options.clone() }
}

/// Whether a draft model says what comes next.
fn writes_in_order(executor: &ModelExecutor) -> Result<(), EngineError> {
    let architecture = executor.info.architecture;
    match executor.info.unmasking {
        Some(_) => Err(EngineError::DiffusionDraft { architecture }),
        None => Ok(()),
    }
}

/// Whether it goes on with what others write, and guesses that did not come true can be taken back.
fn can_take_back(executor: &ModelExecutor) -> Result<(), EngineError> {
    let architecture = executor.info.architecture;
    match executor.info.start {
        Some(_) => Err(EngineError::EncoderDraft { architecture }),
        None if executor.info.recurrent => Err(EngineError::RecurrentDraft { architecture }),
        None => Ok(()),
    }
}

/// Whether a draft model that brings a vocabulary has that of its model.
pub(crate) fn check_companion_tokens(
    draft: &View,
    model: &str,
    tokenizer: &Tokenizer,
) -> Result<(), EngineError> {
    match draft.metadata().get("tokenizer.ggml.tokens") {
        Some(_) => check_tokens(draft, model, tokenizer),
        None => Ok(()),
    }
}

/// Whether a draft model's tokens mean what those of the model called `model` mean.
pub(crate) fn check_tokens(
    draft: &View,
    model: &str,
    tokenizer: &Tokenizer,
) -> Result<(), EngineError> {
    let theirs = Tokenizer::from_metadata(draft.metadata())?;
    let differ = |difference| EngineError::DraftVocabulary {
        draft: name_of(draft),
        model: model.to_owned(),
        difference,
    };
    if theirs.model() != tokenizer.model() {
        return Err(differ(format!(
            "its vocabulary is of kind {:?}, not {:?}",
            theirs.model(),
            tokenizer.model()
        )));
    }
    let both = theirs.vocab_size().min(tokenizer.vocab_size()) as u32;
    // Families name their reserved tokens differently from one size to the next.
    let reserved = |id| theirs.is_control(id) && tokenizer.is_control(id);
    match (0..both).find(|&id| theirs.text(id) != tokenizer.text(id) && !reserved(id)) {
        Some(id) => {
            let text = |t: &Tokenizer| String::from_utf8_lossy(t.text(id)).into_owned();
            Err(differ(format!("its token {id} is {:?}, not {:?}", text(&theirs), text(tokenizer))))
        }
        None => Ok(()),
    }
}

/// What a file calls its model.
pub fn name_of(view: &View) -> String {
    let key = |key| view.metadata().opt_str(key).ok().flatten().map(str::to_owned);
    key("general.name")
        .or_else(|| key("general.architecture"))
        .unwrap_or_else(|| "a model without a name".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_token_has_the_probability_that_softmax_gives_it() {
        let (token, p) = likeliest(&[1.0, 3.0, 2.0, f32::NEG_INFINITY]);
        let exact = 1.0 / (1.0 + (-1f32).exp() + (-2f32).exp());
        assert_eq!(token, 1);
        assert!((p - exact).abs() < 1e-6);
        assert_eq!(likeliest(&[f32::NAN, f32::NAN]).1, 0.0);
        assert_eq!(likeliest(&[f32::NEG_INFINITY; 2]).1, 0.0);
    }

    #[test]
    fn guesses_that_came_true_need_not_be_computed_again_and_others_are_forgotten() {
        let mut follower = Follower::default();
        follower.take(&[1, 2, 3], 3);
        follower.take(&[4], 3);
        follower.take(&[5], 3);
        assert_eq!((follower.seen, follower.ahead.as_slice()), (3, &[4, 5][..]));
        follower.settle(&[1, 2, 3, 4, 9]);
        assert_eq!((follower.seen, follower.ahead.len()), (4, 0));
        follower.take(&[9, 7], 5);
        follower.settle(&[1, 2, 3, 4, 9, 7]);
        assert_eq!(follower.seen, 5, "the newest token's own result is wanted");
    }
}
