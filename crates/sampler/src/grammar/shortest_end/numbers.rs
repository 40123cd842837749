//! Limits the digits of otherwise unbounded numbers, since a model may write digits forever.

use llguidance::earley::regexvec::StateID;
use llguidance::toktrie::{SimpleVob, TokTrie};

use super::lexer::Lexer;

/// Maximum number of digits before and after the decimal point.
const MAX_DIGITS: u16 = 16;
/// Maximum number of digits of an exponent. Numbers within it are in the range of doubles.
const MAX_EXPONENT: u16 = 2;
/// A number that can continue for this many digits counts as unbounded.
const UNBOUNDED_DIGITS: usize = 40;

/// Number of consecutive digits in a part of a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DigitRun {
    digits: u16,
    in_exponent: bool,
}

impl DigitRun {
    /// The count after another byte.
    pub fn push(self, byte: u8) -> Self {
        match byte {
            b'0'..=b'9' => Self { digits: self.digits.saturating_add(1), ..self },
            b'e' | b'E' => Self { digits: 0, in_exponent: true },
            _ => Self { digits: 0, ..self },
        }
    }

    fn is_full(self) -> bool {
        self.digits >= if self.in_exponent { MAX_EXPONENT } else { MAX_DIGITS }
    }
}

/// Tokens of a vocabulary that may continue a number.
#[derive(Debug)]
pub struct NumberTokens {
    tokens: Vec<u32>,
    /// Largest number of digits in one token.
    longest: u16,
}

impl NumberTokens {
    pub fn from_trie(trie: &TokTrie) -> Self {
        let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let all = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
        let tokens: Vec<u32> =
            all.filter(|token| trie.token(*token).first().is_some_and(is_part)).collect();
        let digits =
            |token: &u32| trie.token(*token).iter().filter(|byte| byte.is_ascii_digit()).count();
        let longest = tokens.iter().map(digits).max().unwrap_or(0);
        Self { tokens, longest: u16::try_from(longest).unwrap_or(u16::MAX) }
    }

    /// Removes tokens that would give a number too many digits. `state` must be within a number.
    pub fn restrict(
        &self,
        allowed: &mut SimpleVob,
        trie: &TokTrie,
        lexer: &mut Lexer,
        state: StateID,
        run: DigitRun,
    ) {
        let is_near = run.in_exponent || run.digits.saturating_add(self.longest) > MAX_DIGITS;
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

/// Whether a text adds a digit to a number that could end, has enough digits, and is unbounded.
fn is_too_long(text: &[u8], lexer: &mut Lexer, mut state: StateID, mut run: DigitRun) -> bool {
    for &byte in text {
        if byte.is_ascii_digit()
            && run.is_full()
            && lexer.may_end(state)
            && is_unbounded(lexer, state)
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

fn is_unbounded(lexer: &mut Lexer, state: StateID) -> bool {
    (b'0'..=b'9').any(|digit| {
        let mut state = state;
        (0..UNBOUNDED_DIGITS).all(|_| {
            state = lexer.follow(state, digit);
            !state.is_dead() && !state.has_lowest_match()
        })
    })
}
