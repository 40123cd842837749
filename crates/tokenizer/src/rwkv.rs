//! RWKV's world vocabulary: greedy longest match from the left, over tokens stored with escapes.

use crate::control::EncodeControl;
use crate::trie::Trie;
use crate::vocab::Vocab;

#[derive(Debug)]
pub(crate) struct Rwkv {
    trie: Trie,
    unk: Option<u32>,
}

impl Rwkv {
    pub(crate) fn new(vocab: &Vocab, unk: Option<u32>) -> Self {
        let texts: Vec<Vec<u8>> = vocab.texts.iter().map(unescaped).collect();
        Rwkv { trie: Trie::new(texts.iter().map(Vec::as_slice).zip(0..).collect()), unk }
    }

    /// Appends the tokens of a text without special tokens. A byte that starts no token becomes the
    /// unknown token.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() && !control.is_cancelled() {
            let (length, id) =
                self.trie.longest(rest).map_or((1, self.unk), |(length, id)| (length, Some(id)));
            ids.extend(id);
            rest = &rest[length..];
        }
    }

    /// Whether every byte of a text becomes part of a token.
    pub(crate) fn covers_every_byte(&self) -> bool {
        self.unk.is_some() || (0..=255).all(|byte| self.trie.get(&[byte]).is_some())
    }
}

/// Decodes `\t`, `\n`, `\r` and `\xHH`. A backslash before another character is dropped.
pub(crate) fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit =
        |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).unwrap_or(0) as u8;
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        match (byte, escaped) {
            (b'\\', None) => {}
            (_, Some(b't')) => out.push(b'\t'),
            (_, Some(b'n')) => out.push(b'\n'),
            (_, Some(b'r')) => out.push(b'\r'),
            (_, Some(b'x')) => out.push(digit(bytes.next()) << 4 | digit(bytes.next())),
            (_, Some(other)) => out.push(other),
            (_, None) => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_decode_to_bytes() {
        assert_eq!(unescaped(br"a\t\n\r\x0a\xfF\\\'b"), b"a\t\n\r\n\xff\\'b");
        assert_eq!(unescaped(br"\"), b"");
        assert_eq!(unescaped(br"\x4"), [0x40]);
    }
}
