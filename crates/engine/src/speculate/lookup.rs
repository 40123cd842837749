//! Prompt lookup: drafts the tokens that followed an earlier occurrence of the newest tokens.
//!
//! Two sets of hash chains, as in LZ77 compressors, link the positions after the same two tokens
//! and the positions after the same four tokens, newest first. A lookup follows a bounded number of
//! links and takes the position with the longest match. A token takes at most 24 bytes: two links,
//! and its share of the two head tables.

use super::{Draft, DraftKind, Drafter};

/// Tokens that all positions of a chain share, for the two kinds of chains.
const LONG_GRAM: usize = 4;
const SHORT_GRAM: usize = 2;
/// Largest number of links that a lookup follows.
const LONG_MAX_LINKS: usize = 48;
const SHORT_MAX_LINKS: usize = 16;
/// Match length at which a lookup stops.
const MAX_MATCH_TOKENS: usize = 32;
/// Initial size of a head table.
const INITIAL_HEADS: usize = 256;

/// Index of one text.
#[derive(Debug)]
pub struct LookupDrafter {
    long: Chains,
    short: Chains,
}

impl Default for LookupDrafter {
    fn default() -> Self {
        Self { long: Chains::new(LONG_GRAM), short: Chains::new(SHORT_GRAM) }
    }
}

