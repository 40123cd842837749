//! BERT's WordPiece: splits words into the longest tokens from the left.
//!
//! Files store word-initial pieces with a leading "▁" and others without prefix (`##x` becomes
//! `x`).
//!
//! Normalization follows BERT, with which the models were trained, even where llama.cpp
//! approximates it. Accents are fully decomposed, and only nonspacing marks are removed. llama.cpp
//! keeps the first character of a decomposition, which turns a Hangul syllable into its first
//! consonant.

use unicode_normalization::UnicodeNormalization;

use crate::trie::Trie;
use crate::unicode::{C, MN, P, WS, table};
use crate::vocab::Vocab;

#[derive(Debug)]
pub(crate) struct Wpm {
    trie: Trie,
    lowercase: bool,
    strip_accents: bool,
    unk: Option<u32>,
}

impl Wpm {
    pub(crate) fn new(
        vocab: &Vocab,
        lowercase: bool,
        strip_accents: bool,
        unk: Option<u32>,
    ) -> Self {
        let trie = Trie::new(vocab.texts.iter().zip(0..).collect());
        Wpm { trie, lowercase, strip_accents, unk }
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut word = PendingWord { text: String::from("▁"), empty: true };
        // Dropped characters are removed first: a control between a letter and its accent does not
        // separate them.
        let clean = text.chars().filter(|&c| !is_dropped(c));
        match self.strip_accents {
            true => clean
                .nfd()
                .filter(|&c| table().class(u32::from(c)) & MN == 0)
                .for_each(|c| self.add(c, &mut word, ids)),
            false => clean.for_each(|c| self.add(c, &mut word, ids)),
        }
        self.finish(&mut word, ids);
    }

    /// Adds a character to the current word, or ends the word, or makes the character a word of its
    /// own.
    fn add(&self, c: char, word: &mut PendingWord, ids: &mut Vec<u32>) {
        let class = table().class(u32::from(c));
        if class & WS != 0 {
            return self.finish(word, ids);
        }
        let alone = class & P != 0 || c.is_ascii_punctuation() || is_cjk(u32::from(c));
        if alone {
            self.finish(word, ids);
        }
        match self.lowercase {
            true => word.text.extend(c.to_lowercase()),
            false => word.text.push(c),
        }
        word.empty = false;
        if alone {
            self.finish(word, ids);
        }
    }

    /// Appends the tokens of a word and clears it. If part of the word has no token, appends the
    /// unknown token.
    fn finish(&self, word: &mut PendingWord, ids: &mut Vec<u32>) {
        if word.empty {
            return;
        }
        let (before, mut rest) = (ids.len(), word.text.as_bytes());
        while !rest.is_empty() {
            let Some((length, id)) = self.trie.longest(rest) else {
                ids.truncate(before);
                ids.extend(self.unk);
                break;
            };
            ids.push(id);
            rest = &rest[length..];
        }
        word.text.truncate("▁".len());
        word.empty = true;
    }
}

/// A word under construction, with a leading "▁".
struct PendingWord {
    text: String,
    empty: bool,
}

/// NUL, U+FFFD and controls. Tab and line ends are white space instead.
fn is_dropped(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\0' | '\u{FFFD}' | '\u{b}' | '\u{c}' | '\u{85}' => true,
        _ => table().class(u32::from(c)) & C != 0,
    }
}

/// CJK ideographs as in BERT's tokenizers, including the gap before U+2B920.
fn is_cjk(c: u32) -> bool {
    matches!(c, 0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F | 0x2_B740..=0x2_B81F
        | 0x2_B920..=0x2_CEAF | 0xF900..=0xFAFF | 0x2_F800..=0x2_FA1F)
}
