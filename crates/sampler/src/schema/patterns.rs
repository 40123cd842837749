//! Translates regular expressions of JSON Schemas (ECMA 262) for the engines that run them.
//!
//! Grammars support expressions without look-around and back references ([`for_grammar`]). A
//! backtracking engine ([`PatternCache`]) runs other expressions on the finished answer, with
//! limited work. [`widened`] removes unsupported parts of an expression, so that generation still
//! enforces the rest.

use std::collections::HashMap;

use fancy_regex::{Regex, RegexBuilder};
use llguidance::derivre::{self, RegexAst};
use llguidance::regex_to_lark;

use super::expressions;
use super::formats::format_pattern;

/// Maximum number of characters of a quantifier. A longer one is literal text.
const QUANTIFIER_CHARS: usize = 24;

/// Maximum number of backtracking steps of one search.
const MAX_BACKTRACK: usize = 20_000;
/// Maximum number of bytes of a compiled expression.
const MAX_COMPILED: usize = 1 << 20;
/// Bytes of text and automaton states that count as one step of a check.
const TEXT_BYTES_A_STEP: usize = 16;
const STATES_A_STEP: usize = 128;
/// Steps that a backtracking search, and compiling an expression, count as.
const BACKTRACKING_STEPS: usize = MAX_BACKTRACK / 100;
const COMPILING_STEPS: usize = 64;
/// Work budget for deciding whether an expression matches any text.
const SEARCH_FUEL: u64 = 10_000;

/// Translates a pattern for a grammar. `None` if it has look-around, back references or inner
/// anchors, or is invalid.
pub(crate) fn for_grammar(pattern: &str) -> Option<String> {
    Some(translate(pattern, false)).filter(|pattern| runs_in_grammar(pattern))
}

/// A pattern for a grammar that matches every text that `pattern` matches, and more. `lengths`:
/// minimum and maximum number of characters of the texts.
pub(crate) fn widened(pattern: &str, lengths: (u64, Option<u64>)) -> Option<String> {
    let pattern = translate(pattern, false);
    let plain = without_unsupported(&pattern, false);
    let plain = Some(plain).filter(|pattern| runs_in_grammar(pattern));
    let plain = plain.or_else(|| {
        Some(without_unsupported(&pattern, true)).filter(|pattern| runs_in_grammar(pattern))
    });
    plain.filter(|pattern| pattern != "(?:)" && has_text(pattern, lengths))
}

/// Whether some text may match a pattern, considering its anchors.
pub(crate) fn may_fit(pattern: &str) -> bool {
    expressions::may_fit(&without_unsupported(&translate(pattern, false), false))
}

/// Whether a pattern is a valid expression for the finished answer.
pub(crate) fn is_pattern(pattern: &str) -> bool {
    compile(pattern).is_some()
}

fn runs_in_grammar(pattern: &str) -> bool {
    let lark = regex_to_lark(pattern, "dw");
    derivre::RegexBuilder::new().mk_regex_for_serach(&lark).is_ok()
}

/// Whether a matching text of a given length exists and is found within the budget.
fn has_text(pattern: &str, (min, max): (u64, Option<u64>)) -> bool {
    let search = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    let max = max.map_or(String::new(), |max| max.to_string());
    let length = RegexAst::Regex(format!("(?s:.{{{min},{max}}})"));
    let mut builder = derivre::RegexBuilder::new();
    let Ok(both) = builder.mk(&RegexAst::And(vec![search, length])) else { return false };
    builder.to_regex_limited(both, SEARCH_FUEL).is_ok_and(|mut regex| !regex.always_empty())
}

fn compile(pattern: &str) -> Option<Regex> {
    let pattern = translate(pattern, true);
    let mut builder = RegexBuilder::new(&pattern);
    builder.backtrack_limit(MAX_BACKTRACK).delegate_size_limit(MAX_COMPILED).build().ok()
}

/// Cache of compiled expressions. `None` for invalid expressions.
#[derive(Debug, Default)]
pub(crate) struct PatternCache(HashMap<String, Option<CompiledPattern>>);

#[derive(Debug)]
struct CompiledPattern {
    regex: Regex,
    /// Number of automaton states. `None` if the engine backtracks.
    states: Option<usize>,
}