impl Drafter for LookupDrafter {
    fn draft(&mut self, tokens: &[u32], max: usize) -> Option<Draft> {
        self.long.extend(tokens);
        self.short.extend(tokens);
        let found = self
            .long
            .find(tokens, LONG_MAX_LINKS)
            .or_else(|| self.short.find(tokens, SHORT_MAX_LINKS));
        let (at, common) = found?;
        let mut draft: Vec<u32> = Vec::with_capacity(max);
        for i in at..at + max {
            // Past the end of the text the draft repeats itself: the period may be shorter than the
            // draft.
            draft.push(tokens.get(i).copied().unwrap_or_else(|| draft[i - tokens.len()]));
        }
        (max > 0).then(|| Draft { tokens: draft, kind: DraftKind::of_match(common) })
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Hash chains of positions by the `n` tokens links them.
#[derive(Debug)]
struct Chains {
    n: usize,
    /// Newest position by hash; 0 is none. The length is a power of two.
    heads: Vec<u32>,
    /// Previous position in the chain by position; 0 ends the chain. A position is the number of
    /// tokens links it, so the length is the number of indexed tokens.
    links: Vec<u32>,
}

impl Chains {
    fn new(n: usize) -> Self {
        Self { n, heads: vec![0; INITIAL_HEADS], links: Vec::new() }
    }

    /// Indexes all positions but the last, which the lookup starts from.
    fn extend(&mut self, tokens: &[u32]) {
        if tokens.len() > self.heads.len() {
            self.heads = vec![0; tokens.len().next_power_of_two()];
            self.links.clear();
        }
        for at in self.links.len()..tokens.len() {
            let mut link = 0;
            if at >= self.n {
                let head = self.head_index(&tokens[at - self.n..at]);
                link = std::mem::replace(&mut self.heads[head], at as u32);
            }
            self.links.push(link);
        }
    }

    /// Index of the head of a gram's chain.
    fn head_index(&self, gram: &[u32]) -> usize {
        let hash = gram.iter().fold(0u64, |h, &t| {
            (h.rotate_left(5) ^ u64::from(t)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        (hash >> 32) as usize & (self.heads.len() - 1)
    }

    /// Position with the longest match to the end of the text, the newest of equals, and the match
    /// length.
    fn find(&self, tokens: &[u32], max_links: usize) -> Option<(usize, usize)> {
        let gram = tokens.len().checked_sub(self.n).map(|start| &tokens[start..])?;
        let mut at = self.heads[self.head_index(gram)] as usize;
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..max_links {
            if at == 0 {
                break;
            }
            let pairs = tokens[..at].iter().rev().zip(tokens.iter().rev());
            let common = pairs.take(MAX_MATCH_TOKENS).take_while(|(a, b)| a == b).count();
            // Different grams can share a hash.
            if common >= self.n && best.is_none_or(|(_, max)| common > max) {
                best = Some((at, common));
                if common == MAX_MATCH_TOKENS {
                    break;
                }
            }
            at = self.links[at] as usize;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(tokens: &[u32], max: usize) -> Option<(Vec<u32>, DraftKind)> {
        LookupDrafter::default().draft(tokens, max).map(|g| (g.tokens, g.kind))
    }

    #[test]
    fn the_continuation_of_an_earlier_match_is_drafted() {
        assert_eq!(draft(&[1, 2, 3, 4, 5, 6, 7, 9, 3, 4], 2), Some((vec![5, 6], DraftKind::Short)));
        assert_eq!(
            draft(&[1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4, 5], 2),
            Some((vec![6, 7], DraftKind::Medium))
        );
    }

    #[test]
    fn the_longest_match_wins_over_a_newer_shorter_one() {
        let text = [1, 2, 3, 4, 70, 71, 8, 9, 3, 4, 80, 81, 5, 1, 2, 3, 4];
        assert_eq!(draft(&text, 2), Some((vec![70, 71], DraftKind::Medium)));
    }

    #[test]
    fn the_newest_of_equally_long_matches_wins() {
        let text = [1, 2, 70, 5, 1, 2, 80, 6, 1, 2];
        assert_eq!(draft(&text, 1), Some((vec![80], DraftKind::Short)));
    }

    #[test]
    fn a_text_without_repetition_gives_no_draft() {
        assert_eq!(draft(&(0..500).collect::<Vec<_>>(), 4), None);
        assert_eq!(draft(&[], 4), None);
        assert_eq!(draft(&[1], 4), None);
        assert_eq!(draft(&[1, 2, 1, 2], 0), None);
    }

    #[test]
    fn a_draft_of_a_periodic_text_is_periodic() {
        assert_eq!(draft(&[7, 8, 9, 7, 8, 9, 7, 8], 7).unwrap().0, [9, 7, 8, 9, 7, 8, 9]);
        assert_eq!(draft(&[5, 5, 5], 4).unwrap().0, [5, 5, 5, 5]);
    }

    #[test]
    fn a_reset_drafter_finds_no_match_in_the_old_text() {
        let mut lookup = LookupDrafter::default();
        assert!(lookup.draft(&[1, 2, 3, 4, 1, 2], 2).is_some());
        lookup.reset();
        assert_eq!(lookup.draft(&[8, 7, 1, 2], 2), None);
    }

    #[test]
    fn memory_stays_in_proportion_to_the_text() {
        let mut lookup = LookupDrafter::default();
        let text: Vec<u32> = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        lookup.draft(&text, 4);
        let links = |c: &Chains| c.heads.len() + c.links.len();
        assert!(links(&lookup.long) + links(&lookup.short) <= 6 * text.len());
    }

    proptest! {
        #[test]
        fn adding_tokens_one_by_one_finds_what_adding_them_at_once_finds(
            text in prop::collection::vec(0u32..6, 0..700),
        ) {
            let mut lookup = LookupDrafter::default();
            for end in 0..=text.len() {
                let stepwise = lookup.draft(&text[..end], 3);
                if end % 50 == 0 || end == text.len() {
                    // Chains may be cut differently only by their max_links, which starts from the
                    // newest in both.
                    prop_assert_eq!(stepwise, LookupDrafter::default().draft(&text[..end], 3));
                }
            }
        }

        #[test]
        fn a_guess_is_always_a_continuation_of_an_equal_past(text in prop::collection::vec(0u32..9, 2..300)) {
            if let Some(draft) = LookupDrafter::default().draft(&text, 1) {
                let end = [text[text.len() - 2], text[text.len() - 1], draft.tokens[0]];
                prop_assert!(text.windows(3).any(|w| w == end));
            }
        }
    }
}
