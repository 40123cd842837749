//! Vocabularies of tiktoken: a line for each token, with its bytes in base64 and its id, which is
//! also the rank of its merge. Merges are not listed; they follow from applying merges of lower
//! rank to a token's bytes.
//!
//! ```text
//! IQ== 0          the byte 21
//! dGhl 1820       "the"
//! ```
//!
//! These files contain neither the pre-tokenizer nor the special tokens, which are in the model's
//! program code. So known models are recognized by the names of their files.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::token::{CONTROL, NORMAL, Token};
use crate::error::ConvertError;
use crate::source::ModelFolder;

/// Limits for a file and a token, several times the size of the largest known ones.
const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_TOKEN_BYTES: usize = 1024;

/// Vocabulary file of a known model.
struct KnownFile {
    name: &'static str,
    /// Name of the pre-tokenizer.
    pre: &'static str,
    /// Special tokens that follow the ranked tokens and that no file of the folder lists.
    special: &'static [&'static str],
    /// Number of tokens `<|extra_0|>`, `<|extra_1|>`, … behind the special tokens.
    extras: u32,
}

const KNOWN_FILES: [KnownFile; 3] = [
    KnownFile {
        name: "qwen.tiktoken",
        pre: "qwen2",
        special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        extras: 205,
    },
    KnownFile {
        name: "hy.tiktoken",
        pre: "hunyuan",
        special: &["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"],
        extras: 205,
    },
    // Kimi's `tokenizer_config.json` lists its special tokens.
    KnownFile { name: "tiktoken.model", pre: "kimi-k2", special: &[], extras: 0 },
];

/// Content of a vocabulary file.
#[derive(Debug, PartialEq)]
pub(super) struct TiktokenVocabulary {
    pub(super) tokens: Vec<Option<Token>>,
    /// Pairs of tokens, separated by a space.
    pub(super) merges: Vec<String>,
    pub(super) pre: &'static str,
}

/// Reads the vocabulary of an embedding with `rows` rows: from the file of a known model, or from
/// `tokenizer.model` if the family names a pre-tokenizer. Returns `None` if there is no such file.
pub(super) fn read(
    folder: &ModelFolder<'_>,
    pretokenizer: Option<&'static str>,
    rows: usize,
) -> Result<Option<TiktokenVocabulary>, ConvertError> {
    let own =
        pretokenizer.map(|pre| KnownFile { name: "tokenizer.model", pre, special: &[], extras: 0 });
    let found = KNOWN_FILES.iter().chain(&own).find(|file| folder.has(file.name));
    let Some(file) = found else { return Ok(None) };
    let Some(bytes) = folder.bytes(file.name, MAX_FILE_BYTES)? else { return Ok(None) };
    let bad = |reason| ConvertError::Tokenizer { file: file.name.to_owned(), reason };
    let ranked = parse(&bytes, rows).map_err(bad)?;
    let mut tokens = vec![None; rows];
    for (rank, bytes) in &ranked {
        tokens[*rank as usize] =
            Some(Token { text: byte_level_text(bytes), kind: NORMAL, score: 0.0 });
    }
    let first = ranked.last().map_or(0, |(rank, _)| *rank as usize + 1);
    let extras = (0..file.extras).map(|number| format!("<|extra_{number}|>"));
    let special = file.special.iter().map(|text| (*text).to_owned()).chain(extras);
    for (slot, text) in tokens.iter_mut().skip(first).zip(special) {
        *slot = Some(Token { text, kind: CONTROL, score: 0.0 });
    }
    Ok(Some(TiktokenVocabulary { tokens, merges: derive_merges(&ranked), pre: file.pre }))
}

/// Whether the content of a file is a tiktoken vocabulary.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    first.len() <= 2 * MAX_TOKEN_BYTES && parse_line(first).is_some()
}

/// Parses a rank and a token.
fn parse_line(line: &[u8]) -> Option<(u32, Vec<u8>)> {
    let (bytes, rank) = std::str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, STANDARD.decode(bytes).ok().filter(|bytes| !bytes.is_empty())?))
}

/// Parses all tokens and sorts them by rank.
fn parse(bytes: &[u8], rows: usize) -> Result<Vec<(u32, Vec<u8>)>, String> {
    let mut ranked = Vec::new();
    for (text, at) in bytes.split(|&byte| byte == b'\n').zip(1u32..) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let (rank, token) = parse_line(text)
            .ok_or_else(|| format!("line {at} is not a base64 token with its rank"))?;
        if rank as usize >= rows {
            return Err(format!("line {at} has rank {rank}, but the embedding has {rows} rows"));
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(format!(
                "line {at} has {} bytes, at most {MAX_TOKEN_BYTES} are expected",
                token.len()
            ));
        }
        ranked.push((rank, token));
    }
    ranked.sort_unstable();
    match ranked.array_windows().find(|[one, other]| one.0 == other.0) {
        Some([one, _]) => Err(format!("rank {} occurs twice", one.0)),
        None => Ok(ranked),
    }
}

