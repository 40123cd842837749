//! Strings in a text without quotes, up to a terminator: Lark terminals for tool-call formats.

use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::lark::escaped;
use crate::schema::format_pattern;

/// Any text.
const ANY: &str = "(?s:.)*";

/// An unquoted string.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnquotedString<'a> {
    /// Schemas that all apply to it.
    pub schemas: &'a [Map<String, Value>],
    /// Regular expressions that must not match it as a whole.
    pub excluded_patterns: &'a [&'a str],
    /// Texts that must not occur in it.
    pub excluded_texts: &'a [String],
    /// Terminator, which is part of the terminal.
    pub end: &'a str,
}

impl UnquotedString<'_> {
    /// Expression of the terminal, and whether the string may be empty. Terminals cannot be empty,
    /// so the caller makes it optional. With an `end` the flag is always `false`.
    ///
    /// # Errors
    /// A sentence about a keyword with a value of the wrong kind.
    pub fn lark(&self) -> Result<(String, bool), String> {
        let excluded: Vec<&str> = self
            .excluded_texts
            .iter()
            .map(String::as_str)
            .filter(|text| !text.is_empty())
            .collect();
        let (simple, others): (Vec<&str>, Vec<&str>) =
            excluded.iter().partition(|text| has_unique_first_char(text, &excluded));
        let mut parts = vec![format!("/{}/", pattern_without(&simple))];
        let mut may_be_empty = true;
        for schema in self.schemas {
            for (keyword, value) in schema {
                let Some((pattern, empty)) = pattern(keyword, value, schema)? else { continue };
                may_be_empty &= empty;
                parts.push(format!("/{pattern}/"));
            }
        }
        parts.extend(others.iter().map(|text| format!("~/{ANY}{}{ANY}/", literal(text))));
        parts.extend(self.excluded_patterns.iter().map(|pattern| format!("~/{pattern}/")));
        match self.end {
            "" => {
                parts.push("/(?s:.)+/".into());
                Ok((parts.join(" & "), may_be_empty))
            }
            end => Ok((format!("({}) /{}/", parts.join(" & "), literal(end)), false)),
        }
    }

    /// Whether some schema restricts the string beyond its type.
    pub fn is_constrained(&self) -> bool {
        let says = |keyword: &str| self.schemas.iter().any(|schema| schema.contains_key(keyword));
        ["enum", "const", "pattern", "format", "minLength", "maxLength"].into_iter().any(says)
    }
}

