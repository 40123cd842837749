//! Methods of strings, lists and dicts. Methods that modify a value exist but are refused, as in
//! the sandbox of transformers: a template never modifies the values of a conversation.

use std::collections::HashSet;
use std::sync::Arc;

use super::args::{CallArgs, text};
use super::ops::{equal, take_items};
use super::python_chars::{self, is_space};
use super::text::push;
use super::value::{EvalError, EvalResult, SeqKind, Value};
use crate::limits::{Budget, TemplateLimit};

/// Meaning of `value.name` for a built-in type.
pub(super) enum Attribute {
    Method(&'static str),
    /// Exists in Python, but is refused in templates.
    Unsafe,
}

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const LIST: &[&str] = &["copy", "count", "index"];
const LIST_UNSAFE: &[&str] =
    &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const DICT: &[&str] = &["copy", "get", "items", "keys", "values"];
const DICT_UNSAFE: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];

pub(super) fn attribute(value: &Value, name: &str) -> Option<Attribute> {
    if name.starts_with("__") {
        return Some(Attribute::Unsafe);
    }
    let (safe, denied): (&[&'static str], &[&str]) = match value {
        Value::Str(_) => (STR, &[]),
        Value::Seq(s) => match s.kind {
            SeqKind::List => (LIST, LIST_UNSAFE),
            SeqKind::Tuple | SeqKind::Range(..) => (&["count", "index"], &[]),
            SeqKind::View(_) => (&[], &[]),
        },
        Value::Dict(_) => (DICT, DICT_UNSAFE),
        Value::Cycler(_) => (&["next", "reset"], &[]),
        _ => (&[], &[]),
    };
    match safe.iter().find(|method| **method == name) {
        Some(method) => Some(Attribute::Method(method)),
        None => denied.contains(&name).then_some(Attribute::Unsafe),
    }
}

/// Calls a method. The interpreter handles `format`, which looks up attributes.
pub(super) fn call(
    value: &Value,
    name: &'static str,
    args: &CallArgs,
    budget: &mut Budget,
) -> EvalResult {
    budget.charge_steps(1)?;
    budget.charge_read(value.size())?;
    match value {
        Value::Str(s) => str_method(s, name, args, budget),
        Value::Seq(s) => match name {
            "copy" => {
                args.none(name)?;
                Ok(value.clone())
            }
            "count" => {
                let wanted = args.one(name)?;
                let mut count = 0;
                for item in &s.items {
                    count += i128::from(equal(item, &wanted, budget)?);
                }
                Ok(Value::Int(count))
            }
            _ => {
                let [wanted, start, end] = args.bind(name, ["value", "start", "end"])?;
                let wanted = wanted.ok_or("index expected at least 1 argument, got 0")?;
                let (from, to) = window(s.items.len(), start, end)?;
                for (i, item) in s.items.iter().enumerate().take(to).skip(from) {
                    if equal(item, &wanted, budget)? {
                        return Ok(Value::Int(i as i128));
                    }
                }
                let mut shown = String::new();
                super::text::repr_to(&mut shown, &wanted)?;
                Err(format!("{shown} is not in list").into())
            }
        },
        Value::Dict(d) => match name {
            "get" => {
                let [key, default] = args.bind(name, ["key", "default"])?;
                let key = key.ok_or("get expected at least 1 argument, got 0")?;
                let key = super::value::Key::from_value(&key, budget)?;
                let found = d.map.get(&key).map(|(_, value)| value.clone());
                Ok(found.or(default).unwrap_or(Value::None))
            }
            "copy" => Ok(value.clone()),
            _ => {
                args.none(name)?;
                take_items(d.map.len(), budget)?;
                let entries = d.map.values();
                match name {
                    "keys" => Value::seq(
                        SeqKind::View("dict_keys"),
                        entries.map(|(k, _)| k.clone()).collect(),
                    ),
                    "values" => Value::seq(
                        SeqKind::View("dict_values"),
                        entries.map(|(_, v)| v.clone()).collect(),
                    ),
                    _ => {
                        let pairs = entries.map(|(k, v)| Value::tuple(vec![k.clone(), v.clone()]));
                        Value::seq(SeqKind::View("dict_items"), pairs.collect::<EvalResult<_>>()?)
                    }
                }
            }
        },
        Value::Cycler(c) => {
            args.none(name)?;
            if name == "reset" {
                c.at.set(0);
                return Ok(Value::None);
            }
            let at = c.at.get();
            c.at.set((at + 1) % c.items.len().max(1));
            c.items.get(at).cloned().ok_or_else(|| "at least one item has to be provided".into())
        }
        other => Err(format!("'{}' object has no attribute '{name}'", other.type_name()).into()),
    }
}

/// Start and end arguments, clamped to `0..=len` as in slices.
fn window(len: usize, start: Option<Value>, end: Option<Value>) -> EvalResult<(usize, usize)> {
    let clamp = |v: Option<Value>, default: usize| match v {
        None | Some(Value::None) => Ok(default),
        Some(v) => {
            let n = v.int()?;
            let n = if n < 0 { n + len as i128 } else { n };
            Ok::<_, EvalError>(usize::try_from(n.clamp(0, len as i128)).unwrap_or(0))
        }
    };
    Ok((clamp(start, 0)?, clamp(end, len)?))
}

fn str_method(
    s: &Arc<str>,
    name: &'static str,
    args: &CallArgs,
    budget: &mut Budget,
) -> EvalResult {
    if let Some(value) = plain_str_method(s, name) {
        args.none(name)?;
        let value = value?;
        budget.charge_text(value.size())?;
        return Ok(value);
    }
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let set = match chars {
                None | Some(Value::None) => None,
                Some(chars) => Some(text(&chars)?),
            };
            Ok(Value::str(strip(s, name, set.as_deref())))
        }
        "startswith" | "endswith" => {
            let [prefix, start, end] = args.bind(name, ["prefix", "start", "end"])?;
            let prefix =
                prefix.ok_or_else(|| format!("{name} expected at least 1 argument, got 0"))?;
            let part = sub(s, start, end)?;
            let mut test = |p: &Value| {
                let p = text(p).map_err(|_| {
                    format!("{name} first arg must be str or a tuple of str, not {}", p.type_name())
                })?;
                budget.charge_read(p.len().min(part.len()))?;
                Ok::<_, EvalError>(if name == "startswith" {
                    part.starts_with(&*p)
                } else {
                    part.ends_with(&*p)
                })
            };
            let found = match &prefix {
                Value::Seq(many) if many.kind == SeqKind::Tuple => {
                    many.items.iter().map(test).collect::<EvalResult<Vec<_>>>()?.contains(&true)
                }
                one => test(one)?,
            };
            Ok(Value::Bool(found))
        }
        "split" | "rsplit" => split(s, name, args, budget),
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let lines = split_lines(s, keep.is_some_and(|k| k.is_true()));
            take_items(lines.len(), budget)?;
            Value::list(lines.into_iter().map(Value::str).collect())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(
                    format!("replace expected at least 2 arguments, got {}", args.len()).into()
                );
            };
            let count = count.map_or(Ok(-1), |c| c.int())?;
            replace(s, &text(&old)?, &text(&new)?, count, budget)
        }
        "join" => join(s, &args.one(name)?, budget),
        "partition" | "rpartition" => {
            let sep = text(&args.one(name)?)?;
            if sep.is_empty() {
                return Err("empty separator".into());
            }
            let found =
                if name == "partition" { s.split_once(&*sep) } else { s.rsplit_once(&*sep) };
            let parts = match (found, name) {
                (Some((a, b)), _) => [a, &*sep, b],
                (None, "partition") => [&**s, "", ""],
                (None, _) => ["", "", &**s],
            };
            Value::tuple(parts.into_iter().map(Value::str).collect())
        }
        "find" | "rfind" | "index" | "rindex" | "count" => find(s, name, args),
        "removeprefix" => {
            let prefix = text(&args.one(name)?)?;
            Ok(Value::str(s.strip_prefix(&*prefix).unwrap_or(s)))
        }
        "removesuffix" => {
            let suffix = text(&args.one(name)?)?;
            Ok(Value::str(s.strip_suffix(&*suffix).unwrap_or(s)))
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let width = width
                .ok_or_else(|| format!("{name} expected at least 1 argument, got 0"))?
                .int()?;
            let fill = match fill {
                Some(fill) => text(&fill)?,
                None => Arc::from(if name == "zfill" { "0" } else { " " }),
            };
            justify(s, name, width, &fill, budget)
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            let size = usize::try_from(size.map_or(Ok(8), |n| n.int())?.clamp(0, 100)).unwrap_or(8);
            expand_tabs(s, size)
        }
        _ => Err(format!("'str' object has no attribute '{name}'").into()),
    }
}

