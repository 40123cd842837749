//! Constrained decoding: computes the tokens that may follow in an answer.
//!
//! A request has a [`Constraint`]. A [`GrammarCompiler`] knows the tokens of a vocabulary and
//! compiles constraints to a [`Grammar`]. The grammar then follows one sequence: [`Grammar::mask`]
//! before a draw, [`Grammar::accept`] after it. `llguidance` runs schemas, regular expressions and
//! Lark grammars. GBNF is translated to Lark ([`gbnf`], [`lark`]).
//!
//! Constraints come from untrusted clients. Their size is limited here, the work of a step by
//! `llguidance`'s limits, and work that it does not limit by [`expression_limits`],
//! [`pattern_intersections`] and [`first_bytes`]. Constraints that cannot be enforced are rejected,
//! not ignored.

mod expression_limits;
mod first_bytes;
mod gbnf;
mod lark;
mod lark_parts;
mod library_error;
mod multiple_of;
mod number_bounds;
mod overlap;
mod pattern_intersections;
mod schema;
mod shortest_end;
#[cfg(test)]
mod tests;
mod unquoted_string;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::constraint_size::MAX_CONSTRAINT_BYTES;
use crate::schema::JsonSchema;
use expression_limits::{ClassCounter, check_expressions};
use lark_parts::LarkParts;
use library_error::{NO_TEXT_ALLOWED, reason, too_complex};
use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{CancellationHandle, Matcher, ParserFactory, TokenParser};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shortest_end::{
    CONTROL_TOKEN_MARK, EndError, EndTracker, MAX_BYTES, MAX_ITEMS, MAX_STRING_BYTES, NumberTokens,
};
pub use unquoted_string::{UnquotedString, pattern_excluding};

/// Name of the thread that compiles a constraint.
const THREAD_NAME: &str = "puna-grammar";
/// Stack size of the thread that compiles constraints. The library recurses as deep as rules refer
/// to each other, and a constraint has room for many short rules. Only used pages take memory.
const STACK_BYTES: usize = 512 << 20;
/// Maximum number of lexer states of a grammar. Each takes one or two kilobytes, and hostile
/// expressions reach new states with every token. The largest schemas in use have a few thousand.
const MAX_STATES: usize = 50_000;
/// Maximum number of symbols of a grammar: its rules, terminals and repetitions. The library fails
/// at 65,525. A schema of 200 KB has about half as many.
const MAX_SYMBOLS: usize = 60_000;

/// The format that an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    Json,
    /// JSON that fits a JSON Schema.
    Schema(JsonSchema),
    /// A text that a regular expression in Rust's syntax matches as a whole.
    Regex(String),
    /// A Lark grammar in `llguidance`'s dialect.
    Lark(String),
    /// A grammar in llama.cpp's format (GBNF).
    Gbnf(String),
}

impl Constraint {
    /// A constraint from a JSON Schema.
    pub fn schema(schema: Value) -> Self {
        Self::Schema(schema.into())
    }

    /// Size of the constraint in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Json => 0,
            Self::Schema(schema) => schema.value().to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
        }
    }
}

/// A schema as a `%json` of a Lark grammar, with the meaning of [`Constraint::Schema`].
///
/// # Errors
/// [`GrammarError::Schema`]
pub fn lark_json(schema: &JsonSchema) -> Result<String, GrammarError> {
    schema::prepare(schema).map(|schema| format!("%json {schema}")).map_err(GrammarError::Schema)
}

