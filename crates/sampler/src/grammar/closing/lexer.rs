//! The lexemes of a grammar: how texts are divided into them, and the shortest text that ends one.

use std::collections::HashSet;

use llguidance::ParserFactory;
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::regexvec::{MatchingLexemes, NextByte, RegexVec, StateID};

use super::rules::ENDLESS;

/// States of the lexemes at most. More than these are not needed to end an answer, but by hostile expressions.
const STATES_MAX: usize = 20_000;
/// States in which one search looks for an end at most.
const SEARCHED_MAX: usize = 5_000;
/// Work of the library for all states together; about a second.
const FUEL: u64 = 8_000_000;

/// What a byte leads to.
#[derive(Debug)]
pub enum Step {
    /// The lexeme goes on.
    Within(StateID),
    /// These lexemes end with the byte.
    EndsWith(Vec<u32>),
    /// These lexemes end before the byte.
    EndsBefore(Vec<u32>),
    /// No lexeme has the byte here.
    Refused,
}

/// The shortest way to the end of a lexeme.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Bytes of the way and of all that comes behind it.
    pub cost: u64,
    /// The bytes of the way.
    pub bytes: Vec<u8>,
    /// The lexemes that end there.
    pub lexemes: Vec<u32>,
}

/// The states of all lexemes of a grammar.
#[derive(Clone)]
pub struct Lexer {
    states: RegexVec,
    /// One byte of each kind that the expressions tell apart, those first that read well.
    bytes: Vec<u8>,
}

impl Lexer {
    /// The lexemes of a grammar; `None` where they take too much work.
    pub fn new(factory: &ParserFactory, spec: &LexerSpec) -> Option<Self> {
        let mut limits = factory.limits().clone();
        limits.max_lexer_states = STATES_MAX;
        let mut states = spec.to_regex_vec(&mut limits).ok()?;
        states.set_fuel(FUEL);
        let mut kinds = HashSet::new();
        let plain = (b'a'..=b'z').chain(b'0'..=b'9').chain(b'A'..=b'Z').chain(b' '..=b'~');
        let bytes = plain.chain(0..=u8::MAX).filter(|byte| kinds.insert(states.alpha().map(*byte))).collect();
        Some(Self { states, bytes })
    }

    /// Whether too much work was asked for, after which nothing is known any more.
    pub fn has_failed(&self) -> bool {
        self.states.has_error()
    }

    /// The state in which one of some lexemes may begin.
    pub fn start(&mut self, spec: &LexerSpec, lexemes: impl Iterator<Item = u32>) -> StateID {
        let mut set = spec.alloc_lexeme_set();
        lexemes.for_each(|lexeme| set.add(LexemeIdx(lexeme)));
        self.states.initial_state(&set)
    }

    /// The state behind a byte; dead where there is none.
    pub fn follow(&mut self, state: StateID, byte: u8) -> StateID {
        if self.has_failed() { StateID::DEAD } else { self.states.transition(state, byte) }
    }

    /// Goes on by a byte.
    pub fn step(&mut self, state: StateID, byte: u8) -> Step {
        let next = self.follow(state, byte);
        if next.is_dead() {
            let ended = self.ended(state);
            return if ended.is_empty() { Step::Refused } else { Step::EndsBefore(ended) };
        }
        if next.has_lowest_match() {
            return Step::EndsWith(numbers(&self.states.state_desc(next).lazy_accepting));
        }
        Step::Within(next)
    }

    /// The lexemes that may end in a state.
    pub fn ended(&self, state: StateID) -> Vec<u32> {
        if self.has_failed() {
            return Vec::new();
        }
        numbers(&self.states.state_desc(state).greedy_accepting)
    }

    /// Whether a lexeme may end in a state.
    pub fn may_end(&self, state: StateID) -> bool {
        !self.has_failed() && self.states.state_desc(state).greedy_accepting.is_some()
    }

    /// Whether the lexeme in a state cannot go on.
    pub fn must_end(&mut self, state: StateID) -> bool {
        !self.has_failed() && self.states.next_byte(state) == NextByte::ForcedEOI
    }

    /// The lexemes that are possible in a state.
    pub fn possible(&self, state: StateID) -> Vec<u32> {
        if self.has_failed() {
            return Vec::new();
        }
        self.states.state_desc(state).possible.iter().map(|lexeme| lexeme.0).collect()
    }

    /// Whether a lexeme is a number: it begins with nothing but a sign or a digit.
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

    /// Looks for the cheapest end of the lexeme that has come to `from`. `begun`: it has a byte already, without which none
    /// may end. `behind` tells the cost of what comes behind some lexemes.
    pub fn ending(
        &mut self,
        from: StateID,
        begun: bool,
        mut behind: impl FnMut(&[u32]) -> u64,
    ) -> Option<Ending> {
        let mut best: Option<(u64, usize, Option<u8>, Vec<u32>)> = None;
        // States by their distance: where each was come to from, and by which byte.
        let mut found = vec![(from, 0, 0, 0_u64)];
        let mut seen = HashSet::from([from]);
        let mut at = 0;
        let is_better = |cost: u64, best: &Option<(u64, usize, Option<u8>, Vec<u32>)>| {
            cost != ENDLESS && best.as_ref().is_none_or(|(least, ..)| cost < *least)
        };
        while let Some(&(state, _, _, distance)) = found.get(at) {
            if best.as_ref().is_some_and(|(least, ..)| distance >= *least) || at >= SEARCHED_MAX {
                break;
            }
            if at > 0 || begun {
                let lexemes = self.ended(state);
                let cost = if lexemes.is_empty() { ENDLESS } else { behind(&lexemes) };
                let cost = cost.saturating_add(distance);
                if is_better(cost, &best) {
                    best = Some((cost, at, None, lexemes));
                }
            }
            for index in 0..self.bytes.len() {
                let byte = self.bytes[index];
                let next = self.follow(state, byte);
                if next.is_dead() {
                    continue;
                }
                if next.has_lowest_match() {
                    let lexemes = numbers(&self.states.state_desc(next).lazy_accepting);
                    let cost = behind(&lexemes).saturating_add(distance + 1);
                    if is_better(cost, &best) {
                        best = Some((cost, at, Some(byte), lexemes));
                    }
                } else if seen.insert(next) {
                    found.push((next, at, byte, distance + 1));
                }
            }
            at += 1;
        }
        let (cost, mut at, last, lexemes) = best?;
        let mut bytes: Vec<u8> = last.into_iter().collect();
        while at > 0 {
            bytes.push(found[at].2);
            at = found[at].1;
        }
        bytes.reverse();
        Some(Ending { cost, bytes, lexemes })
    }
}

impl std::fmt::Debug for Lexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lexer").field("failed", &self.has_failed()).finish_non_exhaustive()
    }
}

fn numbers(lexemes: &MatchingLexemes) -> Vec<u32> {
    lexemes.as_slice().iter().map(|lexeme| lexeme.0).collect()
}
