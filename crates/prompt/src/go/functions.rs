//! Functions of Go templates: Go's own, and Ollama's `json`, `currentDate`, `yesterdayDate` and
//! `toTypeScriptType`.

use std::cmp::Ordering;

use super::printf;
use super::value::{List, PrintStyle, Value, json, print};
use crate::control_marks::is_mark;
use crate::limits::Budget;

/// Environment of all function calls.
pub(super) struct Environment {
    pub(super) now: jiff::civil::DateTime,
}

/// Returns true if a template may call this function.
pub(super) fn is_function(name: &str) -> bool {
    matches!(name, "and" | "or") || arity(name).is_some()
}

/// Smallest and largest number of arguments. The evaluator handles `and` and `or`, which may stop
/// early.
fn arity(name: &str) -> Option<(usize, usize)> {
    let many = usize::MAX;
    Some(match name {
        "not" | "len" | "json" | "toTypeScriptType" => (1, 1),
        "index" | "slice" | "call" | "eq" | "printf" => (1, many),
        "ne" | "lt" | "le" | "gt" | "ge" => (2, 2),
        "print" | "println" | "html" | "js" | "urlquery" | "currentDate" | "yesterdayDate" => {
            (0, many)
        }
        _ => return None,
    })
}

/// Checks the number of arguments, with Go's error message.
pub(super) fn check_arity(name: &str, got: usize) -> Result<(), String> {
    let Some((min, max)) = arity(name) else {
        return Err(format!("{name:?} is not a defined function"));
    };
    if (min..=max).contains(&got) {
        return Ok(());
    }
    let want = if min == max { min.to_string() } else { format!("at least {min}") };
    Err(format!("wrong number of args for {name}: want {want} got {got}"))
}

/// Calls the function `name` with a checked number of arguments. The error is the text behind
/// `error calling NAME: `.
pub(super) fn call(env: &Environment, name: &str, args: &[Value]) -> Result<Value, String> {
    match (name, args) {
        ("not", [v]) => Ok(Value::Bool(!v.is_true())),
        ("len", [v]) => len(v),
        ("index", [item, at @ ..]) => index(item, at),
        ("slice", [item, at @ ..]) => slice(item, at),
        ("call", [f, ..]) => Err(format!("non-function {} of type {}", print(f), f.type_name())),
        ("eq", [first, rest @ ..]) => eq(first, rest).map(Value::Bool),
        ("ne", [a, b]) => eq(a, std::slice::from_ref(b)).map(|equal| Value::Bool(!equal)),
        ("lt", [a, b]) => Ok(Value::Bool(order(a, b)? == Some(Ordering::Less))),
        ("le", [a, b]) => {
            Ok(Value::Bool(matches!(order(a, b)?, Some(Ordering::Less | Ordering::Equal))))
        }
        ("gt", [a, b]) => {
            Ok(Value::Bool(!matches!(order(a, b)?, Some(Ordering::Less | Ordering::Equal))))
        }
        ("ge", [a, b]) => Ok(Value::Bool(order(a, b)? != Some(Ordering::Less))),
        ("print", args) => Ok(Value::str(printf::sprint(args))),
        ("println", args) => Ok(Value::str(printf::sprintln(args))),
        ("printf", [other, ..]) => {
            Err(format!("wrong type for value; expected string; got {}", other.type_name()))
        }
        ("html", args) => Ok(Value::str(escape_html(&text_of(args)))),
        ("js", args) => Ok(Value::str(escape_js(&text_of(args)))),
        ("urlquery", args) => Ok(Value::str(escape_query(&text_of(args)))),
        ("json", [v]) => Ok(Value::str(json(v))),
        ("currentDate", _) => Ok(Value::str(env.now.date().to_string())),
        ("yesterdayDate", _) => {
            Ok(Value::str(env.now.date().yesterday().map_err(|e| e.to_string())?.to_string()))
        }
        ("toTypeScriptType", [v]) => Ok(Value::str(type_script(v))),
        _ => Err(format!("{name:?} is not a defined function")),
    }
}

fn text_of(args: &[Value]) -> String {
    match args {
        [Value::Str(s)] => s.to_string(),
        _ => {
            let shown = |v: &Value| {
                if matches!(v, Value::Nil) { Value::str("<no value>") } else { v.clone() }
            };
            printf::sprint(&args.iter().map(shown).collect::<Vec<_>>())
        }
    }
}

fn len(value: &Value) -> Result<Value, String> {
    let n = match value {
        Value::Str(s) => s.len(),
        Value::List(l) => l.items().len(),
        Value::Map(m) => m.entries.len(),
        Value::Nil => return Err("len of nil pointer".into()),
        other => return Err(format!("len of type {}", other.type_name())),
    };
    Ok(Value::Int(i64::try_from(n).unwrap_or(i64::MAX)))
}