/// Why a constraint cannot be compiled, or a sequence cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema cannot be enforced.
    #[error("invalid JSON schema in format: {0}")]
    Schema(String),
    /// The regular expression is invalid.
    #[error("invalid regular expression: {0}")]
    Regex(String),
    /// The grammar is invalid.
    #[error("invalid grammar: {0}")]
    Grammar(String),
    /// The constraint is too large.
    #[error(
        "the grammar or schema is too large: {0} bytes, at most {MAX_CONSTRAINT_BYTES} are allowed"
    )]
    TooLarge(usize),
    /// The vocabulary has no token that ends a text.
    #[error("constrained output needs an end-of-text token, which this model does not have")]
    NoEndToken,
    /// The caller has cancelled the compilation.
    #[error("the compilation of the constraint was cancelled")]
    Cancelled,
    /// The operating system provides no thread to compile a constraint.
    #[error("cannot start a thread to compile the constraint: {0}")]
    ThreadFailed(String),
    /// The grammar cannot follow the sequence any further.
    #[error("the grammar cannot continue: {0}")]
    CannotContinue(String),
    /// The grammar allows only texts that need tokens which the model lacks or never draws.
    #[error(
        "the constraint allows no token of this model here: it requires a text without tokens in the vocabulary, or that logit_bias forbids"
    )]
    NoToken,
    /// The shortest answer of the constraint is longer than the limit for complete answers.
    #[error(
        "the constraint's shortest answer has at least {tokens} tokens ({bytes} bytes), at most {MAX_BYTES} bytes are allowed: reduce const, minLength or minItems"
    )]
    TooLong {
        /// Bytes of the shortest answer.
        bytes: u64,
        /// Least number of its tokens.
        tokens: u64,
    },
    /// The end of a constraint that must be complete is not found.
    #[error(
        "cannot guarantee a complete answer: a string needs more than {MAX_STRING_BYTES} bytes, or the constraint is too complex; simplify it, or require shorter strings (const, minLength, pattern)"
    )]
    EndNotFound,
    /// Computing the next tokens takes more work than allowed.
    #[error(
        "the constraint is too complex ({0}): use smaller repetitions, fewer alternatives with the same beginning, and no .* before them"
    )]
    TooComplex(String),
}

/// A token for a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarToken<'a> {
    /// Bytes of a text token; name of a control token, such as `<|im_end|>`.
    pub bytes: &'a [u8],
    /// Whether the token is text.
    pub is_text: bool,
}

/// Interval at which a cancellation is passed on to the library.
const CANCELLATION_INTERVAL: Duration = Duration::from_millis(2);

/// Whether the caller of a compilation still wants its result.
struct Cancellation<'a> {
    is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Cancels the computation of the first tokens.
    matcher: OnceLock<CancellationHandle>,
}

impl<'a> Cancellation<'a> {
    fn new(is_cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { is_cancelled, matcher: OnceLock::new() }
    }

    fn check(&self) -> Result<(), GrammarError> {
        if (self.is_cancelled)() { Err(GrammarError::Cancelled) } else { Ok(()) }
    }

    /// Passes a cancellation on to the library until the sender of `finished` is dropped.
    fn forward_until(&self, finished: &Receiver<()>) {
        while finished.recv_timeout(CANCELLATION_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if let Some(matcher) = self.matcher.get()
                && self.check().is_err()
            {
                matcher.cancel();
            }
        }
    }
}

/// Compiles constraints for one vocabulary. Made once per model, since it sorts all tokens.
pub struct GrammarCompiler {
    factory: ParserFactory,
    numbers: OnceLock<Arc<NumberTokens>>,
}

