//! Splits special tokens out of a text before it is tokenized.
//!
//! The order is llama.cpp's: the longest token first over the whole text, the lower id first of
//! equally long ones, then from left to right. llama.cpp searches each special token in the whole
//! text. This module finds the longest token at each position in one pass, and processes the
//! matches from a priority queue in the same order.
//!
//! A text is processed in windows, so that the queue is small. A match that reaches the end of a
//! window may overlap one behind it that comes first in that order. Such a match is uncertain, and
//! so is each later match that overlaps it. The next window starts at the first uncertain byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::control::EncodeControl;
use crate::trie::Trie;
use crate::vocab::{CONTROL, LSTRIP, RSTRIP, TokenKind, UNKNOWN, USER_DEFINED, Vocab};

/// Bytes of a window, as a part of a piece: the queue takes up to 24 bytes for each.
const WINDOWS_PER_PIECE: usize = 8;

/// Special tokens of a vocabulary.
#[derive(Debug)]
pub(crate) struct SpecialTokenPartition {
    trie: Trie,
    /// Whether some token takes adjacent white space.
    strips: bool,
}

/// What a byte of a window belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteOwner {
    /// No special token.
    Text,
    Token,
    /// Either, depending on the text behind the window.
    Uncertain,
}

/// Part of a text that is searched at once.
struct Window<'a> {
    text: &'a [u8],
    range: Range<usize>,
    /// Of each byte of the range.
    owners: Vec<ByteOwner>,
}

impl Window<'_> {
    /// Owner of a byte at or behind the start of the window.
    fn owner(&self, at: usize) -> ByteOwner {
        self.owners.get(at - self.range.start).copied().unwrap_or(ByteOwner::Uncertain)
    }

    /// Gives a range to a token.
    fn take(&mut self, range: &Range<usize>) {
        let first = self.range.start;
        self.owners[range.start - first..range.end - first].fill(ByteOwner::Token);
    }

    /// Marks a range as uncertain. With `strips`, a token there may take the white space around it.
    fn mark_uncertain(&mut self, range: Range<usize>, strips: bool) {
        let Range { mut start, mut end } = range;
        let is_free = |window: &Self, at| {
            window.is_space(at) && window.owners[at - window.range.start] == ByteOwner::Text
        };
        end = end.min(self.range.end);
        while strips && start > self.range.start && is_free(self, start - 1) {
            start -= 1;
        }
        while strips && end < self.range.end && is_free(self, end) {
            end += 1;
        }
        let first = self.range.start;
        for byte in &mut self.owners[start - first..end - first] {
            if *byte == ByteOwner::Text {
                *byte = ByteOwner::Uncertain;
            }
        }
    }

    fn is_space(&self, at: usize) -> bool {
        matches!(self.text[at], b' ' | b'\t'..=b'\r')
    }

    /// Extends a range by adjacent white space without a token, if its token takes that. The flag
    /// tells whether the result is certain.
    fn extend_over_space(&self, kind: TokenKind, mut range: Range<usize>) -> (Range<usize>, bool) {
        let mut certain = true;
        // The window starts behind other text, or behind white space of another token.
        while kind & LSTRIP != 0 && range.start > self.range.start && self.is_space(range.start - 1)
        {
            match self.owner(range.start - 1) {
                ByteOwner::Text => range.start -= 1,
                ByteOwner::Token => break,
                ByteOwner::Uncertain => {
                    certain = false;
                    break;
                }
            }
        }
        while kind & RSTRIP != 0 && range.end < self.text.len() && self.is_space(range.end) {
            match self.owner(range.end) {
                ByteOwner::Text => range.end += 1,
                ByteOwner::Token => break,
                ByteOwner::Uncertain => {
                    certain = false;
                    break;
                }
            }
        }
        (range, certain)
    }
}

