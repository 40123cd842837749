//! Where a text can be cut before merging, without a difference.

/// Pairs of characters that stand side by side in some token. Where two characters never do, no merge can join them, and
/// the text falls apart in islands (words, for most vocabularies) that are tokenized each on its own.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// A bit for each hash of a pair: one that is set by chance joins two islands and does no harm.
    bits: Vec<u64>,
}

impl Neighbours {
    /// The pairs in these texts; what is no UTF-8 can never be the text of a merge.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        // 2^20 bits, 128 KiB: Gemma 3's 262,144 tokens have 34,012 different pairs.
        let mut neighbours = Neighbours { bits: vec![0; 1 << 14] };
        for text in texts.filter_map(|text| std::str::from_utf8(text).ok()) {
            let mut before = None;
            for c in text.chars() {
                if let Some(before) = before {
                    let (word, bit) = neighbours.at(before, c);
                    neighbours.bits[word] |= bit;
                }
                before = Some(c);
            }
        }
        neighbours
    }

    #[inline]
    fn at(&self, left: char, right: char) -> (usize, u64) {
        let pair = u64::from(left) << 21 | u64::from(right);
        let hash = pair.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((hash >> 40) as usize & (self.bits.len() - 1), 1 << (hash >> 34 & 63))
    }

    /// The length of the first island of a text that is not empty.
    pub(crate) fn first_island(&self, text: &str) -> usize {
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
    fn a_text_is_cut_where_no_token_has_the_two_characters() {
        let neighbours =
            Neighbours::new([&b"ab"[..], "bé".as_bytes(), b"\xffxy", b"c"].into_iter());
        assert_eq!(neighbours.first_island("abéab"), 4);
        assert_eq!(neighbours.first_island("éab"), 2);
        assert_eq!(neighbours.first_island("xy"), 1);
        assert_eq!(neighbours.first_island(""), 0);
    }
}
