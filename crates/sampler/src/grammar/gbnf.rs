//! Parses llama.cpp's grammars (GBNF): `name ::= alternatives`, one rule a line, with the start
//! rule `root`.

use std::collections::HashMap;

/// Maximum depth of nested parentheses.
const MAX_DEPTH: usize = 100;
/// Maximum number of suffixes on one item.
const MAX_SUFFIXES: usize = 4;
/// Maximum number of repetitions. A larger upper bound counts as none.
const MAX_REPEAT: u32 = 2000;

/// A grammar. Rules refer to each other by number.
#[derive(Debug, PartialEq)]
pub struct Grammar {
    pub rules: Vec<Expr>,
    pub root: usize,
}

/// Right side of a rule.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    Text(String),
    /// One character within some ranges, or within none of them.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    /// Any character.
    Any,
    Rule(usize),
    Token(Token),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    Repeat {
        what: Box<Expr>,
        min: u32,
        max: Option<u32>,
    },
}

/// A token of the vocabulary, or any other token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// `<name>` or `<[id]>` as in the grammar.
    pub written: String,
    pub negated: bool,
}

/// Parses a grammar.
///
/// # Errors
/// What was expected, and where.
pub fn parse(text: &str) -> Result<Grammar, String> {
    let mut reader = Reader { text, at: 0, names: HashMap::new(), rules: Vec::new() };
    reader.space(true);
    while !reader.rest().is_empty() {
        reader.rule()?;
    }
    reader.finish()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    names: HashMap<&'a str, usize>,
    /// Rules by number. `None` until a rule is defined.
    rules: Vec<Option<Expr>>,
}

impl<'a> Reader<'a> {
    fn finish(self) -> Result<Grammar, String> {
        let root = *self.names.get("root").ok_or("the grammar has no rule named root")?;
        let mut names: Vec<_> = self.names.into_iter().collect();
        names.sort_by_key(|(_, index)| *index);
        let defined = |(rule, (name, _)): (Option<Expr>, (&str, usize))| {
            rule.ok_or_else(|| format!("Undefined rule identifier '{name}'"))
        };
        let rules = self.rules.into_iter().zip(names).map(defined).collect::<Result<_, _>>()?;
        Ok(Grammar { rules, root })
    }

