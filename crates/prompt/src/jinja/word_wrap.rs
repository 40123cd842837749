//! The filter `wordwrap`: Python's `textwrap`, without replacing tabs and white space.

use super::args::{CallArgs, text};
use super::interp::Interpreter;
use super::methods::split_lines;
use super::text::push;
use super::value::{EvalResult, Value};

/// Settings of line breaking.
struct WordWrap {
    width: usize,
    long_words: bool,
    hyphens: bool,
}

impl Interpreter {
    pub(super) fn word_wrap(&mut self, s: &str, args: &CallArgs) -> EvalResult<String> {
        let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
        let [width, long_words, separator, hyphens] = args.bind("wordwrap", names)?;
        let width = width.map_or(Ok(79), |n| n.int())?;
        if width <= 0 {
            return Err(format!("invalid width {width} (must be > 0)").into());
        }
        let separator = match separator {
            None | Some(Value::None) => "\n".into(),
            Some(separator) => text(&separator)?,
        };
        let wrap = WordWrap {
            width: usize::try_from(width).unwrap_or(usize::MAX),
            long_words: long_words.is_none_or(|v| v.is_true()),
            hyphens: hyphens.is_none_or(|v| v.is_true()),
        };
        self.budget.charge_steps(s.len() as u64)?;
        let mut out = String::new();
        let mut is_first = true;
        for line in split_lines(s, false) {
            let parts = wrap.line(line);
            // An empty line stays empty.
            let parts = if parts.is_empty() { vec![String::new()] } else { parts };
            for part in parts {
                if !std::mem::take(&mut is_first) {
                    push(&mut out, &separator)?;
                }
                push(&mut out, &part)?;
            }
        }
        Ok(out)
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

/// `\w`.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Characters that may precede a dash between words.
fn is_punctuated(c: char) -> bool {
    is_word(c) || "!\"'&.,?".contains(c)
}

impl WordWrap {
    /// Breaks a line into lines of at most `width` characters.
    fn line(&self, line: &str) -> Vec<String> {
        let chars: Vec<char> = line.chars().collect();
        let mut lines: Vec<String> = Vec::new();
        // Remaining chunks in reverse order.
        let mut chunks = self.chunks(&chars);
        chunks.reverse();
        let blank = |chunk: &[char]| chunk.iter().all(|c| c.is_whitespace());
        while let Some(last) = chunks.last() {
            if blank(last) && !lines.is_empty() {
                chunks.pop();
            }
            let (mut current, mut length): (Vec<&[char]>, usize) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop_if(|chunk| length + chunk.len() <= self.width) {
                length += chunk.len();
                current.push(chunk);
            }
            if let Some(chunk) = chunks.pop_if(|chunk| chunk.len() > self.width) {
                let taken = match self.long_words {
                    true => self.break_at(chunk, self.width - length),
                    false if current.is_empty() => chunk.len(),
                    false => 0,
                };
                // No part of the word may fit. Then this empty part, not the blank before it, is
                // removed from the end of the line.
                if taken > 0 || self.long_words {
                    current.push(&chunk[..taken]);
                }
                if taken < chunk.len() {
                    chunks.push(&chunk[taken..]);
                }
            }
            _ = current.pop_if(|chunk| blank(chunk));
            if !current.is_empty() {
                lines.push(current.concat().into_iter().collect());
            }
        }
        lines
    }

    /// Number of characters of a long word that go into the rest of a line: up to a hyphen, if
    /// there is one.
    fn break_at(&self, chunk: &[char], room: usize) -> usize {
        let room = room.min(chunk.len());
        let hyphen = chunk[..room].iter().rposition(|c| *c == '-').filter(|_| self.hyphens);
        let useful = hyphen.filter(|at| chunk[..*at].iter().any(|c| *c != '-'));
        useful.map_or(room, |at| at + 1)
    }

    /// Splits into words, white space, and dashes between words.
    fn chunks<'c>(&self, chars: &'c [char]) -> Vec<&'c [char]> {
        let mut chunks = Vec::new();
        let mut from = 0;
        while from < chars.len() {
            let end = match chars[from] {
                c if is_blank(c) => run(chars, from, is_blank),
                _ if !self.hyphens => run(chars, from, |c| !is_blank(c)),
                _ if is_dash(chars, from) => run(chars, from, |c| c == '-'),
                _ => word_end(chars, from),
            };
            chunks.push(&chars[from..end]);
            from = end;
        }
        chunks
    }
}

fn run(chars: &[char], from: usize, belongs: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|c| !belongs(*c)).map_or(chars.len(), |at| from + at)
}

/// Returns true if two or more hyphens stand between two words at `at`.
fn is_dash(chars: &[char], at: usize) -> bool {
    let end = run(chars, at, |c| c == '-');
    at > 0
        && is_punctuated(chars[at - 1])
        && end >= at + 2
        && chars.get(end).is_some_and(|c| is_word(*c))
}

/// End of a word: behind a hyphen between letters, or before white space or a dash.
fn word_end(chars: &[char], from: usize) -> usize {
    let letter = |at: usize| chars.get(at).is_some_and(|c| is_word(*c) && !c.is_numeric());
    let hyphen = |at: usize| chars.get(at) == Some(&'-');
    for at in from + 1..chars.len() {
        let before = |n: usize| at.checked_sub(n).is_some_and(letter);
        let joins = hyphen(at)
            && before(1)
            && (before(2) || (at >= 2 && hyphen(at - 2) && before(3)))
            && letter(at + 1)
            && (letter(at + 2) || (hyphen(at + 2) && letter(at + 3)));
        if joins {
            return at + 1;
        }
        if is_blank(chars[at]) || is_dash(chars, at) {
            return at;
        }
    }
    chars.len()
}