fn index(item: &Value, path: &[Value]) -> Result<Value, String> {
    if matches!(item, Value::Nil) {
        return Err("index of untyped nil".into());
    }
    let mut item = item.clone();
    for at in path {
        item = match &item {
            Value::List(l) => l.items()[position(at, l.items().len(), false)?].clone(),
            Value::Str(s) => Value::Int(i64::from(s.as_bytes()[position(at, s.len(), false)?])),
            Value::Map(m) => match at {
                Value::Str(key) => m.entries.get(key).cloned().unwrap_or(Value::Nil),
                Value::Nil => return Err("value is nil; should be of type string".into()),
                other => {
                    return Err(format!("value has type {}; should be string", other.type_name()));
                }
            },
            Value::Nil => return Err("index of nil pointer".into()),
            other => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(item)
}

/// Converts an index: below `len`, or up to `len` for the ends of slices.
fn position(at: &Value, len: usize, end: bool) -> Result<usize, String> {
    let n = match at {
        Value::Int(n) => *n,
        Value::Nil => return Err("cannot index slice/array with nil".into()),
        other => return Err(format!("cannot index slice/array with type {}", other.type_name())),
    };
    let max = if end { len } else { len.wrapping_sub(1) };
    match usize::try_from(n) {
        Ok(n) if (end || len > 0) && n <= max => Ok(n),
        _ => Err(format!("index out of range: {n}")),
    }
}

fn slice(item: &Value, ends: &[Value]) -> Result<Value, String> {
    let len = match item {
        Value::Str(_) if ends.len() > 2 => return Err("cannot 3-index slice a string".into()),
        Value::Str(s) => s.len(),
        Value::List(l) => l.items().len(),
        Value::Nil => return Err("slice of untyped nil".into()),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    if ends.len() > 3 {
        return Err(format!("too many slice indexes: {}", ends.len()));
    }
    let at: Vec<usize> = ends.iter().map(|e| position(e, len, true)).collect::<Result<_, _>>()?;
    let (from, to) = (at.first().copied().unwrap_or(0), at.get(1).copied().unwrap_or(len));
    if from > to {
        return Err(format!("invalid slice index: {from} > {to}"));
    }
    if let Some(cap) = at.get(2).filter(|cap| **cap < to) {
        return Err(format!("invalid slice index: {to} > {cap}"));
    }
    match item {
        // Slicing inside a character leaves invalid UTF-8, which becomes the replacement character.
        Value::Str(s) => Ok(Value::str(String::from_utf8_lossy(&s.as_bytes()[from..to]))),
        Value::List(l) => {
            l.slice(from, to).map(Value::List).ok_or_else(|| format!("index out of range: {to}"))
        }
        _ => Err("can't slice item".into()),
    }
}

fn eq(first: &Value, rest: &[Value]) -> Result<bool, String> {
    if rest.is_empty() {
        return Err("missing argument for comparison".into());
    }
    for other in rest {
        let equal = match (first, other) {
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a == b,
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::Nil, b) => matches!(b, Value::Nil),
            (_, Value::Nil) => false,
            (a, b) if is_basic(a) || is_basic(b) => {
                return Err(format!(
                    "incompatible types for comparison: {} and {}",
                    a.type_name(),
                    b.type_name()
                ));
            }
            (a, _) => {
                let shown =
                    printf::sprintf("%s", std::slice::from_ref(a), &mut Budget::unlimited());
                let shown = shown.unwrap_or_default();
                return Err(format!("non-comparable type {shown}: {}", a.type_name()));
            }
        };
        if equal {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_basic(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_))
}

/// `None` for NaN, which has no order.
fn order(a: &Value, b: &Value) -> Result<Option<Ordering>, String> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Ok(Some(a.cmp(b))),
        (Value::Float(a), Value::Float(b)) => Ok(a.partial_cmp(b)),
        (Value::Str(a), Value::Str(b)) => Ok(Some(a.cmp(b))),
        (a, b) if is_basic(a) && is_basic(b) && a.type_name() != b.type_name() => Err(format!(
            "incompatible types for comparison: {} and {}",
            a.type_name(),
            b.type_name()
        )),
        _ => Err("invalid type for comparison".into()),
    }
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            _ => out.push(c),
        }
    }
    out
}

fn escape_js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04X}", u32::from(c)));
            }
            _ if !printf::is_print(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out
}

fn escape_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' | '~' => out.push(c),
            ' ' => out.push('+'),
            _ if is_mark(c) => out.push(c),
            _ => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| out.push_str(&format!("%{b:02X}")))
            }
        }
    }
    out
}

/// The TypeScript type of a schema property. Types of a union are joined; unknown types are `any`.
pub(super) fn type_script(property: &Value) -> String {
    let Value::Struct(s) = property else { return "any".into() };
    let field = |name: &str| s.fields.iter().find(|f| f.name == name).map(|f| &f.value);
    if let Some(Value::List(any_of)) = field("AnyOf")
        && !any_of.items().is_empty()
    {
        return any_of.items().iter().map(type_script).collect::<Vec<_>>().join(" | ");
    }
    match field("Type") {
        Some(Value::List(List { print_style: PrintStyle::TypeNames, .. })) => {}
        _ => return "any".into(),
    }
    let Some(Value::List(names)) = field("Type") else { return "any".into() };
    let names: Vec<&str> = names.items().iter().map(type_script_name).collect();
    if names.is_empty() { "any".into() } else { names.join(" | ") }
}

fn type_script_name(name: &Value) -> &'static str {
    let Value::Str(name) = name else { return "any" };
    match &**name {
        "string" => "string",
        "number" | "integer" => "number",
        "boolean" => "boolean",
        "array" => "any[]",
        "object" => "Record<string, any>",
        "null" => "null",
        _ => "any",
    }
}
