//! Scanners of the two most common families: GPT-2's expression, and cl100k's, which Llama 3, Qwen
//! 2 and many others use.

use super::PieceEnds;
use super::runs::LETTER_OR_MARK;
use crate::unicode::{ANY, Class, L, N, Scan, WS};

const NOT_WORD: Class = ANY & !(WS | L | N);

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`
pub(super) fn gpt2(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    let mut spaces = SpaceRun::default();
    let mut pos = 0;
    while pos < s.len() {
        pos = contraction(s, pos, false).unwrap_or_else(|| {
            let start = pos + usize::from(s.byte(pos) == b' ');
            let class = s.class(start);
            match [L, N, NOT_WORD].into_iter().find(|&group| class & group != 0) {
                Some(group) => s.run(start, group),
                // A single white space character that matches nothing is a gap, and a gap is a
                // piece.
                None => spaces.next(s, pos),
            }
        });
        ends.cut(pos);
    }
}

/// Options of the expression family `contraction | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,digits} |
/// ?[^\s\p{L}\p{N}]+tail | \s*[\r\n]+ | \s+(?!\S) | \s+`.
struct WordOptions {
    /// Whether `(?i:'s|'t|'re|'ve|'m|'ll|'d)` matches first.
    contractions: bool,
    /// `\p{L}`, or `[\p{L}\p{M}]`.
    letters: Class,
    /// Maximum number of digits in one piece.
    digits: usize,
    /// Characters that may follow punctuation, and their maximum number.
    tail: &'static [u8],
    tail_most: usize,
    /// Splits white space without line ends into powers of two (Jais 2).
    powers_of_two: bool,
    /// `(?: \p{L}\p{M}*)*`: words separated by single spaces form one piece (Exaone MoE).
    joins_words: bool,
}

const LLAMA3: WordOptions = WordOptions {
    contractions: true,
    letters: L,
    digits: 3,
    tail: b"\r\n",
    tail_most: usize::MAX,
    powers_of_two: false,
    joins_words: false,
};
const QWEN2: WordOptions = WordOptions { digits: 1, ..LLAMA3 };

pub(super) fn llama3(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &LLAMA3);
}

pub(super) fn jais2(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { powers_of_two: true, ..LLAMA3 });
}

/// Qwen 2, and BailingMoE: its `\s*[\r\n]` without `+` matches the same text.
pub(super) fn qwen2(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &QWEN2);
}

/// Qwen 3.5: marks count as letters.
pub(super) fn qwen35(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { letters: LETTER_OR_MARK, ..QWEN2 });
}

pub(super) fn seed_coder(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { tail: b"", ..QWEN2 });
}

pub(super) fn ufakzeka(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { contractions: false, ..QWEN2 });
}

pub(super) fn exaone_moe(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { joins_words: true, tail: b"\r\n/", tail_most: 1, ..QWEN2 });
}

pub(super) fn minicpm5(s: Scan<'_>, ends: &mut PieceEnds<'_>) {
    words(s, ends, &WordOptions { digits: usize::MAX, ..LLAMA3 });
}

#[inline]
fn words(s: Scan<'_>, ends: &mut PieceEnds<'_>, o: &WordOptions) {
    let mut spaces = SpaceRun::default();
    let mut pos = 0;
    while pos < s.len() {
        pos = next_word(s, pos, o, &mut spaces);
        ends.cut(pos);
    }
}

/// End of the piece at `pos`. One of the alternatives always matches.
#[inline]
fn next_word(s: Scan<'_>, pos: usize, o: &WordOptions, spaces: &mut SpaceRun) -> usize {
    let (class, len) = s.at(pos);
    let byte = s.byte(pos);
    if o.contractions
        && let Some(end) = contraction(s, pos, true)
    {
        return end;
    }
    if class & o.letters != 0 {
        return letters(s, pos + len, o);
    }
    if class != N && byte != b'\r' && byte != b'\n' && s.class(pos + len) & o.letters != 0 {
        return letters(s, pos + len, o);
    }
    if class == N {
        return s.run_of(pos, N, o.digits);
    }
    if let Some(end) = punctuation(s, pos, NOT_WORD & !o.letters, o.tail, o.tail_most) {
        return end;
    }
    match o.powers_of_two && !spaces.has_newline(s, pos) {
        true => space_powers_of_two(s, pos),
        false => spaces.next_or_newline(s, pos),
    }
}

