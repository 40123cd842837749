//! Unigram language models of SentencePiece (T5, XLM-R and embedding models derived from them).
//! Normalizes the text with the file's tables, then splits it into the tokens with the greatest sum
//! of scores.

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::trie::Trie;
use crate::vocab::{NORMAL, UNUSED, USER_DEFINED, Vocab};

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// How far the score of an unknown character is below the lowest score of a token.
const UNKNOWN_PENALTY: f64 = 10.0;

#[derive(Debug)]
pub(crate) struct Ugm {
    tokens: Trie,
    user_defined: Trie,
    charsmap: Charsmap,
    /// Scores by id. User-defined tokens have 0 and so are preferred, since other scores are
    /// logarithms.
    scores: Vec<f64>,
    unk: Option<u32>,
    unk_score: f64,
    space_prefix: bool,
    merge_spaces: bool,
}

impl Ugm {
    pub(crate) fn read(
        meta: &Metadata,
        vocab: &Vocab,
        space_prefix: bool,
        unk: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let of = |kind| {
            let ids = (0..vocab.len() as u32).filter(move |&id| vocab.is(id, kind));
            Trie::new(ids.map(|id| (vocab.text(id), id)).collect())
        };
        let ids = 0..vocab.len() as u32;
        let least =
            ids.clone().filter(|&id| vocab.is(id, NORMAL)).map(|id| f64::from(vocab.score(id)));
        Ok(Ugm {
            tokens: of(NORMAL | USER_DEFINED | UNUSED),
            user_defined: of(USER_DEFINED),
            charsmap: Charsmap::read(meta)?,
            unk_score: least.fold(f64::from(f32::MAX), f64::min) - UNKNOWN_PENALTY,
            scores: ids
                .map(|id| if vocab.is(id, USER_DEFINED) { 0.0 } else { f64::from(vocab.score(id)) })
                .collect(),
            unk,
            space_prefix,
            merge_spaces: meta
                .opt_bool("tokenizer.ggml.remove_extra_whitespaces")?
                .unwrap_or(false),
        })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalized(text);
        if text.is_empty() {
            return;
        }
        // For each position: last token of the best split up to it, start of this token, and score.
        let mut best: Vec<(Option<u32>, usize, f64)> = vec![(None, 0, f64::MIN); text.len() + 1];
        best[0].2 = 0.0;
        let mut at = 0;
        while at < text.len() {
            let next = at + character_length(&text[at..]);
            let score = best[at].2;
            let mut improve = |end: usize, token: Option<u32>, score: f64| {
                if score > best[end].2 {
                    best[end] = (token, at, score);
                }
            };
            let mut known = false;
            for (length, id) in self.tokens.prefixes(&text[at..]) {
                known |= at + length == next;
                improve(at + length, Some(id), score + self.scores[id as usize]);
            }
            if !known {
                improve(next, None, score + self.unk_score);
            }
            at = next;
        }
        self.backtrack(&best, ids);
    }

    /// Appends the tokens of the best split. Adjacent unknown characters become one token.
    fn backtrack(&self, best: &[(Option<u32>, usize, f64)], ids: &mut Vec<u32>) {
        let before = ids.len();
        let mut at = best.len() - 1;
        let mut unknown = false;
        while at > 0 {
            let (token, start, _) = best[at];
            let token = token.filter(|&id| Some(id) != self.unk);
            if token.is_some() || !unknown {
                ids.extend(token.or(self.unk));
            }
            unknown = token.is_none();
            at = start;
        }
        ids[before..].reverse();
    }

    /// Normalizes a text, with "▁" for spaces. Depending on the file, merges spaces and puts one in
    /// front.
    fn normalized(&self, text: &str) -> Vec<u8> {
        const SPACE: &[u8] = "▁".as_bytes();
        let mut out = Vec::with_capacity(text.len() * 3);
        let (mut in_word, mut prefixed) = (false, false);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (part, length) = self.normalized_prefix(rest);
            for &byte in part {
                if byte == b' ' {
                    in_word = false;
                    out.extend_from_slice(if self.merge_spaces { b"" } else { SPACE });
                    continue;
                }
                if !in_word && (self.merge_spaces || self.space_prefix && !prefixed) {
                    out.extend_from_slice(SPACE);
                    prefixed = true;
                }
                in_word = true;
                out.push(byte);
            }
            rest = &rest[length..];
        }
        out
    }

    /// Normalizes the start of a text, and returns its length there. User-defined tokens and
    /// characters without a replacement stay unchanged.
    fn normalized_prefix<'a>(&'a self, text: &'a [u8]) -> (&'a [u8], usize) {
        if let Some((length, _)) = self.user_defined.longest(text) {
            return (&text[..length], length);
        }
        self.charsmap.longest(text).unwrap_or_else(|| {
            let length = character_length(text);
            (&text[..length], length)
        })
    }
}

/// Length of the first character of valid UTF-8, or of its rest if it is cut off.
fn character_length(text: &[u8]) -> usize {
    let length = match text.first() {
        Some(0xC0..0xE0) => 2,
        Some(0xE0..0xF0) => 3,
        Some(0xF0..) => 4,
        _ => 1,
    };
    length.min(text.len())
}

/// Replacements of prefixes: an XOR-compressed double-array trie, and the replacement texts.
///
/// A node has its label byte in bits 0–7, and in bit 8 whether a key ends there. Bits 10–30 are the
/// offset of its children, shifted by 8 if bit 9 is set. At the end of a key, the entry at this
/// offset holds the offset of the replacement.
#[derive(Debug, Default)]
struct Charsmap {
    nodes: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    fn read(meta: &Metadata) -> Result<Self, TokenizerError> {
        let Some(bytes) = meta.u8s(CHARSMAP)? else { return Ok(Charsmap::default()) };
        let bad = |size: usize| TokenizerError::Charsmap { size: bytes.len(), nodes: size };
        let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| bad(0))?;
        let size = u32::from_le_bytes(*head) as usize;
        if size >= rest.len() {
            return Err(bad(size));
        }
        let (nodes, replacements) = rest.split_at(size);
        Ok(Charsmap {
            nodes: nodes.as_chunks::<4>().0.iter().map(|node| u32::from_le_bytes(*node)).collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// Replacement of the longest key that is a prefix of the text, and the key's length. An offset
    /// beyond the tables, which valid files do not have, ends the search.
    fn longest(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let children = |node: u32| (node >> 10) << ((node & 1 << 9) >> 6);
        let mut at = children(*self.nodes.first()?);
        let mut longest = None;
        for (&byte, length) in text.iter().zip(1..) {
            at ^= u32::from(byte);
            let Some(&node) = self.nodes.get(at as usize) else { break };
            if byte == 0 || node & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= children(node);
            if node & 1 << 8 != 0 {
                let value = self.nodes.get(at as usize).map(|value| (value & 0x7FFF_FFFF) as usize);
                longest = value
                    .and_then(|value| self.replacement(value))
                    .map(|text| (text, length))
                    .or(longest);
            }
        }
        longest
    }

    fn replacement(&self, offset: usize) -> Option<&[u8]> {
        let text = self.replacements.get(offset..)?;
        Some(&text[..text.iter().position(|&byte| byte == 0)?])
    }
}
