//! Shortest end of a text in a grammar: the tokens that complete an answer when its token limit is
//! near.
//!
//! A [`chart`] follows every token of an answer and knows the bytes of the shortest end at each
//! position. If these bytes may need more tokens than are left, the end is written out and
//! tokenized. The engine then rejects tokens that would leave too few tokens for it. The library
//! checks an end before the engine uses it.
//!
//! A grammar without a known end is rejected ([`EndError`]). A text that nearly exhausts the limits
//! of the chart or the lexer is ended while its end is known.

mod chart;
mod lexeme_end;
mod lexer;
mod min_tokens;
mod numbers;
mod rules;

use std::collections::HashSet;
use std::sync::Arc;

use chart::{Chart, EndPiece, GrammarData};
pub use chart::{MAX_BYTES, MAX_ITEMS};
use lexeme_end::LexemeEnd;
pub use lexeme_end::MAX_STRING_BYTES;
use lexer::Lexer;
use llguidance::ParserFactory;
use llguidance::earley::CGrammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
use min_tokens::MinTokenizer;
pub use numbers::NumberTokens;
use rules::{INFINITE_COST, Rules};

/// First byte of a control token's name in the trie, as in `llguidance`: a byte that never occurs
/// in UTF-8.
pub const CONTROL_TOKEN_MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Why the shortest end of a grammar is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndError {
    /// Every text of the grammar is infinite.
    Infinite,
    /// The shortest text has `bytes` bytes and at least `tokens` tokens.
    TooLong { bytes: u64, tokens: u64 },
    /// The search for the end takes too much work, or the grammar has features that only the
    /// library supports.
    NotFound,
    /// The vocabulary has no tokens that write the end.
    NoToken,
}

/// Tokens that end the text from the current position, in reverse order.
#[derive(Clone)]
struct EndTokens {
    tokens: Vec<u32>,
    /// Whether the library has accepted them.
    is_checked: bool,
}

/// Follows a text and computes its shortest end.
#[derive(Clone)]
pub struct EndTracker {
    chart: Chart,
    env: TokEnv,
    numbers: Arc<NumberTokens>,
    min_tokenizer: MinTokenizer,
    path: Option<EndTokens>,
    /// Bytes of the shortest end from here, and the end of the lexeme that has begun. Kept, because
    /// searches after other tokens may lead a later search to a longer end.
    end: Option<(u64, Option<LexemeEnd>)>,
    /// The shortest end after the token that [`Self::can_end_within`] tried last, with this token.
    end_after_token: Option<(u32, u64, Option<LexemeEnd>)>,
    /// The library rejects the end found here. Another end may be found after the next token.
    end_rejected_by_library: bool,
    /// The chart cannot follow the text any further. A known end still completes it.
    chart_failed: bool,
    /// The shortest text of some lexeme is not known.
    has_unknown: bool,
}

impl EndTracker {
    /// Starts a text.
    ///
    /// # Errors
    /// The chart cannot follow the grammar.
    pub fn new(
        factory: &ParserFactory,
        grammar: &CGrammar,
        numbers: Arc<NumberTokens>,
    ) -> Result<Self, EndError> {
        let spec = grammar.lexer_spec();
        // Only the library supports these features.
        if grammar.parametric() || spec.has_stop || spec.has_max_tokens {
            return Err(EndError::NotFound);
        }
        let mut lexer = Lexer::new(factory, spec).ok_or(EndError::NotFound)?;
        let env = factory.tok_env().clone();
        let texts = shortest_lexeme_texts(spec, &mut lexer, env.tok_trie());
        let has_unknown = texts.iter().any(Option::is_none);
        let count = u32::try_from(spec.lexemes.len()).map_err(|_| EndError::NotFound)?;
        let numbers_among = (0..count).map(|lexeme| lexer.is_number(spec, lexeme)).collect();
        let rules = Rules::read(grammar, |lexeme| match &texts[lexeme as usize] {
            Some(EndPiece::Bytes(bytes)) => bytes.len() as u64,
            Some(EndPiece::Token(_)) => 1,
            None => INFINITE_COST,
        });
        let skipped: HashSet<u32> = spec.skip_by_class.iter().map(|lexeme| lexeme.0).collect();
        let parts =
            GrammarData { rules, spec: spec.clone(), skipped, texts, numbers: numbers_among };
        let chart = Chart::new(Arc::new(parts), lexer).ok_or(EndError::NotFound)?;
        let min_tokenizer = MinTokenizer::default();
        let (path, end, end_after_token) = (None, None, None);
        let (end_rejected_by_library, chart_failed) = (false, false);
        Ok(Self {
            chart,
            env,
            numbers,
            min_tokenizer,
            path,
            end,
            end_after_token,
            end_rejected_by_library,
            chart_failed,
            has_unknown,
        })
    }

    /// Why no end is known.
    pub fn error(&mut self) -> EndError {
        match self.chart.cost().0 {
            _ if self.chart_failed
                || self.end_rejected_by_library
                || self.chart.is_nearly_full() =>
            {
                EndError::NotFound
            }
            INFINITE_COST if self.has_unknown => EndError::NotFound,
            INFINITE_COST => EndError::Infinite,
            bytes if bytes > MAX_BYTES as u64 => {
                let longest = self.env.tok_trie().max_token_len().max(1) as u64;
                EndError::TooLong { bytes, tokens: bytes.div_ceil(longest) + 1 }
            }
            _ => EndError::NoToken,
        }
    }

