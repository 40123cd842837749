//! The parameters of `PARAMETER`: their types, their ranges, and how `show` prints them.

use puna_gguf::escape_for_message;
use serde_json::{Map, Value};

use super::ModelfileError;
use crate::gojson;

#[derive(Clone, Copy)]
enum ParameterType {
    Int,
    Float,
    Bool,
    Text,
    Strings,
}

/// Every parameter with its type.
const PARAMETERS: [(&str, ParameterType); 27] = [
    ("num_ctx", ParameterType::Int),
    ("num_batch", ParameterType::Int),
    ("num_gpu", ParameterType::Int),
    ("main_gpu", ParameterType::Int),
    ("use_mmap", ParameterType::Bool),
    ("num_thread", ParameterType::Int),
    ("deterministic", ParameterType::Bool),
    ("draft_num_predict", ParameterType::Int),
    // The following six are Puna's own.
    ("draft_model", ParameterType::Text),
    ("speculate", ParameterType::Text),
    ("think_budget", ParameterType::Int),
    ("diffusion_steps", ParameterType::Int),
    ("diffusion_block_length", ParameterType::Int),
    ("diffusion_algorithm", ParameterType::Text),
    ("num_keep", ParameterType::Int),
    ("seed", ParameterType::Int),
    ("num_predict", ParameterType::Int),
    ("top_k", ParameterType::Int),
    ("top_p", ParameterType::Float),
    ("min_p", ParameterType::Float),
    ("typical_p", ParameterType::Float),
    ("repeat_last_n", ParameterType::Int),
    ("temperature", ParameterType::Float),
    ("repeat_penalty", ParameterType::Float),
    ("presence_penalty", ParameterType::Float),
    ("frequency_penalty", ParameterType::Float),
    ("stop", ParameterType::Strings),
];

/// Former parameters without effect, which are skipped with a warning.
const DEPRECATED: [&str; 9] = [
    "penalize_newline",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mlock",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
];

/// Parses a parameter's values into the JSON value of a request. The last value counts, except for
/// `stop`, which collects all. `None` for a deprecated parameter.
///
/// # Errors
/// The name is unknown, or a value has the wrong type or range.
pub fn parse_parameter(name: &str, values: &[&str]) -> Result<Option<Value>, ModelfileError> {
    if DEPRECATED.contains(&name) {
        return Ok(None);
    }
    let Some(&(row, kind)) = PARAMETERS.iter().find(|row| row.0 == name) else {
        return Err(ModelfileError::UnknownParameter(escape_for_message(name)));
    };
    let last = values.last().copied().unwrap_or_default();
    let bad = |kind| ModelfileError::ParameterValue { kind, value: escape_for_message(last) };
    if let Ok(number) = last.parse() {
        check_range(row, number, last)?;
    }
    Ok(Some(match kind {
        ParameterType::Int => last.parse::<i64>().map_err(|_| bad("int"))?.into(),
        ParameterType::Float => {
            let number =
                last.parse::<f64>().ok().filter(|x| x.is_finite()).ok_or_else(|| bad("float"))?;
            if number.fract() == 0.0 && number.abs() < 1e15 {
                Value::from(number as i64)
            } else {
                Value::from(number)
            }
        }
        ParameterType::Bool => match last {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true.into(),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false.into(),
            _ => return Err(bad("bool")),
        },
        ParameterType::Text => last.into(),
        ParameterType::Strings => values.iter().copied().collect(),
    }))
}

/// Rejects numbers out of range in the parameters of a request. Names and types are not checked.
///
/// # Errors
/// [`ModelfileError::ParameterRange`]
pub fn check_ranges(parameters: &Map<String, Value>) -> Result<(), ModelfileError> {
    for (name, _) in PARAMETERS {
        if let Some(number) = parameters.get(name).and_then(Value::as_f64) {
            check_range(name, number, &number.to_string())?;
        }
    }
    Ok(())
}

/// Rejects a number that is meaningless or would make every request fail.
fn check_range(name: &'static str, number: f64, value: &str) -> Result<(), ModelfileError> {
    let (fits, want) = match name {
        "repeat_penalty" => (number > 0.0 && (1.0 / number as f32).is_finite(), "greater than 0"),
        "num_ctx" | "num_batch" => (number >= 1.0, "at least 1"),
        "num_thread" => (number >= 0.0, "at least 0 (0: one thread per core)"),
        "num_gpu" => (number >= -1.0, "at least -1 (-1: automatic)"),
        "repeat_last_n" => (number >= -1.0, "at least -1 (-1: the whole context, 0: off)"),
        "temperature" => (number >= 0.0, "at least 0"),
        "top_p" | "min_p" | "typical_p" => ((0.0..=1.0).contains(&number), "between 0 and 1"),
        _ => (true, ""),
    };
    let given = || escape_for_message(value);
    // The type check reports values that are not numbers.
    if !fits && !number.is_nan() {
        return Err(ModelfileError::ParameterRange { name, want, value: given() });
    }
    if number.is_finite() && !(number as f32).is_finite() {
        return Err(ModelfileError::ParameterRange {
            name,
            want: "within ±3.4e38",
            value: given(),
        });
    }
    Ok(())
}

