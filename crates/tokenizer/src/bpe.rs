//! Byte-pair encoding: splits words into characters or bytes, and merges neighbours in the order of
//! the merge list.
//!
//! Works on symbol numbers: token ids, and above them numbers of texts that occur in merges but are
//! not tokens. In vocabularies that use GPT-2's byte alphabet, a symbol stands for bytes of the
//! text. The alphabet is only used during loading.

use std::borrow::Cow;
use std::collections::HashMap;

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::bytes;
use crate::control::EncodeControl;
use crate::hash::{Merge, MergeTable, TextTable};
use crate::long_word::merge_parts;
use crate::merge::{MergeRules, Merger, Symbol, WordCache};
use crate::pre_tokenizer::PreTokenizer;
use crate::segments::{AdjacentPairs, SegmentStream, split_at_border};
use crate::vocab::{Vocab, check_limit};

const MERGES: &str = "tokenizer.ggml.merges";
const MAX_MERGES: usize = 1 << 28;

/// A character that is neither a token nor part of a merge.
const NO_SYMBOL: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(crate) struct Bpe {
    pre: &'static PreTokenizer,
    /// Vocabularies of model `whitespace` split at white space, and change to lower case if
    /// `lowercase`.
    splits_whitespace: bool,
    lowercase: bool,
    /// Distinguishes letter case in all scripts, where the default pre-tokenizer does so only in
    /// ASCII.
    original: bool,
    pairs: MergeTable,
    /// Symbols of the 256 bytes, if the vocabulary encodes bytes.
    bytes: Vec<u32>,
    /// Splits long words of characters further. A word can be a whole line.
    adjacent_pairs: Option<AdjacentPairs>,
    extra: ExtraSymbols,
}

/// Symbols that are not tokens, numbered from the vocabulary's size.
#[derive(Debug, Default)]
struct ExtraSymbols {
    texts: TextTable,
    ids: HashMap<Box<[u8]>, u32>,
}

impl ExtraSymbols {
    /// Returns the symbol of a text, and adds it if it is new.
    fn symbol(&mut self, vocab: &Vocab, text: &[u8]) -> u32 {
        vocab.id(text).unwrap_or_else(|| {
            *self.ids.entry(text.into()).or_insert_with(|| {
                self.texts.push(text);
                (vocab.len() + self.texts.len() - 1) as u32
            })
        })
    }
}

