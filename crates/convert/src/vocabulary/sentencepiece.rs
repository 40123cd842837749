//! Reads `tokenizer.model`, a protocol-buffer message. Only these fields are read:
//!
//! ```text
//! 1  piece, repeated: { 1 text, 2 score (f32), 3 type (default 1) }
//! 2  trainer:         { 3 model type (1 unigram, the default; 2 byte-pair encoding) }
//! 3  normalizer:      { 2 precompiled character map, 3 add a space prefix (default true),
//!                       4 merge consecutive spaces (default true) }
//! ```

use super::token::{NORMAL, Token};
use super::unigram::NormalizerSettings;
use crate::error::ConvertError;
use crate::source::ModelFolder;

/// Size limit of the file; real ones are far smaller.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Settings of the tokenizer.
#[derive(Debug, PartialEq)]
pub(super) struct TokenizerSettings {
    /// Normalization of a text before it is tokenized.
    pub(super) normalizer: NormalizerSettings,
    /// Whether the model type is unigram.
    pub(super) is_unigram: bool,
}

/// Reads the tokens of an embedding with `rows` rows, and the settings.
pub(super) fn read(
    folder: &ModelFolder<'_>,
    file: &str,
    rows: usize,
) -> Result<(Vec<Option<Token>>, TokenizerSettings), ConvertError> {
    let file = file.to_owned();
    let bytes = folder.bytes(&file, MAX_FILE_BYTES)?;
    let bytes = bytes.ok_or_else(|| ConvertError::FileMissing(file.clone()))?;
    parse(&bytes, rows).ok_or_else(|| {
        let reason = "not a SentencePiece vocabulary, or truncated".to_owned();
        ConvertError::Tokenizer { file, reason }
    })
}

fn parse(bytes: &[u8], rows: usize) -> Option<(Vec<Option<Token>>, TokenizerSettings)> {
    let mut tokens = vec![None; rows];
    let normalizer = NormalizerSettings { has_prefix: true, merges_spaces: true, charsmap: None };
    let (mut count, mut found) = (0, TokenizerSettings { normalizer, is_unigram: true });
    let mut fields = ProtobufFields(bytes);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, ProtobufValue::Bytes(piece)) => {
                // The model cannot produce ids beyond its embedding.
                if let Some(slot) = tokens.get_mut(count) {
                    *slot = Some(parse_token(piece)?);
                }
                count += 1;
            }
            (2, ProtobufValue::Bytes(trainer)) => {
                let mut fields = ProtobufFields(trainer);
                while let Some((number, field)) = fields.next()? {
                    if let (3, ProtobufValue::Number(kind)) = (number, field) {
                        found.is_unigram = kind == 1;
                    }
                }
            }
            (3, ProtobufValue::Bytes(normalizer)) => {
                let mut fields = ProtobufFields(normalizer);
                while let Some((number, field)) = fields.next()? {
                    match (number, field) {
                        (2, ProtobufValue::Bytes(map)) if !map.is_empty() => {
                            found.normalizer.charsmap = Some(map.to_vec());
                        }
                        (3, ProtobufValue::Number(flag)) => found.normalizer.has_prefix = flag != 0,
                        (4, ProtobufValue::Number(flag)) => {
                            found.normalizer.merges_spaces = flag != 0
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (count > 0).then_some((tokens, found))
}

fn parse_token(piece: &[u8]) -> Option<Token> {
    let mut token = Token { text: String::new(), kind: NORMAL, score: 0.0 };
    let mut fields = ProtobufFields(piece);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, ProtobufValue::Bytes(text)) => {
                token.text = std::str::from_utf8(text).ok()?.to_owned()
            }
            (2, ProtobufValue::Word(bits)) => token.score = f32::from_bits(bits),
            (3, ProtobufValue::Number(kind)) => {
                token.kind = i32::try_from(kind).ok().filter(|k| (1..=6).contains(k))?
            }
            _ => {}
        }
    }
    Some(token)
}

/// A value of a protocol-buffer field.
enum ProtobufValue<'a> {
    Number(u64),
    Word(u32),
    Bytes(&'a [u8]),
    Other,
}

/// The unread fields of a message.
struct ProtobufFields<'a>(&'a [u8]);

impl<'a> ProtobufFields<'a> {
    /// Reads the next field and its number. Returns `Some(None)` at the end, and `None` for an
    /// invalid message.
    fn next(&mut self) -> Option<Option<(u64, ProtobufValue<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.number()?;
        let field = match key & 7 {
            0 => ProtobufValue::Number(self.number()?),
            1 => {
                self.bytes(8)?;
                ProtobufValue::Other
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                ProtobufValue::Bytes(self.bytes(len)?)
            }
            5 => ProtobufValue::Word(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some(Some((key >> 3, field)))
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A varint: seven bits a byte, the lowest first.
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
    fn tokens_have_texts_scores_and_types() {
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
    fn invalid_messages_are_rejected() {
        for bytes in [&b""[..], b"\x0a\x7f", b"IQ== 0\nIg== 1\n", &[0xff; 12]] {
            assert_eq!(parse(bytes, 4), None);
        }
    }
}
