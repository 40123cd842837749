//! Word wrap for text that arrives in pieces.
//!
//! The wrapper writes text at once. When a word does not fit, it moves the cursor to the start of
//! the word, clears the rest of the line and writes the word on the next line.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

use crate::format::is_unsafe;

/// Columns left free at the right edge.
const MARGIN: usize = 5;
/// Narrowest terminal, in columns, for which text is wrapped.
const MIN_WIDTH: usize = 10;
const TAB: usize = 8;

/// State of the current output line.
#[derive(Clone, Debug, Default)]
pub(super) struct Wrapper {
    column: usize,
    /// Last word of the line, and its width in columns.
    word: String,
    word_columns: usize,
}

impl Wrapper {
    /// Returns the output for a piece of text on a terminal of `width` columns; `None` disables
    /// wrapping. Drops the characters of [`is_unsafe`], because a model must not control the
    /// terminal.
    pub(super) fn push(&mut self, text: &str, width: Option<usize>) -> String {
        let width = width.filter(|&w| w >= MIN_WIDTH);
        let mut out = String::with_capacity(text.len());
        for ch in text.chars().filter(|&ch| !is_unsafe(ch)) {
            match ch {
                '\n' => {
                    out.push('\n');
                    *self = Self::default();
                }
                _ => self.put(ch, width, &mut out),
            }
        }
        out
    }

    fn put(&mut self, ch: char, width: Option<usize>, out: &mut String) {
        let columns = match ch {
            '\t' => TAB - self.column % TAB,
            _ => ch.width().unwrap_or(0),
        };
        let blank = ch == ' ' || ch == '\t';
        if let Some(width) = width
            && columns > 0
            && self.column + columns > width - MARGIN
        {
            if blank {
                // The line break replaces the blank.
                out.push('\n');
                *self = Self::default();
                return;
            }
            self.break_line(width, out);
        }
        out.push(ch);
        self.column += columns;
        if blank || columns > 1 {
            // A line may break after any wide character, such as a Chinese one.
            (self.word, self.word_columns) = (String::new(), 0);
        } else {
            self.word.push(ch);
            self.word_columns += columns;
        }
    }

    /// Starts the next line and moves the current word to it, unless the word is too long.
    fn break_line(&mut self, width: usize, out: &mut String) {
        if self.word_columns > width - MIN_WIDTH || self.word_columns >= self.column {
            (self.word, self.word_columns) = (String::new(), 0);
        }
        if self.word_columns > 0 {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "\x1b[{}D\x1b[K", self.word_columns);
        }
        out.push('\n');
        out.push_str(&self.word);
        self.column = self.word_columns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(width: usize, pieces: &[&str]) -> String {
        let mut wrapper = Wrapper::default();
        pieces.iter().map(|piece| wrapper.push(piece, Some(width))).collect()
    }

    /// Content of a terminal: cursor movements applied, blanks at line ends dropped.
    fn screen(written: &str) -> Vec<String> {
        let mut lines = vec![Vec::<char>::new()];
        let mut chars = written.chars();
        while let Some(ch) = chars.next() {
            let line = lines.last_mut().expect("there is always a line");
            match ch {
                '\n' => lines.push(vec![]),
                '\x1b' => {
                    let code: String =
                        chars.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
                    if let Ok(back) = code.trim_start_matches('[').parse::<usize>() {
                        line.truncate(line.len() - back);
                    }
                }
                _ => line.push(ch),
            }
        }
        lines.iter().map(|l| l.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_word_that_does_not_fit_moves_to_the_next_line() {
        let written = wrap(20, &["one two ", "three fo", "ur five"]);
        assert_eq!(screen(&written), ["one two three", "four five"]);
        assert!(written.contains("\x1b[1D\x1b[K\nfo"), "{written:?}");
    }

    #[test]
    fn pieces_of_any_size_give_the_same_screen_and_no_long_line() {
        let text = "The quick brown fox jumps over the lazy dog, again and again, until nobody looks any more.\nThen rest.";
        for width in [20, 26, 33, 80] {
            let whole = screen(&wrap(width, &[text]));
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(screen(&wrap(width, &pieces)), whole);
            assert!(whole.iter().all(|l| l.len() <= width - MARGIN), "{width}: {whole:?}");
            assert_eq!(
                whole.join(" ").split_whitespace().collect::<Vec<_>>(),
                text.split_whitespace().collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn a_word_longer_than_a_line_is_broken() {
        assert_eq!(
            screen(&wrap(15, &["abcdefghijklmnopqrstuvwxyz"])),
            ["abcdefghij", "klmnopqrst", "uvwxyz"]
        );
        assert_eq!(screen(&wrap(15, &["a bcdefghijklm"])), ["a bcdefghi", "jklm"]);
    }

    #[test]
    fn a_line_break_at_the_edge_is_not_doubled() {
        assert_eq!(screen(&wrap(15, &["0123456789\nx"])), ["0123456789", "x"]);
        assert_eq!(screen(&wrap(15, &["01234 6789 x"])), ["01234 6789", "x"]);
    }

    #[test]
    fn wide_characters_count_two_columns_and_break_anywhere() {
        assert_eq!(screen(&wrap(15, &["漢字漢字漢字漢字"])), ["漢字漢字漢", "字漢字"]);
    }

    #[test]
    fn without_a_width_or_on_a_tiny_terminal_nothing_is_wrapped() {
        let text = "a rather long line that would need to be wrapped";
        assert_eq!(Wrapper::default().push(text, None), text);
        assert_eq!(wrap(9, &[text]), text);
    }

    #[test]
    fn escape_sequences_of_the_model_do_not_reach_the_terminal() {
        assert_eq!(wrap(80, &["a\x1b[2Jb\x07c\u{9b}d\re\tf\u{202e}g"]), "a[2Jbcde\tfg");
    }
}