/// Methods without arguments.
fn plain_str_method(s: &str, name: &str) -> Option<EvalResult> {
    let all = |test: fn(char) -> bool| Value::Bool(!s.is_empty() && s.chars().all(test));
    let cased = |test: fn(char) -> bool, other: fn(char) -> bool| {
        Value::Bool(s.chars().any(test) && !s.chars().any(other))
    };
    Some(Ok(match name {
        "upper" => Value::str(s.to_uppercase()),
        "lower" => Value::str(s.to_lowercase()),
        "casefold" => Value::str(python_chars::fold(s)),
        "capitalize" => Value::str(python_chars::capitalize(s)),
        "title" => Value::str(title(s)),
        "swapcase" => Value::str(
            s.chars()
                .flat_map(|c| {
                    if c.is_uppercase() {
                        c.to_lowercase().to_string()
                    } else {
                        c.to_uppercase().to_string()
                    }
                    .chars()
                    .collect::<Vec<_>>()
                })
                .collect::<String>(),
        ),
        "isalnum" => all(|c| python_chars::is_alpha(c) || python_chars::is_numeric(c)),
        "isalpha" => all(python_chars::is_alpha),
        "isascii" => Value::Bool(s.is_ascii()),
        "isdecimal" => all(|c| python_chars::decimal(c).is_some()),
        "isdigit" => all(python_chars::is_digit),
        "isnumeric" => all(python_chars::is_numeric),
        "isidentifier" => Value::Bool(
            s.starts_with(|c: char| c == '_' || c.is_alphabetic())
                && s.chars().all(|c| c == '_' || c.is_alphanumeric()),
        ),
        "isspace" => all(is_space),
        "isprintable" => Value::Bool(!s.chars().any(char::is_control)),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "istitle" => Value::Bool(s.chars().any(python_chars::is_cased) && title(s) == s),
        _ => return None,
    }))
}

