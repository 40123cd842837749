//! SentencePiece BPE: merges characters to the tokens of highest score, with bytes as fallback.

use crate::control::EncodeControl;
use crate::hash::Merge;
use crate::long_word::merge_parts;
use crate::merge::{MergeRules, Merger, Symbol, WordCache};
use crate::segments::{AdjacentPairs, SegmentStream, split_at_border};
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

    /// Appends the tokens of a text without special tokens. Each piece of it becomes a copy with
    /// escaped spaces. A segment that is longer than a piece is encoded character by character.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        let rules = SpmRules { spm: self, vocab };
        let escape = |c| if c == ' ' && self.escape_spaces { '▁' } else { c };
        let mut merger = Merger::default();
        let mut prefix = self.space_prefix.then_some(' ');
        let mut rest = text;
        while !rest.is_empty() && !control.is_cancelled() {
            let is_border = |before, c| !self.adjacent_pairs.contains(escape(before), escape(c));
            let (piece, behind) = split_at_border(rest, is_border, control);
            rest = behind;
            let characters = prefix.take().into_iter().chain(piece.chars()).map(escape);
            if piece.len() > control.piece_bytes {
                let mut segments =
                    SegmentStream::new(&rules, &self.adjacent_pairs, &mut merger, control);
                characters
                    .take_while(|_| !control.is_cancelled())
                    .for_each(|c| segments.push(c, ids));
                segments.finish(ids);
            } else {
                let mut escaped = String::with_capacity(piece.len() + piece.len() / 2 + 3);
                escaped.extend(characters);
                self.encode_segments(&rules, &escaped, ids, &mut merger, control);
            }
        }
    }

    fn encode_segments(
        &self,
        rules: &SpmRules<'_>,
        text: &str,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) {
        let mut cache = WordCache::new(text.len());
        let mut rest = text;
        while !rest.is_empty() && !control.is_cancelled() {
            let (word, behind) =
                rest.split_at(self.adjacent_pairs.first_segment_len(rest, control));
            cache.append(word, ids, |ids| merge_parts(rules, word, ids, merger, control));
            rest = behind;
        }
    }

    /// Whether every byte of a text becomes part of a token.
    pub(crate) fn covers_every_byte(&self) -> bool {
        self.unk.is_some() || self.bytes.iter().all(Option::is_some)
    }
}

/// A vocabulary with its ranks.
struct SpmRules<'a> {
    spm: &'a Spm,
    vocab: &'a Vocab,
}

impl MergeRules for SpmRules<'_> {
    fn split(&self, word: &[u8], symbols: &mut Vec<Symbol>) {
        let text = std::str::from_utf8(word).unwrap_or_default();
        symbols.extend(text.char_indices().map(|(at, c)| {
            let end = at + c.len_utf8();
            let id = self.vocab.id(&word[at..end]).unwrap_or(NO_TOKEN);
            Symbol { id, start: at as u32, end: end as u32 }
        }));
    }

    #[inline]
    fn pair(&self, word: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
        let (start, end) = (left.start as usize, right.end as usize);
        if end - start > self.vocab.longest {
            return None;
        }
        let merged = self.vocab.id(&word[start..end])?;
        Some(Merge { rank: self.spm.ranks[merged as usize], merged })
    }

    fn append(&self, word: &[u8], symbol: Symbol, ids: &mut Vec<u32>) {
        if symbol.id != NO_TOKEN {
            return ids.push(symbol.id);
        }
        let spelt = &word[symbol.start as usize..symbol.end as usize];
        let spm = self.spm;
        ids.extend(spelt.iter().filter_map(|&byte| spm.bytes[usize::from(byte)].or(spm.unk)));
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
