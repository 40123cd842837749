//! The arguments of tool calls as clients send them back.

use puna_prompt::Adaptation;
use serde_json::{Map, Value, json};

use crate::http::note_adapted;

/// The argument that holds the text of arguments that are not a JSON object.
const UNPARSED: &str = "unparsed_arguments";

/// The arguments of a call whose text is not a JSON object: the text itself, as the argument `unparsed_arguments`.
pub(crate) fn unparsed_arguments(text: &str) -> Map<String, Value> {
    Map::from_iter([(UNPARSED.to_owned(), json!(text))])
}

/// The same for a call of a conversation: the answer's header says that it was changed.
pub(crate) fn repaired_arguments(text: &str) -> Map<String, Value> {
    note_adapted(Adaptation::Repaired.as_str().to_owned());
    unparsed_arguments(text)
}

/// Reads the JSON text of a call's arguments. An empty text is a call without arguments. A text that is no JSON object, such
/// as that of a call that was cut off, is kept as [`unparsed_arguments`].
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
