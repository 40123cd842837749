//! The shortest end of a text in a grammar: the tokens that complete an answer when its limit is near.
//!
//! Every token of an answer is followed in a chart of its own ([`chart`]), which knows how many bytes the shortest end has from
//! each place. Where these may be more than the tokens that are left, the end is written out and divided into tokens, and
//! what would leave too few tokens for it is not drawn. The library itself looks at an end before it is used.
//!
//! A grammar of which no end is found is refused ([`EndError`]). Where a text has come to use up what may be kept or
//! worked out for it, it is ended while its end is known.

mod chart;
mod ending;
mod lexer;
mod numbers;
mod rules;
mod spelling;

use std::collections::HashSet;
use std::sync::Arc;

pub use chart::{BYTES_MAX, ITEMS_MAX};
use chart::{Chart, Parts, Text};
use ending::Ending;
pub use ending::STRING_BYTES_MAX;
use lexer::Lexer;
use llguidance::ParserFactory;
use llguidance::earley::CGrammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
pub use numbers::NumberTokens;
use rules::{ENDLESS, Rules};
use spelling::Speller;

use super::SPECIAL;

/// Why the shortest end of a form is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndError {
    /// Every text of the form goes on without an end.
    Endless,
    /// The end has so many bytes and at least so many tokens.
    TooLong { bytes: u64, tokens: u64 },
    /// The search for the end takes too much work, or the form has parts that only the library understands.
    Unknown,
    /// The vocabulary has no tokens for the end.
    NoToken,
}

/// The tokens that end the text from here, the last one first.
#[derive(Clone)]
struct Path {
    tokens: Vec<u32>,
    /// The library takes them.
    is_checked: bool,
}

/// Follows a text and knows how to end it.
#[derive(Clone)]
pub struct Closing {
    chart: Chart,
    env: TokEnv,
    numbers: Arc<NumberTokens>,
    speller: Speller,
    path: Option<Path>,
    /// The bytes of the shortest end from here and the end of the lexeme that has begun. Searches behind other tokens may
    /// lead a later search to a longer end.
    end: Option<(u64, Option<Ending>)>,
    /// The same behind the token that was looked at last.
    end_behind: Option<(u32, u64, Option<Ending>)>,
    /// The library does not take the path that is found here. One may be found behind the next token.
    is_refused: bool,
    /// The chart cannot follow the text any further; a path that is known still ends it.
    is_lost: bool,
    /// The shortest text of some lexeme is not known.
    has_unknown: bool,
}

impl Closing {
    /// The beginning of a text.
    ///
    /// # Errors
    /// The end of the grammar's texts cannot be followed.
    pub fn new(
        factory: &ParserFactory,
        grammar: &CGrammar,
        numbers: Arc<NumberTokens>,
    ) -> Result<Self, EndError> {
        let spec = grammar.lexer_spec();
        // What these need is known to the library alone.
        if grammar.parametric() || spec.has_stop || spec.has_max_tokens {
            return Err(EndError::Unknown);
        }
        let mut lexer = Lexer::new(factory, spec).ok_or(EndError::Unknown)?;
        let env = factory.tok_env().clone();
        let texts = texts(spec, &mut lexer, env.tok_trie());
        let has_unknown = texts.iter().any(Option::is_none);
        let count = u32::try_from(spec.lexemes.len()).map_err(|_| EndError::Unknown)?;
        let numbers_among = (0..count).map(|lexeme| lexer.is_number(spec, lexeme)).collect();
        let rules = Rules::read(grammar, |lexeme| match &texts[lexeme as usize] {
            Some(Text::Bytes(bytes)) => bytes.len() as u64,
            Some(Text::Token(_)) => 1,
            None => ENDLESS,
        });
        let skipped: HashSet<u32> = spec.skip_by_class.iter().map(|lexeme| lexeme.0).collect();
        let parts = Parts { rules, spec: spec.clone(), skipped, texts, numbers: numbers_among };
        let chart = Chart::new(Arc::new(parts), lexer).ok_or(EndError::Unknown)?;
        let speller = Speller::default();
        let (path, end, end_behind) = (None, None, None);
        let (is_refused, is_lost) = (false, false);
        Ok(Self {
            chart,
            env,
            numbers,
            speller,
            path,
            end,
            end_behind,
            is_refused,
            is_lost,
            has_unknown,
        })
    }

    /// Why no path is known.
    pub fn error(&mut self) -> EndError {
        match self.chart.cost().0 {
            _ if self.is_lost || self.is_refused || self.chart.is_nearly_full() => {
                EndError::Unknown
            }
            ENDLESS if self.has_unknown => EndError::Unknown,
            ENDLESS => EndError::Endless,
            bytes if bytes > BYTES_MAX as u64 => {
                let longest = self.env.tok_trie().max_token_len().max(1) as u64;
                EndError::TooLong { bytes, tokens: bytes.div_ceil(longest) + 1 }
            }
            _ => EndError::NoToken,
        }
    }

    /// Goes on by a token.
    pub fn accept(&mut self, token: u32) {
        match &mut self.path {
            Some(path) if path.tokens.last() == Some(&token) => drop(path.tokens.pop()),
            path => *path = None,
        }
        let end_behind = self.end_behind.take().filter(|(behind, ..)| *behind == token);
        self.end = end_behind.map(|(_, cost, ending)| (cost, ending));
        self.is_refused = false;
        if !self.is_lost {
            self.is_lost = !self.push(token);
            if self.is_lost {
                tracing::debug!(
                    "a token of a constrained answer cannot be followed: its limit may cut it"
                );
            }
            self.chart.compact();
        }
    }

