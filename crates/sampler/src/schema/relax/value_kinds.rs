//! Checks that keywords have values of the right kind.

use serde_json::Value;

use super::{COUNTS, Object};

/// Keywords that hold one schema.
const SINGLE_SCHEMA: [&str; 8] = [
    "contains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];
/// Keywords that hold an object.
const OBJECT_VALUED: [&str; 4] =
    ["dependentRequired", "dependentSchemas", "dependencies", "patternProperties"];

/// Rejects a keyword with a value of the wrong kind.
///
/// # Errors
/// A sentence that names the keyword, its location, and the required kind of value.
pub(super) fn check_kinds(map: &Object, pointer: &str) -> Result<(), String> {
    for (keyword, value) in map {
        let needed = match keyword.as_str() {
            keyword
                if SINGLE_SCHEMA.contains(&keyword)
                    && !value.is_object()
                    && !value.is_boolean() =>
            {
                "a schema"
            }
            keyword if OBJECT_VALUED.contains(&keyword) && !value.is_object() => "an object",
            "uniqueItems" | "nullable" if !value.is_boolean() => "true or false",
            keyword if COUNTS.contains(&keyword) && !is_count(value) => {
                "a whole number of at least 0"
            }
            "pattern" | "format" | "$ref" | "$dynamicRef" | "$recursiveRef"
                if !value.is_string() =>
            {
                "a string"
            }
            _ => continue,
        };
        let shown: String = value.to_string().chars().take(100).collect();
        return Err(format!("{keyword} at #{pointer} must be {needed}, but is {shown}"));
    }
    Ok(())
}

fn is_count(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0)
}