/// Derives the merges in the order of their ranks. A token that no merge produces cannot occur in a
/// tokenized text.
fn derive_merges(ranked: &[(u32, Vec<u8>)]) -> Vec<String> {
    let ranks: HashMap<&[u8], u32> =
        ranked.iter().map(|(rank, bytes)| (&bytes[..], *rank)).collect();
    let pair = |(rank, token): &(u32, Vec<u8>)| {
        let (left, right) = token.split_at(split_point(&ranks, token, *rank)?);
        Some(format!("{} {}", byte_level_text(left), byte_level_text(right)))
    };
    ranked.iter().filter_map(pair).collect()
}

/// Applies all merges of ranks below `max_rank` to a token's bytes: repeatedly the pair of the
/// lowest rank, the first of equal ones. Returns the start of the second part if two parts are
/// left.
fn split_point(ranks: &HashMap<&[u8], u32>, token: &[u8], max_rank: u32) -> Option<usize> {
    let len = token.len();
    // Indexed by the start of a part: its end (0 once the part is merged into another), and the
    // start of the part before it.
    let mut ends: Vec<usize> = (1..=len).collect();
    let mut before: Vec<usize> = (0..len).map(|at| at.saturating_sub(1)).collect();
    let pair = |ends: &[usize], start: usize| {
        let end = *ends.get(ends[start])?;
        let rank = ranks.get(&token[start..end]).filter(|rank| **rank < max_rank)?;
        Some(Reverse((*rank, start, end)))
    };
    let mut heap: BinaryHeap<_> = (0..len).filter_map(|start| pair(&ends, start)).collect();
    let mut parts = len;
    while parts > 2
        && let Some(Reverse((_, start, end))) = heap.pop()
    {
        let middle = ends[start];
        // The pair is outdated: one of its parts has been merged.
        if middle <= start || middle >= end || ends[middle] != end {
            continue;
        }
        (ends[start], ends[middle]) = (end, 0);
        if let Some(before) = before.get_mut(end) {
            *before = start;
        }
        parts -= 1;
        heap.extend(pair(&ends, start));
        heap.extend((start > 0).then(|| pair(&ends, before[start])).flatten());
    }
    (parts == 2).then_some(ends[0])
}

/// Text of bytes in byte-level vocabularies: each byte is a printable character.
fn byte_level_text(bytes: &[u8]) -> String {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = |&byte: &u8| match plain(byte) {
        true => char::from(byte),
        false => {
            let hidden = (0..byte).filter(|&other| !plain(other)).count() as u32;
            char::from_u32(256 + hidden).unwrap_or_default()
        }
    };
    bytes.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with all single bytes and these tokens behind them.
    fn file(tokens: &[&[u8]]) -> Vec<u8> {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let all = bytes.iter().map(|byte| &byte[..]).chain(tokens.iter().copied());
        all.zip(0..)
            .map(|(token, rank)| format!("{} {rank}\n", STANDARD.encode(token)))
            .collect::<String>()
            .into_bytes()
    }

    #[test]
    fn merges_follow_from_lower_ranks() {
        let ranked =
            parse(&file(&[b"he", b" t", b"the", b" the", b"xyz", b"aa", b"aaaa", b"aaa"]), 264)
                .unwrap();
        // "the" is not " t" and a rest, because the pair of the lower rank is merged first. No
        // merge produces "xyz".
        assert_eq!(derive_merges(&ranked), ["h e", "Ġ t", "t he", "Ġt he", "a a", "aa aa", "aa a"]);
    }

    #[test]
    fn bytes_become_printable_characters() {
        assert_eq!(byte_level_text(b" a\n\x00~"), "ĠaĊĀ~");
        assert_eq!(byte_level_text(&[0x7f, 0xa0, 0xa1, 0xad, 0xff]), "ġł¡Ńÿ");
        let all: std::collections::BTreeSet<String> =
            (0..=255).map(|byte| byte_level_text(&[byte])).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (text, want) in [
            ("IQ== 0\nIg==\n", "line 2 is not a base64 token"),
            ("IQ== 0\n?? 1\n", "line 2 is not a base64 token"),
            (" 0\n", "line 1 is not a base64 token"),
            ("IQ== 4\n", "line 1 has rank 4, but the embedding has 4 rows"),
            ("IQ== 1\nIg== 1\n", "rank 1 occurs twice"),
        ] {
            let error = parse(text.as_bytes(), 4).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let long = format!("{} 0\n", STANDARD.encode([b'a'; MAX_TOKEN_BYTES + 1]));
        assert!(parse(long.as_bytes(), 4).unwrap_err().contains("has 1025 bytes"));
        assert!(
            is_tiktoken(b"IQ== 0\nIg== 1\n")
                && !is_tiktoken(b"\x0a\x0e\x0a\x05<unk>\x15")
                && !is_tiktoken(b"{}")
                && !is_tiktoken(b"")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[A-D= 0-3\n]{0,60}") {
            if let Ok(ranked) = parse(text.as_bytes(), 400) {
                derive_merges(&ranked);
            }
        }
    }
}