impl GrammarCompiler {
    /// Makes a compiler for the tokens `0..`. `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// [`GrammarError::NoEndToken`] if `ends` is empty.
    pub fn new<'a>(
        tokens: impl Iterator<Item = GrammarToken<'a>>,
        ends: &[u32],
    ) -> Result<Self, GrammarError> {
        let words: Vec<Vec<u8>> = tokens.map(trie_bytes).collect();
        let ends: Vec<u32> =
            ends.iter().copied().filter(|end| (*end as usize) < words.len()).collect();
        let first = *ends.first().ok_or(GrammarError::NoEndToken)?;
        let count = u32::try_from(words.len()).map_err(|_| GrammarError::TooLarge(words.len()))?;
        let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|e| GrammarError::Grammar(reason(&e, true)))?;
        factory.quiet();
        // The text of a request must not appear in log messages.
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = MAX_STATES;
        factory.limits_mut().max_items_in_row = MAX_ITEMS;
        factory.limits_mut().max_grammar_size = MAX_SYMBOLS;
        Ok(Self { factory, numbers: OnceLock::new() })
    }

    /// Compiles a constraint to a grammar at the start of a text.
    ///
    /// # Errors
    /// The error in the constraint, as a sentence for its author.
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.compile_unless(constraint, false, &|| false)
    }

    /// Compiles a constraint for an answer that must be complete. The grammar knows its [shortest
    /// end](Grammar::shortest_end) at every position, and limits the digits of numbers.
    ///
    /// # Errors
    /// Like [`GrammarCompiler::compile`], and if no end of the constraint is known.
    pub fn compile_with_end(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.compile_unless(constraint, true, &|| false)
    }

    /// Like [`GrammarCompiler::compile`] or, `with_end`, [`GrammarCompiler::compile_with_end`],
    /// until `cancelled` is set. The flag is read between the phases of the compilation and during
    /// the last one, the computation of the first tokens. The library limits the other phases.
    ///
    /// # Errors
    /// Like these, and [`GrammarError::Cancelled`].
    pub fn try_compile(
        &self,
        constraint: &Constraint,
        with_end: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, GrammarError> {
        self.compile_unless(constraint, with_end, &|| cancelled.load(Ordering::Acquire))
    }

    fn compile_unless(
        &self,
        constraint: &Constraint,
        with_end: bool,
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Grammar, GrammarError> {
        let bytes = constraint.bytes();
        if bytes > MAX_CONSTRAINT_BYTES {
            return Err(GrammarError::TooLarge(bytes));
        }
        let cancellation = &Cancellation::new(is_cancelled);
        let (sender, finished) = mpsc::channel();
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name(THREAD_NAME.into()).stack_size(STACK_BYTES);
            let begun = thread.spawn_scoped(scope, move || {
                let _sender = sender;
                self.compile_here(constraint, with_end, cancellation)
            });
            let thread = begun.map_err(|e| GrammarError::ThreadFailed(e.to_string()))?;
            cancellation.forward_until(&finished);
            thread.join().unwrap_or_else(|_| {
                Err(GrammarError::ThreadFailed("the thread has stopped".into()))
            })
        })
    }

    fn compile_here(
        &self,
        constraint: &Constraint,
        with_end: bool,
        cancellation: &Cancellation<'_>,
    ) -> Result<Grammar, GrammarError> {
        cancellation.check()?;
        let own = matches!(constraint, Constraint::Lark(_));
        let into_error: fn(String) -> GrammarError = match constraint {
            Constraint::Json | Constraint::Schema(_) => GrammarError::Schema,
            Constraint::Regex(_) => GrammarError::Regex,
            Constraint::Lark(_) | Constraint::Gbnf(_) => GrammarError::Grammar,
        };
        let source = translate(constraint).map_err(into_error)?;
        cancellation.check()?;
        let parts = first_bytes::load(&self.factory, source, own).map_err(into_error)?;
        cancellation.check()?;
        let has_intersection = match constraint {
            Constraint::Lark(text) => LarkParts::new(text).has_intersection,
            _ => false,
        };
        check_expressions(&parts.1, has_intersection).map_err(into_error)?;
        first_bytes::check_first_bytes(&self.factory, &parts.1, cancellation)?;
        cancellation.check()?;
        let parts = GrammarInit::Internal(parts.0, parts.1);
        let parser = self
            .factory
            .create_parser_from_init_default(parts)
            .map_err(|e| into_error(reason(&e, own)))?;
        cancellation.check()?;
        let end_tracker = with_end
            .then(|| self.end_tracker(&parser))
            .transpose()
            .map_err(|e| end_error(e, into_error))?;
        cancellation.check()?;
        let end_tracker = end_tracker.map(Box::new);
        let matcher = Matcher::new(Ok(parser)).into_cancellable();
        if let Some(handle) = matcher.cancellation_handle() {
            let _ = cancellation.matcher.set(handle);
        }
        let mut grammar = Grammar { matcher, next: None, end_tracker, has_failed: false };
        // The library finds some errors only when it computes the first token. The shortest end
        // does not replace a token here.
        let first = grammar.compute_next_by_library();
        cancellation.check()?;
        let first = first.map_err(|error| match error {
            GrammarError::CannotContinue(reason) => into_error(reason),
            GrammarError::NoToken => into_error(NO_TEXT_ALLOWED.into()),
            other => other,
        })?;
        if first.is_zero() {
            return Err(into_error(NO_TEXT_ALLOWED.into()));
        }
        grammar.next = Some(first);
        if with_end && (grammar.end_tokens().is_none() || grammar.must_end()) {
            let error = grammar
                .end_tracker
                .as_mut()
                .map_or(EndError::NotFound, |end_tracker| end_tracker.error());
            return Err(end_error(error, into_error));
        }
        Ok(grammar)
    }

    fn end_tracker(&self, parser: &TokenParser) -> Result<EndTracker, EndError> {
        let tokens = || Arc::new(NumberTokens::from_trie(self.factory.tok_env().tok_trie()));
        let numbers = Arc::clone(self.numbers.get_or_init(tokens));
        EndTracker::new(&self.factory, parser.parser.grammar(), numbers)
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("GrammarCompiler").field("tokens", &tokens).finish()
    }
}

