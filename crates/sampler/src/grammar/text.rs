//! Strings that stand in a text as they are, without quotes, up to what ends them: as terminals of Lark.

use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::lark::escaped;

/// Any text.
const ANY: &str = "(?s:.)*";

/// A string as it stands in a text.
#[derive(Debug, Clone, Copy, Default)]
pub struct BareText<'a> {
    /// Schemas, all of which describe it.
    pub schemas: &'a [Map<String, Value>],
    /// Regular expressions that it may not fit as a whole.
    pub unlike: &'a [&'a str],
    /// Texts that may not stand in it.
    pub barred: &'a [String],
    /// What stands behind it, as a part of the terminal.
    pub end: &'a str,
}

impl BareText<'_> {
    /// The expression of a terminal, and whether the string may also be empty, which no terminal is: never with an `end`.
    ///
    /// # Errors
    /// A sentence about a keyword that has a value of the wrong kind.
    pub fn lark(&self) -> Result<(String, bool), String> {
        let barred: Vec<&str> =
            self.barred.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let (simple, others): (Vec<&str>, Vec<&str>) =
            barred.iter().partition(|text| begins_once(text, &barred));
        let mut parts = vec![format!("/{}/", without(&simple))];
        let mut may_be_empty = true;
        for schema in self.schemas {
            for (keyword, value) in schema {
                let Some((pattern, empty)) = pattern(keyword, value, schema)? else { continue };
                may_be_empty &= empty;
                parts.push(format!("/{pattern}/"));
            }
        }
        parts.extend(others.iter().map(|text| format!("~/{ANY}{}{ANY}/", literal(text))));
        parts.extend(self.unlike.iter().map(|pattern| format!("~/{pattern}/")));
        match self.end {
            "" => {
                parts.push("/(?s:.)+/".into());
                Ok((parts.join(" & "), may_be_empty))
            }
            end => Ok((format!("({}) /{}/", parts.join(" & "), literal(end)), false)),
        }
    }

    /// Whether some schema says more than that it is a string.
    pub fn is_bound(&self) -> bool {
        let says = |keyword: &str| self.schemas.iter().any(|schema| schema.contains_key(keyword));
        ["enum", "const", "pattern", "format", "minLength", "maxLength"].into_iter().any(says)
    }
}

/// The pattern of one keyword, and whether the empty text surely fits it.
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
            let least = number()?;
            (format!("(?s:.){{{least},}}"), least == 0)
        }
        "maxLength" => {
            let most = number()?;
            (if most == 0 { "(?s:.){0}".into() } else { format!("(?s:.){{0,{most}}}") }, true)
        }
        "pattern" => (search(text()?), false),
        "format" if !schema.contains_key("const") => match text().ok().and_then(format) {
            Some(pattern) => (pattern, false),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

/// A pattern of JSON Schema for strings in which none of some texts stands, or no part of one where only that can be told.
pub fn pattern_without(barred: &[String]) -> String {
    let texts: Vec<&str> = barred.iter().map(String::as_str).collect();
    let mut parts: Vec<&str> = Vec::new();
    for text in texts {
        let ends = text.char_indices().map(|(at, _)| &text[at..]);
        parts.extend(ends.into_iter().find(|end| begins_once(end, &[end])));
    }
    // Those with the same head are kept together; others may hold that head.
    let alone = parts.iter().filter(|text| begins_once(text, &parts)).copied().collect::<Vec<_>>();
    format!("^{}$", without(&alone))
}

/// Whether the first character of a text comes nowhere else in some texts than at their beginnings.
fn begins_once(text: &str, all: &[&str]) -> bool {
    let first = text.chars().next();
    all.iter().all(|other| other.chars().skip(1).all(|c| Some(c) != first))
}

/// A pattern of the texts in which none of some others stands, as a walk through these: a complement takes far more work.
fn without(barred: &[&str]) -> String {
    if barred.is_empty() {
        return ANY.to_owned();
    }
    let heads: String = heads(barred).iter().map(|c| escaped(*c)).collect();
    // Behind a beginning that another one follows, or the end, and behind one that came to nothing.
    let (half, failed) = (half(barred), failed(barred, &heads));
    format!("(?:[^{heads}]|(?:{half})*(?:{failed}))*(?:{half})*")
}

fn heads(texts: &[&str]) -> Vec<char> {
    let mut heads: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
    heads.sort_unstable();
    heads.dedup();
    heads
}

/// What is left of those texts that begin with a character.
fn tails<'t>(texts: &[&'t str], head: char) -> Vec<&'t str> {
    texts.iter().filter_map(|text| text.strip_prefix(head)).collect()
}

