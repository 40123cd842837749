//! Vocabularies for text with nucleotide sequences (`hybriddna`). Between `<dna>` and `</dna>`
//! every six letters are one token. Other text uses byte-pair encoding.

use crate::bpe::Bpe;
use crate::control::EncodeControl;
use crate::hash::TextTable;
use crate::vocab::Vocab;

const OPEN: &str = "<dna>";
const CLOSE: &str = "</dna>";

/// Letters per token.
const LETTERS: usize = 6;

/// Letter that pads the last token of a sequence.
const PADDING: u8 = b'A';

/// Suffix of nucleotide tokens in the file, which distinguishes them from words of the same
/// letters. It is not printed.
const DNA_SUFFIX: &[u8] = "\u{e000}".as_bytes();

#[derive(Debug)]
pub(crate) struct Dna {
    open: u32,
    close: u32,
    /// Token for letters that are not nucleotides.
    unknown: u32,
}

impl Dna {
    /// Returns `None` if the vocabulary lacks the sequence markers. All text then uses byte-pair
    /// encoding.
    pub(crate) fn new(vocab: &Vocab) -> Option<Self> {
        let id = |text: &str| vocab.id(text.as_bytes());
        Some(Dna { open: id(OPEN)?, close: id(CLOSE)?, unknown: id("<oov>")? })
    }

    /// Appends the tokens of a text without special tokens. A sequence without an end marker
    /// extends to the end of the text.
    pub(crate) fn encode(
        &self,
        bpe: &Bpe,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        let mut rest = text;
        while let Some((before, behind)) = split_once(rest, OPEN, control) {
            bpe.encode(vocab, before, ids, control);
            ids.push(self.open);
            let (sequence, after) =
                split_once(behind, CLOSE, control).map_or((behind, None), |(s, a)| (s, Some(a)));
            self.encode_sequence(vocab, sequence, ids, control);
            let Some(after) = after else { return };
            ids.push(self.close);
            rest = after;
        }
        bpe.encode(vocab, rest, ids, control);
    }

    fn encode_sequence(
        &self,
        vocab: &Vocab,
        sequence: &str,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        let groups = sequence.as_bytes().chunks(LETTERS);
        ids.extend(groups.take_while(|_| !control.is_cancelled()).map(|letters| {
            let mut text = letters.to_ascii_uppercase();
            text.resize(LETTERS, PADDING);
            text.extend_from_slice(DNA_SUFFIX);
            vocab.id(&text).unwrap_or(self.unknown)
        }));
    }

    /// Pieces of the tokens without the suffix. Nucleotide tokens follow the token of unknown
    /// letters.
    pub(crate) fn strip_marks(&self, pieces: &TextTable) -> TextTable {
        let mut out = TextTable::with_capacity(pieces.len(), pieces.total());
        for (piece, id) in pieces.iter().zip(0..) {
            let letters = piece
                .strip_suffix(DNA_SUFFIX)
                .filter(|letters| id > self.unknown && !letters.is_empty());
            out.push(letters.unwrap_or(piece));
        }
        out
    }
}

/// Splits a text at the first `marker`, which is ASCII. Searches a piece at a time.
fn split_once<'a>(
    text: &'a str,
    marker: &str,
    control: EncodeControl<'_>,
) -> Option<(&'a str, &'a str)> {
    let mut start = 0;
    while start < text.len() && !control.is_cancelled() {
        let end = text.ceil_char_boundary(start + control.piece_bytes);
        let searched_end = text.floor_char_boundary(end + marker.len() - 1);
        if let Some(at) = text[start..searched_end].find(marker) {
            let at = start + at;
            return Some((&text[..at], &text[at + marker.len()..]));
        }
        start = end;
    }
    None
}
