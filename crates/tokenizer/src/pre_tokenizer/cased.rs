//! Scanners that split at a change of case ("helloWorld"): GPT-4o, Tekken, Youtu, Tiny Aya. And
//! Kimi K2, which separates runs of Han characters instead.
//!
//! The expression, with the sets U ("not lower") and L ("not upper"), is `lead? U* L+ contraction?
//! | lead? U+ L* contraction? | \p{N}{1,digits} | ?[^\s\p{L}\p{N}]+[\r\n/]* | \s*[\r\n]+ |
//! \s+(?!\S) | \s+` with `lead` = `[^\r\n\p{L}\p{N}]`. A general engine backtracks on it. This
//! scanner reads every character at most three times.

use super::PieceEnds;
use super::runs::LETTER_OR_MARK;
use super::words::{SpaceRun, contraction, punctuation};
use crate::unicode::{ANY, Class, L, LL, LM, LO, LT, LU, M, N, Scan, WS, is_han, is_han_script};

const NOT_WORD: Class = ANY & !(WS | L | N);

/// Tests a character by its class and first byte.
type Predicate = fn(Class, u8) -> bool;

struct CasedOptions {
    upper: Predicate,
    lower: Predicate,
    contractions: bool,
    digits: usize,
    /// Whether Han characters belong to neither set.
    splits_han: bool,
}

// llama.cpp distinguishes case only of ASCII letters. All other letters are in both sets.
const GPT4O: CasedOptions = CasedOptions {
    upper: |class, b| class & L != 0 && !b.is_ascii_lowercase(),
    lower: |class, b| class & L != 0 && !b.is_ascii_uppercase(),
    contractions: true,
    digits: 3,
    splits_han: false,
};

pub(super) fn gpt4o(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &GPT4O);
}

pub(super) fn tekken(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &CasedOptions { contractions: false, digits: 1, ..GPT4O });
}

/// Granite's multilingual embedding model: GPT-4o's pattern, where marks count as letters.
pub(super) fn granite_multilingual(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let o = CasedOptions {
        upper: |class, b| class & LETTER_OR_MARK != 0 && !b.is_ascii_lowercase(),
        lower: |class, b| class & LETTER_OR_MARK != 0 && !b.is_ascii_uppercase(),
        ..GPT4O
    };
    cased(s, ends, &o);
}

/// Last expression of Tiny Aya. In llama.cpp its letter classes all match any letter.
pub(super) fn tiny_aya(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &CASELESS);
}

/// Last expression of Youtu: like Tiny Aya's, but splits numbers into single characters.
pub(super) fn youtu(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &CasedOptions { digits: 1, ..CASELESS });
}

const CASELESS: CasedOptions = CasedOptions {
    upper: |class, _| class & LETTER_OR_MARK != 0,
    lower: |class, _| class & LETTER_OR_MARK != 0,
    ..GPT4O
};

const ORIGINAL: CasedOptions = CasedOptions {
    upper: |class, _| class & (LU | LT | LM | LO | M) != 0,
    lower: |class, _| class & (LL | LM | LO | M) != 0,
    ..GPT4O
};

/// GPT-4o's original expression: `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
pub(super) fn gpt4o_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &ORIGINAL);
}

/// Tekken's original expression.
pub(super) fn tekken_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &CasedOptions { contractions: false, digits: 1, ..ORIGINAL });
}

/// Youtu's original expression.
pub(super) fn youtu_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    cased(s, ends, &CasedOptions { digits: 1, ..ORIGINAL });
}

#[inline]
fn cased(s: Scan<'_>, ends: &mut PieceEnds<'_>, o: &CasedOptions) {
    let mut spaces = SpaceRun::default();
    let mut pos = 0;
    while pos < s.len() {
        pos = o.word(s, pos).unwrap_or_else(|| rest(s, pos, o.digits, b"\r\n/", &mut spaces));
        ends.cut(pos);
    }
}

/// `\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[tail]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn rest(s: Scan<'_>, pos: usize, digits: usize, tail: &[u8], spaces: &mut SpaceRun) -> usize {
    if s.class(pos) == N {
        return s.run_of(pos, N, digits);
    }
    punctuation(s, pos, NOT_WORD, tail, usize::MAX)
        .unwrap_or_else(|| spaces.next_or_newline(s, pos))
}

