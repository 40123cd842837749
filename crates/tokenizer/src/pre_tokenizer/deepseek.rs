//! Pattern sets of DeepSeek and those derived from them: CJK runs are separate, and words include
//! marks.

use super::PieceEnds;
use super::runs::{LETTER_OR_MARK, isolate_runs, space_and_run};
use super::words::{SpaceRun, punctuation};
use crate::unicode::{Class, L, P, S, Scan, WS};

/// `\s?\p{L}+` of DeepSeek Coder.
pub(super) fn coder_letters(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    space_and_run(s, ends, |_, class| class & L != 0);
}

/// `\s?\p{P}+` of DeepSeek Coder.
pub(super) fn coder_punctuation(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    space_and_run(s, ends, |_, class| class == P);
}

/// `[一-龥ࠀ-一가-퟿]+` of DeepSeek LLM and Coder; its second range runs from U+0800 to U+4E00.
pub(super) fn wide_cjk(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, class| {
        u8::from(class != WS && matches!(c, 0x800..=0x9FA5 | 0xAC00..=0xD7FF))
    });
}

/// The original expression with a range that includes white space.
pub(super) fn wide_cjk_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, _| u8::from(matches!(c, 0x800..=0x9FA5 | 0xAC00..=0xD7FF)));
}

/// `[一-龥぀-ゟ゠-ヿ]+` of DeepSeek V3.
pub(super) fn cjk_and_kana(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, _| u8::from(matches!(c, 0x3040..=0x30FF | 0x4E00..=0x9FA5)));
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+` of DeepSeek LLM. Letters were cut out before.
pub(super) fn llm_punctuation(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    space_and_run(s, ends, |c, class| class != WS && is_llm_punctuation(c));
}

/// The original expression, which includes U+3000.
pub(super) fn llm_punctuation_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    space_and_run(s, ends, |c, _| is_llm_punctuation(c));
}

fn is_llm_punctuation(c: u32) -> bool {
    matches!(c, 0x21..=0x2F | 0x3A..=0x7E | 0xFF01..=0xFF0F | 0xFF1A..=0xFF5E | 0x2018..=0x201F | 0x3000..=0x3002)
}

/// `\s?[A-Za-zµÀ-ÖØ-öø-ƺ…]+` of DeepSeek LLM: letters of alphabets with case.
pub(super) fn llm_letters(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    space_and_run(s, ends, |c, _| {
        let at = LETTERS.partition_point(|&(first, _)| first <= c);
        at > 0 && c <= LETTERS[at - 1].1
    });
}

#[rustfmt::skip]
const LETTERS: &[(u32, u32)] = &[
    (0x0041, 0x005A), (0x0061, 0x007A), (0x00B5, 0x00B5), (0x00C0, 0x00D6), (0x00D8, 0x00F6), (0x00F8, 0x01BA),
    (0x01BC, 0x01BF), (0x01C4, 0x0293), (0x0295, 0x02AF), (0x0370, 0x0373), (0x0376, 0x0376), (0x0377, 0x0377),
    (0x037B, 0x037D), (0x037F, 0x037F), (0x0386, 0x0386), (0x0388, 0x038A), (0x038C, 0x038C), (0x038E, 0x03A1),
    (0x03A3, 0x03F5), (0x03F7, 0x0481), (0x048A, 0x052F), (0x0531, 0x0556), (0x10A0, 0x10C5), (0x13A0, 0x13F5),
    (0x13F8, 0x13FD), (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A),
    (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45), (0x1F48, 0x1F4D), (0x1F50, 0x1F57), (0x1F59, 0x1F59),
    (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D), (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4), (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE),
    (0x1FC2, 0x1FC4), (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3), (0x1FD6, 0x1FDB), (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4),
    (0x1FF6, 0x1FFC), (0x2102, 0x2102), (0x2107, 0x2107), (0x210A, 0x2113), (0x2115, 0x2115), (0x2119, 0x211D),
    (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D), (0x212F, 0x2134), (0x2139, 0x2139),
    (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E), (0x2183, 0x2183), (0x2184, 0x2184), (0x2C00, 0x2C7B),
    (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF2), (0x2CF3, 0x2CF3), (0xA640, 0xA66D), (0xA680, 0xA69B),
    (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E), (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2), (0x118A0, 0x118DF), (0x1E900, 0x1E943),
];

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+` of Youtu.
pub(super) fn youtu_scripts(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, _| match c {
        0xAC00..=0xD7A3 | 0x3131..=0x318E => 1,
        0xFF01 | 0x2026 | 0x201C | 0x201D | 0x2018 | 0x2019 | 0x2014 | 0xFF1A | 0xFF1B | 0xFF0C => {
            2
        }
        0x3001..=0x303F | 0xFE30..=0xFE4F => 2,
        0x3105..=0x312F => 3,
        0x4E00..=0x9FA5 | 0x3040..=0x30FF => 4,
        _ => 0,
    });
}

