//! Parsing of tool-call arguments that clients send back in a conversation.

use puna_prompt::Adaptation;
use serde_json::{Map, Value, json};

use crate::http::record_adaptation;

/// Name of the argument that holds text that is not a JSON object.
const UNPARSED: &str = "unparsed_arguments";

/// Wraps text that is not a JSON object as the single argument `unparsed_arguments`.
pub(crate) fn unparsed_arguments(text: &str) -> Map<String, Value> {
    Map::from_iter([(UNPARSED.to_owned(), json!(text))])
}

/// Wraps text like [`unparsed_arguments`] for a call of a conversation. The answer's header reports
/// the change.
pub(crate) fn repaired_arguments(text: &str) -> Map<String, Value> {
    record_adaptation(Adaptation::Repaired.as_str().to_owned());
    unparsed_arguments(text)
}

/// Parses the JSON text of a call's arguments. Empty text means a call without arguments. Text that
/// is not a JSON object, for example from a truncated call, becomes [`unparsed_arguments`].
pub(crate) fn read_arguments(text: &str) -> Map<String, Value> {
    if text.trim().is_empty() {
        return Map::new();
    }
    match puna_api::json::parse(text.as_bytes()) {
        Ok(Value::Object(arguments)) => arguments,
        Ok(Value::Null) => Map::new(),
        Ok(_) | Err(_) => repaired_arguments(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_any_text_are_an_object() {
        for (text, arguments) in [
            ("", json!({})),
            (" \n", json!({})),
            ("null", json!({})),
            ("{}", json!({})),
            ("{\"b\": 1, \"a\": [null]}", json!({"b": 1, "a": [null]})),
            ("{\"a\": 1", json!({"unparsed_arguments": "{\"a\": 1"})),
            ("[1]", json!({"unparsed_arguments": "[1]"})),
            ("ls -l", json!({"unparsed_arguments": "ls -l"})),
        ] {
            assert_eq!(Value::Object(read_arguments(text)), arguments, "{text:?}");
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        assert_eq!(read_arguments(&deep), unparsed_arguments(&deep));
    }
}