/// A compiled constraint with the position of a text in it.
pub struct Grammar {
    matcher: Matcher,
    /// Tokens that may follow, once they are computed.
    next: Option<SimpleVob>,
    /// Tracks the shortest end of a text that must be complete.
    end_tracker: Option<Box<EndTracker>>,
    /// The library has failed, and the shortest end completes the text.
    has_failed: bool,
}

impl Grammar {
    /// Computes the tokens that may follow, so that [`Grammar::mask`] is fast. Meant for a thread
    /// that would otherwise wait.
    pub fn prepare(&mut self) {
        if self.next.is_none() {
            // [`Grammar::mask`] reports an error.
            self.next = self.compute_next().ok();
        }
    }

    /// Sets the logits of all tokens that may not follow to −∞.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`] if a step takes too much work, [`GrammarError::NoToken`] if no
    /// token may follow.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        let next = match self.next.take() {
            Some(next) => next,
            None => self.compute_next()?,
        };
        mask_logits(&next, logits);
        self.next = Some(next);
        Ok(())
    }

    /// Advances by a token.
    ///
    /// # Errors
    /// [`GrammarError::CannotContinue`] for a token that may not follow.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.next = None;
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            // Only end tokens follow the end.
            return Ok(());
        }
        let consumed = match self.has_failed {
            true => Ok(()),
            false => self.matcher.consume_token(token).map_err(|e| Self::library_error(&e)),
        };
        if let Some(end_tracker) = &mut self.end_tracker {
            end_tracker.accept(token);
        }
        consumed.or_else(|error| self.fall_back(error).map(drop))
    }

    /// Number of tokens in the shortest end from here, including an end token. `None` if it is not
    /// known.
    pub fn shortest_end(&mut self) -> Option<usize> {
        self.end_tokens().map(|path| path.len() + 1)
    }

    /// First token of the shortest end.
    pub fn next_end_token(&mut self) -> Option<u32> {
        let next = self.end_tokens()?.last().copied();
        next.or_else(|| self.end_tracker.as_ref().map(|end_tracker| end_tracker.end_token()))
    }

    /// Whether the text should be completed by its [shortest end](Self::next_end_token) now,
    /// because limits are nearly exhausted.
    pub fn must_end(&self) -> bool {
        self.has_failed
            || self.end_tracker.as_ref().is_some_and(|end_tracker| end_tracker.must_end())
    }

    /// Whether the text has a known end within `left` tokens, of which `token` is the first.
    /// Returns `true` if the text is not tracked.
    pub fn can_end_within(&mut self, token: u32, left: usize) -> bool {
        self.end_tracker.as_mut().is_none_or(|end_tracker| end_tracker.can_end_within(token, left))
    }

    /// Tokens of the shortest end in reverse order, without the end token.
    fn end_tokens(&mut self) -> Option<&[u32]> {
        let (matcher, has_failed) = (&self.matcher, self.has_failed);
        self.end_tracker.as_mut()?.end_tokens(|path| {
            if has_failed {
                return true;
            }
            let mut matcher = matcher.clone();
            (path.is_empty() || matcher.consume_tokens(path).is_ok())
                && (matcher.is_stopped() || matcher.is_accepting().unwrap_or(false))
                && !matcher.is_error()
        })
    }

    /// Whether the text may end here.
    pub fn is_complete(&mut self) -> bool {
        if self.has_failed {
            return self.end_tokens().is_some_and(<[u32]>::is_empty);
        }
        !self.matcher.is_error()
            && (self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false))
    }

    fn compute_next(&mut self) -> Result<SimpleVob, GrammarError> {
        // Only the shortest end may follow.
        if self.must_end()
            && let Some(token) = self.next_end_token()
            && let Some(end_tracker) = &self.end_tracker
        {
            return Ok(end_tracker.single_token_set(token));
        }
        self.compute_next_by_library().or_else(|error| self.fall_back(error))
    }

    /// Tokens that the library allows next.
    fn compute_next_by_library(&mut self) -> Result<SimpleVob, GrammarError> {
        let mut next =
            self.matcher.compute_mask_or_eos().map_err(|error| Self::library_error(&error))?;
        if let Some(end_tracker) = &mut self.end_tracker {
            end_tracker.restrict_numbers(&mut next);
        }
        Ok(next)
    }

    /// Continues with the shortest end after a failure of the library. Returns the token that may
    /// follow.
    fn fall_back(&mut self, error: GrammarError) -> Result<SimpleVob, GrammarError> {
        if error == GrammarError::NoToken {
            return Err(error);
        }
        self.has_failed = true;
        match (self.next_end_token(), &self.end_tracker) {
            (Some(token), Some(end_tracker)) => Ok(end_tracker.single_token_set(token)),
            _ => Err(error),
        }
    }

    fn library_error(error: &dyn fmt::Display) -> GrammarError {
        let reason = reason(error, true);
        if reason == NO_TEXT_ALLOWED {
            return GrammarError::NoToken;
        }
        // The cause of a failed matcher is only in its message.
        match too_complex(&reason) {
            Some(what) => GrammarError::TooComplex(what.into()),
            None => GrammarError::CannotContinue(reason),
        }
    }
}

