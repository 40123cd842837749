//! Detects an answer that only repeats itself.

use std::collections::VecDeque;

/// Longest period in tokens.
const MAX_PERIOD: usize = 64;
/// Number of repetitions that counts.
const MIN_REPEATS: usize = 30;
/// Least number of repeated tokens for periods above 1, since a table may hold a hundred zeros.
const MIN_REPEATED_TOKENS: usize = 200;

/// Counts repeated tokens by period.
#[derive(Debug)]
pub struct Repetition {
    recent: VecDeque<u32>,
    /// For each period, the number of latest tokens that equal the token one period before.
    runs: [usize; MAX_PERIOD],
    /// Whether a repetition was found.
    found: bool,
}

impl Default for Repetition {
    fn default() -> Self {
        Self { recent: VecDeque::with_capacity(MAX_PERIOD), runs: [0; MAX_PERIOD], found: false }
    }
}

impl Repetition {
    /// Adds a token.
    pub fn push(&mut self, token: u32) {
        for (period, (run, earlier)) in
            (1..).zip(self.runs.iter_mut().zip(self.recent.iter().rev()))
        {
            *run = if *earlier == token { *run + 1 } else { 0 };
            let min = if period == 1 {
                MIN_REPEATS
            } else {
                MIN_REPEATED_TOKENS.max(period * MIN_REPEATS)
            };
            self.found |= *run >= min;
        }
        if self.recent.len() == MAX_PERIOD {
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
    fn long_repetitions_are_found_and_tables_are_not() {
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
