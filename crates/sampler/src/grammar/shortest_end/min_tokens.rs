//! Tokenizes texts with the fewest possible tokens.

use llguidance::toktrie::TokTrie;

use super::chart::EndPiece;

/// Tokenizer with the fewest tokens. Reuses its results for common suffixes of consecutive texts.
#[derive(Debug, Clone, Default)]
pub struct MinTokenizer {
    /// Byte pieces of the last texts, in reverse order.
    runs: Vec<ReversedBytes>,
}

/// Bytes in reverse order, and for each position the best split of the text from there on.
#[derive(Debug, Clone, Default)]
struct ReversedBytes {
    bytes: Vec<u8>,
    rest: Vec<Option<Split>>,
}

/// Best split of the rest of a text.
#[derive(Debug, Clone, Copy)]
struct Split {
    /// Total number of tokens.
    count: u32,
    /// First token.
    token: u32,
    /// Bytes of the first token.
    length: usize,
}

impl MinTokenizer {
    /// Returns the fewest tokens that write the pieces in order. `None` if the vocabulary has no
    /// tokens for them.
    pub fn fewest_tokens(&mut self, trie: &TokTrie, texts: &[EndPiece]) -> Option<Vec<u32>> {
        let runs = texts.iter().filter(|text| matches!(text, EndPiece::Bytes(_))).count();
        self.runs.resize_with(runs.max(self.runs.len()), ReversedBytes::default);
        let (mut tokens, mut behind) = (Vec::new(), runs);
        for text in texts {
            match text {
                EndPiece::Token(token) => tokens.push(*token),
                EndPiece::Bytes(bytes) => {
                    behind -= 1;
                    self.runs[behind].write(trie, bytes, &mut tokens)?;
                }
            }
        }
        Some(tokens)
    }
}

impl ReversedBytes {
    fn write(&mut self, trie: &TokTrie, bytes: &[u8], tokens: &mut Vec<u32>) -> Option<()> {
        let alike =
            self.bytes.iter().zip(bytes.iter().rev()).take_while(|(old, new)| old == new).count();
        self.bytes.truncate(alike);
        self.rest.truncate(alike);
        for byte in bytes.iter().rev().skip(alike) {
            self.bytes.push(*byte);
            let rest = self.first(trie);
            self.rest.push(rest);
        }
        let mut left = self.rest.len();
        while left > 0 {
            let Split { token, length, .. } = self.rest[left - 1]?;
            tokens.push(token);
            left -= length;
        }
        Some(())
    }

    /// First token of the text that leads to the fewest tokens.
    fn first(&self, trie: &TokTrie) -> Option<Split> {
        let mut best: Option<Split> = None;
        let mut node = trie.root();
        for (length, byte) in (1..).zip(self.bytes.iter().rev()) {
            let Some(next) = trie.child_at_byte(node, *byte) else { break };
            node = next;
            let Some(token) = node.token_id() else { continue };
            let count = match self.bytes.len() - length {
                0 => 1,
                left => match self.rest[left - 1] {
                    Some(rest) => rest.count + 1,
                    None => continue,
                },
            };
            if best.is_none_or(|best| count <= best.count) {
                best = Some(Split { count, token, length });
            }
        }
        best
    }
}
