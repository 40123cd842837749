//! Merges a word of any length with memory for a part of it.
//!
//! The symbols of a word are correct if and only if each two neighbours are: merging the text of
//! the two alone gives these two again. The merge loop takes the pair of lowest rank, the leftmost
//! of equal ones. Restricted to a part of a word without merges across its borders, it takes the
//! same pairs in the same order as for that part alone. The first merge across a border would
//! therefore appear between two neighbours alone, too.
//!
//! So windows of a word are merged one after the other, and each starts at a symbol of the one
//! before. The two lists of symbols are joined where both have a border with neighbours that stay
//! apart. Usually that is the first border.

use crate::control::EncodeControl;
use crate::merge::{MergeRules, Merger, Symbol};

/// Bytes of a window, as a part of a piece: merging takes 40 bytes of memory for each.
const WINDOWS_PER_PIECE: usize = 8;

/// Bytes that a window shares with the one before, as a part of a window.
const OVERLAPS_PER_WINDOW: usize = 4;

/// Bytes of a window of a long word.
pub(crate) fn window_bytes(control: EncodeControl<'_>) -> usize {
    (control.piece_bytes / WINDOWS_PER_PIECE).max(OVERLAPS_PER_WINDOW)
}

/// Appends the tokens of a word. Merges a long one in windows.
#[inline]
pub(crate) fn merge_parts(
    rules: &impl MergeRules,
    word: &str,
    ids: &mut Vec<u32>,
    merger: &mut Merger,
    control: EncodeControl<'_>,
) {
    if word.len() <= 2 * window_bytes(control) {
        return merger.encode(rules, word.as_bytes(), ids, control);
    }
    let mut long = LongWord::new(ids);
    let mut rest = word;
    while !rest.is_empty() && !control.is_cancelled() {
        let (part, behind) = rest.split_at(rest.ceil_char_boundary(window_bytes(control)));
        long.push(part.as_bytes(), rules, merger, ids, control);
        rest = behind;
    }
    long.finish(rules, merger, ids, control);
}

/// A word that arrives in parts.
pub(crate) struct LongWord {
    /// Text of the word so far.
    text: Vec<u8>,
    /// Symbols of the text up to `merged`, without those whose tokens were appended. If any were,
    /// the first symbol here is the last one of them, and `appended` is set.
    symbols: Vec<Symbol>,
    merged: usize,
    appended: bool,
    /// Number of tokens before the word.
    first_token: usize,
    /// No windows can be joined, so the word is merged whole at its end. No published vocabulary
    /// needs this.
    whole: bool,
}

impl LongWord {
    /// Starts a word after the tokens in `ids`.
    pub(crate) fn new(ids: &[u32]) -> Self {
        LongWord {
            text: Vec::new(),
            symbols: Vec::new(),
            merged: 0,
            appended: false,
            first_token: ids.len(),
            whole: false,
        }
    }

    /// Adds text, which ends at a border of initial symbols, and appends the tokens that it
    /// completes.
    pub(crate) fn push(
        &mut self,
        text: &[u8],
        rules: &impl MergeRules,
        merger: &mut Merger,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        self.text.extend_from_slice(text);
        if self.text.len() - self.merged >= window_bytes(control) {
            self.merge_more(rules, merger, ids, control);
        }
    }

    /// Appends the remaining tokens.
    pub(crate) fn finish(
        mut self,
        rules: &impl MergeRules,
        merger: &mut Merger,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        self.merge_more(rules, merger, ids, control);
        if self.whole {
            ids.truncate(self.first_token);
            return merger.encode(rules, &self.text, ids, control);
        }
        for &symbol in &self.symbols[usize::from(self.appended)..] {
            rules.append(&self.text, symbol, ids);
        }
    }

    /// Merges the text that has arrived since the last call.
    fn merge_more(
        &mut self,
        rules: &impl MergeRules,
        merger: &mut Merger,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        if self.whole || self.merged == self.text.len() {
            return;
        }
        let overlap = window_bytes(control) / OVERLAPS_PER_WINDOW;
        let overlap_start = self.merged.saturating_sub(overlap) as u32;
        let first = usize::from(self.appended);
        // A window starts at this symbol.
        let mut from = self.symbols.partition_point(|symbol| symbol.start < overlap_start);
        from = from.min(self.symbols.len().saturating_sub(1)).max(first);
        while !control.is_cancelled() {
            let start = self.symbols.get(from).map_or(self.merged, |symbol| symbol.start as usize);
            merger.merge(rules, &self.text[start..], control);
            let mut window = std::mem::take(&mut merger.symbols);
            for symbol in &mut window {
                symbol.start += start as u32;
                symbol.end += start as u32;
            }
            if let Some((kept, joined)) = self.join(from, &window, rules, merger, control) {
                self.replace_symbols(kept, &window[joined..], rules, ids);
                return;
            }
            if from == first {
                self.whole = true;
                return;
            }
            from = (from / 2).max(first);
        }
    }

