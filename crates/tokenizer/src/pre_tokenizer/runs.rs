//! Simple stages: runs of a class, single characters, groups of digits.

use super::PieceEnds;
use crate::unicode::{Class, M, N, P, Scan, WS};

/// Splits out the longest runs of characters of the same kind. Characters of kind 0 form the gaps.
pub(super) fn isolate_runs(s: Scan<'_>, ends: &mut PieceEnds<'_>, kind: impl Fn(u32, Class) -> u8) {
    let (mut pos, mut open) = (0, 0);
    while let Some((c, len)) = s.char(pos) {
        let k = kind(c, s.class(pos));
        if k != open {
            ends.cut(pos);
            open = k;
        }
        pos += len;
    }
}

/// Splits out every character for which `is` returns `true`.
fn isolate_chars(s: Scan<'_>, ends: &mut PieceEnds<'_>, is: impl Fn(u8, Class) -> bool) {
    let mut pos = 0;
    while pos < s.len() {
        let (class, len) = s.at(pos);
        if is(s.byte(pos), class) {
            ends.piece(pos, pos + len);
        }
        pos += len;
    }
}

/// `\p{N}`
pub(super) fn each_number(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_chars(s, ends, |_, class| class == N);
}

/// `[\r\n]`
pub(super) fn each_newline(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_chars(s, ends, |b, _| b == b'\r' || b == b'\n');
}

/// ``[\p{P}!-/:-@\[-`{-~]``
pub(super) fn each_punctuation(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_chars(s, ends, |b, class| class == P || b.is_ascii_punctuation());
}

/// `\p{N}+`
pub(super) fn numbers(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |_, class| u8::from(class == N));
}

/// `\S+`
pub(super) fn not_space(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |_, class| u8::from(class != WS));
}

/// `[^\n]+|[\n]+`
pub(super) fn lines(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, _| 1 + u8::from(c == u32::from(b'\n')));
}

/// `\p{N}{1,3}`
pub(super) fn numbers_by_three(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut pos = 0;
    while pos < s.len() {
        let end = s.run_of(pos, N, 3);
        if end > pos {
            ends.piece(pos, end);
            pos = end;
        } else {
            pos += s.at(pos).1;
        }
    }
}

/// `[0-9][0-9][0-9]`
pub(super) fn three_digits(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut pos = 0;
    while pos + 3 <= s.len() {
        if (pos..pos + 3).all(|at| s.byte(at).is_ascii_digit()) {
            ends.piece(pos, pos + 3);
            pos += 3;
        } else {
            pos += 1;
        }
    }
}

/// Splits a run of n numbers into a group of n mod 3, if that is not 0, and groups of three. Text
/// before the run stays with its first group.
pub(super) fn numbers_by_three_from_the_right(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut pos = 0;
    while pos < s.len() {
        let (class, len) = s.at(pos);
        if class != N {
            pos += len;
            continue;
        }
        let (mut end, mut count) = (pos, 0usize);
        while let (N, len) = s.at(end) {
            end += len;
            count += 1;
        }
        if !count.is_multiple_of(3) {
            pos = s.run_of(pos, N, count % 3);
            ends.cut(pos);
        }
        while pos < end {
            let group = s.run_of(pos, N, 3);
            if group == pos {
                // The scan was cancelled.
                return;
            }
            pos = group;
            ends.cut(pos);
        }
    }
}

/// `(?=(\d{3})+(?!\d))`: splits runs of ASCII digits into groups of three, counted from the right.
pub(super) fn digits_by_three_from_the_right(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut pos = 0;
    while pos < s.len() {
        let mut end = pos;
        while s.byte(end).is_ascii_digit() {
            end += 1;
        }
        let mut cut = pos + (end - pos) % 3;
        while cut < end && s.len() > 0 {
            ends.cut(cut);
            cut += 3;
        }
        pos = end + 1;
    }
}

/// ``[\p{P}\$\+<=>\^~\|`]+`` of Falcon.
pub(super) fn falcon_punctuation(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, class| u8::from(class == P || ascii_is_one_of(c, b"$+<=>^~|`")));
}

