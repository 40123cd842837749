//! The scanners of the two great families: GPT-2's words, and those of cl100k that Llama 3, Qwen 2 and many more took.

use super::Cuts;
use super::runs::LETTER_OR_MARK;
use crate::unicode::{ANY, Class, L, N, Scan, WS};

const NOT_WORD: Class = ANY & !(WS | L | N);

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`
pub(super) fn gpt2(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    let mut spaces = Spaces::default();
    let mut pos = 0;
    while pos < s.len() {
        pos = contraction(s, pos, false).unwrap_or_else(|| {
            let start = pos + usize::from(s.byte(pos) == b' ');
            let class = s.class(start);
            match [L, N, NOT_WORD].into_iter().find(|&group| class & group != 0) {
                Some(group) => s.run(start, group),
                // A single white space character that nothing takes is a gap, and a gap is a piece.
                None => spaces.next(s, pos),
            }
        });
        cuts.cut(pos);
    }
}

/// The family `contraction | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,digits} | ?[^\s\p{L}\p{N}]+tail | \s*[\r\n]+ |
/// \s+(?!\S) | \s+`, with what its members change.
struct Words {
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)` comes first.
    contractions: bool,
    /// `\p{L}`, or `[\p{L}\p{M}]`.
    letters: Class,
    /// The most numbers in one piece.
    digits: usize,
    /// What may follow punctuation, and how often.
    tail: &'static [u8],
    tail_most: usize,
    /// White space that holds no line end is cut by powers of two (Jais 2).
    cascade: bool,
    /// `(?: \p{L}\p{M}*)*`: words joined by single blanks are one piece (Exaone MoE).
    phrases: bool,
}

const LLAMA3: Words = Words {
    contractions: true,
    letters: L,
    digits: 3,
    tail: b"\r\n",
    tail_most: usize::MAX,
    cascade: false,
    phrases: false,
};
const QWEN2: Words = Words { digits: 1, ..LLAMA3 };

pub(super) fn llama3(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &LLAMA3);
}

pub(super) fn jais2(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { cascade: true, ..LLAMA3 });
}

/// Qwen 2, and BailingMoE, whose `\s*[\r\n]` without `+` matches the same.
pub(super) fn qwen2(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &QWEN2);
}

/// Qwen 3.5: marks belong to the letters.
pub(super) fn qwen35(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { letters: LETTER_OR_MARK, ..QWEN2 });
}

pub(super) fn seed_coder(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { tail: b"", ..QWEN2 });
}

pub(super) fn ufakzeka(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { contractions: false, ..QWEN2 });
}

pub(super) fn exaone_moe(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { phrases: true, tail: b"\r\n/", tail_most: 1, ..QWEN2 });
}

pub(super) fn minicpm5(s: Scan<'_>, cuts: &mut Cuts<'_>) {
    words(s, cuts, &Words { digits: usize::MAX, ..LLAMA3 });
}

#[inline]
fn words(s: Scan<'_>, cuts: &mut Cuts<'_>, o: &Words) {
    let mut spaces = Spaces::default();
    let mut pos = 0;
    while pos < s.len() {
        pos = next_word(s, pos, o, &mut spaces);
        cuts.cut(pos);
    }
}

/// The end of the piece at `pos`; one of the alternatives always matches.
#[inline]
fn next_word(s: Scan<'_>, pos: usize, o: &Words, spaces: &mut Spaces) -> usize {
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
    match o.cascade && !spaces.has_newline(s, pos) {
        true => cascade(s, pos),
        false => spaces.next_or_newline(s, pos),
    }
}

/// The end of the run of letters that began before `pos`.
#[inline]
fn letters(s: Scan<'_>, mut pos: usize, o: &Words) -> usize {
    if !o.phrases {
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
    most: usize,
) -> Option<usize> {
    let start = pos + usize::from(s.byte(pos) == b' ');
    let mut end = s.run(start, class);
    if end == start {
        return None;
    }
    let mut left = most;
    while left > 0 && end < s.len() && tail.contains(&s.byte(end)) {
        end += 1;
        left -= 1;
    }
    Some(end)
}

/// The end of `'s|'t|'re|'ve|'m|'ll|'d` at `pos`, in ASCII of any case if `any_case`.
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

/// The run of white space around the position of a scanner. Kept between pieces, because a piece can be a small part of
/// a run and looking for its end each time would take quadratic time.
#[derive(Default)]
pub(super) struct Spaces {
    end: usize,
    /// Where its last character begins.
    last: usize,
    /// Behind its last `\r` or `\n`; 0 without one.
    newline_end: usize,
}

impl Spaces {
    #[inline]
    fn find(&mut self, s: Scan<'_>, pos: usize) {
        if pos < self.end {
            return;
        }
        *self = Spaces { end: pos, last: pos, newline_end: 0 };
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

    /// `\s+(?!\S)|\s+`; `pos` must be at white space.
    #[inline]
    pub(super) fn next(&mut self, s: Scan<'_>, pos: usize) -> usize {
        self.find(s, pos);
        if self.end < s.len() && self.last > pos { self.last } else { self.end.max(pos + 1) }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`; `pos` must be at white space.
    #[inline]
    pub(super) fn next_or_newline(&mut self, s: Scan<'_>, pos: usize) -> usize {
        if self.has_newline(s, pos) { self.newline_end } else { self.next(s, pos) }
    }
}

/// `\s{512}(?!\S)|\s{256}(?!\S)| … |\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
fn cascade(s: Scan<'_>, pos: usize) -> usize {
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