    /// Advances by a token.
    pub fn accept(&mut self, token: u32) {
        match &mut self.path {
            Some(path) if path.tokens.last() == Some(&token) => drop(path.tokens.pop()),
            path => *path = None,
        }
        let end_after_token = self.end_after_token.take().filter(|(behind, ..)| *behind == token);
        self.end = end_after_token.map(|(_, cost, ending)| (cost, ending));
        self.end_rejected_by_library = false;
        if !self.chart_failed {
            self.chart_failed = !self.push(token);
            if self.chart_failed {
                tracing::debug!(
                    "cannot track a token of a constrained answer; its token limit may cut the answer"
                );
            }
            self.chart.compact();
        }
    }

    /// Returns the shortest end from here, and searches it if necessary.
    fn find_end(&mut self) -> &(u64, Option<LexemeEnd>) {
        self.end.get_or_insert_with(|| self.chart.cost())
    }

    /// Whether the text should end now, because limits are nearly exhausted.
    pub fn must_end(&self) -> bool {
        self.chart_failed || self.chart.is_nearly_full()
    }

    /// Whether the text can still end with fewer than `left` tokens, including an end token, after
    /// `token`.
    pub fn can_end_within(&mut self, token: u32, left: usize) -> bool {
        if self.env.tok_trie().eos_tokens().contains(&token) {
            return true;
        }
        if let Some(path) = &self.path
            && path.tokens.last() == Some(&token)
            && path.tokens.len() < left
        {
            return true;
        }
        if self.chart_failed {
            return self.path.is_none();
        }
        if self.path.is_none() {
            self.find_end();
        }
        let checkpoint = self.chart.checkpoint();
        let can_end = self.push(token) && {
            let (cost, ending) = self.chart.cost();
            // A text never needs more tokens than bytes.
            let can_end = cost.saturating_add(1) < left as u64 && cost <= MAX_BYTES as u64
                || self
                    .tokens_of_end(cost, ending.as_ref())
                    .is_some_and(|path| path.len() + 1 < left);
            self.end_after_token = Some((token, cost, ending));
            can_end
        };
        self.chart.restore(checkpoint);
        can_end
    }

    /// Tokens that end the text from here, in reverse order, without an end token. `check` returns
    /// whether the library accepts them.
    pub fn end_tokens(&mut self, check: impl FnOnce(&[u32]) -> bool) -> Option<&[u32]> {
        if self.path.is_none() && !self.chart_failed && !self.end_rejected_by_library {
            let (cost, ending) = self.find_end().clone();
            self.path = self.tokens_of_end(cost, ending.as_ref()).map(|mut tokens| {
                tokens.reverse();
                EndTokens { tokens, is_checked: false }
            });
        }
        let path = self.path.as_mut()?;
        if !path.is_checked {
            let in_order: Vec<u32> = path.tokens.iter().rev().copied().collect();
            if !check(&in_order) {
                tracing::debug!("the grammar rejects the end found for a constrained answer");
                (self.path, self.end_rejected_by_library) = (None, true);
                return None;
            }
            path.is_checked = true;
        }
        self.path.as_ref().map(|path| path.tokens.as_slice())
    }

    /// The end token of the vocabulary.
    pub fn end_token(&self) -> u32 {
        self.env.tok_trie().eos_token()
    }

    /// Number of entries in the chart.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.chart.entries()
    }

    /// Used eighths of the lexer's states and work budget.
    #[cfg(test)]
    pub fn used_eighths(&self) -> u8 {
        (0..8).find(|eighths| !self.chart.lexer.has_used(*eighths)).unwrap_or(8)
    }

    /// Set of a single token.
    pub fn single_token_set(&self, token: u32) -> SimpleVob {
        self.env.tok_trie().singleton_token_set(token)
    }

    fn tokens_of_end(&mut self, cost: u64, ending: Option<&LexemeEnd>) -> Option<Vec<u32>> {
        if cost > MAX_BYTES as u64 {
            return None;
        }
        let texts = self.chart.path(ending)?;
        self.min_tokenizer.fewest_tokens(self.env.tok_trie(), &texts)
    }

    /// Removes tokens that would give a number too many digits.
    pub fn restrict_numbers(&mut self, allowed: &mut SimpleVob) {
        let at = self.chart.position;
        if self.chart_failed || !at.begun {
            return;
        }
        let possible = self.chart.lexer.possible(at.state);
        if possible.is_empty()
            || !possible.iter().all(|lexeme| self.chart.data.numbers[*lexeme as usize])
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
            [CONTROL_TOKEN_MARK, ..] => self.chart.push_token(token),
            bytes => self.chart.push(bytes),
        }
    }
}

/// Shortest text of each lexeme, if one is found.
fn shortest_lexeme_texts(
    spec: &LexerSpec,
    lexer: &mut Lexer,
    trie: &TokTrie,
) -> Vec<Option<EndPiece>> {
    let count = u32::try_from(spec.lexemes.len()).unwrap_or(u32::MAX);
    let text = |lexeme: u32| {
        let mut alone = spec.alloc_lexeme_set();
        alone.add(llguidance::earley::lexerspec::LexemeIdx(lexeme));
        if !spec.token_range_lexemes(&alone).is_empty() {
            let all = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
            let fits = |token: &u32| spec.lexemes[lexeme as usize].contains_token(*token);
            return all.into_iter().find(fits).map(EndPiece::Token);
        }
        let start = lexer.start(spec, std::iter::once(lexeme));
        lexer.lexeme_end(start, false, |_| 0).map(|ending| EndPiece::Bytes(ending.bytes))
    };
    (0..count).map(text).collect()
}

impl std::fmt::Debug for EndTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndTracker").field("lost", &self.chart_failed).finish_non_exhaustive()
    }
}
