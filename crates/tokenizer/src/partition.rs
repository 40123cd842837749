//! Special tokens in the text: cut out before anything else is done.
//!
//! The order is llama.cpp's: the longest token first over the whole text, wherever it stands; of equally long ones the
//! lower id; then from the left. There, each special token is searched for in all of the text; here, one walk finds for
//! each position the longest that begins there, and a queue hands them out in that order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::trie::Trie;
use crate::vocab::{CONTROL, Kind, LSTRIP, RSTRIP, UNKNOWN, USER_DEFINED, Vocab};

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A special token.
    Token(u32),
    /// Text between special tokens, never empty.
    Text(Range<usize>),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(crate) struct Partition {
    trie: Trie,
}

impl Partition {
    pub(crate) fn new(vocab: &Vocab) -> Self {
        let special =
            (0..vocab.len() as u32).filter(|&id| vocab.is(id, CONTROL | USER_DEFINED | UNKNOWN));
        Partition { trie: Trie::new(special.map(|id| (vocab.text(id), id)).collect()) }
    }

    /// Cuts the text. Tokens are cut out where `wanted` says so of their kind and the bytes that they would take.
    pub(crate) fn cut(
        &self,
        vocab: &Vocab,
        text: &str,
        wanted: impl Fn(Kind, Range<usize>) -> bool,
    ) -> Vec<Part> {
        parts(self.find(vocab, text, wanted), text.len())
    }

    /// The special tokens of a text that are wanted, with their places, in no order.
    pub(crate) fn find(
        &self,
        vocab: &Vocab,
        text: &str,
        wanted: impl Fn(Kind, Range<usize>) -> bool,
    ) -> Vec<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        let wanted = |id: u32, range| wanted(vocab.kind(id), range);
        let longest = |at: usize, below: usize| {
            let fitting =
                |&(length, id): &(usize, u32)| length < below && wanted(id, at..at + length);
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
            // What was taken before is no shorter: it cannot lie between the two ends.
            if taken[at + length - 1] {
                queue.extend(
                    longest(at, length).map(|(length, id)| (length, Reverse(id), Reverse(at))),
                );
                continue;
            }
            let range = strip(bytes, &taken, vocab.kind(id), at..at + length);
            taken[range.clone()].fill(true);
            found.push((range, id));
        }
        found
    }
}

/// The range with the free white space beside it that the token takes.
fn strip(bytes: &[u8], taken: &[bool], kind: Kind, mut range: Range<usize>) -> Range<usize> {
    let free_space = |at: usize| matches!(bytes[at], b' ' | b'\t'..=b'\r') && !taken[at];
    while kind & LSTRIP != 0 && range.start > 0 && free_space(range.start - 1) {
        range.start -= 1;
    }
    while kind & RSTRIP != 0 && range.end < bytes.len() && free_space(range.end) {
        range.end += 1;
    }
    range
}

fn parts(mut found: Vec<(Range<usize>, u32)>, length: usize) -> Vec<Part> {
    found.sort_unstable_by_key(|(range, _)| range.start);
    let mut parts = Vec::with_capacity(found.len() * 2 + 1);
    let mut end = 0;
    for (range, id) in found {
        if range.start > end {
            parts.push(Part::Text(end..range.start));
        }
        parts.push(Part::Token(id));
        end = range.end;
    }
    if end < length {
        parts.push(Part::Text(end..length));
    }
    parts
}

#[cfg(test)]
mod tests {
    use puna_gguf::{Metadata, Value};

    use super::*;
    use crate::testing::Random;

    /// Tokens with their types, in the numbers of the file.
    fn vocab(tokens: &[(&str, i32)]) -> Vocab {
        let mut meta = Metadata::new();
        meta.set("tokenizer.ggml.tokens", Value::strings(tokens.iter().map(|(text, _)| text)));
        meta.set(
            "tokenizer.ggml.token_type",
            tokens.iter().map(|&(_, ty)| ty).collect::<Vec<i32>>(),
        );
        Vocab::read(&meta).unwrap()
    }

    fn cut(vocab: &Vocab, text: &str, parse_special: bool) -> Vec<String> {
        let shown = |part| match part {
            Part::Token(id) => format!("#{id}"),
            Part::Text(range) => text[range].to_owned(),
        };
        let wanted = |kind, _| kind & (CONTROL | UNKNOWN) == 0 || parse_special;
        Partition::new(vocab).cut(vocab, text, wanted).into_iter().map(shown).collect()
    }

    #[test]
    fn a_longer_token_further_right_is_cut_first() {
        let vocab = vocab(&[("<ab>", 3), ("b><c>d", 4), ("<c>", 4), ("x", 1)]);
        assert_eq!(cut(&vocab, "x<ab><c>d", true), ["x<a", "#1"]);
        assert_eq!(cut(&vocab, "x<ab><c>", true), ["x", "#0", "#2"]);
        assert_eq!(cut(&vocab, "x<ab><c>", false), ["x<ab>", "#2"]);
        assert_eq!(cut(&vocab, "", true), [""; 0]);
    }

    #[test]
    fn tokens_take_the_white_space_they_are_marked_for() {
        let mut vocab = vocab(&[("<l>", 3), ("<r>", 3), ("  ", 4)]);
        vocab.kinds[0] |= LSTRIP;
        vocab.kinds[1] |= RSTRIP;
        assert_eq!(cut(&vocab, "a \n<l> b", true), ["a", "#0", " b"]);
        assert_eq!(cut(&vocab, "a <r>\t\u{b} \u{a0}b", true), ["a ", "#1", "\u{a0}b"]);
        assert_eq!(cut(&vocab, " <l><r> ", true), ["#0", "#1"]);
    }

    /// llama.cpp's way: for each token, longest first, through all that is still text.
    fn naive(vocab: &Vocab, text: &str) -> Vec<Part> {
        let mut order: Vec<u32> = (0..vocab.len() as u32).collect();
        order.sort_by_key(|&id| Reverse(vocab.text(id).len()));
        let mut parts = vec![Part::Text(0..text.len())];
        for id in order {
            let token = std::str::from_utf8(vocab.text(id)).unwrap();
            let split = |part| match part {
                Part::Text(range) => {
                    let (mut out, mut start) = (vec![], range.start);
                    for (at, _) in text[range.clone()].match_indices(token) {
                        out.extend([Part::Text(start..range.start + at), Part::Token(id)]);
                        start = range.start + at + token.len();
                    }
                    out.push(Part::Text(start..range.end));
                    out
                }
                token => vec![token],
            };
            parts = parts.into_iter().flat_map(split).collect();
        }
        parts.retain(|part| !matches!(part, Part::Text(range) if range.is_empty()));
        parts
    }

    #[test]
    fn the_queue_cuts_as_a_search_for_each_token_does() {
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
                Partition::new(&vocab).cut(&vocab, &text, |_, _| true),
                naive(&vocab, &text),
                "{tokens:?} {text}"
            );
        }
    }
}