impl PatternCache {
    fn compiled(&mut self, pattern: &str) -> Option<&CompiledPattern> {
        if !self.0.contains_key(pattern) {
            let compiled = compile(pattern).map(|regex| {
                let states = expressions::states(&translate(pattern, true));
                CompiledPattern { regex, states }
            });
            self.0.insert(pattern.to_owned(), compiled);
        }
        self.0.get(pattern)?.as_ref()
    }

    /// Work of matching a text of `bytes` bytes, in steps of a check.
    pub(crate) fn steps(&mut self, pattern: &str, bytes: usize) -> usize {
        let compiling =
            if self.0.contains_key(pattern) { 0 } else { COMPILING_STEPS + pattern.len() / 4 };
        let parts = 1 + bytes / TEXT_BYTES_A_STEP;
        let searching = match self.compiled(pattern).map(|compiled| compiled.states) {
            Some(Some(states)) => parts.saturating_mul(1 + states / STATES_A_STEP),
            Some(None) => parts.saturating_add(BACKTRACKING_STEPS),
            None => 1,
        };
        searching.saturating_add(compiling)
    }

    /// Whether a text matches a pattern. `None` if that takes too much work. Invalid expressions
    /// match every text.
    pub(crate) fn fits(&mut self, pattern: &str, text: &str) -> Option<bool> {
        match self.compiled(pattern) {
            Some(compiled) => compiled.regex.is_match(text).ok(),
            None => Some(true),
        }
    }

    /// Pattern of a format. `None` for formats that are not enforced.
    pub(crate) fn for_format(format: &str) -> Option<String> {
        let date = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])";
        let time =
            "[0-2][0-9]:[0-5][0-9]:[0-6][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-][0-2][0-9]:[0-5][0-9])";
        Some(match format {
            "date" => format!("^{date}$"),
            "time" => format!("^{time}$"),
            "date-time" => format!("^{date}[tT]{time}$"),
            "email" => "^[^@\\s]+@[^@\\s]+$".into(),
            "uri" => "^[a-zA-Z][a-zA-Z0-9+.-]*:\\S*$".into(),
            other => format!("^(?:{})$", format_pattern(other)?),
        })
    }
}

/// Translates an ECMA 262 expression to Rust's syntax. `keeps_names`: keeps group names, which back
/// references may need.
fn translate(pattern: &str, keeps_names: bool) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let mut translator =
        Translator { chars: &chars, at: 0, out: String::with_capacity(pattern.len()) };
    let mut in_class = false;
    while let Some(c) = translator.peek(0) {
        match (c, in_class) {
            ('\\', _) => translator.escape(in_class),
            (']', true) => {
                translator.take(1);
                in_class = false;
            }
            (_, true) => translator.in_class(c),
            ('[', false) => in_class = translator.begin_class(),
            ('(', false) => translator.group(keeps_names),
            ('{', false) if !translator.is_quantifier() => translator.replace(1, "\\{"),
            ('{', false) => translator.take_through('}'),
            ('}' | ']', false) => translator.replace(1, &format!("\\{c}")),
            _ => translator.take(1),
        }
    }
    translator.out
}

struct Translator<'a> {
    chars: &'a [char],
    at: usize,
    out: String,
}