/// The values of a parameter, each as the text of a `PARAMETER` instruction.
pub(crate) fn values(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(values).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![gojson::number(number)],
        other => vec![other.to_string()],
    }
}

/// The text of `/api/show`'s `parameters`: one value a line, sorted by name, strings quoted.
pub fn format_parameters(params: &Map<String, Value>) -> String {
    let mut names: Vec<_> = params.keys().collect();
    names.sort();
    let mut lines = Vec::new();
    for name in names {
        let items = match &params[name] {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        for item in items {
            let text = match item {
                Value::String(text) => go_string_literal(text),
                Value::Number(number) => gojson::number(number),
                other => other.to_string(),
            };
            lines.push(format!("{name:30} {text}"));
        }
    }
    lines.join("\n")
}

/// Formats a text as a Go string literal.
fn go_string_literal(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_the_type_of_their_parameter() {
        let of = |name: &str, value: &str| parse_parameter(name, &[value]);
        assert_eq!(of("num_ctx", "1048576"), Ok(Some(json!(1048576))));
        assert_eq!(of("temperature", "1"), Ok(Some(json!(1))));
        assert_eq!(of("temperature", "0.7"), Ok(Some(json!(0.7))));
        assert_eq!(of("top_p", "9e-1"), Ok(Some(json!(0.9))));
        assert_eq!(of("use_mmap", "T"), Ok(Some(json!(true))));
        assert_eq!(parse_parameter("stop", &["a", "b"]), Ok(Some(json!(["a", "b"]))));
        assert_eq!(parse_parameter("seed", &["1", "-2"]), Ok(Some(json!(-2))));
        assert_eq!(of("mirostat", "1"), Ok(None));
    }

    #[test]
    fn invalid_values_have_the_error_messages_of_ollama() {
        let of = |name: &str, value: &str| parse_parameter(name, &[value]).unwrap_err().to_string();
        assert_eq!(of("num_gqa", "1"), "unknown parameter 'num_gqa'");
        assert_eq!(of("num_ctx", "4k"), "invalid int value [4k]");
        assert_eq!(of("num_ctx", "1.5"), "invalid int value [1.5]");
        assert_eq!(of("temperature", "hot"), "invalid float value [hot]");
        assert_eq!(of("temperature", "nan"), "invalid float value [nan]");
        assert_eq!(of("use_mmap", "yes"), "invalid bool value [yes]");
    }

    #[test]
    fn parameters_out_of_range_are_rejected() {
        let of =
            |name: &str, value: &str| parse_parameter(name, &[value]).map_err(|e| e.to_string());
        let refused = [
            (
                "repeat_penalty",
                "-1",
                "parameter 'repeat_penalty' must be greater than 0, but is -1",
            ),
            ("repeat_penalty", "0", "must be greater than 0"),
            ("num_batch", "0", "parameter 'num_batch' must be at least 1, but is 0"),
            ("repeat_last_n", "-2", "at least -1"),
            ("temperature", "1e308", "within ±3.4e38, but is 1e308"),
            ("temperature", "-0.1", "must be at least 0, but is -0.1"),
            ("num_ctx", "-5", "parameter 'num_ctx' must be at least 1, but is -5"),
            ("num_thread", "-1", "at least 0"),
            ("num_gpu", "-2", "at least -1"),
            ("top_p", "1.5", "parameter 'top_p' must be between 0 and 1, but is 1.5"),
            ("min_p", "-1", "between 0 and 1"),
        ];
        for (name, value, want) in refused {
            let error = of(name, value).unwrap_err();
            assert!(error.contains(want), "{error}");
            let given =
                [(name.to_owned(), json!(value.parse::<f64>().unwrap()))].into_iter().collect();
            assert!(check_ranges(&given).is_err(), "{name} {value}");
        }
        for (name, value) in [
            ("repeat_last_n", "-1"),
            ("repeat_penalty", "0.5"),
            ("stop", "-1"),
            ("seed", "-9"),
            ("top_k", "-1"),
            ("num_predict", "-2"),
        ] {
            assert!(of(name, value).is_ok(), "{name} {value}");
        }
    }

    #[test]
    fn show_prints_one_value_a_line() {
        let params =
            json!({"temperature": 1.0, "stop": ["<|im_end|>", "a\"\n"], "num_ctx": 1048576.0});
        let want = "num_ctx                        1048576\n\
                    stop                           \"<|im_end|>\"\n\
                    stop                           \"a\\\"\\n\"\n\
                    temperature                    1";
        assert_eq!(format_parameters(params.as_object().unwrap()), want);
    }
}