impl Bpe {
    pub(crate) fn read(
        meta: &Metadata,
        vocab: &Vocab,
        model: &str,
        pre: &'static PreTokenizer,
        original: bool,
    ) -> Result<Self, TokenizerError> {
        let mut extra = ExtraSymbols::default();
        let bytes = match pre.byte_encode {
            true => {
                (0..=255).map(|byte| extra.symbol(vocab, bytes::encoded(byte).as_bytes())).collect()
            }
            false => Vec::new(),
        };
        let pairs = match meta.strings(MERGES)? {
            Some(merges) => {
                check_limit(MERGES, merges.len(), MAX_MERGES)?;
                read_merges(merges, vocab, &mut extra)
            }
            // Kimi K2's vocabulary reportedly has no merges.
            None if pre.names.contains(&"kimi-k2") => MergeTable::with_capacity(0),
            None => return Err(TokenizerError::NoMerges { model: model.to_owned() }),
        };
        let lowercase = meta.opt_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false);
        let splits_whitespace = model == "whitespace";
        let texts = || vocab.texts.iter().chain(extra.texts.iter());
        let adjacent_pairs = (!pre.byte_encode).then(|| AdjacentPairs::new(texts()));
        Ok(Bpe { pre, splits_whitespace, lowercase, original, pairs, bytes, adjacent_pairs, extra })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        control: EncodeControl<'_>,
    ) {
        let mut merger = Merger::default();
        if self.splits_whitespace {
            let words = text.split(char::is_whitespace).filter(|word| !word.is_empty());
            for word in words.take_while(|_| !control.is_cancelled()) {
                let word = self.normalize(word, control);
                self.encode_words(vocab, &word, ids, &mut merger, control);
            }
        } else if self.pre.escape_spaces {
            self.encode_lines(vocab, text, ids, &mut merger, control);
        } else {
            self.encode_words(vocab, text, ids, &mut merger, control);
        }
    }

    fn normalize<'a>(&self, text: &'a str, control: EncodeControl<'_>) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if self.splits_whitespace && self.lowercase {
            let characters = text.chars().take_while(|_| !control.is_cancelled());
            text = characters.flat_map(char::to_lowercase).collect::<String>().into();
        }
        if self.pre.escape_spaces && text.contains(' ') {
            text = text.replace(' ', "▁").into();
        }
        text
    }

    /// Encodes a text of lines in pieces, of which each becomes a copy with escaped spaces. A line
    /// that is longer than a piece is encoded character by character.
    fn encode_lines(
        &self,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) {
        let mut rest = text;
        while !rest.is_empty() && !control.is_cancelled() {
            let is_border = |before, c| (before == '\n') != (c == '\n');
            let (piece, behind) = split_at_border(rest, is_border, control);
            rest = behind;
            match (&self.adjacent_pairs, piece.len() > control.piece_bytes) {
                (Some(adjacent_pairs), true) if piece.len() > vocab.longest => {
                    let rules = BpeRules { bpe: self, vocab };
                    let mut segments = SegmentStream::new(&rules, adjacent_pairs, merger, control);
                    for c in piece.chars().take_while(|_| !control.is_cancelled()) {
                        segments.push(if c == ' ' { '▁' } else { c }, ids);
                    }
                    segments.finish(ids);
                }
                _ => {
                    let piece = self.normalize(piece, control);
                    self.encode_words(vocab, &piece, ids, merger, control);
                }
            }
        }
    }

    fn encode_words(
        &self,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) {
        let rules = BpeRules { bpe: self, vocab };
        let mut cache = WordCache::new(text.len());
        let mut start = 0;
        self.pre.set.split(text, self.original, control.cancelled, &mut |end| {
            let word = &text[start..end];
            match &self.adjacent_pairs {
                None => cache.append(word, ids, |ids| rules.encode(word, ids, merger, control)),
                Some(adjacent_pairs) => {
                    rules.encode_segments(word, adjacent_pairs, ids, merger, &mut cache, control);
                }
            }
            start = end;
        });
    }

    /// The token of a whole word, if it needs no merges.
    #[inline]
    fn word_as_token(&self, vocab: &Vocab, word: &str) -> Option<u32> {
        let newlines = || self.pre.gemma4 && word.bytes().all(|byte| byte == b'\n');
        if !self.pre.ignore_merges && !newlines() {
            return None;
        }
        if !self.pre.byte_encode {
            return vocab.id(word.as_bytes());
        }
        // Each byte takes at most two bytes in the alphabet, and no token is longer than the
        // longest one.
        if word.len() > vocab.longest {
            return None;
        }
        let mut encoded = Vec::with_capacity(word.len() * 2);
        word.bytes().for_each(|byte| encoded.extend_from_slice(bytes::encoded(byte).as_bytes()));
        vocab.id(&encoded)
    }

    fn symbol(&self, vocab: &Vocab, text: &[u8]) -> u32 {
        let extra = || self.extra.ids.get(text).copied();
        vocab.id(text).or_else(extra).unwrap_or(NO_SYMBOL)
    }

    /// Tokens for a symbol that is not a token: one for each byte that has a token. Skips other
    /// bytes.
    #[cold]
    fn byte_fallback(&self, vocab: &Vocab, symbol: Symbol, word: &[u8], ids: &mut Vec<u32>) {
        if self.pre.byte_encode {
            // Like llama.cpp, which looks up the bytes of the text in the alphabet.
            let text = self.extra.texts.get(symbol.id as usize - vocab.len());
            ids.extend(text.iter().filter_map(|&byte| vocab.id(&[byte])));
        } else {
            let text = &word[symbol.start as usize..symbol.end as usize];
            ids.extend(text.iter().filter_map(|byte| vocab.id(&byte_token(*byte))));
        }
    }

    /// Whether every byte of a text becomes part of a token.
    pub(crate) fn covers_every_byte(&self, vocab: &Vocab) -> bool {
        let has_bytes = || (0..=255).all(|byte| vocab.id(&byte_token(byte)).is_some());
        !self.splits_whitespace
            && self.extra.texts.iter().next().is_none()
            && (self.pre.byte_encode || has_bytes())
    }
}

/// Text of the token of a byte in vocabularies that do not use GPT-2's byte alphabet.
fn byte_token(byte: u8) -> Vec<u8> {
    format!("<0x{byte:02X}>").into_bytes()
}

/// A vocabulary with its merges.
struct BpeRules<'a> {
    bpe: &'a Bpe,
    vocab: &'a Vocab,
}

impl BpeRules<'_> {
    /// Appends the tokens of a word, with memory for a part of it.
    fn encode(
        &self,
        word: &str,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        control: EncodeControl<'_>,
    ) {
        match self.bpe.word_as_token(self.vocab, word) {
            Some(id) => ids.push(id),
            None => merge_parts(self, word, ids, merger, control),
        }
    }

    fn encode_segments<'a>(
        &self,
        word: &'a str,
        adjacent_pairs: &AdjacentPairs,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        cache: &mut WordCache<'a>,
        control: EncodeControl<'_>,
    ) {
        if let Some(id) = self.bpe.word_as_token(self.vocab, word) {
            return ids.push(id);
        }
        let mut rest = word;
        while !rest.is_empty() && !control.is_cancelled() {
            let (segment, behind) = rest.split_at(adjacent_pairs.first_segment_len(rest, control));
            cache.append(segment, ids, |ids| merge_parts(self, segment, ids, merger, control));
            rest = behind;
        }
    }
}

