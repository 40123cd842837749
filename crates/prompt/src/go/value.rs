//! Values of a running Go template, and how Go prints them and writes them as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value as Json;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Go's nil: a missing key, a null.
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    List(List),
    Map(Arc<Map>),
    Struct(Arc<Struct>),
}

/// A slice: a window over shared items, so that `slice $.Messages $i` costs nothing.
#[derive(Debug, Clone)]
pub(crate) struct List {
    items: Arc<[Value]>,
    start: usize,
    end: usize,
    pub(crate) shows: Shows,
}

/// How a list or map prints itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// As Go prints slices and maps.
    Plain,
    /// As JSON (a type with a `String` method that marshals).
    Json,
    /// The names of a schema type: one bare, several in brackets; JSON likewise.
    TypeNames,
    /// A nil slice: prints as an empty one, `null` in JSON.
    NilSlice,
}

#[derive(Debug, Clone)]
pub(crate) struct Map {
    pub(crate) entries: BTreeMap<Arc<str>, Value>,
    /// Order of the keys in JSON where it is not the sorted one.
    pub(crate) order: Option<Vec<Arc<str>>>,
    pub(crate) shows: Shows,
    /// A nil map: prints and marshals as null.
    pub(crate) nil: bool,
}

#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) type_name: &'static str,
    pub(crate) fields: Vec<Field>,
    pub(crate) shows: Shows,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) omit_empty: bool,
    pub(crate) value: Value,
}

impl List {
    pub(crate) fn new(items: Vec<Value>, shows: Shows) -> Self {
        let end = items.len();
        List { items: items.into(), start: 0, end, shows }
    }

    pub(crate) fn items(&self) -> &[Value] {
        &self.items[self.start..self.end]
    }

    /// The part `from..to`, if it lies inside.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Option<List> {
        let inside = from <= to && to <= self.end - self.start;
        inside.then(|| List { start: self.start + from, end: self.start + to, ..self.clone() })
    }
}

impl Value {
    pub(crate) fn str(text: impl AsRef<str>) -> Value {
        Value::Str(Arc::from(text.as_ref()))
    }

    /// Decoded JSON as Go's `any` holds it: numbers are floats, objects are maps.
    pub(crate) fn from_json(json: &Json) -> Value {
        match json {
            Json::Null => Value::Nil,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            Json::String(s) => Value::str(s),
            Json::Array(items) => {
                Value::List(List::new(items.iter().map(Value::from_json).collect(), Shows::Plain))
            }
            Json::Object(map) => Value::map(map, Shows::Plain),
        }
    }

    pub(crate) fn map(map: &serde_json::Map<String, Json>, shows: Shows) -> Value {
        let entries =
            map.iter().map(|(k, v)| (Arc::from(k.as_str()), Value::from_json(v))).collect();
        Value::Map(Arc::new(Map { entries, order: None, shows, nil: false }))
    }

    /// Go's truth: structs are always true.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Value::Nil => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::List(l) => !l.items().is_empty(),
            Value::Map(m) => !m.entries.is_empty(),
            Value::Struct(_) => true,
        }
    }

    /// The type as Go names it in messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float64",
            Value::Str(_) => "string",
            Value::List(_) => "[]interface {}",
            Value::Map(_) => "map[string]interface {}",
            Value::Struct(s) => s.type_name,
        }
    }

    /// The text of values that print themselves.
    pub(crate) fn own_text(&self) -> Option<String> {
        let shows = match self {
            Value::List(l) => l.shows,
            Value::Map(m) => m.shows,
            Value::Struct(s) => s.shows,
            _ => Shows::Plain,
        };
        match (shows, self) {
            (Shows::Json, _) => Some(json(self)),
            (Shows::TypeNames, Value::List(l)) => match l.items() {
                [] => Some(String::new()),
                [Value::Str(one)] => Some(one.to_string()),
                many => {
                    let names: Vec<_> = many.iter().map(print).collect();
                    Some(format!("[{}]", names.join(" ")))
                }
            },
            _ => None,
        }
    }

    /// Size of the value when printed, roughly; enough to pay for printing it beforehand.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Value::Str(s) => s.len(),
            Value::List(l) => l.items().iter().map(|v| 2 + v.weight()).sum(),
            Value::Map(m) => m.entries.iter().map(|(k, v)| 4 + k.len() + v.weight()).sum(),
            Value::Struct(s) => s.fields.iter().map(|f| 16 + f.value.weight()).sum(),
            _ => 8,
        }
    }
}

/// `%v`.
pub(crate) fn print(value: &Value) -> String {
    let mut out = String::new();
    print_to(&mut out, value);
    out
}

fn print_to(out: &mut String, value: &Value) {
    if let Some(text) = value.own_text() {
        out.push_str(&text);
        return;
    }
    match value {
        Value::Nil => out.push_str("<nil>"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(n) => _ = write!(out, "{n}"),
        Value::Float(f) => out.push_str(&super::fmt::float_g(*f)),
        Value::Str(s) => out.push_str(s),
        Value::List(l) => {
            out.push('[');
            for (i, item) in l.items().iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                print_to(out, item);
            }
            out.push(']');
        }
        Value::Map(m) => {
            out.push_str("map[");
            for (i, (key, item)) in m.entries.iter().enumerate() {
                _ = write!(out, "{}{key}:", if i > 0 { " " } else { "" });
                print_to(out, item);
            }
            out.push(']');
        }
        Value::Struct(s) => {
            out.push('{');
            for (i, field) in s.fields.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                print_to(out, &field.value);
            }
            out.push('}');
        }
    }
}

/// Compact JSON as Go's `encoding/json` writes it: keys of maps sorted, `<`, `>` and `&` escaped.
pub(crate) fn json(value: &Value) -> String {
    let mut out = String::new();
    json_to(&mut out, value);
    out
}

fn json_to(out: &mut String, value: &Value) {
    match value {
        Value::Nil => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(n) => _ = write!(out, "{n}"),
        Value::Float(f) => out.push_str(&super::fmt::float_json(*f)),
        Value::Str(s) => json_string(out, s, true),
        Value::List(l) => match (l.shows, l.items()) {
            (Shows::TypeNames, [one]) => json_to(out, one),
            (Shows::NilSlice, _) => out.push_str("null"),
            (_, items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    json_to(out, item);
                }
                out.push(']');
            }
        },
        Value::Map(m) if m.nil => out.push_str("null"),
        Value::Map(m) => {
            out.push('{');
            let mut first = true;
            let mut entry = |out: &mut String, key: &str, item: &Value| {
                if !std::mem::take(&mut first) {
                    out.push(',');
                }
                json_string(out, key, true);
                out.push(':');
                json_to(out, item);
            };
            match &m.order {
                Some(order) => {
                    for key in order {
                        if let Some(item) = m.entries.get(key) {
                            entry(out, key, item);
                        }
                    }
                }
                None => m.entries.iter().for_each(|(key, item)| entry(out, key, item)),
            }
            out.push('}');
        }
        Value::Struct(s) => {
            out.push('{');
            let shown = s.fields.iter().filter(|f| !f.omit_empty || f.value.truth());
            for (i, field) in shown.enumerate() {
                if i > 0 {
                    out.push(',');
                }
                json_string(out, field.json, true);
                out.push(':');
                json_to(out, &field.value);
            }
            out.push('}');
        }
    }
}

/// A JSON string; `<`, `>` and `&` are escaped only if `html` says so.
pub(crate) fn json_string(out: &mut String, text: &str, html: bool) {
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
            '<' | '>' | '&' if !html => out.push(c),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}
