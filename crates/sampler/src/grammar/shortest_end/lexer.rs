//! Lexer of a grammar: divides texts into lexemes.

use std::collections::HashSet;

use llguidance::ParserFactory;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::{MatchingLexemes, NextByte, RegexVec, StateID};

use super::lexeme_end::EndCache;

/// Maximum number of states; each takes about half a kilobyte. Long strings have one state per
/// character.
const MAX_STATES: usize = 50_000;
/// Work budget of the library for all states; about half a second.
const FUEL: u64 = 4_000_000;

/// Result of advancing by one byte.
#[derive(Debug)]
pub enum LexerStep {
    /// The lexeme continues.
    Within(StateID),
    /// These lexemes end with the byte.
    EndsWith(Vec<u32>),
    /// These lexemes end before the byte.
    EndsBefore(Vec<u32>),
    /// No lexeme allows the byte here.
    Refused,
}

/// States of all lexemes of a grammar.
#[derive(Clone)]
pub struct Lexer {
    states: RegexVec,
    /// One byte of each class that the expressions distinguish. Prefers readable bytes.
    pub(super) bytes: Vec<u8>,
    pub(super) end_cache: EndCache,
}

impl Lexer {
    /// Makes the lexer of a grammar. `None` if its expressions take too much work.
    pub fn new(factory: &ParserFactory, spec: &LexerSpec) -> Option<Self> {
        let mut limits = factory.limits().clone();
        limits.max_lexer_states = MAX_STATES;
        let mut states = spec.to_regex_vec(&mut limits).ok()?;
        states.set_fuel(FUEL);
        let mut kinds = HashSet::new();
        let plain = (b'a'..=b'z').chain(b'0'..=b'9').chain(b'A'..=b'Z').chain(b' '..=b'~');
        let bytes = plain
            .chain(0..=u8::MAX)
            .filter(|byte| kinds.insert(states.alpha().map(*byte)))
            .collect();
        Some(Self { states, bytes, end_cache: EndCache::default() })
    }

    /// Whether the lexer has exceeded its limits. It returns no results afterwards.
    pub fn has_failed(&self) -> bool {
        self.states.has_error()
    }

    /// Whether three quarters of the lexer's limits are used.
    pub fn is_nearly_exhausted(&self) -> bool {
        self.has_used(6)
    }

    /// Whether more than `eighths` eighths of the states or of the work budget are used.
    pub fn has_used(&self, eighths: u8) -> bool {
        self.states.stats().num_states > MAX_STATES / 8 * usize::from(eighths)
            || self.states.get_fuel() < FUEL / 8 * (8 - u64::from(eighths))
    }

    /// State in which one of some lexemes may start.
    pub fn start(&mut self, spec: &LexerSpec, lexemes: impl Iterator<Item = u32>) -> StateID {
        let mut set = spec.alloc_lexeme_set();
        lexemes.for_each(|lexeme| set.add(LexemeIdx(lexeme)));
        self.states.initial_state(&set)
    }

    /// State after a byte. Dead if the byte is not allowed.
    pub fn follow(&mut self, state: StateID, byte: u8) -> StateID {
        if self.has_failed() { StateID::DEAD } else { self.states.transition(state, byte) }
    }

    /// Lexemes that end with the byte that led to a state, if any.
    pub fn ended_with(&self, state: StateID) -> Option<Vec<u32>> {
        state
            .has_lowest_match()
            .then(|| lexeme_numbers(&self.states.state_desc(state).lazy_accepting))
    }

    /// The only byte that may follow in a state, if there is exactly one.
    pub fn forced_byte(&mut self, state: StateID) -> Option<u8> {
        match self.states.next_byte(state) {
            NextByte::ForcedByte(byte) => Some(byte),
            _ => None,
        }
    }

    /// Advances by a byte.
    pub fn step(&mut self, state: StateID, byte: u8) -> LexerStep {
        let next = self.follow(state, byte);
        if next.is_dead() {
            let ended = self.ended(state);
            return if ended.is_empty() {
                LexerStep::Refused
            } else {
                LexerStep::EndsBefore(ended)
            };
        }
        self.ended_with(next).map_or(LexerStep::Within(next), LexerStep::EndsWith)
    }

    /// Lexemes that may end in a state.
    pub fn ended(&self, state: StateID) -> Vec<u32> {
        if self.has_failed() {
            return Vec::new();
        }
        lexeme_numbers(&self.states.state_desc(state).greedy_accepting)
    }

    /// Whether a lexeme may end in a state.
    pub fn may_end(&self, state: StateID) -> bool {
        !self.has_failed() && self.states.state_desc(state).greedy_accepting.is_some()
    }

    /// Whether the lexeme in a state cannot continue.
    pub fn must_end(&mut self, state: StateID) -> bool {
        !self.has_failed() && self.states.next_byte(state) == NextByte::ForcedEOI
    }

    /// Lexemes that are possible in a state.
    pub fn possible(&self, state: StateID) -> Vec<u32> {
        if self.has_failed() {
            return Vec::new();
        }
        self.states.state_desc(state).possible.iter().map(|lexeme| lexeme.0).collect()
    }

    /// Whether a lexeme is a number: it starts with a sign or a digit only.
    pub fn is_number(&mut self, spec: &LexerSpec, lexeme: u32) -> bool {
        let start = self.start(spec, std::iter::once(lexeme));
        let begins = |lexer: &mut Self, byte| !lexer.follow(start, byte).is_dead();
        if begins(self, b'"') {
            return false;
        }
        let (digits, others): (Vec<u8>, Vec<u8>) =
            (0..=u8::MAX).filter(|byte| *byte != b'-').partition(u8::is_ascii_digit);
        digits.into_iter().any(|byte| begins(self, byte))
            && !others.into_iter().any(|byte| begins(self, byte))
    }
}

impl std::fmt::Debug for Lexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lexer").field("failed", &self.has_failed()).finish_non_exhaustive()
    }
}

fn lexeme_numbers(lexemes: &MatchingLexemes) -> Vec<u32> {
    lexemes.as_slice().iter().map(|lexeme| lexeme.0).collect()
}
