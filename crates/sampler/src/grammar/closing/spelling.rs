//! Writes texts with as few tokens as possible.

use llguidance::toktrie::TokTrie;

use super::chart::Text;

/// Divides texts into tokens. What two texts end alike with is divided once.
#[derive(Debug, Clone, Default)]
pub struct Speller {
    /// The runs of bytes of the last texts, the last one first.
    runs: Vec<Run>,
}

/// Bytes, the last one first, and for each of them how the text from there on is written.
#[derive(Debug, Clone, Default)]
struct Run {
    bytes: Vec<u8>,
    rest: Vec<Option<Rest>>,
}

/// How the rest of a run is written.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// Tokens in all.
    count: u32,
    /// The first of them.
    token: u32,
    /// The bytes of that.
    length: usize,
}

impl Speller {
    /// The fewest tokens that write some texts, one after the other; `None` where the vocabulary has no tokens for them.
    pub fn fewest_tokens(&mut self, trie: &TokTrie, texts: &[Text]) -> Option<Vec<u32>> {
        let runs = texts.iter().filter(|text| matches!(text, Text::Bytes(_))).count();
        self.runs.resize_with(runs.max(self.runs.len()), Run::default);
        let (mut tokens, mut behind) = (Vec::new(), runs);
        for text in texts {
            match text {
                Text::Token(token) => tokens.push(*token),
                Text::Bytes(bytes) => {
                    behind -= 1;
                    self.runs[behind].write(trie, bytes, &mut tokens)?;
                }
            }
        }
        Some(tokens)
    }
}

impl Run {
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
            let Rest { token, length, .. } = self.rest[left - 1]?;
            tokens.push(token);
            left -= length;
        }
        Some(())
    }

    /// The first token of the run, behind which the fewest others come.
    fn first(&self, trie: &TokTrie) -> Option<Rest> {
        let mut best: Option<Rest> = None;
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
                best = Some(Rest { count, token, length });
            }
        }
        best
    }
}
