//! tiktoken's vocabularies: a line for each token, of its bytes in base64 and of its number, which is also the rank at which a merge
//! makes it. The merges are not listed: a token's two parts are what the merges before it leave of its bytes.
//!
//! ```text
//! IQ== 0          the byte 21
//! dGhl 1820       "the"
//! ```
//!
//! Neither the expression that texts are cut by nor the tokens with a task stand in such a file. The programs beside it have both, so
//! that the files of known models are known by their names.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::vocabulary::{CONTROL, NORMAL, Token};
use super::{Folder, ImportError};
use crate::error::StoreError;
use crate::files::read_limited;

/// Several times the bytes of the largest vocabulary, and more than any token has.
const LIMIT_BYTES: u64 = 16 << 20;
const TOKEN_BYTES: usize = 1024;

/// A file of a known model.
struct Known {
    name: &'static str,
    /// What its way to cut texts is called.
    pre: &'static str,
    /// Tokens with a task, which follow behind the others, where no file of the folder lists them.
    special: &'static [&'static str],
    /// How many `<|extra_0|>`, `<|extra_1|>`, … follow.
    extras: u32,
}

const KNOWN: [Known; 3] = [
    Known {
        name: "qwen.tiktoken",
        pre: "qwen2",
        special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        extras: 205,
    },
    Known {
        name: "hy.tiktoken",
        pre: "hunyuan",
        special: &["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"],
        extras: 205,
    },
    // Kimi's, whose `tokenizer_config.json` lists the others.
    Known { name: "tiktoken.model", pre: "kimi-k2", special: &[], extras: 0 },
];

/// What such a file says.
#[derive(Debug, PartialEq)]
pub(super) struct Ranks {
    pub(super) tokens: Vec<Option<Token>>,
    /// Pairs of texts, with a blank between.
    pub(super) merges: Vec<String>,
    pub(super) pre: &'static str,
}

/// Reads the vocabulary of an embedding of so many rows, where the folder has such a file: a known one, or a `tokenizer.model` of a
/// family whose way to cut texts is named.
pub(super) fn read(
    folder: &Folder<'_>,
    named: Option<&'static str>,
    rows: usize,
) -> Result<Option<Ranks>, StoreError> {
    let own = named.map(|pre| Known { name: "tokenizer.model", pre, special: &[], extras: 0 });
    let found = KNOWN.iter().chain(&own).find_map(|known| Some((known, folder.path(known.name)?)));
    let Some((known, path)) = found else { return Ok(None) };
    let bytes = read_limited(path, LIMIT_BYTES)?;
    let bad = |reason| ImportError::Tokenizer { file: known.name.to_owned(), reason };
    let listed = lines(&bytes, rows).map_err(bad)?;
    let mut tokens = vec![None; rows];
    for (rank, bytes) in &listed {
        tokens[*rank as usize] = Some(Token { text: shown(bytes), kind: NORMAL, score: 0.0 });
    }
    let first = listed.last().map_or(0, |(rank, _)| *rank as usize + 1);
    let extras = (0..known.extras).map(|number| format!("<|extra_{number}|>"));
    let special = known.special.iter().map(|text| (*text).to_owned()).chain(extras);
    for (slot, text) in tokens.iter_mut().skip(first).zip(special) {
        *slot = Some(Token { text, kind: CONTROL, score: 0.0 });
    }
    Ok(Some(Ranks { tokens, merges: merges(&listed), pre: known.pre }))
}

/// Whether a file is of this form, whatever it is called.
pub(super) fn is_of(bytes: &[u8]) -> bool {
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    first.len() <= 2 * TOKEN_BYTES && line(first).is_some()
}

/// A token and its rank.
fn line(line: &[u8]) -> Option<(u32, Vec<u8>)> {
    let (bytes, rank) = std::str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
    Some((rank.parse().ok()?, STANDARD.decode(bytes).ok().filter(|bytes| !bytes.is_empty())?))
}

/// All tokens, by rank.
fn lines(bytes: &[u8], rows: usize) -> Result<Vec<(u32, Vec<u8>)>, String> {
    let mut listed = Vec::new();
    for (text, at) in bytes.split(|&byte| byte == b'\n').zip(1u32..) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let (rank, token) =
            line(text).ok_or_else(|| format!("line {at} is no token in base64 with its rank"))?;
        if rank as usize >= rows {
            return Err(format!("line {at} has rank {rank}, but the embedding has {rows} rows"));
        }
        if token.len() > TOKEN_BYTES {
            return Err(format!(
                "line {at} has {} bytes, at most {TOKEN_BYTES} are expected",
                token.len()
            ));
        }
        listed.push((rank, token));
    }
    listed.sort_unstable();
    match listed.array_windows().find(|[one, other]| one.0 == other.0) {
        Some([one, _]) => Err(format!("rank {} occurs twice", one.0)),
        None => Ok(listed),
    }
}

