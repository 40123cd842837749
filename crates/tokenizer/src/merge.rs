//! Merge loop of BPE and SPM: merges the adjacent pair of lowest rank, the leftmost of equal ones,
//! until no pair can merge.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::control::EncodeControl;
use crate::hash::Merge;

/// Consecutive bytes of a word with their symbol number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// What merges in a vocabulary.
pub(crate) trait MergeRules {
    /// Appends the initial symbols of a word, with positions in it.
    fn split(&self, word: &[u8], symbols: &mut Vec<Symbol>);

    /// Merge of two neighbours of a word, if any. It depends on these two symbols only.
    fn pair(&self, word: &[u8], left: Symbol, right: Symbol) -> Option<Merge>;

    /// Appends the tokens of a symbol of a word that nothing merges any more.
    fn append(&self, word: &[u8], symbol: Symbol, ids: &mut Vec<u32>);
}

/// Up to this number of symbols, a scan of all pairs is faster than a queue.
const LINEAR_SCAN_MAX_SYMBOLS: usize = 40;

/// Index of a neighbour that does not exist.
const NO_NEIGHBOUR: u32 = u32::MAX;

/// Merge loop with buffers that are reused between words.
#[derive(Default)]
pub(crate) struct Merger {
    /// Symbols of the word that was merged last.
    pub(crate) symbols: Vec<Symbol>,
    /// Merge of each symbol with its right neighbour.
    pairs: Vec<Option<Merge>>,
    left: Vec<u32>,
    right: Vec<u32>,
    /// Rank in the upper half, position in the lower half.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Appends the tokens of a word.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        rules: &impl MergeRules,
        word: &[u8],
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        self.merge(rules, word, control);
        for &symbol in &self.symbols {
            rules.append(word, symbol, ids);
        }
    }

    /// Replaces `symbols` by the merged symbols of a word.
    #[inline]
    pub(crate) fn merge(
        &mut self,
        rules: &impl MergeRules,
        word: &[u8],
        control: EncodeControl<'_>,
    ) {
        self.symbols.clear();
        rules.split(word, &mut self.symbols);
        let pair = |left, right| rules.pair(word, left, right);
        self.pairs.clear();
        self.pairs.extend(self.symbols.windows(2).map(|two| pair(two[0], two[1])));
        if self.symbols.len() <= LINEAR_SCAN_MAX_SYMBOLS {
            self.run_linear(pair)
        } else {
            self.run_queue(pair, control)
        }
    }

    #[inline]
    fn run_linear(&mut self, pair: impl Fn(Symbol, Symbol) -> Option<Merge>) {
        let Merger { symbols, pairs, .. } = self;
        loop {
            let mut best: Option<(usize, Merge)> = None;
            for (at, merge) in pairs.iter().enumerate() {
                if let Some(merge) = *merge
                    && best.is_none_or(|(_, best)| merge.rank < best.rank)
                {
                    best = Some((at, merge));
                }
            }
            let Some((at, merge)) = best else { return };
            symbols[at] = Symbol { id: merge.merged, end: symbols[at + 1].end, ..symbols[at] };
            symbols.remove(at + 1);
            pairs.remove(at);
            if at > 0 {
                pairs[at - 1] = pair(symbols[at - 1], symbols[at]);
            }
            if at < pairs.len() {
                pairs[at] = pair(symbols[at], symbols[at + 1]);
            }
        }
    }

    fn run_queue(
        &mut self,
        pair: impl Fn(Symbol, Symbol) -> Option<Merge>,
        control: EncodeControl<'_>,
    ) {
        let Merger { symbols, pairs, left, right, queue } = self;
        let count = symbols.len() as u32;
        pairs.push(None);
        left.clear();
        left.extend((0..count).map(|at| at.wrapping_sub(1)));
        right.clear();
        right.extend((1..count).chain([NO_NEIGHBOUR]));
        queue.clear();
        let entry = |at: u32, merge: &Option<Merge>| {
            merge.map(|merge| Reverse(u64::from(merge.rank) << 32 | u64::from(at)))
        };
        queue.extend((0..count).zip(pairs.iter()).filter_map(|(at, merge)| entry(at, merge)));

        while let Some(Reverse(packed)) = queue.pop() {
            if control.is_cancelled() {
                return;
            }
            let (rank, at) = ((packed >> 32) as u32, packed as u32);
            // An entry is outdated if its pair has changed.
            let Some(merge) = pairs[at as usize].filter(|merge| merge.rank == rank) else {
                continue;
            };
            let removed = right[at as usize];
            let (next, before) = (right[removed as usize], left[at as usize]);
            symbols[at as usize].id = merge.merged;
            symbols[at as usize].end = symbols[removed as usize].end;
            symbols[removed as usize].end = symbols[removed as usize].start;
            pairs[removed as usize] = None;
            pairs[at as usize] = None;
            right[at as usize] = next;
            if next != NO_NEIGHBOUR {
                left[next as usize] = at;
                pairs[at as usize] = pair(symbols[at as usize], symbols[next as usize]);
                queue.extend(entry(at, &pairs[at as usize]));
            }
            if before != NO_NEIGHBOUR {
                pairs[before as usize] = pair(symbols[before as usize], symbols[at as usize]);
                queue.extend(entry(before, &pairs[before as usize]));
            }
        }
        symbols.retain(|symbol| symbol.end > symbol.start);
    }
}

