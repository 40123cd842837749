//! The shortest end of a text in a grammar: the tokens that complete an answer when its limit is near.
//!
//! Every token of an answer is followed in a chart of its own ([`chart`]), which knows how many bytes the shortest end has from
//! each place. Where these may be more than the tokens that are left, the end is written out and divided into tokens, and
//! what would leave too few tokens for it is not drawn. The library itself looks at an end before it is used.
//!
//! Grammars that take too much work have no end that is known, and their answers are cut at their limit.

mod chart;
mod lexer;
mod numbers;
mod rules;
mod spelling;

use std::collections::HashSet;
use std::sync::Arc;

use chart::{Chart, Parts, Text};
use lexer::Lexer;
use llguidance::ParserFactory;
use llguidance::earley::CGrammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
pub use numbers::NumberTokens;
use rules::{ENDLESS, Rules};
use spelling::Speller;

use super::SPECIAL;

/// Follows a text and knows how to end it.
#[derive(Clone)]
pub struct Closing {
    chart: Chart,
    env: TokEnv,
    numbers: Arc<NumberTokens>,
    speller: Speller,
    /// The tokens that end the text from here, the last one first, and whether the library has looked at them.
    path: Option<(Vec<u32>, bool)>,
    /// The text cannot be followed any further.
    lost: bool,
}

impl Closing {
    /// The beginning of a text; `None` for a grammar whose end is not known.
    pub fn new(factory: &ParserFactory, grammar: &CGrammar, numbers: Arc<NumberTokens>) -> Option<Self> {
        let spec = grammar.lexer_spec();
        // What these need is known to the library alone.
        if grammar.parametric() || spec.has_stop || spec.has_max_tokens {
            return None;
        }
        let mut lexer = Lexer::new(factory, spec)?;
        let env = factory.tok_env().clone();
        let texts = texts(spec, &mut lexer, env.tok_trie());
        let count = u32::try_from(spec.lexemes.len()).ok()?;
        let numbers_among = (0..count).map(|lexeme| lexer.is_number(spec, lexeme)).collect();
        let rules = Rules::read(grammar, |lexeme| match &texts[lexeme as usize] {
            Some(Text::Bytes(bytes)) => bytes.len() as u64,
            Some(Text::Token(_)) => 1,
            None => ENDLESS,
        });
        let skipped: HashSet<u32> = spec.skip_by_class.iter().map(|lexeme| lexeme.0).collect();
        let parts = Parts { rules, spec: spec.clone(), skipped, texts, numbers: numbers_among };
        let chart = Chart::new(Arc::new(parts), lexer)?;
        Some(Self { chart, env, numbers, speller: Speller::default(), path: None, lost: false })
    }

    /// Goes on by a token.
    pub fn accept(&mut self, token: u32) {
        if self.lost {
            return;
        }
        let is_on_path = matches!(&self.path, Some((path, _)) if path.last() == Some(&token));
        match &mut self.path {
            Some((path, _)) if is_on_path => {
                path.pop();
            }
            path => *path = None,
        }
        self.lost = !self.push(token);
    }

    /// Whether the text can still be ended with fewer than `left` tokens, an end token among them, behind one more token.
    pub fn has_room_behind(&mut self, token: u32, left: usize) -> bool {
        if self.lost || self.env.tok_trie().eos_tokens().contains(&token) {
            return true;
        }
        if let Some((path, _)) = &self.path
            && path.last() == Some(&token)
            && path.len() < left
        {
            return true;
        }
        let mark = self.chart.mark();
        let has_room = self.push(token) && {
            let (cost, ending) = self.chart.cost();
            // As many tokens as bytes at most.
            cost.saturating_add(1) < left as u64
                || self.tokens(cost, ending.as_ref()).is_some_and(|path| path.len() + 1 < left)
        };
        self.chart.go_back(mark);
        has_room
    }

    /// The tokens that end the text from here, the last one first, without an end token. `check` tells whether the library
    /// takes them.
    pub fn path(&mut self, check: impl FnOnce(&[u32]) -> bool) -> Option<&[u32]> {
        if self.lost {
            return None;
        }
        if self.path.is_none() {
            let (cost, ending) = self.chart.cost();
            self.path = self.tokens(cost, ending.as_ref()).map(|mut path| {
                path.reverse();
                (path, false)
            });
        }
        let (path, is_checked) = self.path.as_mut()?;
        if !*is_checked {
            let in_order: Vec<u32> = path.iter().rev().copied().collect();
            if !check(&in_order) {
                self.lost = true;
                return None;
            }
            *is_checked = true;
        }
        Some(path)
    }

    fn tokens(&mut self, cost: u64, ending: Option<&lexer::Ending>) -> Option<Vec<u32>> {
        if cost > chart::BYTES_MAX as u64 {
            return None;
        }
        let texts = self.chart.path(ending)?;
        self.speller.fewest_tokens(self.env.tok_trie(), &texts)
    }

    /// Removes the tokens with which a number would have more digits than is sensible.
    pub fn restrict_numbers(&mut self, allowed: &mut SimpleVob) {
        let at = self.chart.at;
        if self.lost || !at.begun {
            return;
        }
        let possible = self.chart.lexer.possible(at.state);
        if possible.is_empty() || !possible.iter().all(|lexeme| self.chart.parts.numbers[*lexeme as usize]) {
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
        f.debug_struct("Closing").field("lost", &self.lost).finish_non_exhaustive()
    }
}
