//! Tokens of Jinja with `trim_blocks` and `lstrip_blocks`, as Hugging Face configures it.
//!
//! White space: the line break behind `%}` and `#}` is removed, and so are blanks between the start
//! of a line and `{%` or `{#`. A `-` inside a tag removes all white space on its side; a `+` keeps
//! it. One line break at the end of the source is removed.

use super::python_chars::{is_space, trim_end, trim_start};
use super::text::repr_str;
use crate::PromptError;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind {
    Data(String),
    VarBegin,
    VarEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: usize,
}

/// Splits a source into tokens; its line breaks must be `
/// `. The last token is `Eof`.
pub(super) fn lex(source: &str) -> Result<Vec<Token>, PromptError> {
    let src = source.strip_suffix('\n').unwrap_or(source);
    let mut lexer =
        Lexer { src, pos: 0, line: 1, counted: 0, line_start: true, tokens: Vec::new() };
    lexer.root()?;
    lexer.push(TokenKind::Eof);
    Ok(lexer.tokens)
}

/// Longest name, in bytes. Each lookup reads the whole name.
const MAX_NAME_BYTES: usize = 1024;

/// Operators, longest first.
const OPERATORS: [&str; 25] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",",
];

struct Lexer<'s> {
    src: &'s str,
    pos: usize,
    line: usize,
    /// Offset up to which line breaks were counted.
    counted: usize,
    /// The last consumed text ended a line.
    line_start: bool,
    tokens: Vec<Token>,
}

impl<'s> Lexer<'s> {
    fn root(&mut self) -> Result<(), PromptError> {
        while let Some((at, kind)) = self.next_tag() {
            let sign = self.src[at + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            let text = self.text_before(at, kind, sign);
            if !text.is_empty() {
                self.push(TokenKind::Data(text.to_string()));
            }
            self.pos = at + 2 + usize::from(sign.is_some());
            match kind {
                b'#' => self.comment(at)?,
                b'%' if self.raw()? => {}
                b'%' => {
                    self.push(TokenKind::BlockBegin);
                    self.tag("%}")?;
                }
                _ => {
                    self.push(TokenKind::VarBegin);
                    self.tag("}}")?;
                }
            }
        }
        if self.pos < self.src.len() {
            let rest = self.src[self.pos..].to_string();
            self.push(TokenKind::Data(rest));
            self.pos = self.src.len();
        }
        Ok(())
    }

    fn next_tag(&self) -> Option<(usize, u8)> {
        let bytes = self.src.as_bytes();
        let mut from = self.pos;
        while let Some(at) = self.src[from..].find('{') {
            match bytes.get(from + at + 1) {
                Some(kind @ (b'{' | b'%' | b'#')) => return Some((from + at, *kind)),
                _ => from += at + 1,
            }
        }
        None
    }

    /// The text before a tag, without the white space that the tag removes.
    fn text_before(&self, at: usize, kind: u8, sign: Option<char>) -> &'s str {
        let text = &self.src[self.pos..at];
        if sign == Some('-') {
            return trim_end(text);
        }
        if sign == Some('+') || kind == b'{' {
            return text;
        }
        let line = text.rfind('\n').map_or(0, |n| n + 1);
        let starts_line = line > 0 || self.line_start;
        if starts_line && text[line..].chars().all(is_space) { &text[..line] } else { text }
    }

    fn comment(&mut self, start: usize) -> Result<(), PromptError> {
        let Some(len) = self.src[start + 2..].find("#}") else {
            return Err(self.error("Missing end of comment tag"));
        };
        let at = start + 2 + len;
        let sign = if len > 0 { self.src.as_bytes()[at - 1] } else { b' ' };
        self.close(at + 2, sign, true);
        Ok(())
    }

