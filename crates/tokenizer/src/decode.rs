//! Detokenization: bytes of each token, streaming without incomplete characters, and llama.cpp's
//! clean-up of spaces.

use std::sync::Arc;

use crate::bytes;
use crate::hash::TextTable;
use crate::rwkv;
use crate::tokenizer::Inner;
use crate::vocab::{BYTE, CONTROL, NORMAL, TokenKind, UNKNOWN, USER_DEFINED, Vocab};

/// How a file stores the text of normal tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StoredText {
    /// In GPT-2's byte alphabet.
    ByteAlphabet,
    /// As text, with "▁" for a space.
    EscapedSpaces,
    /// As text.
    Plain,
    /// With backslash escapes, for tokens of all kinds.
    BackslashEscapes,
}

/// Bytes that each token prints, by id.
pub(crate) fn pieces(vocab: &Vocab, stored: StoredText) -> TextTable {
    let mut pieces = TextTable::with_capacity(vocab.len(), vocab.texts.total());
    for (text, &kind) in vocab.texts.iter().zip(&vocab.kinds) {
        pieces.push_with(|out| write_piece(text, kind, stored, out));
    }
    pieces
}

fn write_piece(text: &[u8], kind: TokenKind, stored: StoredText, out: &mut Vec<u8>) {
    if stored == StoredText::BackslashEscapes {
        out.extend(rwkv::unescaped(text));
    } else if kind & (UNKNOWN | CONTROL | USER_DEFINED) != 0 {
        out.extend_from_slice(text);
    } else if kind & NORMAL != 0 {
        match stored {
            StoredText::ByteAlphabet => decode_alphabet(text, out),
            StoredText::Plain => out.extend_from_slice(text),
            _ => unescape_spaces(text, out),
        }
    } else if kind & BYTE != 0 {
        match parse_byte_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text),
        }
    }
}

/// Parses the byte of `<0xHH>`.
fn parse_byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    (digits.len() == 2).then_some((digit(0)? * 16 + digit(1)?) as u8)
}

fn unescape_spaces(text: &[u8], out: &mut Vec<u8>) {
    const SPACE: &[u8] = "▁".as_bytes();
    let mut rest = text;
    while let Some(&first) = rest.first() {
        if let Some(behind) = rest.strip_prefix(SPACE) {
            out.push(b' ');
            rest = behind;
        } else {
            out.push(first);
            rest = &rest[1..];
        }
    }
}

/// Decodes GPT-2's byte alphabet. Characters outside the alphabet stand for themselves; valid files
/// have none here.
fn decode_alphabet(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match bytes::decoded(c) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
}

/// Converts a stream of tokens to text, and holds back incomplete characters.
///
/// ```no_run
/// # fn next() -> Option<u32> { None }
/// # fn show(tokenizer: puna_tokenizer::Tokenizer) {
/// let mut decoder = tokenizer.decoder();
/// while let Some(id) = next() {
///     print!("{}", decoder.push(id));
/// }
/// print!("{}", decoder.finish());
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Arc<Inner>,
    special: bool,
    visible: Arc<[u32]>,
    at_start: bool,
    held: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(tokenizer: Arc<Inner>) -> Self {
        StreamDecoder {
            tokenizer,
            special: false,
            visible: [].into(),
            at_start: false,
            held: Vec::new(),
        }
    }

    /// Sets whether control tokens are part of the text. The default is `false`.
    pub fn special(mut self, visible: bool) -> Self {
        self.special = visible;
        self
    }

    /// Sets control tokens that are part of the text even if others are not.
    pub fn with_visible_tokens(mut self, tokens: &[u32]) -> Self {
        self.visible = tokens.into();
        self
    }

    /// Declares that the next token starts a text rather than continues a prompt. Removes the space
    /// that SPM tokenizers put before a text.
    pub fn at_start(mut self) -> Self {
        self.at_start = self.tokenizer.space_prefix();
        self
    }

    /// Returns the text that `id` completes; empty while a character is incomplete. Bytes that
    /// cannot become valid turn into U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        if !self.special && self.tokenizer.is_hidden(id) && !self.visible.contains(&id) {
            return String::new();
        }
        let piece = self.tokenizer.piece(id);
        let skip = self.at_start && piece.first() == Some(&b' ');
        self.at_start &= piece.is_empty();
        self.held.extend_from_slice(&piece[usize::from(skip)..]);
        let incomplete = incomplete_tail_len(&self.held);
        let tail = self.held.split_off(self.held.len() - incomplete);
        into_lossy_string(std::mem::replace(&mut self.held, tail))
    }

    /// Held-back bytes of an incomplete character.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Ends the text. Returns U+FFFD if bytes were held back.
    pub fn finish(&mut self) -> String {
        into_lossy_string(std::mem::take(&mut self.held))
    }
}