    /// Finds the first border at which symbols of `window`, which starts at symbol `from`, may
    /// follow the symbols so far. Returns the numbers of symbols before it in both lists.
    fn join(
        &self,
        from: usize,
        window: &[Symbol],
        rules: &impl MergeRules,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) -> Option<(usize, usize)> {
        let (mut kept, mut joined) = (from, 0);
        // The start of the word, or a word that is merged for the first time.
        if kept == 0 {
            return Some((0, 0));
        }
        loop {
            let next = *window.get(joined)?;
            let before = self.symbols[kept - 1];
            if before.end == next.start {
                let known = self.symbols.get(kept) == Some(&next)
                    || joined > 0 && window[joined - 1] == before;
                if known || self.stay_apart(before, next, rules, merger, control) {
                    return Some((kept, joined));
                }
                (kept, joined) = (kept + 1, joined + 1);
            } else if before.end < next.start {
                kept += 1;
            } else {
                joined += 1;
            }
            if kept > self.symbols.len() || control.is_cancelled() {
                return None;
            }
        }
    }

    /// Whether merging the text of two adjacent symbols gives these two again.
    fn stay_apart(
        &self,
        left: Symbol,
        right: Symbol,
        rules: &impl MergeRules,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) -> bool {
        let text = &self.text[left.start as usize..right.end as usize];
        merger.merge(rules, text, control);
        merger.symbols.len() == 2 && merger.symbols[1].start == right.start - left.start
    }

    /// Keeps the first symbols, of which all but the last become tokens, and continues with others.
    fn replace_symbols(
        &mut self,
        kept: usize,
        others: &[Symbol],
        rules: &impl MergeRules,
        ids: &mut Vec<u32>,
    ) {
        for &symbol in &self.symbols[usize::from(self.appended).min(kept)..kept] {
            rules.append(&self.text, symbol, ids);
        }
        self.symbols.drain(..kept.saturating_sub(1));
        self.symbols.truncate(kept.min(1));
        self.symbols.extend_from_slice(others);
        self.appended |= kept > 0;
        self.merged = self.text.len();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::control::NEVER;
    use crate::hash::Merge;
    use crate::random_text::Random;

    /// Merges texts of up to `longest` bytes if their hash says so. Ranks repeat, so that the
    /// leftmost of equal pairs matters.
    struct RandomRules {
        seed: u64,
        ranks: usize,
        longest: usize,
        merges: Cell<usize>,
    }

    impl MergeRules for RandomRules {
        fn split(&self, word: &[u8], symbols: &mut Vec<Symbol>) {
            symbols.extend(word.iter().zip(0..).map(|(&byte, at)| Symbol {
                id: u32::from(byte),
                start: at,
                end: at + 1,
            }));
        }

        fn pair(&self, word: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
            self.merges.set(self.merges.get() + 1);
            let text = &word[left.start as usize..right.end as usize];
            let hash = |seed| text.iter().fold(seed, |h, &b| Random::new(h ^ u64::from(b)).next());
            let mut random = Random::new(hash(self.seed));
            let merges = text.len() <= self.longest && random.below(4) > 0;
            let merged = random.next() as u32;
            merges.then(|| Merge { rank: random.below(self.ranks) as u32, merged })
        }

        fn append(&self, _: &[u8], symbol: Symbol, ids: &mut Vec<u32>) {
            ids.extend([symbol.id, symbol.end - symbol.start]);
        }
    }

    #[test]
    fn a_word_in_windows_has_the_tokens_of_the_whole_word() {
        let mut random = Random::new(7);
        for round in 0..400 {
            let rules = RandomRules {
                seed: random.next(),
                ranks: [1, 3, 1000][round % 3],
                longest: 1 + random.below(12),
                merges: Cell::default(),
            };
            let letters = 1 + random.below(3);
            let word: Vec<u8> =
                (0..random.below(600)).map(|_| b'a' + random.below(letters) as u8).collect();
            let control = |piece_bytes| EncodeControl { cancelled: &NEVER, piece_bytes };
            let (mut whole, mut pieces) = (vec![1, 2], vec![1, 2]);
            let mut merger = Merger::default();
            merger.encode(&rules, &word, &mut whole, control(1 << 20));
            let piece_bytes = 8 * (4 + random.below(60));
            let mut long = LongWord::new(&pieces);
            for part in word.chunks(1 + random.below(50)) {
                long.push(part, &rules, &mut merger, &mut pieces, control(piece_bytes));
            }
            long.finish(&rules, &mut merger, &mut pieces, control(piece_bytes));
            assert_eq!(pieces, whole, "round {round}: {:?}", String::from_utf8(word));
        }
    }

    #[test]
    fn a_long_word_is_merged_in_linear_time() {
        let rules = RandomRules { seed: 1, ranks: 3, longest: 8, merges: Cell::default() };
        let control = EncodeControl { cancelled: &NEVER, piece_bytes: 512 };
        let (mut merger, mut ids) = (Merger::default(), Vec::new());
        let mut long = LongWord::new(&ids);
        for _ in 0..1000 {
            long.push(&[b'a'; 100], &rules, &mut merger, &mut ids, control);
        }
        long.finish(&rules, &mut merger, &mut ids, control);
        assert!(rules.merges.get() < 1_000_000, "{}", rules.merges.get());
    }
}
