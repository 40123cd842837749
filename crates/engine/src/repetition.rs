//! Detects an answer that repeats itself and is not going to say anything else.

use std::collections::VecDeque;

/// Tokens of what is repeated at most.
const PERIOD_MAX: usize = 64;
/// How often it comes again before it counts.
const REPEATS: usize = 30;
/// Repeated tokens that count at least where more than one token is repeated: a table may well hold a hundred zeros.
const REPEATED_MIN: usize = 200;

/// The newest tokens of an answer, and how many of them repeat those before.
#[derive(Debug)]
pub struct Repetition {
    recent: VecDeque<u32>,
    /// For each distance, how many tokens in a row are those at this distance before them.
    runs: [usize; PERIOD_MAX],
    /// The answer has repeated itself too often.
    found: bool,
}

impl Default for Repetition {
    fn default() -> Self {
        Self { recent: VecDeque::with_capacity(PERIOD_MAX), runs: [0; PERIOD_MAX], found: false }
    }
}

impl Repetition {
    /// Takes note of a token.
    pub fn push(&mut self, token: u32) {
        for (period, (run, earlier)) in
            (1..).zip(self.runs.iter_mut().zip(self.recent.iter().rev()))
        {
            *run = if *earlier == token { *run + 1 } else { 0 };
            let least = if period == 1 { REPEATS } else { REPEATED_MIN.max(period * REPEATS) };
            self.found |= *run >= least;
        }
        if self.recent.len() == PERIOD_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    /// Whether the answer has repeated itself too often.
    pub fn is_found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(tokens: impl IntoIterator<Item = u32>) -> bool {
        let mut repetition = Repetition::default();
        tokens.into_iter().for_each(|token| repetition.push(token));
        repetition.is_found()
    }

    #[test]
    fn what_comes_again_and_again_is_found_and_tables_are_not() {
        assert!(is_found([7; 31]) && !is_found([7; 30]));
        let cycle = |period: u32, tokens: usize| (0..period).cycle().take(tokens);
        assert!(is_found(cycle(2, 202)) && !is_found(cycle(2, 201)));
        assert!(is_found(cycle(64, 64 * 31)) && !is_found(cycle(64, 64 * 30)));
        assert!(!is_found(cycle(65, 10_000)));
        assert!(!is_found((0..10_000).map(|n| if n % 2 == 0 { 5 } else { n })));
        // Once found, it stays so.
        assert!(is_found([7; 31].into_iter().chain(0..100)));
    }
}
