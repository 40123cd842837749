//! Digits of numbers that nothing else bounds: a model that writes one after the other would never come to an end.

use llguidance::earley::regexvec::StateID;
use llguidance::toktrie::{SimpleVob, TokTrie};

use super::lexer::Lexer;

/// Digits before and behind the point of a number at most.
const DIGITS_MAX: u16 = 16;
/// Digits of an exponent at most, so that what is written is a number that doubles have.
const EXPONENT_MAX: u16 = 2;
/// A part of a number that goes on for so many digits more has no bound.
const ENDLESS: usize = 40;

/// Digits in a row of a number's part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    digits: u16,
    in_exponent: bool,
}

impl Run {
    /// The run behind a byte.
    pub fn push(self, byte: u8) -> Self {
        match byte {
            b'0'..=b'9' => Self { digits: self.digits.saturating_add(1), ..self },
            b'e' | b'E' => Self { digits: 0, in_exponent: true },
            _ => Self { digits: 0, ..self },
        }
    }

    fn is_full(self) -> bool {
        self.digits >= if self.in_exponent { EXPONENT_MAX } else { DIGITS_MAX }
    }
}

/// The tokens of a vocabulary that a number may go on with.
#[derive(Debug)]
pub struct NumberTokens {
    tokens: Vec<u32>,
    /// Digits of one token at most.
    longest: u16,
}

impl NumberTokens {
    pub fn of(trie: &TokTrie) -> Self {
        let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let all = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
        let tokens: Vec<u32> =
            all.filter(|token| trie.token(*token).first().is_some_and(is_part)).collect();
        let digits =
            |token: &u32| trie.token(*token).iter().filter(|byte| byte.is_ascii_digit()).count();
        let longest = tokens.iter().map(digits).max().unwrap_or(0);
        Self { tokens, longest: u16::try_from(longest).unwrap_or(u16::MAX) }
    }

    /// Removes the tokens with which a number would have too many digits, in a state that is within a number.
    pub fn restrict(
        &self,
        allowed: &mut SimpleVob,
        trie: &TokTrie,
        lexer: &mut Lexer,
        state: StateID,
        run: Run,
    ) {
        let is_near = run.in_exponent || run.digits.saturating_add(self.longest) > DIGITS_MAX;
        if !is_near {
            return;
        }
        let long: Vec<u32> =
            self.tokens.iter().copied().filter(|token| allowed.is_allowed(*token)).collect();
        let too_long = |token: &u32| is_too_long(trie.token(*token), lexer, state, run);
        for token in long.into_iter().filter(too_long).collect::<Vec<_>>() {
            allowed.disallow_token(token);
        }
    }
}

/// Whether a text adds a digit to a number which could end, has enough digits, and would have no bound.
fn is_too_long(text: &[u8], lexer: &mut Lexer, mut state: StateID, mut run: Run) -> bool {
    for &byte in text {
        if byte.is_ascii_digit()
            && run.is_full()
            && lexer.may_end(state)
            && is_endless(lexer, state)
        {
            return true;
        }
        state = lexer.follow(state, byte);
        if state.is_dead() || state.has_lowest_match() {
            return false;
        }
        run = run.push(byte);
    }
    false
}

fn is_endless(lexer: &mut Lexer, state: StateID) -> bool {
    (b'0'..=b'9').any(|digit| {
        let mut state = state;
        (0..ENDLESS).all(|_| {
            state = lexer.follow(state, digit);
            !state.is_dead() && !state.has_lowest_match()
        })
    })
}