    /// Finds the shortest end from here, unless it is known.
    fn find_end(&mut self) -> &(u64, Option<Ending>) {
        self.end.get_or_insert_with(|| self.chart.cost())
    }

    /// Whether the text should be ended now: what may be kept or worked out for it is nearly used up.
    pub fn must_end(&self) -> bool {
        self.is_lost || self.chart.is_nearly_full()
    }

    /// Whether the text can still be ended with fewer than `left` tokens, an end token among them, behind one more token.
    pub fn has_room_behind(&mut self, token: u32, left: usize) -> bool {
        if self.env.tok_trie().eos_tokens().contains(&token) {
            return true;
        }
        if let Some(path) = &self.path
            && path.tokens.last() == Some(&token)
            && path.tokens.len() < left
        {
            return true;
        }
        if self.is_lost {
            return self.path.is_none();
        }
        if self.path.is_none() {
            self.find_end();
        }
        let mark = self.chart.mark();
        let has_room = self.push(token) && {
            let (cost, ending) = self.chart.cost();
            // As many tokens as bytes at most.
            let has_room = cost.saturating_add(1) < left as u64 && cost <= BYTES_MAX as u64
                || self.tokens(cost, ending.as_ref()).is_some_and(|path| path.len() + 1 < left);
            self.end_behind = Some((token, cost, ending));
            has_room
        };
        self.chart.go_back(mark);
        has_room
    }

    /// The tokens that end the text from here, the last one first, without an end token. `check` tells whether the library
    /// takes them.
    pub fn path(&mut self, check: impl FnOnce(&[u32]) -> bool) -> Option<&[u32]> {
        if self.path.is_none() && !self.is_lost && !self.is_refused {
            let (cost, ending) = self.find_end().clone();
            self.path = self.tokens(cost, ending.as_ref()).map(|mut tokens| {
                tokens.reverse();
                Path { tokens, is_checked: false }
            });
        }
        let path = self.path.as_mut()?;
        if !path.is_checked {
            let in_order: Vec<u32> = path.tokens.iter().rev().copied().collect();
            if !check(&in_order) {
                tracing::debug!(
                    "the grammar refuses the end that was found for a constrained answer"
                );
                (self.path, self.is_refused) = (None, true);
                return None;
            }
            path.is_checked = true;
        }
        self.path.as_ref().map(|path| path.tokens.as_slice())
    }

    /// The end token.
    pub fn end_token(&self) -> u32 {
        self.env.tok_trie().eos_token()
    }

    /// What the chart keeps.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.chart.entries()
    }

    /// Eighths of the lexer's states and work that are used.
    #[cfg(test)]
    pub fn used_eighths(&self) -> u8 {
        (0..8).find(|eighths| !self.chart.lexer.has_used(*eighths)).unwrap_or(8)
    }

    /// A token alone as a set.
    pub fn only(&self, token: u32) -> SimpleVob {
        self.env.tok_trie().singleton_token_set(token)
    }

    fn tokens(&mut self, cost: u64, ending: Option<&Ending>) -> Option<Vec<u32>> {
        if cost > BYTES_MAX as u64 {
            return None;
        }
        let texts = self.chart.path(ending)?;
        self.speller.fewest_tokens(self.env.tok_trie(), &texts)
    }

    /// Removes the tokens with which a number would have more digits than is sensible.
    pub fn restrict_numbers(&mut self, allowed: &mut SimpleVob) {
        let at = self.chart.at;
        if self.is_lost || !at.begun {
            return;
        }
        let possible = self.chart.lexer.possible(at.state);
        if possible.is_empty()
            || !possible.iter().all(|lexeme| self.chart.parts.numbers[*lexeme as usize])
        {
            return;
        }
        let trie = self.env.tok_trie();
        self.numbers.restrict(allowed, trie, &mut self.chart.lexer, at.state, at.run);
    }

    fn push(&mut self, token: u32) -> bool {
        let trie = self.env.tok_trie();
        match trie.token(token) {
            [] => false,
            [SPECIAL, ..] => self.chart.push_token(token),
            bytes => self.chart.push(bytes),
        }
    }
}

/// The shortest text of each lexeme, where one is found.
fn texts(spec: &LexerSpec, lexer: &mut Lexer, trie: &TokTrie) -> Vec<Option<Text>> {
    let count = u32::try_from(spec.lexemes.len()).unwrap_or(u32::MAX);
    let text = |lexeme: u32| {
        let mut alone = spec.alloc_lexeme_set();
        alone.add(llguidance::earley::lexerspec::LexemeIdx(lexeme));
        if !spec.token_range_lexemes(&alone).is_empty() {
            let all = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
            let fits = |token: &u32| spec.lexemes[lexeme as usize].contains_token(*token);
            return all.into_iter().find(fits).map(Text::Token);
        }
        let start = lexer.start(spec, std::iter::once(lexeme));
        lexer.ending(start, false, |_| 0).map(|ending| Text::Bytes(ending.bytes))
    };
    (0..count).map(text).collect()
}

impl std::fmt::Debug for Closing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closing").field("lost", &self.is_lost).finish_non_exhaustive()
    }
}
