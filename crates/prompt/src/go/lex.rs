//! Tokens of Go's `text/template`.
//!
//! The whole source is tokenized at once: templates are short, and the parser may look ahead
//! freely. An error is a token, so that it is reported when the parser reaches it, as in Go.

use std::borrow::Cow;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Error,
    Eof,
    Text,
    LeftDelim,
    RightDelim,
    Space,
    Pipe,
    Declare,
    Assign,
    /// Any other printable ASCII character.
    Char,
    CharConstant,
    Number,
    Str,
    RawStr,
    Field,
    Variable,
    Ident,
    Dot,
    Bool,
    Nil,
    LeftParen,
    RightParen,
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
}

impl TokenKind {
    pub(super) fn is_keyword(self) -> bool {
        use TokenKind::*;
        matches!(
            self,
            Block | Break | Continue | Define | Else | End | If | Range | Template | With
        )
    }
}

/// A token with the byte offset of its start.
#[derive(Debug, Clone)]
pub(super) struct Token<'s> {
    pub(super) kind: TokenKind,
    pub(super) pos: usize,
    pub(super) text: Cow<'s, str>,
}

/// Splits `src` into tokens. The last one is `Eof` or `Error`.
pub(super) fn lex(src: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { src, pos: 0, parens: 0, tokens: Vec::new() };
    while lexer.text() {}
    lexer.tokens
}

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

struct Lexer<'s> {
    src: &'s str,
    pos: usize,
    parens: usize,
    tokens: Vec<Token<'s>>,
}

impl<'s> Lexer<'s> {
    /// Reads text up to the next action, and the action. Returns false at the end of the source or
    /// after an error.
    fn text(&mut self) -> bool {
        let rest = &self.src[self.pos..];
        let Some(len) = rest.find("{{") else {
            if !rest.is_empty() {
                self.push(TokenKind::Text, self.pos, self.src.len());
            }
            self.push(TokenKind::Eof, self.src.len(), self.src.len());
            return false;
        };
        let delim = self.pos + len;
        let after = &self.src.as_bytes()[delim + 2..];
        let trim = after.len() >= 2 && after[0] == b'-' && is_space(after[1] as char);
        let text = if trim { rest[..len].trim_end_matches(SPACES) } else { &rest[..len] };
        if !text.is_empty() {
            self.push(TokenKind::Text, self.pos, self.pos + text.len());
        }
        let body = delim + 2 + if trim { 2 } else { 0 };
        self.pos = body;
        if self.src[body..].starts_with("/*") {
            return self.comment();
        }
        self.push(TokenKind::LeftDelim, delim, delim + 2);
        self.parens = 0;
        self.action()
    }

    fn comment(&mut self) -> bool {
        let Some(len) = self.src[self.pos + 2..].find("*/") else {
            return self.error(self.pos, "unclosed comment");
        };
        let end = self.pos + 2 + len + 2;
        match self.right_delim(end) {
            Some(trim) => {
                self.close(end, trim);
                true
            }
            None => self.error(self.pos, "comment ends before closing delimiter"),
        }
    }

    fn action(&mut self) -> bool {
        loop {
            if let Some(trim) = self.right_delim(self.pos) {
                if self.parens > 0 {
                    return self.error(self.pos, "unclosed left paren");
                }
                let start = self.pos;
                self.push(TokenKind::RightDelim, start, start + 2);
                self.close(start, trim);
                return true;
            }
            if !self.item() {
                return false;
            }
        }
    }

    /// Reads one token inside an action. Returns false after an error.
    fn item(&mut self) -> bool {
        let start = self.pos;
        let Some(c) = self.peek() else {
            return self.error(start, "unclosed action");
        };
        match c {
            _ if is_space(c) => {
                while self.peek().is_some_and(is_space) && self.right_delim(self.pos).is_none() {
                    self.pos += 1;
                }
                self.emit(TokenKind::Space, start)
            }
            '=' => self.single(TokenKind::Assign),
            ':' if self.src[start..].starts_with(":=") => {
                self.pos += 2;
                self.emit(TokenKind::Declare, start)
            }
            ':' => self.error(start, "expected :="),
            '|' => self.single(TokenKind::Pipe),
            '"' => self.quoted('"', TokenKind::Str, "unterminated quoted string"),
            '\'' => self.quoted('\'', TokenKind::CharConstant, "unterminated character constant"),
            '`' => match self.src[start + 1..].find('`') {
                Some(len) => {
                    self.pos = start + 1 + len + 1;
                    self.emit(TokenKind::RawStr, start)
                }
                None => self.error(start, "unterminated raw quoted string"),
            },
            '$' => self.name(TokenKind::Variable),
            '.' if !self.src[start + 1..].starts_with(|c: char| c.is_ascii_digit()) => {
                self.name(TokenKind::Field)
            }
            '.' | '+' | '-' | '0'..='9' => self.number(),
            _ if is_alphanumeric(c) => self.identifier(),
            '(' => {
                self.parens += 1;
                self.single(TokenKind::LeftParen)
            }
            ')' => {
                if self.parens == 0 {
                    return self.error(start, "unexpected right paren");
                }
                self.parens -= 1;
                self.single(TokenKind::RightParen)
            }
            ' '..='~' => self.single(TokenKind::Char),
            _ => self.error(
                start,
                format!("unrecognized character in action: U+{:04X} '{c}'", u32::from(c)),
            ),
        }
    }