/// The clone is independent of the original and shares no caches with it.
impl Clone for Grammar {
    fn clone(&self) -> Self {
        let (next, end_tracker) = (self.next.clone(), self.end_tracker.clone());
        Self { matcher: self.matcher.deep_clone(), next, end_tracker, has_failed: self.has_failed }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar")
            .field("stopped", &self.matcher.is_stopped())
            .finish_non_exhaustive()
    }
}

/// Bytes of a token for the trie. Control tokens get a mark. A token without bytes never matches.
fn trie_bytes(token: GrammarToken<'_>) -> Vec<u8> {
    match token.is_text {
        true => token.bytes.to_vec(),
        false => [&[CONTROL_TOKEN_MARK], token.bytes].concat(),
    }
}

/// Sets logits outside of a set to −∞, including padding logits beyond the vocabulary.
fn mask_logits(allowed: &SimpleVob, logits: &mut [f32]) {
    let words = allowed.as_slice().iter().copied().chain(std::iter::repeat(0));
    for (word, logits) in words.zip(logits.chunks_mut(u32::BITS as usize)) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                let hidden = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                hidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}

fn end_error(error: EndError, into_error: fn(String) -> GrammarError) -> GrammarError {
    match error {
        EndError::Infinite => {
            into_error("no finite value matches it: every alternative requires another one".into())
        }
        EndError::TooLong { bytes, tokens } => GrammarError::TooLong { bytes, tokens },
        EndError::NotFound => GrammarError::EndNotFound,
        EndError::NoToken => GrammarError::NoToken,
    }
}

/// Translates a constraint for the library, and checks the limits of its text.
fn translate(constraint: &Constraint) -> Result<TopLevelGrammar, String> {
    match constraint {
        Constraint::Json => Ok(json(schema::any_object())),
        Constraint::Schema(given) => {
            ClassCounter::default().add_schema(given.value())?;
            schema::prepare(given).map(json)
        }
        Constraint::Regex(pattern) => {
            ClassCounter::default().add(pattern)?;
            regex(pattern)
        }
        Constraint::Lark(text) => {
            schema::check_lark(text)?;
            expression_limits::check_lark(text)?;
            Ok(TopLevelGrammar::from_lark(text.clone()))
        }
        Constraint::Gbnf(text) => {
            let lark = lark::write(&gbnf::parse(text)?)?;
            expression_limits::check_lark(&lark)?;
            Ok(TopLevelGrammar::from_lark(lark))
        }
    }
}

fn json(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(schema)
}

fn regex(pattern: &str) -> Result<TopLevelGrammar, String> {
    if pattern.is_empty() {
        return Err("it is empty".into());
    }
    Ok(TopLevelGrammar { grammars: vec![GrammarWithLexer::from_regex(pattern)], max_tokens: None })
}
