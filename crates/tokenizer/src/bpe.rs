//! Byte-pair encoding: words are split in characters (or bytes), and neighbours merge in the order of the merge list.
//!
//! Everything is done on numbers of symbols: tokens by id, and above them texts that occur in merges but are no tokens.
//! Where bytes are written in GPT-2's alphabet, a symbol stands for bytes of the text itself and the alphabet appears
//! in loading alone.

use std::borrow::Cow;
use std::collections::HashMap;

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::bytes;
use crate::hash::{Merge, PairMap, Texts};
use crate::islands::Neighbours;
use crate::merge::{Merger, Symbol, WordCache};
use crate::pretok::PreTokenizer;
use crate::vocab::{Vocab, at_most};

const MERGES: &str = "tokenizer.ggml.merges";
const MOST_MERGES: usize = 1 << 28;

/// A character that is neither a token nor in any merge.
const NO_SYMBOL: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(crate) struct Bpe {
    pre: &'static PreTokenizer,
    /// Words of a vocabulary of model `whitespace` are what stands between white space, in lower case if `lowercase`.
    words_only: bool,
    lowercase: bool,
    /// Letter case in all scripts where the pre-tokenizer tells it in ASCII alone.
    original: bool,
    pairs: PairMap,
    /// Symbols of the 256 bytes, if bytes are encoded.
    bytes: Vec<u32>,
    /// Words of characters can be whole lines: they are taken apart further.
    neighbours: Option<Neighbours>,
    extra: Extra,
}

/// Symbols that are no tokens, numbered from the vocabulary's size.
#[derive(Debug, Default)]
struct Extra {
    texts: Texts,
    ids: HashMap<Box<[u8]>, u32>,
}

impl Extra {
    /// The symbol of a text, made if it is new.
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
        let mut extra = Extra::default();
        let bytes = match pre.byte_encode {
            true => {
                (0..=255).map(|byte| extra.symbol(vocab, bytes::encoded(byte).as_bytes())).collect()
            }
            false => Vec::new(),
        };
        let pairs = match meta.strings(MERGES)? {
            Some(merges) => {
                at_most(MERGES, merges.len(), MOST_MERGES)?;
                read_merges(merges, vocab, &mut extra)
            }
            // The vocabulary of Kimi K2 is said to do without.
            None if pre.names.contains(&"kimi-k2") => PairMap::with_capacity(0),
            None => return Err(TokenizerError::NoMerges { model: model.to_owned() }),
        };
        let lowercase = meta.opt_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false);
        let words_only = model == "whitespace";
        let texts = || vocab.texts.iter().chain(extra.texts.iter());
        let neighbours = (!pre.byte_encode).then(|| Neighbours::new(texts()));
        Ok(Bpe { pre, words_only, lowercase, original, pairs, bytes, neighbours, extra })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        let text = self.prepared(text);
        let mut ends = Vec::new();
        let mut merger = Merger::default();
        if !self.words_only {
            return self.encode_words(vocab, &text, ids, &mut merger, &mut ends);
        }
        for word in text.split(char::is_whitespace).filter(|word| !word.is_empty()) {
            self.encode_words(vocab, word, ids, &mut merger, &mut ends);
        }
    }

    fn prepared<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if self.words_only && self.lowercase {
            text = text.chars().flat_map(char::to_lowercase).collect::<String>().into();
        }
        if self.pre.escape_spaces && text.contains(' ') {
            text = text.replace(' ', "▁").into();
        }
        text
    }

    fn encode_words(
        &self,
        vocab: &Vocab,
        text: &str,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        ends: &mut Vec<usize>,
    ) {
        let mut cache = WordCache::new(text.len());
        let mut start = 0;
        self.pre.set.split(text, self.original, ends);
        for &end in ends.iter() {
            let word = &text[start..end];
            match &self.neighbours {
                None => cache.append(word, ids, |ids| self.encode_word(vocab, word, ids, merger)),
                Some(neighbours) => {
                    self.encode_islands(vocab, word, neighbours, ids, merger, &mut cache)
                }
            }
            start = end;
        }
    }

    fn encode_islands<'a>(
        &self,
        vocab: &Vocab,
        word: &'a str,
        neighbours: &Neighbours,
        ids: &mut Vec<u32>,
        merger: &mut Merger,
        cache: &mut WordCache<'a>,
    ) {
        if let Some(id) = self.whole_word(vocab, word) {
            return ids.push(id);
        }
        let mut rest = word;
        while !rest.is_empty() {
            let (island, behind) = rest.split_at(neighbours.first_island(rest));
            cache.append(island, ids, |ids| self.merge_word(vocab, island, ids, merger));
            rest = behind;
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, ids: &mut Vec<u32>, merger: &mut Merger) {
        if let Some(id) = self.whole_word(vocab, word) {
            return ids.push(id);
        }
        self.merge_word(vocab, word, ids, merger);
    }

    fn merge_word(&self, vocab: &Vocab, word: &str, ids: &mut Vec<u32>, merger: &mut Merger) {
        merger.symbols.clear();
        if self.pre.byte_encode {
            let symbols =
                word.bytes().zip(0..).map(|(byte, at)| (self.bytes[usize::from(byte)], at));
            merger.symbols.extend(symbols.map(|(id, at)| Symbol { id, start: at, end: at + 1 }));
        } else {
            merger.symbols.extend(word.char_indices().map(|(at, c)| {
                let text = &word[at..at + c.len_utf8()];
                let start = at as u32;
                Symbol { id: self.symbol(vocab, text), start, end: start + text.len() as u32 }
            }));
        }
        merger.run(|left, right| self.pairs.get(left.id, right.id));
        for &symbol in &merger.symbols {
            match (symbol.id as usize) < vocab.len() {
                true => ids.push(symbol.id),
                false => self.spell(vocab, symbol, word, ids),
            }
        }
    }

    /// A word that needs no merges because it is a token.
    #[inline]
    fn whole_word(&self, vocab: &Vocab, word: &str) -> Option<u32> {
        let newlines = || self.pre.gemma4 && word.bytes().all(|byte| byte == b'\n');
        if !self.pre.ignore_merges && !newlines() {
            return None;
        }
        if !self.pre.byte_encode {
            return vocab.id(word.as_bytes());
        }
        // Each byte takes at most two in the alphabet, and longer words than the longest token are none.
        if word.len() > vocab.longest {
            return None;
        }
        let mut encoded = Vec::with_capacity(word.len() * 2);
        word.bytes().for_each(|byte| encoded.extend_from_slice(bytes::encoded(byte).as_bytes()));
        vocab.id(&encoded)
    }

    fn symbol(&self, vocab: &Vocab, text: &str) -> u32 {
        let extra = || self.extra.ids.get(text.as_bytes()).copied();
        vocab.id(text.as_bytes()).or_else(extra).unwrap_or(NO_SYMBOL)
    }

    /// Tokens for a symbol that is none: one for each byte that has one, nothing for the others.
    #[cold]
    fn spell(&self, vocab: &Vocab, symbol: Symbol, word: &str, ids: &mut Vec<u32>) {
        if self.pre.byte_encode {
            // As in llama.cpp, which looks for the bytes of the text in the alphabet.
            let text = self.extra.texts.get(symbol.id as usize - vocab.len());
            ids.extend(text.iter().filter_map(|&byte| vocab.id(&[byte])));
        } else {
            let text = &word.as_bytes()[symbol.start as usize..symbol.end as usize];
            ids.extend(
                text.iter().filter_map(|byte| vocab.id(format!("<0x{byte:02X}>").as_bytes())),
            );
        }
    }
}