    /// Reads `{% raw %} … {% endraw %}` behind `{%` and its sign. Returns false for other tags.
    fn raw(&mut self) -> Result<bool, PromptError> {
        let Some(rest) = trim_start(&self.src[self.pos..]).strip_prefix("raw") else {
            return Ok(false);
        };
        let rest = trim_start(rest);
        let (rest, minus) = match rest.strip_prefix("-%}") {
            Some(rest) => (rest, true),
            None => match rest.strip_prefix("%}") {
                Some(rest) => (rest, false),
                None => return Ok(false),
            },
        };
        let rest = if minus { trim_start(rest) } else { rest };
        let start = self.src.len() - rest.len();
        let mut from = start;
        while let Some(len) = self.src[from..].find("{%") {
            let at = from + len;
            let after = &self.src[at + 2..];
            let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
            let name = trim_start(&after[usize::from(sign.is_some())..]);
            if let Some(end) = name.strip_prefix("endraw").map(trim_start) {
                let (end, close) = match end.as_bytes().first() {
                    Some(c @ (b'-' | b'+')) => (&end[1..], *c),
                    _ => (end, b' '),
                };
                if let Some(after) = end.strip_prefix("%}") {
                    self.pos = start;
                    self.line_start = false;
                    let text = self.text_before(at, b'%', sign).to_string();
                    self.push(TokenKind::Data(text));
                    self.close(self.src.len() - after.len(), close, true);
                    return Ok(true);
                }
            }
            from = at + 2;
        }
        Err(self.error("Missing end of raw directive"))
    }

    /// Continues behind a closed tag. `sign` is the character before the closing delimiter.
    fn close(&mut self, end: usize, sign: u8, is_block: bool) {
        let rest = &self.src[end..];
        let taken = match sign {
            b'-' => rest.len() - trim_start(rest).len(),
            b'+' => 0,
            _ => usize::from(is_block && rest.starts_with('\n')),
        };
        self.pos = end + taken;
        self.line_start = self.src[..self.pos].ends_with('\n') && taken > 0;
    }

    /// Reads the tokens of a tag up to the delimiter `end`.
    fn tag(&mut self, end: &'static str) -> Result<(), PromptError> {
        let mut open: Vec<&'static str> = Vec::new();
        let is_block = end == "%}";
        loop {
            let rest = trim_start(&self.src[self.pos..]);
            self.pos = self.src.len() - rest.len();
            if open.is_empty() {
                let (sign, mark) = match rest.as_bytes().first() {
                    Some(b'-') => (b'-', &rest[1..]),
                    Some(b'+') if is_block => (b'+', &rest[1..]),
                    _ => (b' ', rest),
                };
                if let Some(after) = mark.strip_prefix(end) {
                    self.push(if is_block { TokenKind::BlockEnd } else { TokenKind::VarEnd });
                    self.close(self.src.len() - after.len(), sign, is_block);
                    return Ok(());
                }
            }
            let Some(c) = rest.chars().next() else {
                return Err(self.error("unexpected end of template inside a tag"));
            };
            if c == '_' || c.is_alphabetic() {
                let len =
                    rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                if len > MAX_NAME_BYTES {
                    return Err(self.error("a name is longer than 1024 bytes"));
                }
                self.push(TokenKind::Name(rest[..len].to_string()));
                self.pos += len;
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else if c.is_ascii_digit() {
                self.number()?;
            } else if let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) {
                self.bracket(op, &mut open)?;
                self.push(TokenKind::Op(op));
                self.pos += op.len();
            } else {
                return Err(self.error(format!(
                    "unexpected char {} at {}",
                    repr_str(&c.to_string()),
                    self.pos
                )));
            }
        }
    }

