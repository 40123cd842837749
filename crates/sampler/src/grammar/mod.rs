//! Grammars: which tokens an answer of a certain form may go on with.
//!
//! A [`Constraint`] is what a request asks for. [`Grammars`] knows the texts of a vocabulary's tokens and makes a [`Grammar`]
//! of a constraint, which then follows one sequence: [`Grammar::mask`] before a draw, [`Grammar::accept`] after it. Schemas,
//! regular expressions and Lark grammars are run by `llguidance`; GBNF is translated ([`gbnf`]).
//!
//! Constraints come from strangers: sizes are bounded here, the work of a step by `llguidance`'s own limits, and what
//! cannot be enforced is refused rather than ignored.

mod alternatives;
mod bounds;
mod closing;
mod gbnf;
mod lark;
mod multiples;
mod reason;
mod schema;
#[cfg(test)]
mod tests;
mod text;
mod trial;

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::schema::JsonSchema;
pub(crate) use alternatives::Overlaps;
pub use alternatives::check_one_of;
use closing::{BYTES_MAX, Closing, EndError, ITEMS_MAX, NumberTokens, STRING_BYTES_MAX};
use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser};
use reason::{NOTHING, reason, too_hard};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub(crate) use text::format as format_pattern;
pub use text::{BareText, pattern_without};

/// Bytes of a constraint at most. The largest schemas in use are about half of it.
pub const CONSTRAINT_BYTES_MAX: usize = 256 << 10;
/// Bytes of the stack on which constraints are read: the library calls itself as deep as rules mention each other, and of
/// the shortest rules so many fit into a constraint. Only what is used of it is memory.
const STACK_BYTES: usize = 512 << 20;
/// States of a grammar's expressions at most. Each takes one or two kilobytes, and hostile expressions find new ones with every
/// token; the largest schemas in use come to a few thousand.
const STATES_MAX: usize = 50_000;
/// Marks a token that is no text, as `llguidance` has it: a byte that occurs in no UTF-8.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    Json,
    /// JSON that a JSON Schema describes.
    Schema(JsonSchema),
    /// A text that a regular expression (Rust's dialect) matches as a whole.
    Regex(String),
    /// A grammar in the form of Lark, as `llguidance` takes it.
    Lark(String),
    /// A grammar in llama.cpp's form.
    Gbnf(String),
}

impl Constraint {
    /// JSON that a JSON Schema describes.
    pub fn schema(schema: Value) -> Self {
        Self::Schema(schema.into())
    }

    /// How much of it there is to read.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Json => 0,
            Self::Schema(schema) => schema.given().to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
        }
    }
}

/// A schema for a `%json` of a Lark grammar, read as [`Constraint::Schema`] reads it.
///
/// # Errors
/// [`GrammarError::Schema`]
pub fn lark_json(schema: &JsonSchema) -> Result<String, GrammarError> {
    schema::prepare(schema).map(|schema| format!("%json {schema}")).map_err(GrammarError::Schema)
}

/// Why there is no grammar, or no way on in one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A schema that cannot be enforced.
    #[error("invalid JSON schema in format: {0}")]
    Schema(String),
    /// A regular expression that is none.
    #[error("invalid regular expression: {0}")]
    Regex(String),
    /// A grammar that is none.
    #[error("invalid grammar: {0}")]
    Grammar(String),
    /// A constraint that is too large.
    #[error("a grammar or schema of {0} bytes is too large: {CONSTRAINT_BYTES_MAX} are possible")]
    TooLarge(usize),
    /// A vocabulary without a token that ends a text.
    #[error("this model has no token that ends a text, which grammars need")]
    NoEnd,
    /// The system gives no thread to read a constraint.
    #[error("there is no thread to read the form of the answer: {0}")]
    NoThread(String),
    /// The grammar cannot follow the sequence any further.
    #[error("the grammar cannot be followed: {0}")]
    Stuck(String),
    /// A text that the grammar allows only where it is written with tokens that the model does not have, or never draws.
    #[error(
        "no token of this model fits the form of the answer behind what it has written: the form asks for a text that the \
         model has no tokens for, or that a bias forbids"
    )]
    NoToken,
    /// The shortest answer of a form that must be whole is longer than what can be followed.
    #[error(
        "the shortest answer of this form has at least {tokens} tokens ({bytes} bytes), but answers of up to {BYTES_MAX} bytes \
         can be completed: ask for less (const, minLength, minItems)"
    )]
    TooLong {
        /// Bytes of the shortest answer.
        bytes: u64,
        /// Tokens that it has at least.
        tokens: u64,
    },
    /// The end of a form that must be whole is not found.
    #[error(
        "an answer of this form might be cut: a string of it needs more than {STRING_BYTES_MAX} bytes, or its end takes too \
         much work to find; ask for shorter strings (const, minLength, pattern), or make the form simpler"
    )]
    NoEndKnown,
    /// Finding what may come next takes more work than is allowed.
    #[error(
        "the form of the answer takes too much work ({0}); make it simpler: with smaller repetitions, fewer alternatives that \
         begin alike, and no .* in front of them"
    )]
    TooHard(String),
}