impl Translator<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Copies the next characters.
    fn take(&mut self, count: usize) {
        let end = (self.at + count).min(self.chars.len());
        self.out.extend(&self.chars[self.at..end]);
        self.at = end;
    }

    /// Writes other text for the next characters.
    fn replace(&mut self, count: usize, text: &str) {
        self.at += count;
        self.out.push_str(text);
    }

    fn take_through(&mut self, end: char) {
        let rest = &self.chars[self.at..];
        let count = rest.iter().position(|c| *c == end).map_or(rest.len(), |at| at + 1);
        self.take(count);
    }

    /// Starts a character class. Returns whether it continues.
    fn begin_class(&mut self) -> bool {
        match (self.peek(1), self.peek(2)) {
            (Some(']'), _) => {
                self.replace(2, "[^\\x{0}-\\x{10ffff}]");
                false
            }
            (Some('^'), Some(']')) => {
                self.replace(3, "(?s:.)");
                false
            }
            (Some('^'), _) => {
                self.take(2);
                true
            }
            _ => {
                self.take(1);
                true
            }
        }
    }

    /// Escapes set operations and nested classes, which only Rust has.
    fn in_class(&mut self, c: char) {
        match c {
            '[' => self.replace(1, "\\["),
            '&' | '~' if self.peek(1) == Some(c) => self.replace(1, &format!("\\{c}")),
            '-' if self.peek(1) == Some('-') => self.replace(1, "\\-"),
            _ => self.take(1),
        }
    }

    fn group(&mut self, keeps_names: bool) {
        let named = match (self.peek(1), self.peek(2), self.peek(3)) {
            (Some('?'), Some('<'), Some(c)) => c != '=' && c != '!',
            (Some('?'), Some('P'), Some('<')) => true,
            _ => false,
        };
        if named && !keeps_names {
            let rest = &self.chars[self.at..];
            let count = rest.iter().position(|c| *c == '>').map_or(1, |at| at + 1);
            self.replace(count, "(");
        } else {
            self.take(1);
        }
    }

    /// Whether the brace starts a quantifier `{1}`, `{1,}` or `{1,2}`.
    fn is_quantifier(&self) -> bool {
        let inside = self.chars[self.at + 1..].iter().take(QUANTIFIER_CHARS);
        let inside: String = inside.take_while(|c| **c != '}').collect();
        let is_closed = self.chars.get(self.at + 1 + inside.chars().count()) == Some(&'}');
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let (min, max) = inside.split_once(',').unwrap_or((&inside, ""));
        is_closed && !min.is_empty() && digits(min) && digits(max)
    }

    fn escape(&mut self, in_class: bool) {
        let Some(c) = self.peek(1) else { return self.take(1) };
        match c {
            'd' if in_class => self.replace(2, "0-9"),
            'w' if in_class => self.replace(2, "0-9A-Za-z_"),
            'd' => self.replace(2, "[0-9]"),
            'w' => self.replace(2, "[0-9A-Za-z_]"),
            'D' => self.replace(2, "[^0-9]"),
            'W' => self.replace(2, "[^0-9A-Za-z_]"),
            'b' if in_class => self.replace(2, "\\x08"),
            '0' if !self.peek(2).is_some_and(|c| c.is_ascii_digit()) => self.replace(2, "\\x00"),
            'c' if self.peek(2).is_some_and(|c| c.is_ascii_alphabetic()) => {
                let control = u32::from(self.peek(2).unwrap_or('@')) % 32;
                self.replace(3, &format!("\\x{control:02x}"));
            }
            'u' if self.peek(2) != Some('{') => self.code_unit(),
            'x' | 'u' | 'p' | 'P' if self.peek(2) == Some('{') => self.take_through('}'),
            'k' if self.peek(2) == Some('<') => self.take_through('>'),
            'Z' => self.replace(2, "\\z"),
            'A' | 'z' | 's' | 'S' | 'B' | 'b' | 'n' | 'r' | 't' | 'f' | 'v' | 'x' | 'p' | 'P' => {
                self.take(2)
            }
            '1'..='9' => self.take(2),
            // An escaped letter without a meaning stands for itself, like an escaped sign.
            c if c.is_ascii_punctuation() && c != '<' && c != '>' && c != '/' => self.take(2),
            c => self.replace(2, c.encode_utf8(&mut [0; 4])),
        }
    }

    /// Translates `\uXXXX`, or a surrogate pair of two.
    fn code_unit(&mut self) {
        let unit = |at: usize| {
            let digits: String = self.chars.get(at + 2..at + 6)?.iter().collect();
            let is_unit = self.chars[at] == '\\' && self.chars[at + 1] == 'u';
            u32::from_str_radix(&digits, 16).ok().filter(|_| is_unit)
        };
        match (unit(self.at), unit(self.at + 6)) {
            (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                self.replace(12, &format!("\\x{{{code:x}}}"));
            }
            (Some(code), _) => self.replace(6, &format!("\\x{{{code:x}}}")),
            (None, _) => self.replace(2, "u"),
        }
    }
}