    fn quoted(&mut self, quote: char, kind: TokenKind, unterminated: &'static str) -> bool {
        let start = self.pos;
        let mut chars = self.src[start + 1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' if !matches!(chars.next(), None | Some((_, '\n'))) => {}
                '\\' | '\n' => break,
                _ if c == quote => {
                    self.pos = start + 1 + at + 1;
                    return self.emit(kind, start);
                }
                _ => {}
            }
        }
        self.error(start, unterminated)
    }

    /// Reads `.Name` or `$name`. A lone `.` is the dot, a lone `$` the root variable.
    fn name(&mut self, kind: TokenKind) -> bool {
        let start = self.pos;
        self.pos += 1;
        self.skip_alphanumeric();
        if self.pos == start + 1 && kind == TokenKind::Field {
            return if self.at_terminator() {
                self.emit(TokenKind::Dot, start)
            } else {
                self.bad_character()
            };
        }
        if self.at_terminator() { self.emit(kind, start) } else { self.bad_character() }
    }

    fn identifier(&mut self) -> bool {
        let start = self.pos;
        self.skip_alphanumeric();
        if !self.at_terminator() {
            return self.bad_character();
        }
        let kind = match &self.src[start..self.pos] {
            "block" => TokenKind::Block,
            "break" => TokenKind::Break,
            "continue" => TokenKind::Continue,
            "define" => TokenKind::Define,
            "else" => TokenKind::Else,
            "end" => TokenKind::End,
            "if" => TokenKind::If,
            "range" => TokenKind::Range,
            "template" => TokenKind::Template,
            "with" => TokenKind::With,
            "nil" => TokenKind::Nil,
            "true" | "false" => TokenKind::Bool,
            _ => TokenKind::Ident,
        };
        self.emit(kind, start)
    }

    fn number(&mut self) -> bool {
        let start = self.pos;
        self.pos = self.number_end(start);
        // A sign here would start a complex number, which is not supported.
        if matches!(self.peek(), Some('+' | '-')) {
            self.pos = self.number_end(self.pos);
            return self
                .error(start, format!("bad number syntax: {:?}", &self.src[start..self.pos]));
        }
        if let Some(c) = self.peek().filter(|c| is_alphanumeric(*c)) {
            self.pos += c.len_utf8();
            return self
                .error(start, format!("bad number syntax: {:?}", &self.src[start..self.pos]));
        }
        self.emit(TokenKind::Number, start)
    }

    /// End of the number that starts at `at`, with its sign.
    fn number_end(&self, mut at: usize) -> usize {
        let bytes = self.src.as_bytes();
        if matches!(bytes[at], b'+' | b'-') {
            at += 1;
        }
        let prefix =
            bytes.get(at + 1).map(u8::to_ascii_lowercase).filter(|_| bytes.get(at) == Some(&b'0'));
        let (radix, exponent) = match prefix {
            Some(b'x') => (16, b'p'),
            Some(b'o') => (8, 0),
            Some(b'b') => (2, 0),
            _ => (10, b'e'),
        };
        if radix != 10 {
            at += 2;
        }
        let digits = |mut at: usize, radix: u32| {
            while at < bytes.len() && (bytes[at] == b'_' || (bytes[at] as char).is_digit(radix)) {
                at += 1;
            }
            at
        };
        at = digits(at, radix);
        if bytes.get(at) == Some(&b'.') {
            at = digits(at + 1, radix);
        }
        if exponent != 0 && bytes.get(at).map(u8::to_ascii_lowercase) == Some(exponent) {
            at += 1;
            if matches!(bytes.get(at), Some(b'+' | b'-')) {
                at += 1;
            }
            at = digits(at, 10);
        }
        at
    }

    fn bad_character(&mut self) -> bool {
        let c = self.peek().unwrap_or('\u{fffd}');
        self.error(self.pos, format!("bad character U+{:04X} '{c}'", u32::from(c)))
    }

    fn at_terminator(&self) -> bool {
        match self.peek() {
            None => true,
            Some(c) => {
                is_space(c)
                    || matches!(c, '.' | ',' | '|' | ':' | ')' | '(')
                    || self.src[self.pos..].starts_with("}}")
            }
        }
    }

    /// Checks for a closing delimiter at `at`. The value is true if the delimiter trims the
    /// following text.
    fn right_delim(&self, at: usize) -> Option<bool> {
        let rest = &self.src.as_bytes()[at..];
        if rest.len() >= 4 && is_space(rest[0] as char) && &rest[1..4] == b"-}}" {
            return Some(true);
        }
        rest.starts_with(b"}}").then_some(false)
    }

    fn close(&mut self, at: usize, trim: bool) {
        self.pos = at + if trim { 4 } else { 2 };
        if trim {
            self.pos = self.src.len() - self.src[self.pos..].trim_start_matches(SPACES).len();
        }
    }

    fn skip_alphanumeric(&mut self) {
        while let Some(c) = self.peek().filter(|c| is_alphanumeric(*c)) {
            self.pos += c.len_utf8();
        }
    }

    fn single(&mut self, kind: TokenKind) -> bool {
        self.pos += 1;
        self.emit(kind, self.pos - 1)
    }

    fn emit(&mut self, kind: TokenKind, start: usize) -> bool {
        self.push(kind, start, self.pos);
        true
    }

    fn push(&mut self, kind: TokenKind, start: usize, end: usize) {
        self.tokens.push(Token { kind, pos: start, text: Cow::Borrowed(&self.src[start..end]) });
    }

    fn error(&mut self, pos: usize, message: impl Into<String>) -> bool {
        self.tokens.push(Token { kind: TokenKind::Error, pos, text: Cow::Owned(message.into()) });
        false
    }

    fn peek(&self) -> Option<char> {
        self.src[self.pos..].chars().next()
    }
}

fn is_space(c: char) -> bool {
    SPACES.contains(&c)
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
