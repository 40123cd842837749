//! PLaMo 2's unigram model: the cut of a text whose tokens have the greatest sum of scores, found from its end. What
//! no token covers is spelled in bytes.

use crate::TokenizerError;
use crate::trie::Trie;
use crate::vocab::{BYTE, CONTROL, UNKNOWN, Vocab};

/// Scores are counted in steps of a ten-thousandth, as integers, so that equal sums are equal.
const SCALE: f32 = 1e4;

/// What a character costs that is spelled in bytes.
const UNKNOWN_COST: i64 = 10_000_000;

/// Tokens with this score or a lower one are never used.
const UNUSABLE: i32 = -20_000_000;

#[derive(Debug)]
pub(crate) struct Plamo2 {
    tokens: Trie,
    /// By id, in steps.
    scores: Vec<i32>,
    /// Tokens of the 256 bytes.
    bytes: Vec<u32>,
}

impl Plamo2 {
    /// Control tokens and the unknown one take no part, unlike in llama.cpp, where their scores of 0 make them of their
    /// texts whoever wrote these.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TokenizerError> {
        let byte = |byte: u8| vocab.byte(byte).ok_or(TokenizerError::NoByteToken { byte });
        let bytes = (0..=255).map(byte).collect::<Result<_, _>>()?;
        let scores: Vec<i32> = (0..vocab.len() as u32).map(|id| steps(vocab.score(id))).collect();
        let usable =
            |id: u32| !vocab.is(id, BYTE | CONTROL | UNKNOWN) && scores[id as usize] > UNUSABLE;
        let ids = (0..vocab.len() as u32).filter(|&id| usable(id));
        Ok(Plamo2 {
            tokens: Trie::new(ids.map(|id| (vocab.text(id), id)).collect()),
            scores,
            bytes,
        })
    }

    /// Appends the tokens of a text without special tokens. A mark of the byte order at its start is none of it.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // Of each position: the first token of the best way to the end, how long it is, and the way's cost.
        let mut best: Vec<(Option<u32>, usize, i64)> = vec![(None, 0, 0); text.len() + 1];
        for (at, c) in text.char_indices().rev() {
            let mut cheapest = (None, c.len_utf8(), best[at + c.len_utf8()].2 + UNKNOWN_COST);
            // The shortest come first: of equal ways the one with the longest token is taken.
            for (length, id) in self.tokens.prefixes(&text.as_bytes()[at..]) {
                let cost = best[at + length].2 - i64::from(self.scores[id as usize]);
                if cost <= cheapest.2 {
                    cheapest = (Some(id), length, cost);
                }
            }
            best[at] = cheapest;
        }
        let mut at = 0;
        while at < text.len() {
            let (token, length, _) = best[at];
            match token {
                Some(id) => ids.push(id),
                None => ids.extend(
                    text[at..at + length].bytes().map(|byte| self.bytes[usize::from(byte)]),
                ),
            }
            at += length;
        }
    }
}

/// A score in steps; one that is no number makes its token unusable.
fn steps(score: f32) -> i32 {
    if score.is_finite() { (score * SCALE).round() as i32 } else { UNUSABLE }
}
