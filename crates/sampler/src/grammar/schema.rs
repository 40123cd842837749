//! JSON Schemas as requests bring them, made ready for `llguidance`.

use serde_json::{Map, Value, json};

/// White space between the parts of a JSON text: none, one space, or a line break or two with an indentation. Without
/// a bound, a model that is not sure how to go on may write white space for ever.
const WHITE_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Keywords that hold one schema.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords that hold a list of schemas. (What `allOf` holds is merged, so that closing one part would shut out the
/// properties of the others.)
const LIST: [&str; 4] = ["anyOf", "oneOf", "prefixItems", "items"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The schema of any JSON object.
pub fn any_object() -> Value {
    json!({ "type": "object", "x-guidance": options() })
}

/// A request's schema: objects that list their properties have no others unless the schema says so, as Ollama and
/// llama.cpp read it.
///
/// # Errors
/// A sentence about a schema that is no object or asks for what nobody may set from outside.
pub fn prepare(schema: &Value) -> Result<Value, String> {
    let Value::Object(given) = schema else { return Err("it must be an object".into()) };
    if given.contains_key("x-guidance") {
        return Err("the keyword \"x-guidance\" is not for requests".into());
    }
    let mut schema = schema.clone();
    close(&mut schema);
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), options());
    }
    Ok(schema)
}

fn options() -> Value {
    json!({ "whitespace_pattern": WHITE_SPACE, "json_allow_general_unicode_escapes": true })
}

/// Closes the objects of a schema. It is no deeper than what JSON from outside may be.
fn close(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for keyword in ONE {
        map.get_mut(keyword).into_iter().for_each(close);
    }
    for keyword in LIST {
        map.get_mut(keyword).and_then(Value::as_array_mut).into_iter().flatten().for_each(close);
    }
    for keyword in NAMED {
        map.get_mut(keyword).and_then(Value::as_object_mut).into_iter().for_each(close_values);
    }
    let open = !map.contains_key("additionalProperties")
        && !map.contains_key("patternProperties")
        && !map.contains_key("allOf");
    if open && map.contains_key("properties") {
        map.insert("additionalProperties".into(), Value::Bool(false));
    }
}

fn close_values(map: &mut Map<String, Value>) {
    map.values_mut().for_each(close);
}