/// Run of scripts without spaces between words, of AFMoE: CJK, kana, Thai, Lao, Khmer, Myanmar,
/// Hangul.
pub(super) fn afmoe_scripts(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, class| u8::from(class != WS && is_afmoe_script(c)));
}

fn is_afmoe_script(c: u32) -> bool {
    matches!(c, 0x0E40..=0x0EFF | 0x1000..=0x109F | 0x1100..=0x11FF | 0x1780..=0x17FF | 0x2F00..=0x2FDF | 0x3040..=0x30FF | 0x3400..=0x4DBF | 0x4E00..=0xFAFF | 0xFF65..=0xFF9F)
}

/// Pieces of this expression, on one line:
///
/// ```text
/// [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
/// |\s*[\r\n]+|\s+(?!\S)|\s+
/// ```
pub(super) fn v3_words(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut spaces = SpaceRun::default();
    marked_words(s, ends, b"\r\n", |pos| spaces.next_or_newline(s, pos));
}

/// The same, but each line end is a piece: `…| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+` of Spark 2.5.
pub(super) fn spark_words(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut spaces = SpaceRun::default();
    marked_words(s, ends, b"", |pos| match s.byte(pos) {
        b'\r' | b'\n' => pos + 1,
        _ => spaces.next(s, pos),
    });
}

/// Words of letters and marks. `space` returns the end of a piece at white space. Numbers and
/// controls match nothing and stay together in gaps.
fn marked_words(
    s: Scan<'_>,
    ends: &mut PieceEnds<'_>,
    tail: &[u8],
    mut space: impl FnMut(usize) -> usize,
) {
    let mut pos = 0;
    while pos < s.len() {
        let (class, len) = s.at(pos);
        let end = if let Some(end) = marked_word(s, pos, class, len) {
            end
        } else if let Some(end) = punctuation(s, pos, P | S, tail, usize::MAX) {
            end
        } else if class == WS {
            space(pos)
        } else {
            pos += len;
            continue;
        };
        ends.piece(pos, end);
        pos = end;
    }
}

#[inline]
fn marked_word(s: Scan<'_>, pos: usize, class: Class, len: usize) -> Option<usize> {
    if class & LETTER_OR_MARK != 0 {
        return Some(s.run(pos + len, LETTER_OR_MARK));
    }
    let byte = s.byte(pos);
    if byte.is_ascii_punctuation() && s.byte(pos + 1).is_ascii_alphabetic() {
        let mut end = pos + 2;
        while s.byte(end).is_ascii_alphabetic() {
            end += 1;
        }
        return Some(end);
    }
    let leads = class & (P | S) == 0 && !matches!(byte, b'\r' | b'\n');
    (leads && s.class(pos + len) & LETTER_OR_MARK != 0).then(|| s.run(pos + len, LETTER_OR_MARK))
}
