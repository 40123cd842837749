//! JSON as Go writes it, so that digests of created layers equal Ollama's: sorted keys, no blanks,
//! escaped `<`, `>` and `&`, whole numbers without a fraction.

use std::fmt::Write;

use serde_json::Value;

/// The JSON text of a value, with sorted keys.
pub(crate) fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write(value, true, &mut out);
    out
}

/// Like [`to_string`], but objects keep the order of their keys, for values that Go stores in
/// structs.
pub(crate) fn to_string_in_order(value: &Value) -> String {
    let mut out = String::new();
    write(value, false, &mut out);
    out
}

fn write(value: &Value, sorted: bool, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(s) => string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, sorted, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if sorted {
                entries.sort_by_key(|entry| entry.0);
            }
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                string(key, out);
                out.push(':');
                write(item, sorted, out);
            }
            out.push('}');
        }
    }
}

/// The text of a number: whole numbers without a fraction, exponents only below 1e-6 and from 1e21
/// on.
pub(crate) fn number(n: &serde_json::Number) -> String {
    if n.is_i64() || n.is_u64() {
        return n.to_string();
    }
    match n.as_f64() {
        Some(x) if x != 0.0 && !(1e-6..1e21).contains(&x.abs()) => {
            // Rust writes 1e-7 and 1e21, Go 1e-07 and 1e+21. Go's JSON encoder drops the zero
            // again.
            let text = format!("{x:e}");
            match text.split_once('e') {
                Some((mantissa, exponent)) if !exponent.starts_with('-') => {
                    format!("{mantissa}e+{exponent}")
                }
                _ => text,
            }
        }
        Some(x) => format!("{x}"),
        None => n.to_string(),
    }
}

fn string(text: &str, out: &mut String) {
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
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_are_written_as_recorded_from_ollama() {
        let value = json!({"temperature": 0, "seed": 1, "num_ctx": 2048, "stop": ["<|im_end|>"]});
        assert_eq!(
            to_string(&value),
            r#"{"num_ctx":2048,"seed":1,"stop":["\u003c|im_end|\u003e"],"temperature":0}"#
        );
    }

    #[test]
    fn numbers_follow_the_rules_of_go() {
        let text = |v| to_string(&v);
        assert_eq!(text(json!(1.0)), "1");
        assert_eq!(text(json!(0.7)), "0.7");
        assert_eq!(text(json!(-0.5)), "-0.5");
        assert_eq!(text(json!(1048576.0)), "1048576");
        assert_eq!(text(json!(1e-7)), "1e-7");
        assert_eq!(text(json!(1e21)), "1e+21");
        assert_eq!(text(json!(0.0)), "0");
    }

    #[test]
    fn written_values_read_back_the_same() {
        let value = json!({"b": ["\u{1}\u{2028}é\"\\\n<&>", null, true], "a": {"z": 1, "y": -2.5}});
        assert_eq!(serde_json::from_str::<Value>(&to_string(&value)).unwrap(), value);
        assert!(to_string_in_order(&value).starts_with("{\"b\""));
    }
}
