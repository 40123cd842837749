//! Merging of neighbours, the engine under BPE and SPM: of all adjacent pairs that may merge, the one of lowest rank
//! does, of equal ones the leftmost, until none may.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::hash::Merge;

/// Some consecutive bytes of a word, and their number among the symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Up to so many symbols it is faster to look through all pairs each time than to keep a queue.
const FEW: usize = 40;

const GONE: u32 = u32::MAX;

/// Buffers, kept from word to word.
#[derive(Default)]
pub(crate) struct Merger {
    /// The word: filled by the caller, merged by [`run`](Self::run).
    pub(crate) symbols: Vec<Symbol>,
    /// Of each symbol with its right neighbour.
    pairs: Vec<Option<Merge>>,
    left: Vec<u32>,
    right: Vec<u32>,
    /// Rank in the upper half, position in the lower one.
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Merges `symbols`; `pair` says what two neighbours become, if they may merge.
    #[inline]
    pub(crate) fn run(&mut self, pair: impl Fn(Symbol, Symbol) -> Option<Merge>) {
        self.pairs.clear();
        self.pairs.extend(self.symbols.windows(2).map(|two| pair(two[0], two[1])));
        if self.symbols.len() <= FEW { self.run_few(pair) } else { self.run_many(pair) }
    }

    #[inline]
    fn run_few(&mut self, pair: impl Fn(Symbol, Symbol) -> Option<Merge>) {
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

    fn run_many(&mut self, pair: impl Fn(Symbol, Symbol) -> Option<Merge>) {
        let Merger { symbols, pairs, left, right, queue } = self;
        let count = symbols.len() as u32;
        pairs.push(None);
        left.clear();
        left.extend((0..count).map(|at| at.wrapping_sub(1)));
        right.clear();
        right.extend((1..count).chain([GONE]));
        queue.clear();
        let entry = |at: u32, merge: &Option<Merge>| {
            merge.map(|merge| Reverse(u64::from(merge.rank) << 32 | u64::from(at)))
        };
        queue.extend((0..count).zip(pairs.iter()).filter_map(|(at, merge)| entry(at, merge)));

        while let Some(Reverse(next_up)) = queue.pop() {
            let (rank, at) = ((next_up >> 32) as u32, next_up as u32);
            // An entry is out of date if its pair has changed since.
            let Some(merge) = pairs[at as usize].filter(|merge| merge.rank == rank) else {
                continue;
            };
            let gone = right[at as usize];
            let (next, before) = (right[gone as usize], left[at as usize]);
            symbols[at as usize].id = merge.merged;
            symbols[at as usize].end = symbols[gone as usize].end;
            symbols[gone as usize].end = symbols[gone as usize].start;
            pairs[gone as usize] = None;
            pairs[at as usize] = None;
            right[at as usize] = next;
            if next != GONE {
                left[next as usize] = at;
                pairs[at as usize] = pair(symbols[at as usize], symbols[next as usize]);
                queue.extend(entry(at, &pairs[at as usize]));
            }
            if before != GONE {
                pairs[before as usize] = pair(symbols[before as usize], symbols[at as usize]);
                queue.extend(entry(before, &pairs[before as usize]));
            }
        }
        symbols.retain(|symbol| symbol.end > symbol.start);
    }
}

/// Words of one text that were tokenized already, and where their tokens are. Text repeats itself: nine words of ten
/// are found here.
pub(crate) struct WordCache<'a> {
    slots: Vec<(&'a str, u32, u32)>,
    seed: u64,
}

/// Longer words are rare, and dear to compare.
const LONGEST_CACHED: usize = 64;

impl<'a> WordCache<'a> {
    pub(crate) fn new(text_length: usize) -> Self {
        let slots = (text_length / 8).next_power_of_two().clamp(16, 1 << 14);
        WordCache { slots: vec![("", 0, 0); slots], seed: crate::hash::seed() }
    }

    /// Appends the tokens of `word` to `ids`: those found for it before, or what `tokenize` appends.
    #[inline]
    pub(crate) fn append(
        &mut self,
        word: &'a str,
        ids: &mut Vec<u32>,
        tokenize: impl FnOnce(&mut Vec<u32>),
    ) {
        if word.len() < 2 || word.len() > LONGEST_CACHED {
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
    use crate::testing::Random;

    /// Any two symbols merge if a hash of their ids says so: an adversary's merge list.
    fn pair(a: Symbol, b: Symbol) -> Option<Merge> {
        let mut random = Random::new(u64::from(a.id) << 32 | u64::from(b.id));
        let (may, rank) = (random.below(3) > 0, random.below(50) as u32);
        may.then(|| Merge { rank, merged: random.below(20) as u32 })
    }

    #[test]
    fn the_queue_merges_as_the_search_through_all_pairs_does() {
        let mut random = Random::new(1);
        for _ in 0..300 {
            let word: Vec<Symbol> = (0..random.below(120) as u32)
                .map(|at| Symbol { id: random.below(20) as u32, start: at, end: at + 1 })
                .collect();
            let run = |many: bool| {
                let mut merger = Merger { symbols: word.clone(), ..Merger::default() };
                merger.pairs.extend(word.windows(2).map(|two| pair(two[0], two[1])));
                if many {
                    merger.run_many(pair)
                } else {
                    merger.run_few(pair)
                }
                merger.symbols.iter().map(|s| (s.id, s.start, s.end)).collect::<Vec<_>>()
            };
            assert_eq!(run(true), run(false));
        }
    }
}