impl SpecialTokenPartition {
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let special =
            || (0..vocab.len() as u32).filter(|&id| vocab.is(id, CONTROL | USER_DEFINED | UNKNOWN));
        SpecialTokenPartition {
            trie: Trie::new(special().map(|id| (vocab.text(id), id)).collect()),
            strips: special().any(|id| vocab.is(id, LSTRIP | RSTRIP)),
        }
    }

    /// Whether some token takes adjacent white space of any length.
    pub(crate) fn strips_space(&self) -> bool {
        self.strips
    }

    /// Calls `on_token` with the byte range and id of each special token of a text, from left to
    /// right. `is_allowed` decides by kind and byte range whether a token is split out.
    pub(crate) fn for_each_token(
        &self,
        vocab: &Vocab,
        text: &str,
        is_allowed: impl Fn(TokenKind, Range<usize>) -> bool,
        control: EncodeControl<'_>,
        mut on_token: impl FnMut(Range<usize>, u32),
    ) {
        let text = text.as_bytes();
        let usual = (control.piece_bytes / WINDOWS_PER_PIECE).max(1);
        let (mut start, mut size) = (0, usual);
        while start < text.len() && !control.is_cancelled() {
            let range = start..text.len().min(start + size);
            let (end, mut found) = self.search(vocab, text, range, &is_allowed, control);
            if end == start {
                // All of the window is uncertain.
                size *= 2;
                continue;
            }
            found.sort_unstable_by_key(|(range, _)| range.start);
            let certain = found.into_iter().take_while(|(range, _)| range.start < end);
            certain.for_each(|(range, id)| on_token(range, id));
            (start, size) = (end, usual);
        }
    }

    /// Finds the special tokens of a window, in no order. Those before the returned position are
    /// certain, and the next window starts there.
    fn search(
        &self,
        vocab: &Vocab,
        text: &[u8],
        range: Range<usize>,
        is_allowed: &impl Fn(TokenKind, Range<usize>) -> bool,
        control: EncodeControl<'_>,
    ) -> (usize, Vec<(Range<usize>, u32)>) {
        let longest = |at: usize, below: usize| {
            let fitting = |&(length, id): &(usize, u32)| {
                length < below && is_allowed(vocab.kind(id), at..at + length)
            };
            self.trie.prefixes(&text[at..]).filter(fitting).last()
        };
        let entry =
            |at: usize| move |(length, id): (usize, u32)| (length, Reverse(id), Reverse(at));
        let mut queue: BinaryHeap<_> = range
            .clone()
            .take_while(|_| !control.is_cancelled())
            .filter(|&at| self.trie.begins(text[at]))
            .filter_map(|at| longest(at, usize::MAX).map(entry(at)))
            .collect();
        if queue.is_empty() && !self.strips {
            return (range.end, Vec::new());
        }
        let owners = vec![ByteOwner::Text; range.len()];
        let mut window = Window { text, range: range.clone(), owners };
        if self.strips && range.end < text.len() {
            // A token behind the window may take the white space at its end.
            window.mark_uncertain(range.end..range.end, true);
        }
        let mut found = Vec::new();
        while let Some((length, Reverse(id), Reverse(at))) = queue.pop() {
            if control.is_cancelled() {
                break;
            }
            // Earlier tokens are not shorter, so they cannot lie strictly inside of this range.
            match (window.owner(at), window.owner(at + length - 1)) {
                (ByteOwner::Token, _) => {}
                (ByteOwner::Uncertain, _) | (_, ByteOwner::Uncertain) => {
                    window.mark_uncertain(at..at + length, self.strips);
                }
                (ByteOwner::Text, ByteOwner::Token) => {
                    queue.extend(longest(at, length).map(entry(at)));
                }
                (ByteOwner::Text, ByteOwner::Text) => {
                    let (range, certain) =
                        window.extend_over_space(vocab.kind(id), at..at + length);
                    if certain {
                        window.take(&range);
                        found.push((range, id));
                    } else {
                        window.mark_uncertain(range, self.strips);
                    }
                }
            }
        }
        (self.certain_end(&window), found)
    }

    /// End of the part of a window that does not depend on the text behind it.
    fn certain_end(&self, window: &Window<'_>) -> usize {
        let Range { start, end } = window.range;
        let uncertain = window.owners.iter().position(|owner| *owner == ByteOwner::Uncertain);
        let mut certain_end = uncertain.map_or(end, |at| start + at);
        // A token behind may take white space before it.
        while self.strips
            && certain_end < window.text.len()
            && certain_end > start
            && window.is_space(certain_end - 1)
            && window.owner(certain_end - 1) == ByteOwner::Text
        {
            certain_end -= 1;
        }
        certain_end
    }
}

#[cfg(test)]
mod tests {
    use puna_gguf::{Metadata, Value};

    use super::*;
    use crate::random_text::Random;

    /// A vocabulary of tokens with types as in the file.
    fn vocab(tokens: &[(&str, i32)]) -> Vocab {
        let mut meta = Metadata::new();
        meta.set("tokenizer.ggml.tokens", Value::strings(tokens.iter().map(|(text, _)| text)));
        meta.set(
            "tokenizer.ggml.token_type",
            tokens.iter().map(|&(_, ty)| ty).collect::<Vec<i32>>(),
        );
        Vocab::read(&meta).unwrap()
    }

    /// Fragment of a text.
    #[derive(Debug, PartialEq, Eq)]
    enum Fragment {
        /// A special token.
        Token(u32),
        /// Text between special tokens, never empty.
        Text(Range<usize>),
    }

    fn fragments(
        vocab: &Vocab,
        text: &str,
        piece_bytes: usize,
        is_allowed: impl Fn(TokenKind, Range<usize>) -> bool,
    ) -> Vec<Fragment> {
        let control = EncodeControl { cancelled: &crate::control::NEVER, piece_bytes };
        let (mut fragments, mut end) = (Vec::new(), 0);
        let partition = SpecialTokenPartition::new(vocab);
        partition.for_each_token(vocab, text, is_allowed, control, |range, id| {
            fragments.extend([Fragment::Text(end..range.start), Fragment::Token(id)]);
            end = range.end;
        });
        fragments.push(Fragment::Text(end..text.len()));
        fragments.retain(|part| !matches!(part, Fragment::Text(range) if range.is_empty()));
        fragments
    }

