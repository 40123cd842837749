//! Python's `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use super::value::{EvalError, EvalResult, SeqKind, Value};
use crate::control_marks::is_mark;
use crate::limits::{MAX_TEXT_BYTES, TemplateLimit};

/// `str(value)`. Undefined values are empty, as in Jinja's output.
pub(super) fn to_str(value: &Value) -> EvalResult<String> {
    let mut out = String::new();
    str_to(&mut out, value)?;
    Ok(out)
}

pub(super) fn str_to(out: &mut String, value: &Value) -> EvalResult<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(s) => push(out, s),
        other => repr_to(out, other),
    }
}

/// Appends text within the size limit. Shared values may be written many times.
pub(super) fn push(out: &mut String, text: &str) -> EvalResult<()> {
    if out.len() + text.len() > MAX_TEXT_BYTES {
        return Err(TemplateLimit::Text.into());
    }
    out.push_str(text);
    Ok(())
}

pub(super) fn repr_to(out: &mut String, value: &Value) -> EvalResult<()> {
    match value {
        Value::Undefined(_) => push(out, "Undefined"),
        Value::None => push(out, "None"),
        Value::Bool(true) => push(out, "True"),
        Value::Bool(false) => push(out, "False"),
        Value::Int(n) => push(out, &n.to_string()),
        Value::Float(f) => push(out, &float(*f)),
        Value::Str(s) => push(out, &repr_str(s)),
        Value::Seq(s) => {
            let (open, close) = match s.kind {
                SeqKind::List => ("[", "]"),
                SeqKind::Tuple if s.items.len() == 1 => ("(", ",)"),
                SeqKind::Tuple => ("(", ")"),
                SeqKind::Range(start, stop, 1) => {
                    return push(out, &format!("range({start}, {stop})"));
                }
                SeqKind::Range(start, stop, step) => {
                    return push(out, &format!("range({start}, {stop}, {step})"));
                }
                SeqKind::View(name) => {
                    push(out, name)?;
                    ("([", "])")
                }
            };
            push(out, open)?;
            for (i, item) in s.items.iter().enumerate() {
                push(out, if i > 0 { ", " } else { "" })?;
                repr_to(out, item)?;
            }
            push(out, close)
        }
        Value::Dict(d) => {
            push(out, "{")?;
            for (i, (key, item)) in d.map.values().enumerate() {
                push(out, if i > 0 { ", " } else { "" })?;
                repr_to(out, key)?;
                push(out, ": ")?;
                repr_to(out, item)?;
            }
            push(out, "}")
        }
        Value::Macro(m) => push(out, &format!("<Macro '{}'>", m.def.name)),
        Value::Loop(l) => push(out, &format!("<LoopContext {}/{}>", l.at.get() + 1, l.items.len())),
        Value::Function(name) => push(out, &format!("<function {name}>")),
        Value::Method(m) => {
            push(out, &format!("<built-in method {} of {} object>", m.1, m.0.type_name()))
        }
        other => push(out, &format!("<{} object>", other.type_name())),
    }
}

/// `repr` of a string: in double quotes if it contains single and no double quotes, otherwise in
/// single quotes.
pub(super) fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' => {
                _ = write!(out, "\\x{:02x}", u32::from(c))
            }
            _ if !is_printable(c) && u32::from(c) > 0xffff => {
                _ = write!(out, "\\U{:08x}", u32::from(c))
            }
            _ if !is_printable(c) => _ = write!(out, "\\u{:04x}", u32::from(c)),
            _ => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Approximates Python's `str.isprintable` without its tables: no separators except the space, no
/// format characters, no private use. Marks count as printable.
fn is_printable(c: char) -> bool {
    is_mark(c)
        || !(c.is_control()
            || (c.is_whitespace() && c != ' ')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}')
            || c >= '\u{e0000}')
}

