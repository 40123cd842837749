//! Splits a text into segments that merge independently.

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

    /// Length in bytes of the first segment of a non-empty text.
    pub(crate) fn first_segment_len(&self, text: &str) -> usize {
        let mut characters = text.char_indices();
        let Some((_, mut before)) = characters.next() else { return 0 };
        for (at, c) in characters {
            let (word, bit) = self.at(before, c);
            if self.bits[word] & bit == 0 {
                return at;
            }
            before = c;
        }
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_where_no_token_contains_both_characters() {
        let adjacent_pairs =
            AdjacentPairs::new([&b"ab"[..], "bé".as_bytes(), b"\xffxy", b"c"].into_iter());
        assert_eq!(adjacent_pairs.first_segment_len("abéab"), 4);
        assert_eq!(adjacent_pairs.first_segment_len("éab"), 2);
        assert_eq!(adjacent_pairs.first_segment_len("xy"), 1);
        assert_eq!(adjacent_pairs.first_segment_len(""), 0);
    }
}