/// Python's `str.title`: a letter behind a caseless character starts a word.
pub(super) fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut rest = s;
    while let Some(at) = rest.find(python_chars::is_cased) {
        out.push_str(&rest[..at]);
        let word = &rest[at..];
        let end = word.find(|c| !python_chars::is_cased(c)).unwrap_or(word.len());
        out.push_str(&python_chars::capitalize(&word[..end]));
        rest = &word[end..];
    }
    out + rest
}

pub(super) fn strip<'s>(s: &'s str, name: &str, set: Option<&str>) -> &'s str {
    // The set is searched for each removed character.
    let set = set.map(|set| set.chars().collect::<HashSet<char>>());
    let inside = |c: char| set.as_ref().map_or(is_space(c), |set| set.contains(&c));
    match name {
        "lstrip" => s.trim_start_matches(inside),
        "rstrip" => s.trim_end_matches(inside),
        _ => s.trim_matches(inside),
    }
}

/// The part of `s` between two character indices.
fn sub(s: &str, start: Option<Value>, end: Option<Value>) -> EvalResult<&str> {
    if start.is_none() && end.is_none() {
        return Ok(s);
    }
    let (from, to) = window(s.chars().count(), start, end)?;
    let byte = |n: usize| s.char_indices().nth(n).map_or(s.len(), |(at, _)| at);
    Ok(s.get(byte(from)..byte(to)).unwrap_or(""))
}

fn split(s: &str, name: &str, args: &CallArgs, budget: &mut Budget) -> EvalResult {
    let [sep, limit] = args.bind(name, ["sep", "maxsplit"])?;
    let limit = limit.map_or(Ok(-1), |n| n.int())?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX - 1);
    let parts: Vec<&str> = match sep {
        None | Some(Value::None) => split_blanks(s, limit, name == "rsplit"),
        Some(sep) => {
            let sep = text(&sep)?;
            if sep.is_empty() {
                return Err("empty separator".into());
            }
            if name == "split" {
                s.splitn(limit + 1, &*sep).collect()
            } else {
                let mut parts: Vec<_> = s.rsplitn(limit + 1, &*sep).collect();
                parts.reverse();
                parts
            }
        }
    };
    take_items(parts.len(), budget)?;
    budget.charge_text(s.len())?;
    Value::list(parts.into_iter().map(Value::str).collect())
}

