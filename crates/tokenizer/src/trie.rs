//! Finds keys that are prefixes of a text.

use crate::control::EncodeControl;

/// Byte trie in breadth-first order. Children of a node are adjacent and sorted.
#[derive(Debug)]
pub(crate) struct Trie {
    /// Byte that leads to each node.
    bytes: Vec<u8>,
    /// First child of each node. They end at the first child of the next node.
    children: Vec<u32>,
    /// Value of the key that ends at each node, or [`NONE`].
    values: Vec<u32>,
    /// Children of the root by byte; 0 if there is none.
    first: Box<[u32; 256]>,
    /// Length in bytes of the longest key.
    longest: usize,
}

/// Value of a node at which no key ends.
const NONE: u32 = u32::MAX;

impl Trie {
    /// Builds a trie of keys, with values below 2^32-1. Of equal keys the last one counts. Empty
    /// keys are ignored.
    pub(crate) fn new(mut keys: Vec<(&[u8], u32)>) -> Self {
        keys.retain(|(key, _)| !key.is_empty());
        keys.sort_by_key(|&(key, _)| key);
        let mut trie = Trie {
            bytes: vec![0],
            children: vec![],
            values: vec![NONE],
            first: Box::new([0; 256]),
            longest: keys.iter().map(|(key, _)| key.len()).max().unwrap_or(0),
        };
        // Ranges of keys below each node of a level, in the order of the nodes.
        let mut level = vec![(0, keys.len())];
        let mut depth = 0;
        while !level.is_empty() {
            let mut below = Vec::new();
            for (start, end) in level {
                trie.children.push(trie.bytes.len() as u32);
                let mut at = start;
                while at < end {
                    let byte = keys[at].0[depth];
                    let same = keys[at..end].partition_point(|(key, _)| key[depth] == byte);
                    let ending =
                        keys[at..at + same].partition_point(|(key, _)| key.len() == depth + 1);
                    if depth == 0 {
                        trie.first[usize::from(byte)] = trie.bytes.len() as u32;
                    }
                    trie.bytes.push(byte);
                    trie.values.push(if ending > 0 { keys[at + ending - 1].1 } else { NONE });
                    below.push((at + ending, at + same));
                    at += same;
                }
            }
            level = below;
            depth += 1;
        }
        trie.children.push(trie.bytes.len() as u32);
        trie
    }

    /// Length in bytes of the longest key.
    pub(crate) fn longest_key(&self) -> usize {
        self.longest
    }

    /// Value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<u32> {
        self.longest(key).filter(|(length, _)| *length == key.len()).map(|(_, value)| value)
    }

    /// Finds the first position from `from` that no key spans: each key that starts at a character
    /// before it also ends before it. Returns `None` if the text ends before that is known.
    pub(crate) fn find_border(
        &self,
        text: &[u8],
        from: usize,
        control: EncodeControl<'_>,
    ) -> Option<usize> {
        let first = from.saturating_sub(self.longest);
        let last = text.len().checked_sub(self.longest)?;
        let (mut at, mut reach) = (0, 0);
        while at <= last && !control.is_cancelled() {
            if at >= from && at > 0 && reach <= at {
                return Some(at);
            }
            if at >= first {
                reach = self.longest(&text[at..]).map_or(0, |(key, _)| at + key).max(reach);
            }
            at += character_length(&text[at..]).max(1);
        }
        None
    }

    /// Whether a key starts with this byte.
    #[inline]
    pub(crate) fn begins(&self, byte: u8) -> bool {
        self.first[usize::from(byte)] != 0
    }

    /// All keys that are prefixes of `text`, shortest first: length and value.
    pub(crate) fn prefixes<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = text.first().map_or(0, |&byte| self.first[usize::from(byte)]);
        let mut length = 1;
        std::iter::from_fn(move || {
            while node != 0 {
                let (value, at) = (self.values[node as usize], length);
                node = text.get(length).map_or(0, |&byte| self.child(node, byte));
                length += 1;
                if value != NONE {
                    return Some((at, value));
                }
            }
            None
        })
    }

    /// Longest of [`prefixes`](Self::prefixes).
    #[inline]
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(text).last()
    }

    #[inline]
    fn child(&self, node: u32, byte: u8) -> u32 {
        let (start, end) =
            (self.children[node as usize] as usize, self.children[node as usize + 1] as usize);
        match self.bytes[start..end].binary_search(&byte) {
            Ok(at) => (start + at) as u32,
            Err(_) => 0,
        }
    }
}

/// Length of the first character of valid UTF-8, or of its rest if it is cut off.
pub(crate) fn character_length(text: &[u8]) -> usize {
    let length = match text.first() {
        Some(0xC0..0xE0) => 2,
        Some(0xE0..0xF0) => 3,
        Some(0xF0..) => 4,
        _ => 1,
    };
    length.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_returned_shortest_first() {
        let keys = ["a", "abc", "abcd", "b", "ab\u{e9}", ""];
        let trie = Trie::new(keys.iter().zip(0..).map(|(k, v)| (k.as_bytes(), v)).collect());
        let found = |text: &str| trie.prefixes(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(found("abcdx"), [(1, 0), (3, 1), (4, 2)]);
        assert_eq!(found("abé"), [(1, 0), (4, 4)]);
        assert_eq!(found("bbb"), [(1, 3)]);
        assert_eq!((found("xab"), found("")), (vec![], vec![]));
        assert_eq!(trie.longest(b"abcc"), Some((3, 1)));
        assert!(trie.begins(b'a') && !trie.begins(b'c'));
    }

    #[test]
    fn a_border_is_a_position_that_no_key_spans() {
        let control = EncodeControl { cancelled: &crate::control::NEVER, piece_bytes: 1 };
        let trie = Trie::new(vec![(b"ab", 0), (b"bc", 1), (b"d", 2)]);
        let border = |text: &[u8], from| trie.find_border(text, from, control);
        assert_eq!((border(b"abcabcd", 1), border(b"abcabcd", 3)), (Some(3), Some(3)));
        assert_eq!((border(b"abcddd", 0), border(b"dddd", 0)), (Some(3), Some(1)));
        assert_eq!((border(b"abcab", 4), border(b"", 0)), (None, None));
        assert_eq!((trie.get(b"ab"), trie.get(b"abc"), trie.get(b"")), (Some(0), None, None));
    }

    #[test]
    fn an_empty_trie_finds_nothing() {
        let trie = Trie::new(vec![]);
        assert_eq!(trie.longest(b"a"), None);
        assert!(!trie.begins(0));
    }
}