impl MergeRules for BpeRules<'_> {
    fn split(&self, word: &[u8], symbols: &mut Vec<Symbol>) {
        let BpeRules { bpe, vocab } = self;
        if bpe.pre.byte_encode {
            let bytes = word.iter().zip(0..).map(|(&byte, at)| (bpe.bytes[usize::from(byte)], at));
            symbols.extend(bytes.map(|(id, at)| Symbol { id, start: at, end: at + 1 }));
        } else {
            let text = std::str::from_utf8(word).unwrap_or_default();
            symbols.extend(text.char_indices().map(|(at, c)| {
                let end = at + c.len_utf8();
                let id = bpe.symbol(vocab, &word[at..end]);
                Symbol { id, start: at as u32, end: end as u32 }
            }));
        }
    }

    #[inline]
    fn pair(&self, _: &[u8], left: Symbol, right: Symbol) -> Option<Merge> {
        self.bpe.pairs.get(left.id, right.id)
    }

    fn append(&self, word: &[u8], symbol: Symbol, ids: &mut Vec<u32>) {
        match (symbol.id as usize) < self.vocab.len() {
            true => ids.push(symbol.id),
            false => self.bpe.byte_fallback(self.vocab, symbol, word, ids),
        }
    }
}

/// Minimum number of merges for which a second thread pays off.
const PARALLEL_MIN_MERGES: usize = 50_000;

/// Reads the merge list. The rank of a merge is its position. Texts that are not tokens become
/// symbols in `extra`.
fn read_merges<'a>(
    merges: impl Iterator<Item = &'a [u8]>,
    vocab: &Vocab,
    extra: &mut ExtraSymbols,
) -> MergeTable {
    let merges: Vec<&[u8]> = merges.collect();
    let mut pairs = MergeTable::with_capacity(merges.len());
    let mut add = |merges: &[&[u8]], tokens: Vec<Option<u32>>, first: u32| {
        let mut tokens = tokens.into_iter();
        for (merge, rank) in merges.iter().zip(first..) {
            let Some((left, right)) = split_merge(merge) else { continue };
            let mut token = || tokens.next().flatten();
            let left_id = token().unwrap_or_else(|| extra.symbol(vocab, left));
            let right_id = token().unwrap_or_else(|| extra.symbol(vocab, right));
            let merged = token().unwrap_or_else(|| extra.symbol(vocab, &[left, right].concat()));
            pairs.insert(left_id, right_id, Merge { rank, merged });
        }
    };
    if merges.len() < PARALLEL_MIN_MERGES {
        add(&merges, tokens_of(&merges, vocab), 0);
        return pairs;
    }
    let (front, back) = merges.split_at(merges.len() / 2);
    std::thread::scope(|scope| {
        let back_tokens = scope.spawn(|| tokens_of(back, vocab));
        add(front, tokens_of(front, vocab), 0);
        // A panic of the other thread is a bug there, so it continues here.
        let tokens = back_tokens.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        add(back, tokens, front.len() as u32);
    });
    pairs
}

/// For each merge: tokens of its left part, its right part and its result, where they exist.
fn tokens_of(merges: &[&[u8]], vocab: &Vocab) -> Vec<Option<u32>> {
    const AT_ONCE: usize = 1024;
    let mut ids = Vec::with_capacity(merges.len() * 3);
    let mut texts = Vec::new();
    let mut ends = Vec::new();
    for merges in merges.chunks(AT_ONCE) {
        texts.clear();
        ends.clear();
        for (left, right) in merges.iter().filter_map(|merge| split_merge(merge)) {
            for part in [left, right] {
                texts.extend_from_slice(part);
                ends.push(texts.len());
            }
        }
        // Left and right part are adjacent in `texts`, so both together are the result.
        let starts = std::iter::once(0).chain(ends.iter().skip(1).step_by(2).copied());
        let wanted = starts.zip(ends.chunks_exact(2)).flat_map(|(start, two)| {
            [&texts[start..two[0]], &texts[two[0]..two[1]], &texts[start..two[1]]]
        });
        vocab.ids.get_many(&vocab.texts, wanted, &mut ids);
    }
    ids
}

/// Splits a merge at its first space that is not the first byte.
fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = 1 + merge.iter().skip(1).position(|&byte| byte == b' ')?;
    Some((&merge[..blank], &merge[blank + 1..]))
}
