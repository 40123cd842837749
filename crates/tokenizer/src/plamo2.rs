//! PLaMo 2's unigram model: splits a text into the tokens with the greatest sum of scores, computed
//! from the end. Falls back to bytes for characters without tokens.

use std::collections::VecDeque;

use crate::TokenizerError;
use crate::control::EncodeControl;
use crate::lattice::TokenLengths;
use crate::trie::{Trie, character_length};
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
    /// Pieces of the text end where no token could span two of them, so their splits are
    /// independent.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        while !rest.is_empty() && !control.is_cancelled() {
            let border = self.tokens.find_border(rest.as_bytes(), control.piece_bytes, control);
            let (piece, behind) = rest.split_at(border.unwrap_or(rest.len()));
            self.encode_piece(piece, ids, control);
            rest = behind;
        }
    }

    fn encode_piece(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut lengths = TokenLengths::new(text.len());
        // Costs of the best splits from the present position to the end, and from the next ones as
        // far as a token reaches.
        let mut costs: VecDeque<i64> = VecDeque::from([0]);
        for (at, c) in text.char_indices().rev() {
            if control.is_cancelled() {
                return;
            }
            let size = c.len_utf8();
            (0..size).for_each(|_| costs.push_front(0));
            costs.truncate(self.tokens.longest_key().max(4) + 1);
            let mut cheapest = (size, costs[size] + UNKNOWN_COST);
            // Prefixes are in order of length, so the longest token wins among equal costs.
            for (length, id) in self.tokens.prefixes(&text.as_bytes()[at..]) {
                let cost = costs[length] - i64::from(self.scores[id as usize]);
                if cost <= cheapest.1 && text.is_char_boundary(at + length) {
                    cheapest = (length, cost);
                }
            }
            lengths.set(at, cheapest.0);
            costs[0] = cheapest.1;
        }
        let mut at = 0;
        while at < text.len() {
            let token = &text.as_bytes()[at..at + lengths.get(at)];
            match self.tokens.get(token).filter(|&id| self.is_chosen(id, token)) {
                Some(id) => ids.push(id),
                None => ids.extend(token.iter().map(|byte| self.bytes[usize::from(*byte)])),
            }
            at += token.len().max(1);
        }
    }

    /// Whether a token of the best split stands for its text, which a single character may also
    /// fall back to bytes for.
    fn is_chosen(&self, id: u32, text: &[u8]) -> bool {
        text.len() > character_length(text) || -i64::from(self.scores[id as usize]) <= UNKNOWN_COST
    }
}

/// Rounds a score to units. A score that is not finite makes its token unusable.
fn quantize_score(score: f32) -> i32 {
    if score.is_finite() { (score * STEPS_PER_UNIT).round() as i32 } else { UNUSABLE }
}