/// Cache of words of one text and the positions of their tokens. Text is repetitive: about nine of
/// ten words are found.
pub(crate) struct WordCache<'a> {
    slots: Vec<(&'a str, u32, u32)>,
    seed: u64,
}

/// Longer words are rare and costly to compare.
const MAX_CACHED_WORD_BYTES: usize = 64;

impl<'a> WordCache<'a> {
    pub(crate) fn new(text_length: usize) -> Self {
        let slots = (text_length / 8).next_power_of_two().clamp(16, 1 << 14);
        WordCache { slots: vec![("", 0, 0); slots], seed: crate::hash::seed() }
    }

    /// Appends the tokens of `word` to `ids`, from the cache or by calling `tokenize`.
    #[inline]
    pub(crate) fn append(
        &mut self,
        word: &'a str,
        ids: &mut Vec<u32>,
        tokenize: impl FnOnce(&mut Vec<u32>),
    ) {
        if word.len() < 2 || word.len() > MAX_CACHED_WORD_BYTES {
            return tokenize(ids);
        }
        let slot = crate::hash::hash(self.seed, word.as_bytes()) as usize & (self.slots.len() - 1);
        let (cached, start, end) = self.slots[slot];
        if cached == word {
            return ids.extend_from_within(start as usize..end as usize);
        }
        let start = ids.len();
        tokenize(ids);
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(ids.len())) {
            self.slots[slot] = (word, start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{NEVER, PIECE_BYTES};
    use crate::random_text::Random;

    /// Merges any two symbols if a hash of their ids says so, as in an adversarial merge list.
    fn pair(a: Symbol, b: Symbol) -> Option<Merge> {
        let mut random = Random::new(u64::from(a.id) << 32 | u64::from(b.id));
        let (may, rank) = (random.below(3) > 0, random.below(50) as u32);
        may.then(|| Merge { rank, merged: random.below(20) as u32 })
    }

    #[test]
    fn queue_and_linear_scan_merge_alike() {
        let mut random = Random::new(1);
        for _ in 0..300 {
            let word: Vec<Symbol> = (0..random.below(120) as u32)
                .map(|at| Symbol { id: random.below(20) as u32, start: at, end: at + 1 })
                .collect();
            let run = |many: bool| {
                let mut merger = Merger { symbols: word.clone(), ..Merger::default() };
                merger.pairs.extend(word.windows(2).map(|two| pair(two[0], two[1])));
                if many {
                    let control = EncodeControl { cancelled: &NEVER, piece_bytes: PIECE_BYTES };
                    merger.run_queue(pair, control)
                } else {
                    merger.run_linear(pair)
                }
                merger.symbols.iter().map(|s| (s.id, s.start, s.end)).collect::<Vec<_>>()
            };
            assert_eq!(run(true), run(false));
        }
    }
}
