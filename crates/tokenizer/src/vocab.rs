//! Tokens of a file: texts, scores, kinds.

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::hash::{TextMap, Texts};

/// What a token is: a set of these bits, as some kinds are added to others while loading.
pub(crate) type Kind = u16;

pub(crate) const NORMAL: Kind = 1;
pub(crate) const UNKNOWN: Kind = 1 << 1;
pub(crate) const CONTROL: Kind = 1 << 2;
pub(crate) const USER_DEFINED: Kind = 1 << 3;
pub(crate) const UNUSED: Kind = 1 << 4;
pub(crate) const BYTE: Kind = 1 << 5;
/// Takes the white space before it.
pub(crate) const LSTRIP: Kind = 1 << 6;
/// Takes the white space behind it.
pub(crate) const RSTRIP: Kind = 1 << 7;
/// Is shown like a user-defined token, since parsers read it, but marks up conversations like a control token: who may write none of
/// these may not write it either.
pub(crate) const MARKUP: Kind = 1 << 8;

/// Tokens by id.
#[derive(Debug)]
pub(crate) struct Vocab {
    pub(crate) texts: Texts,
    pub(crate) ids: TextMap,
    /// Empty if the file has none: all are 0 then.
    pub(crate) scores: Vec<f32>,
    pub(crate) kinds: Vec<Kind>,
    /// Length in bytes of the longest text.
    pub(crate) longest: usize,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Ids are 32-bit and tables hold twice as many slots.
const MOST_TOKENS: usize = 1 << 28;

impl Vocab {
    pub(crate) fn read(meta: &Metadata) -> Result<Vocab, TokenizerError> {
        let tokens = meta.strings(TOKENS)?.ok_or(TokenizerError::NoTokens)?;
        let count = tokens.len();
        if count == 0 {
            return Err(TokenizerError::NoTokens);
        }
        at_most(TOKENS, count, MOST_TOKENS)?;
        let mut texts = Texts::with_capacity(count, count * 8);
        for (id, text) in tokens.enumerate() {
            match text.is_empty() {
                true => texts.push(format!("[EMPTY_{id}]").as_bytes()),
                false => texts.push(text),
            }
            at_most(TOKENS, texts.total(), u32::MAX as usize)?;
        }
        let longest = texts.iter().map(<[u8]>::len).max().unwrap_or(0);
        Ok(Vocab {
            ids: index(&texts)?,
            scores: scores(meta, count)?,
            kinds: kinds(meta, count)?,
            longest,
            texts,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    #[inline]
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id as usize)
    }

    #[inline]
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(&self.texts, text)
    }

    /// The kind of a token; none for an id that is none.
    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(0)
    }

    pub(crate) fn is(&self, id: u32, kind: Kind) -> bool {
        self.kind(id) & kind != 0
    }

    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// The token that stands for a byte: `<0xHH>`, failing that the one whose text is that byte.
    pub(crate) fn byte(&self, byte: u8) -> Option<u32> {
        self.id(format!("<0x{byte:02X}>").as_bytes()).or_else(|| self.id(&[byte]))
    }
}

/// An error if there is more than can be numbered.
pub(crate) fn at_most(key: &'static str, found: usize, most: usize) -> Result<(), TokenizerError> {
    if found > most { Err(TokenizerError::TooLarge { key, found, most }) } else { Ok(()) }
}

fn index(texts: &Texts) -> Result<TextMap, TokenizerError> {
    let mut ids = TextMap::with_capacity(texts.len());
    for id in 0..texts.len() as u32 {
        ids.insert(texts, id).map_err(|first| {
            let text = String::from_utf8_lossy(texts.get(id as usize)).chars().take(80).collect();
            TokenizerError::DuplicateToken { first, second: id, text }
        })?;
    }
    Ok(ids)
}

fn scores(meta: &Metadata, count: usize) -> Result<Vec<f32>, TokenizerError> {
    let Some(array) = meta.array(SCORES)? else { return Ok(Vec::new()) };
    // Some converters wrote integers.
    let scores: Vec<f32> = match array.ints() {
        Some(ints) => ints.map(|score| score as f32).collect(),
        None => meta.f32s(SCORES)?.unwrap_or_default(),
    };
    one_each(SCORES, scores.len(), count)?;
    Ok(scores)
}

fn kinds(meta: &Metadata, count: usize) -> Result<Vec<Kind>, TokenizerError> {
    let Some(types) = meta.i32s(TYPES)? else { return Ok(vec![NORMAL; count]) };
    one_each(TYPES, types.len(), count)?;
    let kind = |ty: i32| match ty {
        1 => NORMAL,
        2 => UNKNOWN,
        3 => CONTROL,
        4 => USER_DEFINED,
        5 => UNUSED,
        6 => BYTE,
        _ => 0,
    };
    Ok(types.into_iter().map(kind).collect())
}

fn one_each(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found == expected { Ok(()) } else { Err(TokenizerError::Length { key, found, expected }) }
}