/// `[\p{P}\$\+<=>\^~\|]+` of the default set.
pub(super) fn default_punctuation(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_runs(s, ends, |c, class| u8::from(class == P || ascii_is_one_of(c, b"$+<=>^~|")));
}

fn ascii_is_one_of(c: u32, list: &[u8]) -> bool {
    u8::try_from(c).is_ok_and(|b| b.is_ascii() && list.contains(&b))
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+` of Bloom.
pub(super) fn bloom(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    const OUT: [char; 13] = ['(', '|', '.', ',', '!', '?', ')', '…', '。', '，', '、', '।', '۔'];
    let out = |c: u32, class: Class| {
        class == WS || c == u32::from('،') || OUT.iter().any(|&x| c == u32::from(x))
    };
    let mut pos = 0;
    while pos < s.len() {
        let mut end = pos + usize::from(s.byte(pos) == b' ');
        let start = end;
        while let Some((c, len)) = s.char(end)
            && !out(c, s.class(end))
        {
            end += len;
        }
        if end > start {
            ends.piece(pos, end);
            pos = end;
        } else {
            pos += s.at(pos).1;
        }
    }
}

/// `<sentinel:[0-9]+>` of Chameleon.
pub(super) fn sentinels(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_matches(s, ends, |pos| {
        let digits = literal(s, pos, b"<sentinel:")?;
        let mut end = digits;
        while s.byte(end).is_ascii_digit() {
            end += 1;
        }
        (end > digits && s.byte(end) == b'>').then_some(end + 1)
    });
}

/// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z` of Chameleon.
pub(super) fn image_codes(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_matches(s, ends, |pos| {
        let code = literal(s, pos, b"IMGIMG")?;
        let mut end = code;
        while end < code + 4 && (b'A'..=b'I').contains(&s.byte(end)) {
            end += 1;
        }
        (end > code && s.byte(end) == b'Z').then_some(end + 1)
    });
}

/// `([\t\n]|    |  )` of Chameleon.
pub(super) fn tabs_and_blanks(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    isolate_matches(s, ends, |pos| match s.byte(pos) {
        b'\t' | b'\n' => Some(pos + 1),
        _ => literal(s, pos, b"    ").or_else(|| literal(s, pos, b"  ")),
    });
}

/// Splits out what `matches` finds at successive positions. A match must begin with an ASCII
/// character.
fn isolate_matches(
    s: Scan<'_>,
    ends: &mut PieceEnds<'_>,
    matches: impl Fn(usize) -> Option<usize>,
) {
    let mut pos = 0;
    while pos < s.len() {
        match matches(pos) {
            Some(end) => {
                ends.piece(pos, end);
                pos = end;
            }
            None => pos += 1,
        }
    }
}

fn literal(s: Scan<'_>, pos: usize, text: &[u8]) -> Option<usize> {
    text.iter().enumerate().all(|(i, &b)| s.byte(pos + i) == b).then_some(pos + text.len())
}

/// `\s?` and a run of characters for which `is` returns `true`: the form of DeepSeek's first sets.
/// White space that `is` accepts may itself start the run.
pub(super) fn space_and_run(
    s: Scan<'_>,
    ends: &mut PieceEnds<'_>,
    is: impl Fn(u32, Class) -> bool,
) {
    let run = |mut pos: usize| {
        while let Some((c, len)) = s.char(pos) {
            if !is(c, s.class(pos)) {
                break;
            }
            pos += len;
        }
        pos
    };
    let mut pos = 0;
    while pos < s.len() {
        let (class, len) = s.at(pos);
        let start = if class == WS { pos + len } else { pos };
        let end = match run(start) {
            end if end == start => run(pos),
            end => end,
        };
        if end > pos {
            ends.piece(pos, end);
            pos = end;
        } else {
            pos += len;
        }
    }
}

/// `\s+$`
pub(super) fn trailing_space(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let (mut pos, mut start) = (0, 0);
    while pos < s.len() {
        let (class, len) = s.at(pos);
        pos += len;
        if class != WS {
            start = pos;
        }
    }
    ends.cut(start);
}

/// `\p{L}` or `\p{M}`.
pub(super) const LETTER_OR_MARK: Class = crate::unicode::L | M;