/// Removes look-around, word boundaries and back references from a translated expression, and with
/// `anchors` also anchors.
fn without_unsupported(pattern: &str, anchors: bool) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let starts = |at: usize, text: &str| {
        text.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    let (mut out, mut at) = (String::with_capacity(pattern.len()), 0);
    while at < chars.len() {
        let look = ["(?=", "(?!", "(?<=", "(?<!"].into_iter().any(|look| starts(at, look));
        match chars[at] {
            '(' if look => {
                out.push_str("(?:)");
                at = group_end(&chars, at);
            }
            '(' if starts(at, "(?>") => {
                out.push_str("(?:");
                at += 3;
            }
            '\\' if chars.get(at + 1).is_some_and(|c| "bB".contains(*c)) => {
                out.push_str("(?:)");
                at += 2;
            }
            '\\' if chars.get(at + 1).is_some_and(char::is_ascii_digit) => {
                out.push_str("(?s:.*)");
                at += 2;
            }
            '\\' if starts(at, "\\k<") => {
                out.push_str("(?s:.*)");
                at += chars[at..].iter().position(|c| *c == '>').map_or(3, |end| end + 1);
            }
            '^' | '$' if anchors => {
                out.push_str("(?:)");
                at += 1;
            }
            '\\' | '[' => {
                let end = if chars[at] == '[' {
                    class_end(&chars, at)
                } else {
                    (at + 2).min(chars.len())
                };
                out.extend(&chars[at..end]);
                at = end;
            }
            c => {
                out.push(c);
                at += 1;
            }
        }
    }
    out
}

/// Position after the group that begins at `begin`.
fn group_end(chars: &[char], begin: usize) -> usize {
    let (mut depth, mut at) = (0, begin);
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 1,
            '[' => at = class_end(chars, at) - 1,
            '(' => depth += 1,
            ')' if depth == 1 => return at + 1,
            ')' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    chars.len()
}

/// Position after the class that begins at `begin`. Translated classes may be nested.
fn class_end(chars: &[char], begin: usize) -> usize {
    let (mut depth, mut at) = (0, begin);
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 1,
            '[' => depth += 1,
            ']' if depth == 1 => return at + 1,
            ']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        PatternCache::default()
            .fits(pattern, text)
            .unwrap_or_else(|| panic!("{pattern} is not run"))
    }

    #[test]
    fn ecma_expressions_are_translated() {
        for (pattern, yes, no) in [
            (r"^\d{2}$", "12", "\u{664}\u{664}"),
            (r"^[\d.-]+$", "1.2-", "a"),
            (r"^[[]$", "[", "]"),
            (r"^[a&&b]+$", "a&b", "c"),
            (r"^\/\-\<$", "/-<", "/"),
            (r"^a{$", "a{", "a"),
            (r"^{x}$", "{x}", "x"),
            (r"^\u0041\u{42}\x43$", "ABC", "abc"),
            (r"^\uD83D\uDE00$", "\u{1f600}", "x"),
            (r"^[^]$", "\n", "ab"),
            (r"^\cJ\0$", "\n\0", "J0"),
            (r"^(?<year>\d+)-\k<year>$", "12-12", "12-13"),
            (r"^(?!a)\w+$", "ba", "ab"),
            (r"^(a|b)\1$", "aa", "ab"),
            (r"^\p{Lu}+$", "\u{c4}", "a"),
            (r"^a\Z", "a", "ab"),
            (r"^[\w\-\.]+\.pdf$", "a-b.pdf", "a b.pdf"),
        ] {
            assert!(
                fits(pattern, yes) && !fits(pattern, no),
                "{pattern}: {}",
                translate(pattern, true)
            );
        }
        assert!(!is_pattern("(") && fits("(", "what is no expression"));
    }

    #[test]
    fn widened_patterns_leave_out_unsupported_parts() {
        for (pattern, wide) in [
            (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", Some(r"^(?:)[+-]?0*[0-9]*\.?[0-9]*$")),
            (r"^(?=[)(])a(?<!b(c))$", Some("^(?:)a(?:)$")),
            (r"^(a|b)\1$", Some("^(a|b)(?s:.*)$")),
            (r"\bword\b", Some("(?:)word(?:)")),
            (r"^(?:a$|^b)c", Some("(?:)(?:a(?:)|(?:)b)c")),
            ("(", None),
        ] {
            assert_eq!(for_grammar(pattern), None, "{pattern}");
            assert_eq!(widened(pattern, (0, None)).as_deref(), wide, "{pattern}");
        }
        // Nothing remains of the pattern, or no matching text has this length.
        assert_eq!(widened("(?=a)", (0, None)), None);
        assert_eq!(widened("^(?=a)abc$", (0, Some(2))), None);
        assert_eq!(for_grammar("^(?<a>b)$").as_deref(), Some("^(b)$"));
    }

    #[test]
    fn excessive_backtracking_is_given_up() {
        let text = "a".repeat(2000);
        assert_eq!(PatternCache::default().fits(r"^(?:(a+)\1?)+b$", &text), None);
    }
}
