//! Splits a text into segments that merge independently.

use crate::control::EncodeControl;
use crate::long_word::{LongWord, window_bytes};
use crate::merge::{MergeRules, Merger};

/// Pairs of characters that are adjacent in some token. Characters that are never adjacent cannot
/// merge, so the text splits between them. The segments, words in most vocabularies, are tokenized
/// separately.
#[derive(Debug)]
pub(crate) struct AdjacentPairs {
    /// Bit set of pair hashes. A collision only joins two segments, which is harmless.
    bits: Vec<u64>,
}

impl AdjacentPairs {
    /// Collects the pairs in these texts. Skips texts that are not UTF-8, since they cannot result
    /// from a merge.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        // 2^20 bits, 128 KiB. Gemma 3's 262,144 tokens contain 34,012 different pairs.
        let mut adjacent_pairs = AdjacentPairs { bits: vec![0; 1 << 14] };
        for text in texts.filter_map(|text| std::str::from_utf8(text).ok()) {
            let mut before = None;
            for c in text.chars() {
                if let Some(before) = before {
                    let (word, bit) = adjacent_pairs.at(before, c);
                    adjacent_pairs.bits[word] |= bit;
                }
                before = Some(c);
            }
        }
        adjacent_pairs
    }

    #[inline]
    fn at(&self, left: char, right: char) -> (usize, u64) {
        let pair = u64::from(left) << 21 | u64::from(right);
        let hash = pair.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((hash >> 40) as usize & (self.bits.len() - 1), 1 << (hash >> 34 & 63))
    }

    /// Whether a token may contain both characters in this order.
    #[inline]
    pub(crate) fn contains(&self, left: char, right: char) -> bool {
        let (word, bit) = self.at(left, right);
        self.bits[word] & bit != 0
    }

    /// Length in bytes of the first segment of a non-empty text.
    pub(crate) fn first_segment_len(&self, text: &str, control: EncodeControl<'_>) -> usize {
        let mut characters = text.char_indices();
        let Some((_, mut before)) = characters.next() else { return 0 };
        for (at, c) in characters {
            if !self.contains(before, c) || control.is_cancelled() {
                return at;
            }
            before = c;
        }
        text.len()
    }
}

/// Splits a text behind its first piece, which is empty for an empty text only. The piece ends at
/// the last border between two characters that fits a piece, or else at the first border behind.
pub(crate) fn split_at_border<'a>(
    text: &'a str,
    is_border: impl Fn(char, char) -> bool,
    control: EncodeControl<'_>,
) -> (&'a str, &'a str) {
    if text.len() <= control.piece_bytes {
        return (text, "");
    }
    let max = text.floor_char_boundary(control.piece_bytes);
    let (first, behind) = text.split_at(max);
    let mut next = behind.chars().next();
    for (at, c) in first.char_indices().rev().take_while(|_| !control.is_cancelled()) {
        if next.is_some_and(|next| is_border(c, next)) {
            return text.split_at(at + c.len_utf8());
        }
        next = Some(c);
    }
    let mut before = first.chars().next_back();
    for (at, c) in behind.char_indices().take_while(|_| !control.is_cancelled()) {
        if before.is_some_and(|before| is_border(before, c)) {
            return text.split_at(max + at);
        }
        before = Some(c);
    }
    (text, "")
}

/// Segments of a text that arrives character by character, for segments of any length.
pub(crate) struct SegmentStream<'a, R> {
    rules: &'a R,
    adjacent_pairs: &'a AdjacentPairs,
    merger: &'a mut Merger,
    control: EncodeControl<'a>,
    /// End of the present segment, which has not reached `long`.
    buffer: String,
    before: Option<char>,
    /// The segment, if it is long.
    long: Option<LongWord>,
}

impl<'a, R: MergeRules> SegmentStream<'a, R> {
    pub(crate) fn new(
        rules: &'a R,
        adjacent_pairs: &'a AdjacentPairs,
        merger: &'a mut Merger,
        control: EncodeControl<'a>,
    ) -> Self {
        let (buffer, before, long) = (String::new(), None, None);
        SegmentStream { rules, adjacent_pairs, merger, control, buffer, before, long }
    }

    /// Adds a character, and appends the tokens that it completes.
    pub(crate) fn push(&mut self, c: char, ids: &mut Vec<u32>) {
        if self.before.is_some_and(|before| !self.adjacent_pairs.contains(before, c)) {
            self.end_segment(ids);
        } else if self.buffer.len() >= window_bytes(self.control) {
            let long = self.long.get_or_insert_with(|| LongWord::new(ids));
            long.push(self.buffer.as_bytes(), self.rules, self.merger, ids, self.control);
            self.buffer.clear();
        }
        self.buffer.push(c);
        self.before = Some(c);
    }

    /// Appends the tokens of the last segment.
    pub(crate) fn finish(mut self, ids: &mut Vec<u32>) {
        self.end_segment(ids);
    }

    fn end_segment(&mut self, ids: &mut Vec<u32>) {
        let (rules, text, control) = (self.rules, self.buffer.as_bytes(), self.control);
        match self.long.take() {
            Some(mut long) => {
                long.push(text, rules, self.merger, ids, control);
                long.finish(rules, self.merger, ids, control);
            }
            None => self.merger.encode(rules, text, ids, control),
        }
        self.buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::NEVER;

    #[test]
    fn a_text_is_split_where_no_token_contains_both_characters() {
        let adjacent_pairs =
            AdjacentPairs::new([&b"ab"[..], "bé".as_bytes(), b"\xffxy", b"c"].into_iter());
        let control = EncodeControl { cancelled: &NEVER, piece_bytes: 4 };
        assert_eq!(adjacent_pairs.first_segment_len("abéab", control), 4);
        assert_eq!(adjacent_pairs.first_segment_len("éab", control), 2);
        assert_eq!(adjacent_pairs.first_segment_len("xy", control), 1);
        assert_eq!(adjacent_pairs.first_segment_len("", control), 0);
    }

    #[test]
    fn a_piece_ends_at_the_last_border_that_fits_it() {
        let split = |text| {
            let control = EncodeControl { cancelled: &NEVER, piece_bytes: 4 };
            split_at_border(text, |_, c| c == '_', control)
        };
        assert_eq!(split("a_b_c_d"), ("a_b", "_c_d"));
        assert_eq!(split("abc_d"), ("abc", "_d"));
        assert_eq!(split("abcd_e_"), ("abcd", "_e_"));
        assert_eq!(split("abéédef_g_"), ("abéédef", "_g_"));
        assert_eq!(
            (split("abcdefg"), split("_"), split("")),
            (("abcdefg", ""), ("_", ""), ("", ""))
        );
    }
}
