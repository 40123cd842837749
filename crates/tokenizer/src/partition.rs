//! Splits special tokens out of a text before it is tokenized.
//!
//! The order is llama.cpp's: the longest token first over the whole text, the lower id first of
//! equally long ones, then from left to right. llama.cpp searches each special token in the whole
//! text. This module finds the longest token at each position in one pass, and processes the
//! matches from a priority queue in the same order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::trie::Trie;
use crate::vocab::{CONTROL, LSTRIP, RSTRIP, TokenKind, UNKNOWN, USER_DEFINED, Vocab};

/// Fragment of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// A special token.
    Token(u32),
    /// Text between special tokens, never empty.
    Text(Range<usize>),
}

/// Special tokens of a vocabulary.
#[derive(Debug)]
pub(crate) struct SpecialTokenPartition {
    trie: Trie,
}

impl SpecialTokenPartition {
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let special =
            (0..vocab.len() as u32).filter(|&id| vocab.is(id, CONTROL | USER_DEFINED | UNKNOWN));
        SpecialTokenPartition { trie: Trie::new(special.map(|id| (vocab.text(id), id)).collect()) }
    }

    /// Splits a text. A token is split out if `is_allowed` returns `true` for its kind and byte
    /// range.
    pub(crate) fn split(
        &self,
        vocab: &Vocab,
        text: &str,
        is_allowed: impl Fn(TokenKind, Range<usize>) -> bool,
    ) -> Vec<Fragment> {
        fragments(self.find(vocab, text, is_allowed), text.len())
    }

    /// Finds the allowed special tokens of a text with their byte ranges, in no order.
    pub(crate) fn find(
        &self,
        vocab: &Vocab,
        text: &str,
        is_allowed: impl Fn(TokenKind, Range<usize>) -> bool,
    ) -> Vec<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        let is_allowed = |id: u32, range| is_allowed(vocab.kind(id), range);
        let longest = |at: usize, below: usize| {
            let fitting =
                |&(length, id): &(usize, u32)| length < below && is_allowed(id, at..at + length);
            self.trie.prefixes(&bytes[at..]).filter(fitting).last()
        };
        let mut queue: BinaryHeap<_> = (0..bytes.len())
            .filter(|&at| self.trie.begins(bytes[at]))
            .filter_map(|at| {
                longest(at, usize::MAX).map(|(length, id)| (length, Reverse(id), Reverse(at)))
            })
            .collect();
        if queue.is_empty() {
            return Vec::new();
        }

        let mut taken = vec![false; bytes.len()];
        let mut found = Vec::new();
        while let Some((length, Reverse(id), Reverse(at))) = queue.pop() {
            if taken[at] {
                continue;
            }
            // Earlier tokens are not shorter, so they cannot lie strictly inside of this range.
            if taken[at + length - 1] {
                queue.extend(
                    longest(at, length).map(|(length, id)| (length, Reverse(id), Reverse(at))),
                );
                continue;
            }
            let range = extend_over_space(bytes, &taken, vocab.kind(id), at..at + length);
            taken[range.clone()].fill(true);
            found.push((range, id));
        }
        found
    }
}

/// Extends a range by adjacent free white space that the token takes.
fn extend_over_space(
    bytes: &[u8],
    taken: &[bool],
    kind: TokenKind,
    mut range: Range<usize>,
) -> Range<usize> {
    let free_space = |at: usize| matches!(bytes[at], b' ' | b'\t'..=b'\r') && !taken[at];
    while kind & LSTRIP != 0 && range.start > 0 && free_space(range.start - 1) {
        range.start -= 1;
    }
    while kind & RSTRIP != 0 && range.end < bytes.len() && free_space(range.end) {
        range.end += 1;
    }
    range
}

fn fragments(mut found: Vec<(Range<usize>, u32)>, length: usize) -> Vec<Fragment> {
    found.sort_unstable_by_key(|(range, _)| range.start);
    let mut fragments = Vec::with_capacity(found.len() * 2 + 1);
    let mut end = 0;
    for (range, id) in found {
        if range.start > end {
            fragments.push(Fragment::Text(end..range.start));
        }
        fragments.push(Fragment::Token(id));
        end = range.end;
    }
    if end < length {
        fragments.push(Fragment::Text(end..length));
    }
    fragments
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

    fn split(vocab: &Vocab, text: &str, parse_special: bool) -> Vec<String> {
        let shown = |part| match part {
            Fragment::Token(id) => format!("#{id}"),
            Fragment::Text(range) => text[range].to_owned(),
        };
        let is_allowed = |kind, _| kind & (CONTROL | UNKNOWN) == 0 || parse_special;
        SpecialTokenPartition::new(vocab)
            .split(vocab, text, is_allowed)
            .into_iter()
            .map(shown)
            .collect()
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
            assert_eq!(
                SpecialTokenPartition::new(&vocab).split(&vocab, &text, |_, _| true),
                naive(&vocab, &text),
                "{tokens:?} {text}"
            );
        }
    }
}
