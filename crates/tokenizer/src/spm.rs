//! SentencePiece BPE: merges characters to the tokens of highest score, with bytes as fallback.

use crate::hash::Merge;
use crate::merge::{Merger, Symbol, WordCache};
use crate::segments::AdjacentPairs;
use crate::vocab::Vocab;

/// A character that is not a token.
const NO_TOKEN: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Spm {
    /// Ranks of tokens. A higher score gives a lower rank.
    ranks: Vec<u32>,
    /// Tokens of the 256 bytes.
    bytes: Vec<Option<u32>>,
    adjacent_pairs: AdjacentPairs,
    pub(crate) space_prefix: bool,
    pub(crate) escape_spaces: bool,
    unk: Option<u32>,
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, space_prefix: bool, unk: Option<u32>) -> Self {
        Spm {
            ranks: (0..vocab.len() as u32).map(|id| rank(vocab.score(id))).collect(),
            bytes: (0..=255).map(|byte| vocab.byte(byte)).collect(),
            adjacent_pairs: AdjacentPairs::new(vocab.texts.iter()),
            space_prefix,
            escape_spaces: true,
            unk,
        }
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 4 + 3);
        escaped.push_str(if self.space_prefix { " " } else { "" });
        escaped.push_str(text);
        let text = if self.escape_spaces { escaped.replace(' ', "▁") } else { escaped };

        let mut cache = WordCache::new(text.len());
        let mut merger = Merger::default();
        let mut start = 0;
        while start < text.len() {
            let end = start + self.adjacent_pairs.first_segment_len(&text[start..]);
            let word = &text[start..end];
            cache.append(word, ids, |ids| self.encode_segment(vocab, word, ids, &mut merger));
            start = end;
        }
    }

    fn encode_segment(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>, merger: &mut Merger) {
        let bytes = text.as_bytes();
        merger.symbols.clear();
        merger.symbols.extend(text.char_indices().map(|(at, c)| {
            let end = at + c.len_utf8();
            Symbol {
                id: vocab.id(&bytes[at..end]).unwrap_or(NO_TOKEN),
                start: at as u32,
                end: end as u32,
            }
        }));
        merger.run(|left, right| {
            let (start, end) = (left.start as usize, right.end as usize);
            if end - start > vocab.longest {
                return None;
            }
            let merged = vocab.id(&bytes[start..end])?;
            Some(Merge { rank: self.ranks[merged as usize], merged })
        });
        for symbol in &merger.symbols {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
                continue;
            }
            let spelt = &bytes[symbol.start as usize..symbol.end as usize];
            ids.extend(spelt.iter().filter_map(|&byte| self.bytes[usize::from(byte)].or(self.unk)));
        }
    }
}

/// Maps scores to integers in reverse order. NaN comes last.
fn rank(score: f32) -> u32 {
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 1 << 31) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_sort_in_reverse_order_of_scores() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, -1e30, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!((rank(-0.0), rank(f32::NAN)), (rank(0.0), rank(f32::NEG_INFINITY)));
    }
}
