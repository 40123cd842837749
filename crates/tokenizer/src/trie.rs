//! Finds keys that are prefixes of a text.

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
    fn an_empty_trie_finds_nothing() {
        let trie = Trie::new(vec![]);
        assert_eq!(trie.longest(b"a"), None);
        assert!(!trie.begins(0));
    }
}