impl CasedOptions {
    /// End of the word at `pos`: tries the alternatives in order, each first with and then without
    /// the lead character.
    fn word(&self, s: Scan<'_>, pos: usize) -> Option<usize> {
        let (class, len) = s.at(pos);
        let may_lead = class & (L | N) == 0 && !matches!(s.byte(pos), b'\r' | b'\n');
        let led = may_lead.then_some(pos + len);
        let end = led
            .and_then(|start| self.ends_lower(s, start))
            .or_else(|| self.ends_lower(s, pos))
            .or_else(|| led.and_then(|start| self.begins_upper(s, start)))
            .or_else(|| self.begins_upper(s, pos))?;
        Some(if self.contractions { contraction(s, end, true).unwrap_or(end) } else { end })
    }

    /// `U*L+`: greedy, and returns characters to L if U took too many.
    fn ends_lower(&self, s: Scan<'_>, start: usize) -> Option<usize> {
        let (mut pos, mut behind_last_of_both) = (start, None);
        loop {
            let (class, len) = s.at(pos);
            let byte = s.byte(pos);
            if !(self.upper)(class, byte) || self.is_split_han(s, pos, class) {
                break;
            }
            pos += len;
            if (self.lower)(class, byte) {
                behind_last_of_both = Some(pos);
            }
        }
        let end = self.lower_run(s, pos);
        if end > pos { Some(end) } else { behind_last_of_both }
    }

    /// `U+L*`
    fn begins_upper(&self, s: Scan<'_>, start: usize) -> Option<usize> {
        let mut pos = start;
        loop {
            let (class, len) = s.at(pos);
            if !(self.upper)(class, s.byte(pos)) || self.is_split_han(s, pos, class) {
                break;
            }
            pos += len;
        }
        (pos > start).then(|| self.lower_run(s, pos))
    }

    fn lower_run(&self, s: Scan<'_>, mut pos: usize) -> usize {
        loop {
            let (class, len) = s.at(pos);
            if !(self.lower)(class, s.byte(pos)) || self.is_split_han(s, pos, class) {
                return pos;
            }
            pos += len;
        }
    }

    #[inline]
    fn is_split_han(&self, s: Scan<'_>, pos: usize, class: Class) -> bool {
        self.splits_han
            && class & (LM | LO) != 0
            && s.char(pos).is_some_and(|(c, _)| is_han_script(c))
    }
}

/// Kimi K2's original expression: like [`gpt4o_original`], with Han runs split out and no `/`
/// behind punctuation.
pub(super) fn kimi_k2_original(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let o = CasedOptions { splits_han: true, ..ORIGINAL };
    let mut spaces = SpaceRun::default();
    between_han_runs(s, ends, is_han_script, |pos| {
        o.word(s, pos).unwrap_or_else(|| rest(s, pos, o.digits, b"\r\n", &mut spaces))
    });
}

/// Kimi K2: Han runs; `[^\r\n\p{L}\p{N}]?`, a run of letters other than Han, and a contraction;
/// then as above.
pub(super) fn kimi_k2(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let letters = |mut pos: usize| {
        while s.class(pos) & L != 0 && !s.char(pos).is_some_and(|(c, _)| is_han(c)) {
            pos += s.at(pos).1;
        }
        pos
    };
    let mut spaces = SpaceRun::default();
    between_han_runs(s, ends, is_han, |pos| {
        let (class, len) = s.at(pos);
        let leads = class & (L | N) == 0 && !matches!(s.byte(pos), b'\r' | b'\n');
        let start = if leads { pos + len } else { pos };
        let end = letters(start);
        match end > start {
            true => contraction(s, end, true).unwrap_or(end),
            false => rest(s, pos, 3, b"\r\n", &mut spaces),
        }
    });
}

/// Splits out runs of Han characters. Elsewhere, `other` returns the end of the piece at a
/// position.
fn between_han_runs(
    s: Scan<'_>,
    ends: &mut PieceEnds<'_>,
    is_han: impl Fn(u32) -> bool,
    mut other: impl FnMut(usize) -> usize,
) {
    let mut pos = 0;
    while pos < s.len() {
        let mut end = pos;
        while s.char(end).is_some_and(|(c, _)| is_han(c)) {
            end += s.at(end).1;
        }
        if end == pos {
            end = other(pos);
        }
        ends.cut(end);
        pos = end;
    }
}
