//! GPT-2's byte alphabet: one printable character per byte. Printable ASCII and most of Latin-1
//! stand for themselves. The other 68 bytes are U+0100 to U+0143 in ascending order.

use std::sync::LazyLock;

struct Alphabet {
    encoded: [String; 256],
    /// Bytes of the characters U+0000 to U+0143.
    decoded: [Option<u8>; 0x144],
}

static ALPHABET: LazyLock<Alphabet> = LazyLock::new(|| {
    let mut others = 0x100..;
    let characters: [u32; 256] = std::array::from_fn(|byte| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => byte as u32,
        _ => others.next().unwrap_or(0),
    });
    let mut decoded = [None; 0x144];
    for (byte, &c) in (0..=255).zip(&characters) {
        decoded[c as usize] = Some(byte);
    }
    Alphabet { encoded: characters.map(|c| char::from_u32(c).into_iter().collect()), decoded }
});

/// Character of a byte.
pub(crate) fn encoded(byte: u8) -> &'static str {
    &ALPHABET.encoded[usize::from(byte)]
}

/// Byte of a character. `None` outside of the alphabet.
pub(crate) fn decoded(c: char) -> Option<u8> {
    ALPHABET.decoded.get(c as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_the_one_of_gpt2() {
        assert_eq!(
            ["Ġ", "Ċ", "ĉ", "!", "~", "ÿ", "Ā", "ġ", "Ń"],
            [32, 10, 9, 33, 126, 255, 0, 127, 173].map(encoded)
        );
        for byte in 0..=255 {
            assert_eq!(encoded(byte).chars().map(decoded).collect::<Vec<_>>(), [Some(byte)]);
        }
        assert_eq!((decoded('ń'), decoded(' '), decoded('\u{10ffff}')), (None, None, None));
    }
}
