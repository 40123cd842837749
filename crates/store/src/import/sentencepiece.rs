//! `tokenizer.model`: a message in protocol buffers' encoding, of which few fields matter.
//!
//! ```text
//! 1  piece, repeated: { 1 text, 2 score (f32), 3 kind (1 where it is not there) }
//! 2  trainer:         { 3 how it cuts (1, by the sum of scores, where it is not there) }
//! 3  normalizer:      { 2 replacements, 3 whether a space comes first, 4 whether blanks side by side are one (both true where
//!                       they are not there) }
//! ```

use super::unigram::Unigram;
use super::vocabulary::{NORMAL, Token};
use super::{Folder, ImportError};
use crate::error::StoreError;
use crate::files::read_limited;

/// More than any vocabulary has.
const LIMIT_BYTES: u64 = 256 << 20;

/// What else such a file says.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// What becomes of a text before it is cut.
    pub(super) normalizer: Unigram,
    /// Whether a text is cut by the sum of scores.
    pub(super) is_unigram: bool,
}

/// The tokens of an embedding of so many rows, and what else the file says.
pub(super) fn read(
    folder: &Folder<'_>,
    file: &str,
    rows: usize,
) -> Result<(Vec<Option<Token>>, Found), StoreError> {
    let file = file.to_owned();
    let path = folder.path(&file).ok_or_else(|| ImportError::FileMissing(file.clone()))?;
    let bytes = read_limited(path, LIMIT_BYTES)?;
    parse(&bytes, rows).ok_or_else(|| {
        let reason = "not a vocabulary of SentencePiece, or cut short".to_owned();
        ImportError::Tokenizer { file, reason }.into()
    })
}

fn parse(bytes: &[u8], rows: usize) -> Option<(Vec<Option<Token>>, Found)> {
    let mut tokens = vec![None; rows];
    let normalizer = Unigram { has_prefix: true, merges_spaces: true, charsmap: None };
    let (mut count, mut found) = (0, Found { normalizer, is_unigram: true });
    let mut fields = Fields(bytes);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(piece)) => {
                // Pieces beyond the embedding are ones that the model never sees.
                if let Some(slot) = tokens.get_mut(count) {
                    *slot = Some(token(piece)?);
                }
                count += 1;
            }
            (2, Field::Bytes(trainer)) => {
                let mut fields = Fields(trainer);
                while let Some((number, field)) = fields.next()? {
                    if let (3, Field::Number(kind)) = (number, field) {
                        found.is_unigram = kind == 1;
                    }
                }
            }
            (3, Field::Bytes(normalizer)) => {
                let mut fields = Fields(normalizer);
                while let Some((number, field)) = fields.next()? {
                    match (number, field) {
                        (2, Field::Bytes(map)) if !map.is_empty() => {
                            found.normalizer.charsmap = Some(map.to_vec());
                        }
                        (3, Field::Number(flag)) => found.normalizer.has_prefix = flag != 0,
                        (4, Field::Number(flag)) => found.normalizer.merges_spaces = flag != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (count > 0).then_some((tokens, found))
}

fn token(piece: &[u8]) -> Option<Token> {
    let mut token = Token { text: String::new(), kind: NORMAL, score: 0.0 };
    let mut fields = Fields(piece);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(text)) => token.text = std::str::from_utf8(text).ok()?.to_owned(),
            (2, Field::Word(bits)) => token.score = f32::from_bits(bits),
            (3, Field::Number(kind)) => {
                token.kind = i32::try_from(kind).ok().filter(|k| (1..=6).contains(k))?
            }
            _ => {}
        }
    }
    Some(token)
}

/// A value of a message.
enum Field<'a> {
    Number(u64),
    Word(u32),
    Bytes(&'a [u8]),
    Other,
}

/// The fields of a message that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next field and its number; outer nothing for bytes that are no message, inner nothing at the end.
    fn next(&mut self) -> Option<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.bytes(8)?;
                Field::Other
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.bytes(len)?)
            }
            5 => Field::Word(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some(Some((key >> 3, field)))
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Seven bits a byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn piece(text: &str, score: f32, kind: Option<u8>) -> Vec<u8> {
        let mut bytes = field(1, text.as_bytes());
        bytes.push(2 << 3 | 5);
        bytes.extend(score.to_le_bytes());
        bytes.extend(kind.map(|kind| [3 << 3, kind]).into_iter().flatten());
        field(1, &bytes)
    }

    #[test]
    fn pieces_have_texts_scores_and_kinds() {
        let file = [piece("<unk>", 0.0, Some(2)), piece("▁a", -1.5, None), field(3, &[3 << 3, 0])]
            .concat();
        let (tokens, found) = parse(&file, 3).unwrap();
        let token = |text: &str, kind, score| Some(Token { text: text.into(), kind, score });
        assert_eq!(tokens, [token("<unk>", 2, 0.0), token("▁a", 1, -1.5), None]);
        assert!(!found.normalizer.has_prefix && found.normalizer.merges_spaces && found.is_unigram);
        assert!(
            parse(&file[..file.len() - 4], 3).is_some_and(|(_, found)| found.normalizer.has_prefix)
        );
        let merges =
            [piece("a", 0.0, None), field(2, &[3 << 3, 2]), field(3, &[4 << 3, 0])].concat();
        let (_, found) = parse(&merges, 1).unwrap();
        assert!(
            !found.is_unigram && !found.normalizer.merges_spaces && found.normalizer.has_prefix
        );
        assert_eq!(parse(&file, 1).map(|(tokens, _)| tokens.len()), Some(1));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes, 2);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b""[..], b"\x0a\x7f", b"IQ== 0\nIg== 1\n", &[0xff; 12]] {
            assert_eq!(parse(bytes, 4), None);
        }
    }
}