    fn split(vocab: &Vocab, text: &str, parse_special: bool) -> Vec<String> {
        let shown = |part| match part {
            Fragment::Token(id) => format!("#{id}"),
            Fragment::Text(range) => text[range].to_owned(),
        };
        let is_allowed = |kind, _| kind & (CONTROL | UNKNOWN) == 0 || parse_special;
        let shown_in = |piece_bytes| -> Vec<String> {
            fragments(vocab, text, piece_bytes, is_allowed).into_iter().map(shown).collect()
        };
        let whole = shown_in(1 << 20);
        for piece_bytes in 1..=80 {
            assert_eq!(shown_in(piece_bytes), whole, "{piece_bytes}");
        }
        whole
    }

    #[test]
    fn longer_tokens_are_split_out_first() {
        let vocab = vocab(&[("<ab>", 3), ("b><c>d", 4), ("<c>", 4), ("x", 1)]);
        assert_eq!(split(&vocab, "x<ab><c>d", true), ["x<a", "#1"]);
        assert_eq!(split(&vocab, "x<ab><c>", true), ["x", "#0", "#2"]);
        assert_eq!(split(&vocab, "x<ab><c>", false), ["x<ab>", "#2"]);
        assert_eq!(split(&vocab, "", true), [""; 0]);
    }

    #[test]
    fn tokens_take_adjacent_white_space_if_marked() {
        let mut vocab = vocab(&[("<l>", 3), ("<r>", 3), ("  ", 4)]);
        vocab.kinds[0] |= LSTRIP;
        vocab.kinds[1] |= RSTRIP;
        assert_eq!(split(&vocab, "a \n<l> b", true), ["a", "#0", " b"]);
        assert_eq!(split(&vocab, "a <r>\t\u{b} \u{a0}b", true), ["a ", "#1", "\u{a0}b"]);
        assert_eq!(split(&vocab, " <l><r> ", true), ["#0", "#1"]);
    }

    /// llama.cpp's algorithm: for each token, longest first, search all remaining text.
    fn naive(vocab: &Vocab, text: &str) -> Vec<Fragment> {
        let mut order: Vec<u32> = (0..vocab.len() as u32).collect();
        order.sort_by_key(|&id| Reverse(vocab.text(id).len()));
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for id in order {
            let token = std::str::from_utf8(vocab.text(id)).unwrap();
            let split = |part| match part {
                Fragment::Text(range) => {
                    let (mut out, mut start) = (vec![], range.start);
                    for (at, _) in text[range.clone()].match_indices(token) {
                        out.extend([Fragment::Text(start..range.start + at), Fragment::Token(id)]);
                        start = range.start + at + token.len();
                    }
                    out.push(Fragment::Text(start..range.end));
                    out
                }
                token => vec![token],
            };
            fragments = fragments.into_iter().flat_map(split).collect();
        }
        fragments.retain(|part| !matches!(part, Fragment::Text(range) if range.is_empty()));
        fragments
    }

    #[test]
    fn queue_splits_like_a_search_for_each_token() {
        let mut random = Random::new(3);
        let mut word = |length: usize| -> String {
            (0..length).map(|_| ['a', 'b', 'é'][random.below(3)]).collect()
        };
        for round in 0..500 {
            let mut tokens: Vec<String> = (0..8).map(|i| word(1 + (i + round) % 5)).collect();
            tokens.sort();
            tokens.dedup();
            let vocab = vocab(&tokens.iter().map(|text| (text.as_str(), 4)).collect::<Vec<_>>());
            let text = word(30);
            for piece_bytes in [8, 24, 88, 1 << 20] {
                assert_eq!(
                    fragments(&vocab, &text, piece_bytes, |_, _| true),
                    naive(&vocab, &text),
                    "{tokens:?} {text}"
                );
            }
        }
    }

    #[test]
    fn windows_do_not_change_which_white_space_a_token_takes() {
        let mut random = Random::new(5);
        let mut vocab =
            vocab(&[("<l>", 3), ("<r>", 3), ("<b>", 3), ("  ", 4), ("\n", 4), ("a ", 4)]);
        vocab.kinds[0] |= LSTRIP;
        vocab.kinds[1] |= RSTRIP;
        vocab.kinds[2] |= LSTRIP | RSTRIP;
        let parts = ["<l>", "<r>", "<b>", " ", "  ", "\n", "\t", "a", "<"];
        for _ in 0..500 {
            let text: String =
                (0..random.below(25)).map(|_| parts[random.below(parts.len())]).collect();
            split(&vocab, &text, true);
        }
    }
}