/// Lists longer than this are worth a second thread.
const MANY_MERGES: usize = 50_000;

/// The rank of a merge is its place in the list; texts that are no tokens become symbols in `extra`.
fn read_merges<'a>(
    merges: impl Iterator<Item = &'a [u8]>,
    vocab: &Vocab,
    extra: &mut Extra,
) -> PairMap {
    let merges: Vec<&[u8]> = merges.collect();
    let mut pairs = PairMap::with_capacity(merges.len());
    let mut add = |merges: &[&[u8]], tokens: Vec<Option<u32>>, first: u32| {
        let mut tokens = tokens.into_iter();
        for (merge, rank) in merges.iter().zip(first..) {
            let Some((left, right)) = halves(merge) else { continue };
            let mut token = || tokens.next().flatten();
            let left_id = token().unwrap_or_else(|| extra.symbol(vocab, left));
            let right_id = token().unwrap_or_else(|| extra.symbol(vocab, right));
            let merged = token().unwrap_or_else(|| extra.symbol(vocab, &[left, right].concat()));
            pairs.insert(left_id, right_id, Merge { rank, merged });
        }
    };
    if merges.len() < MANY_MERGES {
        add(&merges, tokens_of(&merges, vocab), 0);
        return pairs;
    }
    let (front, back) = merges.split_at(merges.len() / 2);
    std::thread::scope(|scope| {
        let back_tokens = scope.spawn(|| tokens_of(back, vocab));
        add(front, tokens_of(front, vocab), 0);
        // A panic over there is a bug there: pass it on.
        let tokens = back_tokens.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        add(back, tokens, front.len() as u32);
    });
    pairs
}

/// The tokens of the two halves of each merge and of what they become, where there are such.
fn tokens_of(merges: &[&[u8]], vocab: &Vocab) -> Vec<Option<u32>> {
    const AT_ONCE: usize = 1024;
    let mut ids = Vec::with_capacity(merges.len() * 3);
    let mut texts = Vec::new();
    let mut ends = Vec::new();
    for merges in merges.chunks(AT_ONCE) {
        texts.clear();
        ends.clear();
        for (left, right) in merges.iter().filter_map(|merge| halves(merge)) {
            for part in [left, right] {
                texts.extend_from_slice(part);
                ends.push(texts.len());
            }
        }
        // Left and right lie side by side: the two together are the third text.
        let starts = std::iter::once(0).chain(ends.iter().skip(1).step_by(2).copied());
        let wanted = starts.zip(ends.chunks_exact(2)).flat_map(|(start, two)| {
            [&texts[start..two[0]], &texts[two[0]..two[1]], &texts[start..two[1]]]
        });
        vocab.ids.get_many(&vocab.texts, wanted, &mut ids);
    }
    ids
}

/// Left and right text of a merge; the blank between them is the first one that is not the first byte.
fn halves(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = 1 + merge.iter().skip(1).position(|&byte| byte == b' ')?;
    Some((&merge[..blank], &merge[blank + 1..]))
}
