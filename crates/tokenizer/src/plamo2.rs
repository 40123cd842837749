//! PLaMo 2's unigram model: splits a text into the tokens with the greatest sum of scores, computed
//! from the end. Falls back to bytes for characters without tokens.

use crate::TokenizerError;
use crate::trie::Trie;
use crate::vocab::{BYTE, CONTROL, UNKNOWN, Vocab};

/// Scores are integers in units of 1/10,000, so that equal sums compare equal.
const STEPS_PER_UNIT: f32 = 1e4;

/// Cost of a character that falls back to bytes.
const UNKNOWN_COST: i64 = 10_000_000;

/// Tokens with this score or a lower one are never used.
const UNUSABLE: i32 = -20_000_000;

#[derive(Debug)]
pub(crate) struct Plamo2 {
    tokens: Trie,
    /// Scores by id, in units.
    scores: Vec<i32>,
    /// Tokens of the 256 bytes.
    bytes: Vec<u32>,
}

impl Plamo2 {
    /// Excludes control tokens and the unknown token. In llama.cpp their score of 0 lets the text
    /// of users become control tokens.
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TokenizerError> {
        let byte = |byte: u8| vocab.byte(byte).ok_or(TokenizerError::NoByteToken { byte });
        let bytes = (0..=255).map(byte).collect::<Result<_, _>>()?;
        let scores: Vec<i32> =
            (0..vocab.len() as u32).map(|id| quantize_score(vocab.score(id))).collect();
        let usable =
            |id: u32| !vocab.is(id, BYTE | CONTROL | UNKNOWN) && scores[id as usize] > UNUSABLE;
        let ids = (0..vocab.len() as u32).filter(|&id| usable(id));
        Ok(Plamo2 {
            tokens: Trie::new(ids.map(|id| (vocab.text(id), id)).collect()),
            scores,
            bytes,
        })
    }

    /// Appends the tokens of a text without special tokens. Ignores a leading byte order mark.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // For each position: first token of the best split to the end, its length, and the cost of
        // the split.
        let mut best: Vec<(Option<u32>, usize, i64)> = vec![(None, 0, 0); text.len() + 1];
        for (at, c) in text.char_indices().rev() {
            let mut cheapest = (None, c.len_utf8(), best[at + c.len_utf8()].2 + UNKNOWN_COST);
            // Prefixes are in order of length, so the longest token wins among equal costs.
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

/// Rounds a score to units. A score that is not finite makes its token unusable.
fn quantize_score(score: f32) -> i32 {
    if score.is_finite() { (score * STEPS_PER_UNIT).round() as i32 } else { UNUSABLE }
}