/// `repr` of a float: the shortest digits that parse back, with an exponent below 1e-4 and from
/// 1e16 on.
pub(super) fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    if f != 0.0 && (f.abs() < 1e-4 || f.abs() >= 1e16) {
        let text = format!("{f:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let text = f.to_string();
    if text.contains('.') { text } else { format!("{text}.0") }
}

/// Options of `tojson`.
pub(super) struct JsonStyle {
    pub(super) ensure_ascii: bool,
    /// Text of one indentation level.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

impl JsonStyle {
    /// Python's defaults, except for `ensure_ascii`: a space behind `,` and `:`.
    pub(super) fn plain() -> Self {
        JsonStyle {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

/// `json.dumps`.
pub(super) fn to_json(value: &Value, style: &JsonStyle) -> EvalResult<String> {
    let mut out = String::new();
    json_to(&mut out, value, style, 0)?;
    Ok(out)
}

fn json_to(out: &mut String, value: &Value, style: &JsonStyle, level: usize) -> EvalResult<()> {
    match value {
        Value::None => push(out, "null"),
        Value::Bool(b) => push(out, if *b { "true" } else { "false" }),
        Value::Int(n) => push(out, &n.to_string()),
        Value::Float(f) => push(out, &json_float(*f)),
        Value::Str(s) => push(out, &json_str(s, style.ensure_ascii)),
        Value::Seq(s) if matches!(s.kind, SeqKind::List | SeqKind::Tuple) => {
            json_block(out, style, level, ('[', ']'), s.items.len(), |out, i| {
                json_to(out, &s.items[i], style, level + 1)
            })
        }
        Value::Dict(d) => {
            let mut entries: Vec<&(Value, Value)> = d.map.values().collect();
            if style.sort_keys {
                if !entries.iter().all(|(k, _)| matches!(k, Value::Str(_))) && entries.len() > 1 {
                    return Err("'<' not supported between instances of the keys of a dict".into());
                }
                entries.sort_by(|a, b| match (&a.0, &b.0) {
                    (Value::Str(a), Value::Str(b)) => a.cmp(b),
                    _ => std::cmp::Ordering::Equal,
                });
            }
            json_block(out, style, level, ('{', '}'), entries.len(), |out, i| {
                let (key, item) = entries[i];
                push(out, &json_str(&json_key(key)?, style.ensure_ascii))?;
                push(out, &style.key_separator)?;
                json_to(out, item, style, level + 1)
            })
        }
        other => {
            Err(format!("Object of type {} is not JSON serializable", other.type_name()).into())
        }
    }
}

fn json_block(
    out: &mut String,
    style: &JsonStyle,
    level: usize,
    (open, close): (char, char),
    len: usize,
    mut item: impl FnMut(&mut String, usize) -> EvalResult<()>,
) -> EvalResult<()> {
    out.push(open);
    let break_line = |out: &mut String, level: usize| match &style.indent {
        Some(indent) => {
            out.push('\n');
            (0..level).try_for_each(|_| push(out, indent))
        }
        None => Ok(()),
    };
    for i in 0..len {
        if i > 0 {
            push(out, &style.item_separator)?;
        }
        break_line(out, level + 1)?;
        item(out, i)?;
    }
    if len > 0 {
        break_line(out, level)?;
    }
    out.push(close);
    Ok(())
}

fn json_key(key: &Value) -> Result<String, EvalError> {
    match key {
        Value::Str(s) => Ok(s.to_string()),
        Value::None => Ok("null".into()),
        Value::Bool(b) => Ok(if *b { "true" } else { "false" }.into()),
        Value::Int(n) => Ok(n.to_string()),
        Value::Float(f) => Ok(json_float(*f)),
        other => {
            Err(format!("keys must be str, int, float, bool or None, not {}", other.type_name())
                .into())
        }
    }
}

fn json_float(f: f64) -> String {
    match float(f).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.into(),
    }
}

fn json_str(text: &str, ensure_ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => _ = write!(out, "\\u{:04x}", u32::from(c)),
            _ if ensure_ascii && !matches!(c, ' '..='~') && !is_mark(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}