/// End of the run of letters that began before `pos`.
#[inline]
fn letters(s: Scan<'_>, mut pos: usize, o: &WordOptions) -> usize {
    if !o.joins_words {
        return s.run(pos, o.letters);
    }
    loop {
        pos = s.run(pos, LETTER_OR_MARK);
        if s.byte(pos) != b' ' || s.class(pos + 1) & L == 0 {
            return pos;
        }
        pos += 1;
    }
}

/// ` ?[punctuation]+[tail]{0,most}`
#[inline]
pub(super) fn punctuation(
    s: Scan<'_>,
    pos: usize,
    class: Class,
    tail: &[u8],
    max: usize,
) -> Option<usize> {
    let start = pos + usize::from(s.byte(pos) == b' ');
    let mut end = s.run(start, class);
    if end == start {
        return None;
    }
    let mut left = max;
    while left > 0 && end < s.len() && tail.contains(&s.byte(end)) {
        end += 1;
        left -= 1;
    }
    Some(end)
}

/// End of `'s|'t|'re|'ve|'m|'ll|'d` at `pos`. Matches upper case ASCII too if `any_case`.
#[inline]
pub(super) fn contraction(s: Scan<'_>, pos: usize, any_case: bool) -> Option<usize> {
    if s.byte(pos) != b'\'' {
        return None;
    }
    let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
    match (fold(s.byte(pos + 1)), fold(s.byte(pos + 2))) {
        (b's' | b't' | b'm' | b'd', _) => Some(pos + 2),
        (b'r', b'e') | (b'v', b'e') | (b'l', b'l') => Some(pos + 3),
        _ => None,
    }
}

/// The white space run around the scanner's position. Cached between pieces: a piece may be a small
/// part of a run, and searching its end each time would take quadratic time.
#[derive(Default)]
pub(super) struct SpaceRun {
    end: usize,
    /// Start of the last character.
    last: usize,
    /// Position after the last `\r` or `\n`; 0 if there is none.
    newline_end: usize,
}

impl SpaceRun {
    #[inline]
    fn find(&mut self, s: Scan<'_>, pos: usize) {
        if pos < self.end {
            return;
        }
        *self = SpaceRun { end: pos, last: pos, newline_end: 0 };
        while let (WS, len) = s.at(self.end) {
            self.last = self.end;
            self.end += len;
            if matches!(s.byte(self.last), b'\r' | b'\n') {
                self.newline_end = self.end;
            }
        }
    }

    fn has_newline(&mut self, s: Scan<'_>, pos: usize) -> bool {
        self.find(s, pos);
        self.newline_end > pos
    }

    /// `\s+(?!\S)|\s+`. `pos` must be at white space.
    #[inline]
    pub(super) fn next(&mut self, s: Scan<'_>, pos: usize) -> usize {
        self.find(s, pos);
        if self.end < s.len() && self.last > pos { self.last } else { self.end.max(pos + 1) }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`. `pos` must be at white space.
    #[inline]
    pub(super) fn next_or_newline(&mut self, s: Scan<'_>, pos: usize) -> usize {
        if self.has_newline(s, pos) { self.newline_end } else { self.next(s, pos) }
    }
}

/// `\s{512}(?!\S)|\s{256}(?!\S)| … |\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
fn space_powers_of_two(s: Scan<'_>, pos: usize) -> usize {
    [512, 256, 128, 64, 32, 16, 8, 4, 2, 1]
        .into_iter()
        .find_map(|count| {
            let end = (0..count).try_fold(pos, |at, _| match s.at(at) {
                (WS, len) => Some(at + len),
                _ => None,
            })?;
            matches!(s.class(end), 0 | WS).then_some(end)
        })
        .unwrap_or_else(|| pos + s.at(pos).1)
}