/// A token as grammars see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spelling<'a> {
    /// Its bytes; for one that is no text its name, such as `<|im_end|>`.
    pub bytes: &'a [u8],
    /// Whether it is text.
    pub is_text: bool,
}

/// Makes grammars for one vocabulary. Made once a model: it sorts all tokens.
pub struct Grammars {
    factory: ParserFactory,
    numbers: OnceLock<Arc<NumberTokens>>,
}

impl Grammars {
    /// For the tokens `0..`; `ends` are those that end a text.
    ///
    /// # Errors
    /// [`GrammarError::NoEnd`] for a vocabulary that has none.
    pub fn new<'a>(
        tokens: impl Iterator<Item = Spelling<'a>>,
        ends: &[u32],
    ) -> Result<Self, GrammarError> {
        let words: Vec<Vec<u8>> = tokens.map(word).collect();
        let ends: Vec<u32> =
            ends.iter().copied().filter(|end| (*end as usize) < words.len()).collect();
        let first = *ends.first().ok_or(GrammarError::NoEnd)?;
        let count = u32::try_from(words.len()).map_err(|_| GrammarError::TooLarge(words.len()))?;
        let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&env).map_err(|e| GrammarError::Grammar(reason(&e, true)))?;
        factory.quiet();
        // A request's text does not belong into messages.
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = STATES_MAX;
        factory.limits_mut().max_items_in_row = ITEMS_MAX;
        Ok(Self { factory, numbers: OnceLock::new() })
    }

    /// The grammar of a constraint, at its beginning.
    ///
    /// # Errors
    /// What is wrong with the constraint, as a sentence for whoever wrote it.
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.compile_as(constraint, false)
    }

    /// The same for an answer that must be whole: the grammar knows its [shortest end](Grammar::shortest_end) at every place,
    /// and bounds the digits of numbers.
    ///
    /// # Errors
    /// As [`Grammars::compile`], and for a form of which no end is known.
    pub fn compile_whole(&self, constraint: &Constraint) -> Result<Grammar, GrammarError> {
        self.compile_as(constraint, true)
    }

    fn compile_as(&self, constraint: &Constraint, whole: bool) -> Result<Grammar, GrammarError> {
        let bytes = constraint.bytes();
        if bytes > CONSTRAINT_BYTES_MAX {
            return Err(GrammarError::TooLarge(bytes));
        }
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("puna-grammar".into()).stack_size(STACK_BYTES);
            let begun = thread.spawn_scoped(scope, || self.begin(constraint, whole));
            let thread = begun.map_err(|e| GrammarError::NoThread(e.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(GrammarError::NoThread("it has ended".into())))
        })
    }

    fn begin(&self, constraint: &Constraint, whole: bool) -> Result<Grammar, GrammarError> {
        let own = matches!(constraint, Constraint::Lark(_));
        let (source, blame): (_, fn(String) -> GrammarError) = match constraint {
            Constraint::Json => (json(schema::any_object()), GrammarError::Schema),
            Constraint::Schema(schema) => {
                (json(schema::prepare(schema).map_err(GrammarError::Schema)?), GrammarError::Schema)
            }
            Constraint::Regex(pattern) => (regex(pattern)?, GrammarError::Regex),
            Constraint::Lark(text) => {
                schema::check_within(text).map_err(GrammarError::Grammar)?;
                (TopLevelGrammar::from_lark(text.clone()), GrammarError::Grammar)
            }
            Constraint::Gbnf(text) => {
                let lark = gbnf::parse(text).and_then(|grammar| lark::write(&grammar));
                (
                    TopLevelGrammar::from_lark(lark.map_err(GrammarError::Grammar)?),
                    GrammarError::Grammar,
                )
            }
        };
        let parts = trial::parts(&self.factory, source, own).map_err(blame)?;
        trial::begins_soon(&self.factory, &parts.1)?;
        let parts = GrammarInit::Internal(parts.0, parts.1);
        let parser = self
            .factory
            .create_parser_from_init_default(parts)
            .map_err(|e| blame(reason(&e, own)))?;
        let closing =
            whole.then(|| self.closing(&parser)).transpose().map_err(|e| end_error(e, blame))?;
        let closing = closing.map(Box::new);
        let mut grammar =
            Grammar { matcher: Matcher::new(Ok(parser)), next: None, closing, has_failed: false };
        // Some things are found only where the first token is looked for. No end replaces it where the library fails.
        let first = grammar.next_of_library().map_err(|error| match error {
            GrammarError::Stuck(reason) => blame(reason),
            GrammarError::NoToken => blame(NOTHING.into()),
            other => other,
        })?;
        if first.is_zero() {
            return Err(blame(NOTHING.into()));
        }
        grammar.next = Some(first);
        if whole && (grammar.ending().is_none() || grammar.must_end()) {
            let error =
                grammar.closing.as_mut().map_or(EndError::Unknown, |closing| closing.error());
            return Err(end_error(error, blame));
        }
        Ok(grammar)
    }

    fn closing(&self, parser: &TokenParser) -> Result<Closing, EndError> {
        let trie = || Arc::new(NumberTokens::of(self.factory.tok_env().tok_trie()));
        let numbers = Arc::clone(self.numbers.get_or_init(trie));
        Closing::new(&self.factory, parser.parser.grammar(), numbers)
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Grammars").field("tokens", &tokens).finish()
    }
}

