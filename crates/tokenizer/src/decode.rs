//! From tokens back to text: what each token prints, streams that never show half a character, detokenization with
//! llama.cpp's clean-up.

use std::sync::Arc;

use crate::bytes;
use crate::hash::Texts;
use crate::rwkv;
use crate::tokenizer::Inner;
use crate::vocab::{BYTE, CONTROL, Kind, NORMAL, UNKNOWN, USER_DEFINED, Vocab};

/// How normal tokens are written in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Spelling {
    /// In GPT-2's alphabet.
    Bytes,
    /// As they are, with "▁" for a blank.
    Spaces,
    /// As they are.
    Plain,
    /// With escapes, whatever their kind.
    Escapes,
}

/// The bytes that each token prints, by id.
pub(crate) fn pieces(vocab: &Vocab, spelling: Spelling) -> Texts {
    let mut pieces = Texts::with_capacity(vocab.len(), vocab.texts.total());
    for (text, &kind) in vocab.texts.iter().zip(&vocab.kinds) {
        pieces.push_with(|out| write_piece(text, kind, spelling, out));
    }
    pieces
}

fn write_piece(text: &[u8], kind: Kind, spelling: Spelling, out: &mut Vec<u8>) {
    if spelling == Spelling::Escapes {
        out.extend(rwkv::unescaped(text));
    } else if kind & (UNKNOWN | CONTROL | USER_DEFINED) != 0 {
        out.extend_from_slice(text);
    } else if kind & NORMAL != 0 {
        match spelling {
            Spelling::Bytes => spell_out(text, out),
            Spelling::Plain => out.extend_from_slice(text),
            _ => unescape(text, out),
        }
    } else if kind & BYTE != 0 {
        match byte_of(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text),
        }
    }
}

/// The byte of `<0xHH>`.
fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    (digits.len() == 2).then_some((digit(0)? * 16 + digit(1)?) as u8)
}

fn unescape(text: &[u8], out: &mut Vec<u8>) {
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

/// Characters outside the alphabet, which a well-made file does not have here, stand for themselves.
fn spell_out(text: &[u8], out: &mut Vec<u8>) {
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

/// Turns tokens into text as they come, and holds back what is not yet a whole character.
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
    shown: Arc<[u32]>,
    at_start: bool,
    held: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(tokenizer: Arc<Inner>) -> Self {
        StreamDecoder {
            tokenizer,
            special: false,
            shown: [].into(),
            at_start: false,
            held: Vec::new(),
        }
    }

    /// Whether control tokens are part of the text; they are not at first.
    pub fn special(mut self, shown: bool) -> Self {
        self.special = shown;
        self
    }

    /// Control tokens that are part of the text although others are not.
    pub fn showing(mut self, tokens: &[u32]) -> Self {
        self.shown = tokens.into();
        self
    }

    /// Declares that the next token is the first one of a text, and not one that goes on where a prompt ended: the blank
    /// that SPM tokenizers put before a text is left out.
    pub fn at_start(mut self) -> Self {
        self.at_start = self.tokenizer.space_prefix();
        self
    }

    /// The text that `id` completes: empty while a character is incomplete. Bytes that no further byte can make valid
    /// come out as U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        if !self.special && self.tokenizer.is_hidden(id) && !self.shown.contains(&id) {
            return String::new();
        }
        let piece = self.tokenizer.piece(id);
        let skip = self.at_start && piece.first() == Some(&b' ');
        self.at_start &= piece.is_empty();
        self.held.extend_from_slice(&piece[usize::from(skip)..]);
        let incomplete = incomplete_tail(&self.held);
        let tail = self.held.split_off(self.held.len() - incomplete);
        lossy(std::mem::replace(&mut self.held, tail))
    }

    /// The bytes of an incomplete character that were held back.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Ends the text: U+FFFD for what was held back, if anything was.
    pub fn finish(&mut self) -> String {
        lossy(std::mem::take(&mut self.held))
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// How many bytes at the end begin a character that further bytes can complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let tail = &bytes[from..];
    let Some(lead) = tail.iter().rposition(|byte| byte & 0xC0 != 0x80) else { return 0 };
    match std::str::from_utf8(&tail[lead..]) {
        Err(error) if error.error_len().is_none() => tail.len() - lead,
        _ => 0,
    }
}

/// Removes the blanks that some tokenizers put before punctuation and contractions, as llama.cpp does.
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

    fn piece(text: &str, kind: Kind, spelling: Spelling) -> Vec<u8> {
        let mut out = Vec::new();
        write_piece(text.as_bytes(), kind, spelling, &mut out);
        out
    }

    #[test]
    fn pieces_are_the_bytes_that_a_token_prints() {
        assert_eq!(piece("ĠHelloĊ", NORMAL, Spelling::Bytes), b" Hello\n");
        assert_eq!(piece("Ã", NORMAL, Spelling::Bytes), [0xC3]);
        assert_eq!(piece("a｜b", NORMAL, Spelling::Bytes), "a｜b".as_bytes());
        assert_eq!(piece("▁▁Hi▁", NORMAL, Spelling::Spaces), b"  Hi ");
        assert_eq!(piece("▁Ġ", USER_DEFINED, Spelling::Bytes), "▁Ġ".as_bytes());
        assert_eq!(piece("<0x0A>", BYTE, Spelling::Spaces), b"\n");
        assert_eq!(piece("<0x+A>", BYTE, Spelling::Spaces), b"<0x+A>");
        assert_eq!(piece("<0x0A>", NORMAL, Spelling::Spaces), b"<0x0A>");
        assert_eq!(piece("gone", 0, Spelling::Spaces), b"");
    }

    #[test]
    fn only_a_tail_that_can_be_completed_is_incomplete() {
        for c in "aé▁😀".chars() {
            let bytes = format!("é{c}").into_bytes();
            for length in 2..bytes.len() {
                assert_eq!(incomplete_tail(&bytes[..length]), length - 2, "{c} {length}");
            }
            assert_eq!(incomplete_tail(&bytes), 0);
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
            assert_eq!(incomplete_tail(broken), 0, "{broken:x?}");
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
