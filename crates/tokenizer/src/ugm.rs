//! Unigram language models of SentencePiece (T5, XLM-R and embedding models derived from them).
//! Normalizes the text with the file's tables, then splits it into the tokens with the greatest sum
//! of scores.

use std::collections::VecDeque;

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::control::EncodeControl;
use crate::lattice::TokenLengths;
use crate::trie::{Trie, character_length};
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
    /// Whether texts may be split in pieces: some split reaches every position, because all scores
    /// are finite.
    has_borders: bool,
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
        let min =
            ids.clone().filter(|&id| vocab.is(id, NORMAL)).map(|id| f64::from(vocab.score(id)));
        let scores: Vec<f64> = ids
            .clone()
            .map(|id| if vocab.is(id, USER_DEFINED) { 0.0 } else { f64::from(vocab.score(id)) })
            .collect();
        Ok(Ugm {
            has_borders: scores.iter().all(|score| score.is_finite()),
            tokens: of(NORMAL | USER_DEFINED | UNUSED),
            user_defined: of(USER_DEFINED),
            charsmap: Charsmap::read(meta)?,
            unk_score: min.fold(f64::from(f32::MAX), f64::min) - UNKNOWN_PENALTY,
            scores,
            unk,
            space_prefix,
            merge_spaces: meta
                .opt_bool("tokenizer.ggml.remove_extra_whitespaces")?
                .unwrap_or(false),
        })
    }

    /// Appends the tokens of a text without special tokens. Pieces of the normalized text end where
    /// no token could span two of them. The best split of the whole text contains these borders.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut normalizer =
            Normalizer { ugm: self, rest: text.as_bytes(), in_word: false, prefixed: false };
        let mut split = SplitState { score: 0.0, unknown: false };
        let mut window = Vec::new();
        let mut size = control.piece_bytes + 2 * self.tokens.longest_key();
        while !control.is_cancelled() {
            normalizer.fill(&mut window, size, control);
            if normalizer.rest.is_empty() {
                return self.encode_piece(&window, &mut split, ids, control);
            }
            let border = match self.has_borders {
                true => self.tokens.find_border(&window, control.piece_bytes, control),
                false => None,
            };
            let Some(border) = border else {
                size = 2 * window.len().max(size);
                continue;
            };
            self.encode_piece(&window[..border], &mut split, ids, control);
            window.drain(..border);
            size = control.piece_bytes + 2 * self.tokens.longest_key();
        }
    }

    /// Appends the tokens of the best split of a piece.
    fn encode_piece(
        &self,
        text: &[u8],
        split: &mut SplitState,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        // For each position, the length of the last token of the best split up to it. No token is
        // recorded for a position that no split reaches, which only scores that are not finite
        // cause.
        let mut lengths = TokenLengths::new(text.len() + 1);
        // Scores of the best splits up to the present position, and up to the next ones as far as a
        // token reaches.
        let mut scores: VecDeque<f64> = VecDeque::from([split.score]);
        let mut at = 0;
        while at < text.len() {
            if control.is_cancelled() {
                return;
            }
            let size = character_length(&text[at..]);
            let score = scores[0];
            scores.resize(self.tokens.longest_key().max(size) + 1, f64::MIN);
            let mut improve = |length: usize, score: f64| {
                if score > scores[length] {
                    scores[length] = score;
                    lengths.set(at + length, length);
                }
            };
            let mut known = false;
            for (length, id) in self.tokens.prefixes(&text[at..]) {
                known |= length == size;
                improve(length, score + self.scores[id as usize]);
            }
            if !known {
                improve(size, score + self.unk_score);
            }
            scores.drain(..size);
            at += size;
        }
        split.score = scores[0];
        self.backtrack(text, &lengths, split, ids);
    }

    /// Appends the tokens of the best split. Adjacent unknown characters become one token.
    fn backtrack(
        &self,
        text: &[u8],
        lengths: &TokenLengths,
        split: &mut SplitState,
        ids: &mut Vec<u32>,
    ) {
        let before = ids.len();
        let mut at = text.len();
        let (mut unknown, mut ends_unknown) = (false, None);
        while at > 0 {
            let start = match lengths.get(at) {
                0 => 0,
                length => at - length,
            };
            let token = self.tokens.get(&text[start..at]).filter(|_| lengths.get(at) > 0);
            let token = token.filter(|&id| Some(id) != self.unk);
            if token.is_some() || !unknown {
                ids.extend(token.or(self.unk));
            }
            unknown = token.is_none();
            ends_unknown.get_or_insert(unknown);
            at = start;
        }
        // The piece before ended with unknown characters, and this one begins with some.
        if unknown && split.unknown && self.unk.is_some() {
            ids.pop();
        }
        ids[before..].reverse();
        split.unknown = ends_unknown.unwrap_or(split.unknown);
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

/// Best split of the pieces so far.
struct SplitState {
    score: f64,
    /// It ends with unknown characters.
    unknown: bool,
}

/// Normalizes a text in parts, with "▁" for spaces. Depending on the file, merges spaces and puts
/// one in front.
struct Normalizer<'a> {
    ugm: &'a Ugm,
    rest: &'a [u8],
    in_word: bool,
    prefixed: bool,
}

impl Normalizer<'_> {
    /// Appends normalized text to `out` until it has at least `size` bytes, or the text ends.
    fn fill(&mut self, out: &mut Vec<u8>, size: usize, control: EncodeControl<'_>) {
        const SPACE: &[u8] = "▁".as_bytes();
        let ugm = self.ugm;
        while !self.rest.is_empty() && out.len() < size && !control.is_cancelled() {
            let (part, length) = ugm.normalized_prefix(self.rest);
            for &byte in part {
                if byte == b' ' {
                    self.in_word = false;
                    out.extend_from_slice(if ugm.merge_spaces { b"" } else { SPACE });
                    continue;
                }
                if !self.in_word && (ugm.merge_spaces || ugm.space_prefix && !self.prefixed) {
                    out.extend_from_slice(SPACE);
                    self.prefixed = true;
                }
                self.in_word = true;
                out.push(byte);
            }
            self.rest = &self.rest[length..];
        }
    }
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
