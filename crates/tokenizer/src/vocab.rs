//! Vocabulary of a file: texts, scores and kinds of tokens.

use puna_gguf::Metadata;

use crate::TokenizerError;
use crate::hash::{TextMap, TextTable};

/// Kind of a token: a set of these bits, since loading adds kinds to some tokens.
pub(crate) type TokenKind = u16;

pub(crate) const NORMAL: TokenKind = 1;
pub(crate) const UNKNOWN: TokenKind = 1 << 1;
pub(crate) const CONTROL: TokenKind = 1 << 2;
pub(crate) const USER_DEFINED: TokenKind = 1 << 3;
pub(crate) const UNUSED: TokenKind = 1 << 4;
pub(crate) const BYTE: TokenKind = 1 << 5;
/// The token takes the white space before it.
pub(crate) const LSTRIP: TokenKind = 1 << 6;
/// The token takes the white space after it.
pub(crate) const RSTRIP: TokenKind = 1 << 7;
/// Visible like a user-defined token, since parsers read it, but conversation markup like a control
/// token. Text that may not contain control tokens may not contain it either.
pub(crate) const MARKUP: TokenKind = 1 << 8;

/// Tokens by id.
#[derive(Debug)]
pub(crate) struct Vocab {
    pub(crate) texts: TextTable,
    pub(crate) ids: TextMap,
    /// Scores by id. Empty if the file has none, and then all are 0.
    pub(crate) scores: Vec<f32>,
    pub(crate) kinds: Vec<TokenKind>,
    /// Length in bytes of the longest text.
    pub(crate) longest: usize,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Ids are 32-bit, and tables have twice as many slots.
const MAX_TOKENS: usize = 1 << 28;

impl Vocab {
    pub(crate) fn read(meta: &Metadata) -> Result<Vocab, TokenizerError> {
        let tokens = meta.strings(TOKENS)?.ok_or(TokenizerError::NoTokens)?;
        let count = tokens.len();
        if count == 0 {
            return Err(TokenizerError::NoTokens);
        }
        check_limit(TOKENS, count, MAX_TOKENS)?;
        let mut texts = TextTable::with_capacity(count, count * 8);
        for (id, text) in tokens.enumerate() {
            match text.is_empty() {
                true => texts.push(format!("[EMPTY_{id}]").as_bytes()),
                false => texts.push(text),
            }
            check_limit(TOKENS, texts.total(), u32::MAX as usize)?;
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

    /// Kind of a token; 0 for invalid ids.
    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(0)
    }

    pub(crate) fn is(&self, id: u32, kind: TokenKind) -> bool {
        self.kind(id) & kind != 0
    }

    pub(crate) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// Token of a byte: `<0xHH>`, or else the token with that byte as its text.
    pub(crate) fn byte(&self, byte: u8) -> Option<u32> {
        self.id(format!("<0x{byte:02X}>").as_bytes()).or_else(|| self.id(&[byte]))
    }
}

/// Returns an error if `found` exceeds `max`.
pub(crate) fn check_limit(
    key: &'static str,
    found: usize,
    max: usize,
) -> Result<(), TokenizerError> {
    if found > max { Err(TokenizerError::TooLarge { key, found, max }) } else { Ok(()) }
}

fn index(texts: &TextTable) -> Result<TextMap, TokenizerError> {
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
    // Some converters write integers.
    let scores: Vec<f32> = match array.ints() {
        Some(ints) => ints.map(|score| score as f32).collect(),
        None => meta.f32s(SCORES)?.unwrap_or_default(),
    };
    check_length(SCORES, scores.len(), count)?;
    Ok(scores)
}

fn kinds(meta: &Metadata, count: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(types) = meta.i32s(TYPES)? else { return Ok(vec![NORMAL; count]) };
    check_length(TYPES, types.len(), count)?;
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

fn check_length(key: &'static str, found: usize, expected: usize) -> Result<(), TokenizerError> {
    if found == expected { Ok(()) } else { Err(TokenizerError::Length { key, found, expected }) }
}