/// Beginnings of the texts that are not whole.
fn half(texts: &[&str]) -> String {
    let one = |head: &char| {
        let tails = tails(texts, *head);
        if tails.iter().any(|tail| tail.is_empty()) {
            return None;
        }
        let further = half(&tails);
        let further = if further.is_empty() { further } else { format!("(?:{further})?") };
        Some(escaped(*head) + &further)
    };
    heads(texts).iter().filter_map(one).collect::<Vec<_>>().join("|")
}

/// Beginnings of the texts, and the character behind each that none of them goes on with, nor begins with.
fn failed(texts: &[&str], first: &str) -> String {
    let one = |head: &char| {
        let tails = tails(texts, *head);
        if tails.iter().any(|tail| tail.is_empty()) {
            return None;
        }
        let next: String = heads(&tails).iter().map(|c| escaped(*c)).collect();
        let further = failed(&tails, first);
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
    // A class of nothing.
    if texts.is_empty() {
        "[^\\x{0}-\\x{10ffff}]".into()
    } else {
        format!("(?:{})", texts.join("|"))
    }
}

/// A pattern of JSON Schema, which may fit anywhere, as one that fits the whole.
fn search(pattern: &str) -> String {
    let (before, rest) = pattern.strip_prefix('^').map_or((ANY, pattern), |rest| ("", rest));
    let ends = |rest: &&str| rest.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 0;
    let (rest, after) = rest.strip_suffix('$').filter(ends).map_or((rest, ANY), |rest| (rest, ""));
    format!("{before}(?:{}){after}", regex_to_lark(rest, "dw"))
}

/// The patterns of the formats that are enforced.
pub fn format(name: &str) -> Option<String> {
    const DATE: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
    const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => {
            let time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
            let date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
            format!("P(?:[0-9]+W|{date}(?:{time})?|{time})")
        }
        "email" => format!("[a-zA-Z0-9_+-]+(?:\\.[a-zA-Z0-9_+-]+)*@{LABEL}(?:\\.{LABEL})+"),
        "hostname" => format!("{LABEL}(?:\\.{LABEL})*"),
        "ipv4" => format!("(?:{BYTE}\\.){{3}}{BYTE}"),
        "ipv6" => {
            // So many groups before the gap, and at most the rest of seven behind it.
            let part = "[0-9a-fA-F]{1,4}";
            let gaps = (1..=6).map(|n| {
                format!("{part}(?::{part}){{0,{}}}::(?:{part}(?::{part}){{0,{}}})?", n - 1, 6 - n)
            });
            let all: Vec<String> = gaps.collect();
            format!("(?:{part}(?::{part}){{7}}|::(?:{part}(?::{part}){{0,6}})?|{})", all.join("|"))
        }
        "uuid" => "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "uri" => {
            let c = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
            let more = format!("(?:{c}|\\/|\\?)*");
            format!(
                "[a-zA-Z][a-zA-Z0-9+.-]*:(?:\\/\\/{c}+(?:\\/{c}*)*|{c}+(?:\\/{c}*)*)(?:\\?{more})?(?:#{more})?"
            )
        }
        _ => return None,
    })
}
