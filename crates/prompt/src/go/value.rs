//! Values of a Go template, and their formatting as text and JSON as in Go.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value as Json;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Go's nil: a missing key or null.
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    List(List),
    Map(Arc<Map>),
    Struct(Arc<Struct>),
}

/// A slice: a range of shared items, so that `slice $.Messages $i` does not copy.
#[derive(Debug, Clone)]
pub(crate) struct List {
    items: Arc<[Value]>,
    start: usize,
    end: usize,
    pub(crate) print_style: PrintStyle,
}

/// How a list, map or struct is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrintStyle {
    /// As Go prints slices, maps and structs.
    Plain,
    /// As JSON, for types with a `String` method that marshals.
    Json,
    /// Type names of a schema: a single name bare, several in brackets; in JSON as a string or an
    /// array.
    TypeNames,
    /// A nil slice: prints as an empty slice, `null` in JSON.
    NilSlice,
}

#[derive(Debug, Clone)]
pub(crate) struct Map {
    pub(crate) entries: BTreeMap<Arc<str>, Value>,
    /// Order of the keys in JSON, if it is not sorted.
    pub(crate) order: Option<Vec<Arc<str>>>,
    pub(crate) print_style: PrintStyle,
    /// A nil map: prints and marshals as null.
    pub(crate) nil: bool,
}

#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) type_name: &'static str,
    pub(crate) fields: Vec<Field>,
    pub(crate) print_style: PrintStyle,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) json: &'static str,
    pub(crate) omit_empty: bool,
    pub(crate) value: Value,
}

impl List {
    pub(crate) fn new(items: Vec<Value>, print_style: PrintStyle) -> Self {
        let end = items.len();
        List { items: items.into(), start: 0, end, print_style }
    }

    pub(crate) fn items(&self) -> &[Value] {
        &self.items[self.start..self.end]
    }

    /// The items `from..to`, or `None` if out of range.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Option<List> {
        let inside = from <= to && to <= self.end - self.start;
        inside.then(|| List { start: self.start + from, end: self.start + to, ..self.clone() })
    }
}

impl Value {
    pub(crate) fn str(text: impl AsRef<str>) -> Value {
        Value::Str(Arc::from(text.as_ref()))
    }

    /// Decodes JSON as into Go's `any`: numbers are floats, objects are maps.
    pub(crate) fn from_json(json: &Json) -> Value {
        match json {
            Json::Null => Value::Nil,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            Json::String(s) => Value::str(s),
            Json::Array(items) => Value::List(List::new(
                items.iter().map(Value::from_json).collect(),
                PrintStyle::Plain,
            )),
            Json::Object(map) => Value::map(map, PrintStyle::Plain),
        }
    }

    pub(crate) fn map(map: &serde_json::Map<String, Json>, print_style: PrintStyle) -> Value {
        let entries =
            map.iter().map(|(k, v)| (Arc::from(k.as_str()), Value::from_json(v))).collect();
        Value::Map(Arc::new(Map { entries, order: None, print_style, nil: false }))
    }

    /// Truth value in conditions, as in Go: structs are always true.
    pub(crate) fn is_true(&self) -> bool {
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

    /// Name of the type in Go's error messages.
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

    /// Text of values with their own print style.
    pub(crate) fn custom_text(&self) -> Option<String> {
        let print_style = match self {
            Value::List(l) => l.print_style,
            Value::Map(m) => m.print_style,
            Value::Struct(s) => s.print_style,
            _ => PrintStyle::Plain,
        };
        match (print_style, self) {
            (PrintStyle::Json, _) => Some(json(self)),
            (PrintStyle::TypeNames, Value::List(l)) => match l.items() {
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

    /// Approximate printed size in bytes, to charge for printing in advance.
    pub(crate) fn printed_size(&self) -> usize {
        match self {
            Value::Str(s) => s.len(),
            Value::List(l) => l.items().iter().map(|v| 2 + v.printed_size()).sum(),
            Value::Map(m) => m.entries.iter().map(|(k, v)| 4 + k.len() + v.printed_size()).sum(),
            Value::Struct(s) => s.fields.iter().map(|f| 16 + f.value.printed_size()).sum(),
            _ => 8,
        }
    }
}

/// Formats a value as with `%v`.
pub(crate) fn print(value: &Value) -> String {
    let mut out = String::new();
    print_to(&mut out, value);
    out
}

fn print_to(out: &mut String, value: &Value) {
    if let Some(text) = value.custom_text() {
        out.push_str(&text);
        return;
    }
    match value {
        Value::Nil => out.push_str("<nil>"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Int(n) => _ = write!(out, "{n}"),
        Value::Float(f) => out.push_str(&super::printf::float_g(*f)),
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

/// Compact JSON as in Go's `encoding/json`: keys of maps are sorted, `<`, `>` and `&` are escaped.
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
        Value::Float(f) => out.push_str(&super::printf::float_json(*f)),
        Value::Str(s) => json_string(out, s, true),
        Value::List(l) => match (l.print_style, l.items()) {
            (PrintStyle::TypeNames, [one]) => json_to(out, one),
            (PrintStyle::NilSlice, _) => out.push_str("null"),
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
            let shown = s.fields.iter().filter(|f| !f.omit_empty || f.value.is_true());
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

/// Writes a JSON string. `<`, `>` and `&` are escaped if `html` is set.
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