    fn rule(&mut self) -> Result<(), String> {
        let name = self.name()?;
        let index = self.index(name);
        self.space(false);
        if !self.eat("::=") {
            return Err(self.expecting("::="));
        }
        self.space(true);
        let body = self.alternatives(0)?;
        if !(self.rest().is_empty() || self.eat("\n") || self.eat("\r\n") || self.eat("\r")) {
            return Err(self.expecting("newline or end"));
        }
        self.space(true);
        self.rules[index] = Some(body);
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested parentheses"));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.eat("|") {
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { Expr::Choice(all) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, String> {
        let (mut items, mut suffixes) = (Vec::new(), 0);
        while let Some(next) = self.rest().chars().next() {
            if "*+?{".contains(next) {
                let Some(what) = items.pop() else {
                    return Err(self.expecting(&format!("preceding item to {next}")));
                };
                suffixes += 1;
                if suffixes > MAX_SUFFIXES {
                    return Err(format!(
                        "more than {MAX_SUFFIXES} nested repetitions at {}",
                        self.position()
                    ));
                }
                items.push(self.repeated(what)?);
            } else if let Some(item) = self.item(next, depth)? {
                suffixes = 0;
                items.push(item);
            } else {
                break;
            }
            self.space(depth > 0);
        }
        Ok(if items.len() == 1 { items.swap_remove(0) } else { Expr::Sequence(items) })
    }

    fn item(&mut self, next: char, depth: usize) -> Result<Option<Expr>, String> {
        Ok(Some(match next {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                Expr::Any
            }
            '(' => {
                self.at += 1;
                self.space(true);
                let inner = self.alternatives(depth + 1)?;
                if !self.eat(")") {
                    return Err(self.expecting("')'"));
                }
                inner
            }
            '<' | '!' => Expr::Token(self.token()?),
            c if is_name(c) => {
                let name = self.name()?;
                Expr::Rule(self.index(name))
            }
            _ => return Ok(None),
        }))
    }

    fn repeated(&mut self, what: Expr) -> Result<Expr, String> {
        let (min, max) = match self.text.as_bytes()[self.at] {
            b'*' => (0, None),
            b'+' => (1, None),
            b'?' => (0, Some(1)),
            _ => return self.counted_repeat(what),
        };
        self.at += 1;
        Ok(Expr::Repeat { what: Box::new(what), min, max })
    }

    /// Parses `{m}`, `{m,}` or `{m,n}`.
    fn counted_repeat(&mut self, what: Expr) -> Result<Expr, String> {
        let start = self.at;
        self.at += 1;
        self.space(true);
        let min = self.number()?;
        self.space(true);
        let max = match self.eat(",") {
            false => Some(min),
            true => {
                self.space(true);
                match self.rest().starts_with('}') {
                    true => None,
                    false => Some(self.number()?),
                }
            }
        };
        self.space(true);
        if !self.eat("}") {
            return Err(self.expecting("'}'"));
        }
        let max = max.filter(|max| *max <= MAX_REPEAT);
        if min > MAX_REPEAT || max.is_some_and(|max| max < min) {
            self.at = start;
            let found = format!(
                "number of repetitions exceeds sane defaults (at most {MAX_REPEAT}, rising)"
            );
            return Err(format!("{found} at {}", self.position()));
        }
        Ok(Expr::Repeat { what: Box::new(what), min, max })
    }

    fn number(&mut self) -> Result<u32, String> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(self.expecting("integer"));
        }
        let number = self.rest()[..digits].parse().unwrap_or(u32::MAX);
        self.at += digits;
        Ok(number)
    }

    fn literal(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let mut text = String::new();
        while !self.eat("\"") {
            text.push(self.character()?);
        }
        Ok(Expr::Text(text))
    }

    fn class(&mut self) -> Result<Expr, String> {
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = match is_range {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => first,
            };
            if last < first {
                return Err(format!("the range is reversed at {}", self.position()));
            }
            ranges.push((first, last));
        }
        match (ranges.is_empty(), negated) {
            (true, true) => Ok(Expr::Any),
            (true, false) => Err(format!("empty character class at {}", self.position())),
            (false, _) => Ok(Expr::Class { ranges, negated }),
        }
    }

    /// Parses a character of a literal or a class, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let mut chars = self.rest().chars();
        let first = chars.next().ok_or("unexpected end of input")?;
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok(first);
        }
        let kind = chars.next().ok_or("unexpected end of input")?;
        self.at += kind.len_utf8();
        Ok(match kind {
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'U' => self.hex(8)?,
            't' => '\t',
            'r' => '\r',
            'n' => '\n',
            '\\' | '"' | '[' | ']' | '-' => kind,
            _ => return Err(format!("unknown escape \\{kind} at {}", self.position())),
        })
    }

    fn hex(&mut self, digits: usize) -> Result<char, String> {
        let wrong =
            || format!("expecting {digits} hex chars of a character at {}", self.position());
        let text = self.rest().get(..digits).filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = text.and_then(|t| u32::from_str_radix(t, 16).ok()).and_then(char::from_u32);
        let found = code.ok_or_else(wrong)?;
        self.at += digits;
        Ok(found)
    }

    /// Parses `<name>` or `<[id]>`, optionally after `!`.
    fn token(&mut self) -> Result<Token, String> {
        let negated = self.eat("!");
        let end = self.rest().find(['>', '\n']).filter(|end| self.rest().as_bytes()[*end] == b'>');
        match end {
            // The number of the name is not known here.
            Some(end) if negated && end > 1 && !self.rest().starts_with("<[") => Err(format!(
                "an excluded token must be given by its id, as !<[id]>, at {}",
                self.position()
            )),
            Some(end) if self.rest().starts_with('<') && end > 1 => {
                let written = self.rest()[..=end].to_owned();
                self.at += end + 1;
                Ok(Token { written, negated })
            }
            _ => Err(self.expecting("a token such as <name> or <[id]>")),
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let length = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
        if length == 0 {
            return Err(self.expecting("name"));
        }
        let name = &self.text[self.at..self.at + length];
        self.at += length;
        Ok(name)
    }

    fn index(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.rules.push(None);
        }
        index
    }

    /// Skips blanks and comments, and line breaks if `breaks` is set.
    fn space(&mut self, breaks: bool) {
        loop {
            let rest = self.rest();
            let blanks = rest.find(|c| !(" \t".contains(c) || (breaks && "\r\n".contains(c))));
            let blanks = blanks.unwrap_or(rest.len());
            let comment = match rest[blanks..].starts_with('#') {
                true => rest[blanks..].find(['\r', '\n']).unwrap_or(rest.len() - blanks),
                false => 0,
            };
            if blanks + comment == 0 {
                return;
            }
            self.at += blanks + comment;
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn expecting(&self, what: &str) -> String {
        match self.rest().is_empty() {
            true => format!("expecting {what} at the end of the grammar"),
            false => format!("expecting {what} at {}", self.position()),
        }
    }

    fn position(&self) -> String {
        let before = &self.text[..self.at];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = before.matches('\n').count() + 1;
        format!("line {line}, column {}", before[line_start..].chars().count() + 1)
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}