/// A grammar and how far a text has come in it.
pub struct Grammar {
    matcher: Matcher,
    /// Tokens that may come next, once they are known.
    next: Option<SimpleVob>,
    /// Knows the shortest end of a text that must be whole.
    closing: Option<Box<Closing>>,
    /// The library cannot follow the text any further, so that the shortest end completes it.
    has_failed: bool,
}

impl Grammar {
    /// Finds the tokens that may come next, so that [`Grammar::mask`] need not: for a thread that has nothing else to do.
    pub fn prepare(&mut self) {
        if self.next.is_none() {
            // Who asks for the mask is told.
            self.next = self.find_next().ok();
        }
    }

    /// Hides the tokens that may not come next: their logits become −∞.
    ///
    /// # Errors
    /// [`GrammarError::TooHard`] where a step would take too much work, [`GrammarError::NoToken`] where nothing may come.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        let next = match self.next.take() {
            Some(next) => next,
            None => self.find_next()?,
        };
        hide(&next, logits);
        self.next = Some(next);
        Ok(())
    }

    /// Goes on by a token.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] for one that may not come next.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.next = None;
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            // Only the end can come after the end.
            return Ok(());
        }
        let consumed = match self.has_failed {
            true => Ok(()),
            false => self.matcher.consume_token(token).map_err(|e| Self::stuck(&e)),
        };
        if let Some(closing) = &mut self.closing {
            closing.accept(token);
        }
        consumed.or_else(|error| self.fall_back(error).map(drop))
    }

    /// How many tokens the shortest end of the text has from here, an end token among them; `None` where it is not known.
    pub fn shortest_end(&mut self) -> Option<usize> {
        self.ending().map(|path| path.len() + 1)
    }

    /// The first token of the shortest end of the text.
    pub fn next_of_end(&mut self) -> Option<u32> {
        let next = self.ending()?.last().copied();
        next.or_else(|| self.closing.as_ref().map(|closing| closing.end_token()))
    }

    /// Whether the text should be ended by its [shortest end](Self::next_of_end), since it is about to use up what may be
    /// kept or worked out for it.
    pub fn must_end(&self) -> bool {
        self.has_failed || self.closing.as_ref().is_some_and(|closing| closing.must_end())
    }

    /// Whether the text is known to have an end within `left` tokens of which `token` is the first. Where the text cannot be
    /// followed, there is room for any.
    pub fn has_room_for(&mut self, token: u32, left: usize) -> bool {
        self.closing.as_mut().is_none_or(|closing| closing.has_room_behind(token, left))
    }

    /// The tokens of the shortest end, the last one first, without the end token.
    fn ending(&mut self) -> Option<&[u32]> {
        let (matcher, has_failed) = (&self.matcher, self.has_failed);
        self.closing.as_mut()?.path(|path| {
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
            return self.ending().is_some_and(<[u32]>::is_empty);
        }
        !self.matcher.is_error()
            && (self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false))
    }

    fn find_next(&mut self) -> Result<SimpleVob, GrammarError> {
        // Nothing but the end comes any more.
        if self.must_end()
            && let Some(token) = self.next_of_end()
            && let Some(closing) = &self.closing
        {
            return Ok(closing.only(token));
        }
        self.next_of_library().or_else(|error| self.fall_back(error))
    }

    /// The tokens that the library allows next.
    fn next_of_library(&mut self) -> Result<SimpleVob, GrammarError> {
        let mut next = self.matcher.compute_mask_or_eos().map_err(|error| Self::stuck(&error))?;
        if let Some(closing) = &mut self.closing {
            closing.restrict_numbers(&mut next);
        }
        Ok(next)
    }

    /// Goes on by the shortest end alone where the library has failed; the token that may come next.
    fn fall_back(&mut self, error: GrammarError) -> Result<SimpleVob, GrammarError> {
        if error == GrammarError::NoToken {
            return Err(error);
        }
        self.has_failed = true;
        match (self.next_of_end(), &self.closing) {
            (Some(token), Some(closing)) => Ok(closing.only(token)),
            _ => Err(error),
        }
    }

    fn stuck(error: &dyn fmt::Display) -> GrammarError {
        let reason = reason(error, true);
        if reason == NOTHING {
            return GrammarError::NoToken;
        }
        // What it has failed of is known by its text only, once it has failed.
        match too_hard(&reason) {
            Some(what) => GrammarError::TooHard(what.into()),
            None => GrammarError::Stuck(reason),
        }
    }
}

