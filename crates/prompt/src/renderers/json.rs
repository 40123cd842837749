//! JSON in the forms that prompts have it: as Go's `encoding/json` writes it, or as Python's `json.dumps`.
//!
//! Objects are written in the order they have. Whole numbers are written in digits, other floats as Go does.

use std::borrow::Cow;

use serde_json::{Map, Number, Value as Json};

use crate::go::{float_json, json_string};

/// What stands between the values of a JSON text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    colon: &'static str,
    comma: &'static str,
    /// Write `<`, `>` and `&` as `\u003c` and so on.
    escapes_html: bool,
    /// Blanks for each level of nesting, each value on its own line.
    indent: Option<usize>,
}

/// Go's compact form.
pub(super) const COMPACT: Form = Form { colon: ":", comma: ",", escapes_html: true, indent: None };
/// Go's, with a blank behind colons and commas.
pub(super) const SPACED: Form = Form { colon: ": ", comma: ", ", ..COMPACT };
/// Python's.
pub(super) const PYTHON: Form = Form { escapes_html: false, ..SPACED };
/// Go's, indented by four blanks.
pub(super) const INDENTED: Form = Form { colon: ": ", indent: Some(4), ..COMPACT };

/// A value as JSON.
pub(super) fn json(value: &Json, form: Form) -> String {
    let mut out = String::new();
    write(&mut out, value, form, 0);
    out
}

/// The arguments of a call as JSON.
pub(super) fn object(map: &Map<String, Json>, form: Form) -> String {
    let mut out = String::new();
    write_object(&mut out, map, form, 0);
    out
}

/// A text as a JSON string.
pub(super) fn string(text: &str, form: Form) -> String {
    let mut out = String::new();
    json_string(&mut out, text, form.escapes_html);
    out
}

/// A value as plain text: strings as they are, lists and objects as JSON.
pub(super) fn text(value: &Json, form: Form) -> Cow<'_, str> {
    match value {
        Json::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(json(other, form)),
    }
}

/// A value as a Python program prints it; lists and objects as JSON.
pub(super) fn python_text(value: &Json) -> Cow<'_, str> {
    match value {
        Json::Null => Cow::Borrowed("None"),
        Json::Bool(true) => Cow::Borrowed("True"),
        Json::Bool(false) => Cow::Borrowed("False"),
        other => text(other, PYTHON),
    }
}

/// A number as text.
pub(super) fn number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_json(float),
        _ => number.to_string(),
    }
}

fn write(out: &mut String, value: &Json, form: Form, level: usize) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(on) => out.push_str(if *on { "true" } else { "false" }),
        Json::Number(n) => out.push_str(&number(n)),
        Json::String(text) => json_string(out, text, form.escapes_html),
        Json::Array(items) if items.is_empty() => out.push_str("[]"),
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { form.comma } else { "" });
                new_line(out, form, level + 1);
                write(out, item, form, level + 1);
            }
            new_line(out, form, level);
            out.push(']');
        }
        Json::Object(map) => write_object(out, map, form, level),
    }
}

fn write_object(out: &mut String, map: &Map<String, Json>, form: Form, level: usize) {
    if map.is_empty() {
        out.push_str("{}");
        return;
    }
    out.push('{');
    for (i, (key, item)) in map.iter().enumerate() {
        out.push_str(if i > 0 { form.comma } else { "" });
        new_line(out, form, level + 1);
        json_string(out, key, form.escapes_html);
        out.push_str(form.colon);
        write(out, item, form, level + 1);
    }
    new_line(out, form, level);
    out.push('}');
}

fn new_line(out: &mut String, form: Form, level: usize) {
    if let Some(indent) = form.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_forms_differ_in_blanks_and_escapes() {
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
    fn numbers_have_no_exponent_where_digits_do() {
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