fn into_lossy_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Number of trailing bytes that begin a character which further bytes can complete.
fn incomplete_tail_len(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let tail = &bytes[from..];
    let Some(lead) = tail.iter().rposition(|byte| byte & 0xC0 != 0x80) else { return 0 };
    match std::str::from_utf8(&tail[lead..]) {
        Err(error) if error.error_len().is_none() => tail.len() - lead,
        _ => 0,
    }
}

/// Removes spaces before punctuation and contractions, as llama.cpp does.
pub(crate) fn clean_spaces(text: &str) -> String {
    let mut first = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '?' | '!' | '.' | ',') && first.ends_with(' ') {
            first.pop();
        }
        first.push(c);
    }
    let mut second = String::with_capacity(first.len());
    let mut rest = first.as_str();
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\'' && second.ends_with(' ') && rest.starts_with(' ') {
            second.pop();
            rest = &rest[1..];
        }
        second.push(c);
    }
    let mut third = String::with_capacity(second.len());
    for (at, c) in second.char_indices() {
        let behind = &second[at + c.len_utf8()..];
        if c == '\''
            && third.ends_with(' ')
            && ["s", "m", "re", "ve"].iter().any(|word| behind.starts_with(word))
        {
            third.pop();
        }
        third.push(c);
    }
    third
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, kind: TokenKind, stored: StoredText) -> Vec<u8> {
        let mut out = Vec::new();
        write_piece(text.as_bytes(), kind, stored, &mut out);
        out
    }

    #[test]
    fn pieces_are_the_bytes_that_a_token_prints() {
        assert_eq!(piece("ĠHelloĊ", NORMAL, StoredText::ByteAlphabet), b" Hello\n");
        assert_eq!(piece("Ã", NORMAL, StoredText::ByteAlphabet), [0xC3]);
        assert_eq!(piece("a｜b", NORMAL, StoredText::ByteAlphabet), "a｜b".as_bytes());
        assert_eq!(piece("▁▁Hi▁", NORMAL, StoredText::EscapedSpaces), b"  Hi ");
        assert_eq!(piece("▁Ġ", USER_DEFINED, StoredText::ByteAlphabet), "▁Ġ".as_bytes());
        assert_eq!(piece("<0x0A>", BYTE, StoredText::EscapedSpaces), b"\n");
        assert_eq!(piece("<0x+A>", BYTE, StoredText::EscapedSpaces), b"<0x+A>");
        assert_eq!(piece("<0x0A>", NORMAL, StoredText::EscapedSpaces), b"<0x0A>");
        assert_eq!(piece("gone", 0, StoredText::EscapedSpaces), b"");
    }

    #[test]
    fn only_a_tail_that_can_be_completed_is_incomplete() {
        for c in "aé▁😀".chars() {
            let bytes = format!("é{c}").into_bytes();
            for length in 2..bytes.len() {
                assert_eq!(incomplete_tail_len(&bytes[..length]), length - 2, "{c} {length}");
            }
            assert_eq!(incomplete_tail_len(&bytes), 0);
        }
        for broken in [
            &b"\x80"[..],
            b"\xff",
            b"\xc0",
            b"\xe0\x80",
            b"\xed\xa0",
            b"\xf4\x90",
            b"a\x80\x80\x80",
            b"\xf5",
        ] {
            assert_eq!(incomplete_tail_len(broken), 0, "{broken:x?}");
        }
    }

    #[test]
    fn blanks_before_punctuation_are_cleaned_as_llama_cpp_does() {
        assert_eq!(clean_spaces("a , b . c ! d ?"), "a, b. c! d?");
        assert_eq!(
            clean_spaces("it 's I 'm we 're they 've don 't he 'd we 'll"),
            "it's I'm we're they've don 't he 'd we 'll"
        );
        assert_eq!(clean_spaces("the ' quoted ' é"), "the'quoted'é");
        assert_eq!(clean_spaces(""), "");
    }
}
