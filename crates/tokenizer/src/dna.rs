//! Vocabularies of texts with sequences of nucleotides (`hybriddna`): between `<dna>` and `</dna>` every six letters are a
//! token, everything else is byte-pair encoded.

use crate::bpe::Bpe;
use crate::hash::Texts;
use crate::vocab::Vocab;

const OPEN: &str = "<dna>";
const CLOSE: &str = "</dna>";

/// Letters of a token.
const LETTERS: usize = 6;

/// What the last token of a sequence is filled up with.
const FILLING: u8 = b'A';

/// Stands behind the letters in the file, so that words of the same letters are other tokens. It is not printed.
const MARK: &[u8] = "\u{e000}".as_bytes();

#[derive(Debug)]
pub(crate) struct Dna {
    open: u32,
    close: u32,
    /// Letters that are no nucleotides.
    unknown: u32,
}

impl Dna {
    /// Nothing for a vocabulary that lacks the marks of sequences: all its texts are byte-pair encoded.
    pub(crate) fn new(vocab: &Vocab) -> Option<Self> {
        let id = |text: &str| vocab.id(text.as_bytes());
        Some(Dna { open: id(OPEN)?, close: id(CLOSE)?, unknown: id("<oov>")? })
    }

    /// Appends the tokens of a text without special tokens. A sequence without an end goes to the end of the text.
    pub(crate) fn encode(&self, bpe: &Bpe, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once(OPEN) {
            bpe.encode(vocab, before, ids);
            ids.push(self.open);
            let (sequence, after) =
                behind.split_once(CLOSE).map_or((behind, None), |(s, a)| (s, Some(a)));
            self.encode_sequence(vocab, sequence, ids);
            let Some(after) = after else { return };
            ids.push(self.close);
            rest = after;
        }
        bpe.encode(vocab, rest, ids);
    }

    fn encode_sequence(&self, vocab: &Vocab, sequence: &str, ids: &mut Vec<u32>) {
        ids.extend(sequence.as_bytes().chunks(LETTERS).map(|letters| {
            let mut text = letters.to_ascii_uppercase();
            text.resize(LETTERS, FILLING);
            text.extend_from_slice(MARK);
            vocab.id(&text).unwrap_or(self.unknown)
        }));
    }

    /// What the tokens print, without the marks behind letters; those tokens stand behind the one of unknown letters.
    pub(crate) fn unmarked(&self, pieces: &Texts) -> Texts {
        let mut out = Texts::with_capacity(pieces.len(), pieces.total());
        for (piece, id) in pieces.iter().zip(0..) {
            let letters =
                piece.strip_suffix(MARK).filter(|letters| id > self.unknown && !letters.is_empty());
            out.push(letters.unwrap_or(piece));
        }
        out
    }
}
