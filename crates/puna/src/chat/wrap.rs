//! Breaking lines between words in text that arrives piece by piece.
//!
//! Text is shown as it comes. When a word turns out not to fit, the cursor goes back over it, the rest of the line is
//! cleared, and the word is written again on the next line.

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Columns left free at the right.
const MARGIN: usize = 5;
/// Terminals narrower than this are not worth it.
const MIN_WIDTH: usize = 10;
const TAB: usize = 8;

/// The state of the line being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Wrapper {
    column: usize,
    /// The word that the line ends with, and its columns.
    word: String,
    word_columns: usize,
}

impl Wrapper {
    /// What to write for a piece of text on a terminal of `width` columns; `None`: no wrapping. Control characters
    /// other than line breaks and tabs are left out: a model must not steer the terminal.
    pub(super) fn push(&mut self, text: &str, width: Option<usize>) -> String {
        let width = width.filter(|&w| w >= MIN_WIDTH);
        let mut out = String::with_capacity(text.len());
        for ch in text.chars().filter(|&ch| ch == '\n' || ch == '\t' || !ch.is_control()) {
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
                // The line break stands for it.
                out.push('\n');
                *self = Self::default();
                return;
            }
            self.break_line(width, out);
        }
        out.push(ch);
        self.column += columns;
        if blank || columns > 1 {
            // Wide characters, as those of Chinese, may be followed by a line break anywhere.
            (self.word, self.word_columns) = (String::new(), 0);
        } else {
            self.word.push(ch);
            self.word_columns += columns;
        }
    }

    /// Goes to the next line and takes the current word along, unless it is too long for that.
    fn break_line(&mut self, width: usize, out: &mut String) {
        if self.word_columns > width - MIN_WIDTH || self.word_columns >= self.column {
            (self.word, self.word_columns) = (String::new(), 0);
        }
        if self.word_columns > 0 {
            // Writing to a String cannot fail.
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

    /// What a terminal shows: cursor movements applied, blanks at line ends dropped.
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
    fn however_the_text_is_cut_the_screen_is_the_same_and_no_line_is_too_long() {
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
        assert_eq!(wrap(80, &["a\x1b[2Jb\x07c\u{9b}d\re\tf"]), "a[2Jbcde\tf");
    }
}