/// The merges that make the tokens, in their order. A token that none makes is one that no text becomes.
fn merges(listed: &[(u32, Vec<u8>)]) -> Vec<String> {
    let ranks: HashMap<&[u8], u32> =
        listed.iter().map(|(rank, bytes)| (&bytes[..], *rank)).collect();
    let pair = |(rank, token): &(u32, Vec<u8>)| {
        let (left, right) = token.split_at(cut(&ranks, token, *rank)?);
        Some(format!("{} {}", shown(left), shown(right)))
    };
    listed.iter().filter_map(pair).collect()
}

/// Where the second of the two parts begins that merges of lower ranks leave of a token, if they leave two: always the pair of
/// neighbours with the lowest rank becomes one, of several the first.
fn cut(ranks: &HashMap<&[u8], u32>, token: &[u8], below: u32) -> Option<usize> {
    let len = token.len();
    // By the place where a part begins: where it ends, nowhere once it has become part of another, and where the one before begins.
    let mut ends: Vec<usize> = (1..=len).collect();
    let mut before: Vec<usize> = (0..len).map(|at| at.saturating_sub(1)).collect();
    let pair = |ends: &[usize], start: usize| {
        let end = *ends.get(ends[start])?;
        let rank = ranks.get(&token[start..end]).filter(|rank| **rank < below)?;
        Some(Reverse((*rank, start, end)))
    };
    let mut heap: BinaryHeap<_> = (0..len).filter_map(|start| pair(&ends, start)).collect();
    let mut parts = len;
    while parts > 2
        && let Some(Reverse((_, start, end))) = heap.pop()
    {
        let middle = ends[start];
        // Either of the two has become another since.
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

/// Bytes as vocabularies of merges write them: each as a character that can be seen.
fn shown(bytes: &[u8]) -> String {
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

    /// A file with all bytes and these tokens behind them.
    fn file(tokens: &[&[u8]]) -> Vec<u8> {
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let all = bytes.iter().map(|byte| &byte[..]).chain(tokens.iter().copied());
        all.zip(0..)
            .map(|(token, rank)| format!("{} {rank}\n", STANDARD.encode(token)))
            .collect::<String>()
            .into_bytes()
    }

    #[test]
    fn parts_of_tokens_are_what_earlier_merges_leave() {
        let listed =
            lines(&file(&[b"he", b" t", b"the", b" the", b"xyz", b"aa", b"aaaa", b"aaa"]), 264)
                .unwrap();
        // "the" is never " t" with something: the pair of the lower rank comes first. Nothing makes "xyz".
        assert_eq!(merges(&listed), ["h e", "Ġ t", "t he", "Ġt he", "a a", "aa aa", "aa a"]);
    }

    #[test]
    fn bytes_are_written_as_characters_that_can_be_seen() {
        assert_eq!(shown(b" a\n\x00~"), "ĠaĊĀ~");
        assert_eq!(shown(&[0x7f, 0xa0, 0xa1, 0xad, 0xff]), "ġł¡Ńÿ");
        let all: std::collections::BTreeSet<String> =
            (0..=255).map(|byte| shown(&[byte])).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        for (text, want) in [
            ("IQ== 0\nIg==\n", "line 2 is no token"),
            ("IQ== 0\n?? 1\n", "line 2 is no token"),
            (" 0\n", "line 1 is no token"),
            ("IQ== 4\n", "line 1 has rank 4, but the embedding has 4 rows"),
            ("IQ== 1\nIg== 1\n", "rank 1 occurs twice"),
        ] {
            let error = lines(text.as_bytes(), 4).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let long = format!("{} 0\n", STANDARD.encode([b'a'; TOKEN_BYTES + 1]));
        assert!(lines(long.as_bytes(), 4).unwrap_err().contains("has 1025 bytes"));
        assert!(
            is_of(b"IQ== 0\nIg== 1\n")
                && !is_of(b"\x0a\x0e\x0a\x05<unk>\x15")
                && !is_of(b"{}")
                && !is_of(b"")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[A-D= 0-3\n]{0,60}") {
            if let Ok(listed) = lines(text.as_bytes(), 400) {
                merges(&listed);
            }
        }
    }
}
