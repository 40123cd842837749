//! JSON in the formats of prompts: as in Go's `encoding/json`, or as in Python's `json.dumps`.
//!
//! Objects keep their order. Whole numbers are written in digits, other floats as in Go.

use std::borrow::Cow;

use serde_json::{Map, Number, Value as Json};

use crate::go::{float_json, json_string};

/// Separators and escapes of a JSON text.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonFormat {
    colon: &'static str,
    comma: &'static str,
    /// Write `<`, `>` and `&` as `\u003c`, `\u003e` and `\u0026`.
    escapes_html: bool,
    /// Spaces for each level of nesting. Each value has its own line.
    indent: Option<usize>,
}

/// Go, compact.
pub(super) const COMPACT: JsonFormat =
    JsonFormat { colon: ":", comma: ",", escapes_html: true, indent: None };
/// Go, with a space behind colons and commas.
pub(super) const SPACED: JsonFormat = JsonFormat { colon: ": ", comma: ", ", ..COMPACT };
/// Python.
pub(super) const PYTHON: JsonFormat = JsonFormat { escapes_html: false, ..SPACED };
/// Go, indented by four spaces.
pub(super) const INDENTED: JsonFormat = JsonFormat { colon: ": ", indent: Some(4), ..COMPACT };

/// Writes a value as JSON.
pub(super) fn json(value: &Json, format: JsonFormat) -> String {
    let mut out = String::new();
    write(&mut out, value, format, 0);
    out
}

/// Writes the arguments of a call as JSON.
pub(super) fn object(map: &Map<String, Json>, format: JsonFormat) -> String {
    let mut out = String::new();
    write_object(&mut out, map, format, 0);
    out
}

/// Writes a text as a JSON string.
pub(super) fn string(text: &str, format: JsonFormat) -> String {
    let mut out = String::new();
    json_string(&mut out, text, format.escapes_html);
    out
}

/// Writes a value as plain text: strings unquoted, other values as JSON.
pub(super) fn text(value: &Json, format: JsonFormat) -> Cow<'_, str> {
    match value {
        Json::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(json(other, format)),
    }
}

/// Writes a value as Python prints it; lists and objects as JSON.
pub(super) fn python_text(value: &Json) -> Cow<'_, str> {
    match value {
        Json::Null => Cow::Borrowed("None"),
        Json::Bool(true) => Cow::Borrowed("True"),
        Json::Bool(false) => Cow::Borrowed("False"),
        other => text(other, PYTHON),
    }
}

/// Writes a number.
pub(super) fn number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_json(float),
        _ => number.to_string(),
    }
}

fn write(out: &mut String, value: &Json, format: JsonFormat, level: usize) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(on) => out.push_str(if *on { "true" } else { "false" }),
        Json::Number(n) => out.push_str(&number(n)),
        Json::String(text) => json_string(out, text, format.escapes_html),
        Json::Array(items) if items.is_empty() => out.push_str("[]"),
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { format.comma } else { "" });
                new_line(out, format, level + 1);
                write(out, item, format, level + 1);
            }
            new_line(out, format, level);
            out.push(']');
        }
        Json::Object(map) => write_object(out, map, format, level),
    }
}

fn write_object(out: &mut String, map: &Map<String, Json>, format: JsonFormat, level: usize) {
    if map.is_empty() {
        out.push_str("{}");
        return;
    }
    out.push('{');
    for (i, (key, item)) in map.iter().enumerate() {
        out.push_str(if i > 0 { format.comma } else { "" });
        new_line(out, format, level + 1);
        json_string(out, key, format.escapes_html);
        out.push_str(format.colon);
        write(out, item, format, level + 1);
    }
    new_line(out, format, level);
    out.push('}');
}

fn new_line(out: &mut String, format: JsonFormat, level: usize) {
    if let Some(indent) = format.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_formats_differ_in_spaces_and_escapes() {
        let value = json!({"b": [1, {"x": "<a> \"é\""}], "a": {}, "c": []});
        assert_eq!(json(&value, COMPACT), r#"{"b":[1,{"x":"\u003ca\u003e \"é\""}],"a":{},"c":[]}"#);
        assert_eq!(
            json(&value, SPACED),
            r#"{"b": [1, {"x": "\u003ca\u003e \"é\""}], "a": {}, "c": []}"#
        );
        assert_eq!(json(&value, PYTHON), r#"{"b": [1, {"x": "<a> \"é\""}], "a": {}, "c": []}"#);
        let nested = json!({"a": [true]});
        assert_eq!(json(&nested, INDENTED), "{\n    \"a\": [\n        true\n    ]\n}");
    }

    #[test]
    fn whole_numbers_are_written_without_exponent() {
        let texts = [
            json!(2),
            json!(2.0),
            json!(1.5),
            json!(1e21),
            json!(1_000_000),
            json!(-7),
            json!(u64::MAX),
        ];
        let texts: Vec<String> = texts.iter().map(|value| json(value, COMPACT)).collect();
        assert_eq!(texts, ["2", "2", "1.5", "1e+21", "1000000", "-7", "18446744073709551615"]);
    }
}
