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
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use crate::control::EncodeControl;
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
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>, control: EncodeControl<'_>) {
        let mut word =
            PendingWord::new(ids.len(), control.piece_bytes.max(self.trie.longest_key()));
        // Dropped characters are removed first: a control between a letter and its accent does not
        // separate them.
        let clean =
            text.chars().filter(|&c| !is_dropped(c)).take_while(|_| !control.is_cancelled());
        match self.strip_accents {
            // Decomposition sorts each run of marks. Accents that it would sort are removed before,
            // so that a long run of them takes no memory.
            true => clean
                .flat_map(decomposed)
                .filter(|&c| canonical_combining_class(c) == 0 || !is_accent(c))
                .nfd()
                .filter(|&c| !is_accent(c))
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
            true => c.to_lowercase().for_each(|c| word.push(c)),
            false => word.push(c),
        }
        word.empty = false;
        if alone {
            self.finish(word, ids);
        } else if word.text.len() >= 2 * word.most_bytes {
            // The longest token at each of these positions is known, whatever follows.
            self.append_tokens(word, self.trie.longest_key(), ids);
        }
    }

    /// Appends the tokens of the rest of a word and clears it.
    fn finish(&self, word: &mut PendingWord, ids: &mut Vec<u32>) {
        if word.empty {
            return;
        }
        self.append_tokens(word, 1, ids);
        word.restart(ids.len());
    }

    /// Appends tokens of a word while at least `min` bytes of it remain, and removes their text.
    /// If part of the word has no token, the whole word becomes the unknown token.
    fn append_tokens(&self, word: &mut PendingWord, min: usize, ids: &mut Vec<u32>) {
        let mut rest = word.text.as_slice();
        while rest.len() >= min && !word.unknown {
            if let Some((length, id)) = self.trie.longest(rest) {
                ids.push(id);
                rest = &rest[length..];
            } else {
                ids.truncate(word.first_token);
                ids.extend(self.unk);
                word.unknown = true;
            }
        }
        let done = if word.unknown { word.text.len() } else { word.text.len() - rest.len() };
        word.text.drain(..done);
    }
}

/// A word under construction, with a leading "▁".
struct PendingWord {
    /// Text without the tokens that were appended.
    text: Vec<u8>,
    empty: bool,
    /// The unknown token was appended for the word.
    unknown: bool,
    /// Number of tokens before the word.
    first_token: usize,
    /// From twice this length, the tokens of a part are appended before the word is complete.
    most_bytes: usize,
}

impl PendingWord {
    fn new(first_token: usize, most_bytes: usize) -> Self {
        let text = "▁".as_bytes().to_vec();
        PendingWord { text, empty: true, unknown: false, first_token, most_bytes }
    }

    /// Starts the next word.
    fn restart(&mut self, first_token: usize) {
        self.text.clear();
        self.text.extend_from_slice("▁".as_bytes());
        (self.empty, self.unknown, self.first_token) = (true, false, first_token);
    }

    fn push(&mut self, c: char) {
        self.text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// Canonical decomposition of a character, at most four characters.
fn decomposed(c: char) -> impl Iterator<Item = char> {
    let mut parts = ['\0'; 4];
    let mut count = 0;
    decompose_canonical(c, |part| {
        if let Some(place) = parts.get_mut(count) {
            (*place, count) = (part, count + 1);
        }
    });
    parts.into_iter().take(count)
}

/// Whether BERT removes a character as an accent.
fn is_accent(c: char) -> bool {
    table().class(u32::from(c)) & MN != 0
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