    fn bracket(&self, op: &'static str, open: &mut Vec<&'static str>) -> Result<(), PromptError> {
        let closer = match op {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            ")" | "]" | "}" => {
                return match open.pop() {
                    Some(want) if want == op => Ok(()),
                    Some(want) => Err(self.error(format!("unexpected '{op}', expected '{want}'"))),
                    None => Err(self.error(format!("unexpected '{op}'"))),
                };
            }
            _ => return Ok(()),
        };
        open.push(closer);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), PromptError> {
        let body = &self.src[self.pos + 1..];
        let mut chars = body.char_indices();
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == quote {
                let text = unescape(&body[..at]).map_err(|message| self.error(message))?;
                self.push(TokenKind::Str(text));
                self.pos += 1 + at + 1;
                return Ok(());
            }
        }
        Err(self.error(format!("unexpected char {} at {}", repr_str(&quote.to_string()), self.pos)))
    }

    fn number(&mut self) -> Result<(), PromptError> {
        let rest = &self.src.as_bytes()[self.pos..];
        let digits = |mut at: usize, radix: u32| {
            while at < rest.len() && (rest[at] == b'_' || (rest[at] as char).is_digit(radix)) {
                at += 1;
            }
            at
        };
        let radix = match rest.get(1).map(u8::to_ascii_lowercase) {
            Some(b'x') if rest[0] == b'0' => 16,
            Some(b'o') if rest[0] == b'0' => 8,
            Some(b'b') if rest[0] == b'0' => 2,
            _ => 10,
        };
        let start = if radix == 10 { 0 } else { 2 };
        let mut end = digits(start, radix);
        let mut is_float = false;
        if radix == 10 {
            if rest.get(end) == Some(&b'.') && rest.get(end + 1).is_some_and(u8::is_ascii_digit) {
                end = digits(end + 1, 10);
                is_float = true;
            }
            let sign = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            if matches!(rest.get(end), Some(b'e' | b'E'))
                && rest.get(end + 1 + sign).is_some_and(u8::is_ascii_digit)
            {
                end = digits(end + 1 + sign, 10);
                is_float = true;
            }
        }
        let text = self.src[self.pos + start..self.pos + end].replace('_', "");
        let kind = if is_float {
            text.parse().ok().map(TokenKind::Float)
        } else {
            i128::from_str_radix(&text, radix).ok().map(TokenKind::Int)
        };
        let kind = kind.ok_or_else(|| self.error(format!("number {text:?} is too large")))?;
        self.push(kind);
        self.pos += end;
        Ok(())
    }

    fn push(&mut self, kind: TokenKind) {
        let line = self.line_here();
        self.tokens.push(Token { kind, line });
    }

    fn line_here(&mut self) -> usize {
        if self.pos > self.counted {
            let passed = &self.src.as_bytes()[self.counted..self.pos];
            self.line += passed.iter().filter(|b| **b == b'\n').count();
            self.counted = self.pos;
        }
        self.line
    }

    fn error(&self, message: impl Into<String>) -> PromptError {
        let line = 1 + self.src.as_bytes()[..self.pos].iter().filter(|b| **b == b'\n').count();
        PromptError::JinjaSyntax { line, message: message.into() }
    }
}

/// Decodes Python's escapes in string literals. An unknown escape keeps its backslash.
fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(escape) = chars.next() else { break };
        let digits = match escape {
            'n' => {
                out.push('\n');
                continue;
            }
            't' => {
                out.push('\t');
                continue;
            }
            'r' => {
                out.push('\r');
                continue;
            }
            'a' => {
                out.push('\u{7}');
                continue;
            }
            'b' => {
                out.push('\u{8}');
                continue;
            }
            'f' => {
                out.push('\u{c}');
                continue;
            }
            'v' => {
                out.push('\u{b}');
                continue;
            }
            '\\' | '\'' | '"' => {
                out.push(escape);
                continue;
            }
            '\n' => continue,
            '0'..='7' => {
                let mut code = escape.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    chars.next();
                }
                out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                continue;
            }
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => {
                out.push('\\');
                out.push(escape);
                continue;
            }
        };
        let hex: String = chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
        let code = code.ok_or_else(|| format!("truncated \\{escape} escape in a string"))?;
        // A lone surrogate is not a character. Python would fail later, when it encodes the prompt.
        out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
    }
    Ok(out)
}
