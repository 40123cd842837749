//! Guesses from the text itself: where the newest tokens stood before, what followed them may follow again.
//!
//! Positions with the same last two, and the same last four, tokens are chained, newest first, as in a dictionary
//! compressor. A look-up walks a chain a bounded way and takes the position with the longest common past. A
//! token takes 24 bytes at most: two links, and its share of the two tables of chain heads.

use super::{Drafter, Guess, Kind};

/// Tokens that the links of the two chains have in common.
const LONG: usize = 4;
const SHORT: usize = 2;
/// Links followed at most.
const LONG_WALK: usize = 48;
const SHORT_WALK: usize = 16;
/// Common tokens beyond which no longer match is sought.
const ENOUGH: usize = 32;
/// Heads of an empty chain.
const FIRST_HEADS: usize = 256;

/// An index of a text.
#[derive(Debug)]
pub struct Lookup {
    long: Chains,
    short: Chains,
}

impl Default for Lookup {
    fn default() -> Self {
        Self { long: Chains::new(LONG), short: Chains::new(SHORT) }
    }
}

impl Drafter for Lookup {
    fn draft(&mut self, tokens: &[u32], most: usize) -> Option<Guess> {
        self.long.extend(tokens);
        self.short.extend(tokens);
        let found =
            self.long.find(tokens, LONG_WALK).or_else(|| self.short.find(tokens, SHORT_WALK));
        let (at, common) = found?;
        let mut guess: Vec<u32> = Vec::with_capacity(most);
        for i in at..at + most {
            // Behind the text's end the guess goes on with itself: what repeats may be shorter than the guess.
            guess.push(tokens.get(i).copied().unwrap_or_else(|| guess[i - tokens.len()]));
        }
        (most > 0).then(|| Guess { tokens: guess, kind: Kind::of_match(common) })
    }

    fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Positions of a text chained by their last `n` tokens.
#[derive(Debug)]
struct Chains {
    n: usize,
    /// The newest position of each hash, 0 for none. A power of two of them.
    heads: Vec<u32>,
    /// For each position the one before it in its chain, 0 at the end. As many as there are indexed tokens: a position is
    /// the number of tokens before it.
    before: Vec<u32>,
}

impl Chains {
    fn new(n: usize) -> Self {
        Self { n, heads: vec![0; FIRST_HEADS], before: Vec::new() }
    }

    /// Indexes all positions but the last, which is the one that is looked up.
    fn extend(&mut self, tokens: &[u32]) {
        if tokens.len() > self.heads.len() {
            self.heads = vec![0; tokens.len().next_power_of_two()];
            self.before.clear();
        }
        for at in self.before.len()..tokens.len() {
            let mut link = 0;
            if at >= self.n {
                let head = self.head(&tokens[at - self.n..at]);
                link = std::mem::replace(&mut self.heads[head], at as u32);
            }
            self.before.push(link);
        }
    }

    /// Where a chain begins.
    fn head(&self, gram: &[u32]) -> usize {
        let hash = gram.iter().fold(0u64, |h, &t| {
            (h.rotate_left(5) ^ u64::from(t)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        (hash >> 32) as usize & (self.heads.len() - 1)
    }

    /// The position whose past has most in common with that of the text's end, the newest of several, and how much.
    fn find(&self, tokens: &[u32], walk: usize) -> Option<(usize, usize)> {
        let gram = tokens.len().checked_sub(self.n).map(|start| &tokens[start..])?;
        let mut at = self.heads[self.head(gram)] as usize;
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..walk {
            if at == 0 {
                break;
            }
            let pasts = tokens[..at].iter().rev().zip(tokens.iter().rev());
            let common = pasts.take(ENOUGH).take_while(|(a, b)| a == b).count();
            // Other grams can have the same hash.
            if common >= self.n && best.is_none_or(|(_, most)| common > most) {
                best = Some((at, common));
                if common == ENOUGH {
                    break;
                }
            }
            at = self.before[at] as usize;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guess(tokens: &[u32], most: usize) -> Option<(Vec<u32>, Kind)> {
        Lookup::default().draft(tokens, most).map(|g| (g.tokens, g.kind))
    }

    #[test]
    fn what_followed_the_newest_tokens_before_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 7, 9, 3, 4], 2), Some((vec![5, 6], Kind::Short)));
        assert_eq!(
            guess(&[1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4, 5], 2),
            Some((vec![6, 7], Kind::Medium))
        );
    }

    #[test]
    fn the_longest_common_past_wins_over_a_newer_shorter_one() {
        let text = [1, 2, 3, 4, 70, 71, 8, 9, 3, 4, 80, 81, 5, 1, 2, 3, 4];
        assert_eq!(guess(&text, 2), Some((vec![70, 71], Kind::Medium)));
    }

    #[test]
    fn of_equally_long_pasts_the_newest_wins() {
        let text = [1, 2, 70, 5, 1, 2, 80, 6, 1, 2];
        assert_eq!(guess(&text, 1), Some((vec![80], Kind::Short)));
    }

    #[test]
    fn a_text_without_repetition_gives_no_guess() {
        assert_eq!(guess(&(0..500).collect::<Vec<_>>(), 4), None);
        assert_eq!(guess(&[], 4), None);
        assert_eq!(guess(&[1], 4), None);
        assert_eq!(guess(&[1, 2, 1, 2], 0), None);
    }

    #[test]
    fn a_guess_goes_round_in_a_text_that_goes_round() {
        assert_eq!(guess(&[7, 8, 9, 7, 8, 9, 7, 8], 7).unwrap().0, [9, 7, 8, 9, 7, 8, 9]);
        assert_eq!(guess(&[5, 5, 5], 4).unwrap().0, [5, 5, 5, 5]);
    }

    #[test]
    fn a_forgotten_text_is_not_guessed_from() {
        let mut lookup = Lookup::default();
        assert!(lookup.draft(&[1, 2, 3, 4, 1, 2], 2).is_some());
        lookup.forget();
        assert_eq!(lookup.draft(&[8, 7, 1, 2], 2), None);
    }

    #[test]
    fn memory_stays_in_proportion_to_the_text() {
        let mut lookup = Lookup::default();
        let text: Vec<u32> = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        lookup.draft(&text, 4);
        let links = |c: &Chains| c.heads.len() + c.before.len();
        assert!(links(&lookup.long) + links(&lookup.short) <= 6 * text.len());
    }

    proptest! {
        #[test]
        fn adding_tokens_one_by_one_finds_what_adding_them_at_once_finds(
            text in prop::collection::vec(0u32..6, 0..700),
        ) {
            let mut lookup = Lookup::default();
            for end in 0..=text.len() {
                let stepwise = lookup.draft(&text[..end], 3);
                if end % 50 == 0 || end == text.len() {
                    // Chains may be cut differently only by their walk, which starts from the newest in both.
                    prop_assert_eq!(stepwise, Lookup::default().draft(&text[..end], 3));
                }
            }
        }

        #[test]
        fn a_guess_is_always_a_continuation_of_an_equal_past(text in prop::collection::vec(0u32..9, 2..300)) {
            if let Some(guess) = Lookup::default().draft(&text, 1) {
                let end = [text[text.len() - 2], text[text.len() - 1], guess.tokens[0]];
                prop_assert!(text.windows(3).any(|w| w == end));
            }
        }
    }
}