/// Splits at runs of white space. The rest after `limit` splits keeps its inner blanks.
fn split_blanks(s: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if from_right { python_chars::trim_end(s) } else { python_chars::trim_start(s) };
    while !rest.is_empty() {
        let shorten = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = shorten.filter(|_| parts.len() < limit) else {
            parts.push(rest);
            break;
        };
        if from_right {
            let blank = rest[at..].chars().next().map_or(1, char::len_utf8);
            parts.push(&rest[at + blank..]);
            rest = python_chars::trim_end(&rest[..at]);
        } else {
            parts.push(&rest[..at]);
            rest = python_chars::trim_start(&rest[at..]);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

pub(super) fn split_lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let Some(at) = rest.find(is_break) else {
            lines.push(rest);
            break;
        };
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    lines
}

pub(super) fn replace(
    s: &str,
    old: &str,
    new: &str,
    count: i128,
    budget: &mut Budget,
) -> EvalResult {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let found =
        if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() }.min(limit);
    let len = s.len().saturating_add(found.saturating_mul(new.len()));
    budget.charge_text(len)?;
    Ok(Value::str(s.replacen(old, new, limit)))
}

pub(super) fn join(separator: &str, items: &Value, budget: &mut Budget) -> EvalResult {
    let items = items.iterate().map_err(|fail| fail.with_message("can only join an iterable"))?;
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        let Value::Str(part) = item else {
            return Err(format!(
                "sequence item {i}: expected str instance, {} found",
                item.type_name()
            )
            .into());
        };
        if i > 0 {
            push(&mut out, separator)?;
        }
        push(&mut out, part)?;
    }
    budget.charge_text(out.len())?;
    budget.charge_steps(items.len() as u64)?;
    Ok(Value::str(out))
}

fn find(s: &str, name: &str, args: &CallArgs) -> EvalResult {
    let [part, start, end] = args.bind(name, ["sub", "start", "end"])?;
    let part = text(&part.ok_or_else(|| format!("{name} expected at least 1 argument, got 0"))?)?;
    let offset = match &start {
        Some(start) => window(s.chars().count(), Some(start.clone()), None)?.0,
        None => 0,
    };
    let inside = sub(s, start, end)?;
    if name == "count" {
        let count = if part.is_empty() {
            inside.chars().count() + 1
        } else {
            inside.matches(&*part).count()
        };
        return Ok(Value::Int(count as i128));
    }
    let at = if name.starts_with('r') { inside.rfind(&*part) } else { inside.find(&*part) };
    match at {
        Some(at) => Ok(Value::Int((offset + inside[..at].chars().count()) as i128)),
        None if name.ends_with("index") => Err("substring not found".into()),
        None => Ok(Value::Int(-1)),
    }
}

pub(super) fn justify(
    s: &str,
    name: &str,
    width: i128,
    fill: &str,
    budget: &mut Budget,
) -> EvalResult {
    if fill.chars().count() != 1 {
        return Err("The fill character must be exactly one character long".into());
    }
    let width = usize::try_from(width.max(0)).map_err(|_| TemplateLimit::Text)?;
    let missing = width.saturating_sub(s.chars().count());
    budget.charge_text(s.len().saturating_add(missing.saturating_mul(fill.len())))?;
    let text = match name {
        "ljust" => format!("{s}{}", fill.repeat(missing)),
        "rjust" => format!("{}{s}", fill.repeat(missing)),
        "zfill" => {
            let digits = s.strip_prefix(['+', '-']);
            let sign = &s[..s.len() - digits.unwrap_or(s).len()];
            format!("{sign}{}{}", fill.repeat(missing), digits.unwrap_or(s))
        }
        _ => {
            // For an odd number of blanks and an odd width, CPython puts the extra blank on the
            // left.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{s}{}", fill.repeat(left), fill.repeat(missing - left))
        }
    };
    Ok(Value::str(text))
}

fn expand_tabs(s: &str, size: usize) -> EvalResult {
    let mut out = String::with_capacity(s.len());
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' => {
                let blanks = if size == 0 { 0 } else { size - column % size };
                push(&mut out, &" ".repeat(blanks))?;
                column += blanks;
            }
            _ => {
                push(&mut out, c.encode_utf8(&mut [0; 4]))?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::str(out))
}