/// Pattern of one keyword, and whether the empty text surely fits it.
fn pattern(
    keyword: &str,
    value: &Value,
    schema: &Map<String, Value>,
) -> Result<Option<(String, bool)>, String> {
    let number = || {
        let whole = value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0);
        whole
            .map(|n| n as u64)
            .ok_or_else(|| format!("{keyword} must be a whole number, but is {value}"))
    };
    let text =
        || value.as_str().ok_or_else(|| format!("{keyword} must be a string, but is {value}"));
    Ok(Some(match keyword {
        "const" => (literals(std::slice::from_ref(value)), value == ""),
        "enum" => {
            let values =
                value.as_array().ok_or_else(|| format!("enum must be a list, but is {value}"))?;
            (literals(values), values.iter().any(|value| value == ""))
        }
        "minLength" => {
            let min = number()?;
            (format!("(?s:.){{{min},}}"), min == 0)
        }
        "maxLength" => {
            let max = number()?;
            (if max == 0 { "(?s:.){0}".into() } else { format!("(?s:.){{0,{max}}}") }, true)
        }
        "pattern" => (whole_text_pattern(text()?), false),
        "format" if !schema.contains_key("const") => match text().ok().and_then(format_pattern) {
            Some(pattern) => (pattern, false),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

/// A JSON Schema pattern for strings that contain none of some texts. Where that cannot be
/// expressed, excludes a suffix of the text.
pub fn pattern_excluding(excluded: &[String]) -> String {
    let texts: Vec<&str> = excluded.iter().map(String::as_str).collect();
    let mut parts: Vec<&str> = Vec::new();
    for text in texts {
        let ends = text.char_indices().map(|(at, _)| &text[at..]);
        parts.extend(ends.into_iter().find(|end| has_unique_first_char(end, &[end])));
    }
    // Texts with a common first character are handled together. Texts that contain that character
    // elsewhere are not.
    let alone = parts
        .iter()
        .filter(|text| has_unique_first_char(text, &parts))
        .copied()
        .collect::<Vec<_>>();
    format!("^{}$", pattern_without(&alone))
}

/// Whether the first character of a text occurs in some texts only at their start.
fn has_unique_first_char(text: &str, all: &[&str]) -> bool {
    let first = text.chars().next();
    all.iter().all(|other| other.chars().skip(1).all(|c| Some(c) != first))
}

/// Pattern of all texts that contain none of the excluded ones, as an automaton over their
/// prefixes. A complement would take far more work.
fn pattern_without(excluded: &[&str]) -> String {
    if excluded.is_empty() {
        return ANY.to_owned();
    }
    let heads: String = heads(excluded).iter().map(|c| escaped(*c)).collect();
    // A prefix that is followed by another match attempt or the end, and a prefix followed by a
    // mismatch.
    let (proper_prefixes, failed_matches) =
        (proper_prefixes(excluded), failed_matches(excluded, &heads));
    format!("(?:[^{heads}]|(?:{proper_prefixes})*(?:{failed_matches}))*(?:{proper_prefixes})*")
}

fn heads(texts: &[&str]) -> Vec<char> {
    let mut heads: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
    heads.sort_unstable();
    heads.dedup();
    heads
}

/// Rests of the texts that start with a character.
fn tails<'t>(texts: &[&'t str], head: char) -> Vec<&'t str> {
    texts.iter().filter_map(|text| text.strip_prefix(head)).collect()
}

/// Proper prefixes of the texts.
fn proper_prefixes(texts: &[&str]) -> String {
    let one = |head: &char| {
        let tails = tails(texts, *head);
        if tails.iter().any(|tail| tail.is_empty()) {
            return None;
        }
        let further = proper_prefixes(&tails);
        let further = if further.is_empty() { further } else { format!("(?:{further})?") };
        Some(escaped(*head) + &further)
    };
    heads(texts).iter().filter_map(one).collect::<Vec<_>>().join("|")
}

/// Prefixes of the texts, each followed by a character that neither continues nor starts a text.
fn failed_matches(texts: &[&str], first: &str) -> String {
    let one = |head: &char| {
        let tails = tails(texts, *head);
        if tails.iter().any(|tail| tail.is_empty()) {
            return None;
        }
        let next: String = heads(&tails).iter().map(|c| escaped(*c)).collect();
        let further = failed_matches(&tails, first);
        let further = if further.is_empty() { further } else { format!("|{further}") };
        Some(format!("{}(?:[^{first}{next}]{further})", escaped(*head)))
    };
    heads(texts).iter().filter_map(one).collect::<Vec<_>>().join("|")
}

fn literal(text: &str) -> String {
    text.chars().map(escaped).collect()
}

fn literals(values: &[Value]) -> String {
    let texts: Vec<String> = values.iter().filter_map(Value::as_str).map(literal).collect();
    // A class that matches nothing.
    if texts.is_empty() {
        "[^\\x{0}-\\x{10ffff}]".into()
    } else {
        format!("(?:{})", texts.join("|"))
    }
}

/// Makes a JSON Schema pattern, which matches anywhere, match the whole text.
fn whole_text_pattern(pattern: &str) -> String {
    let (before, rest) = pattern.strip_prefix('^').map_or((ANY, pattern), |rest| ("", rest));
    let ends = |rest: &&str| rest.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 0;
    let (rest, after) = rest.strip_suffix('$').filter(ends).map_or((rest, ANY), |rest| (rest, ""));
    format!("{before}(?:{}){after}", regex_to_lark(rest, "dw"))
}