/// Independent of the original, also in what it has cached.
impl Clone for Grammar {
    fn clone(&self) -> Self {
        let (next, closing) = (self.next.clone(), self.closing.clone());
        Self { matcher: self.matcher.deep_clone(), next, closing, has_failed: self.has_failed }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar")
            .field("stopped", &self.matcher.is_stopped())
            .finish_non_exhaustive()
    }
}

/// A token's bytes with the mark of those that are no text. One without bytes can never be written.
fn word(token: Spelling<'_>) -> Vec<u8> {
    match token.is_text {
        true => token.bytes.to_vec(),
        false => [&[SPECIAL], token.bytes].concat(),
    }
}

/// Hides what is not in a set, and logits beyond it: they only fill up the matrix.
fn hide(allowed: &SimpleVob, logits: &mut [f32]) {
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

fn end_error(error: EndError, blame: fn(String) -> GrammarError) -> GrammarError {
    match error {
        EndError::Endless => {
            blame("no finite value fits it: each part of it asks for another one".into())
        }
        EndError::TooLong { bytes, tokens } => GrammarError::TooLong { bytes, tokens },
        EndError::Unknown => GrammarError::NoEndKnown,
        EndError::NoToken => GrammarError::NoToken,
    }
}

fn json(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(schema)
}

fn regex(pattern: &str) -> Result<TopLevelGrammar, GrammarError> {
    if pattern.is_empty() {
        return Err(GrammarError::Regex("it is empty".into()));
    }
    Ok(TopLevelGrammar { grammars: vec![GrammarWithLexer::from_regex(pattern)], max_tokens: None })
}
