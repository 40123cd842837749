//! JSON Schemas as requests bring them, made ready for `llguidance`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{bounds, multiples};
use crate::schema::JsonSchema;

/// White space between the parts of a JSON text: none, one space, or a line break or two with an indentation. Without
/// a bound, a model that is not sure how to go on may write white space for ever.
const WHITE_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Keywords that hold one schema.
pub(super) const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords that hold a list of schemas.
pub(super) const LIST: [&str; 2] = ["prefixItems", "items"];
/// Keywords that hold schemas of the same value. Where they stand beside each other, or beside `properties`, all of them
/// hold at once, so that closing one would shut out the properties of the others.
pub(super) const SAME: [&str; 3] = ["anyOf", "oneOf", "allOf"];
/// Keywords that hold schemas by name.
pub(super) const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The schema of any JSON object.
pub fn any_object() -> Value {
    json!({ "type": "object", "x-guidance": options() })
}

/// A request's schema: objects that list their properties have no others unless the schema says so, as Ollama and
/// llama.cpp read it.
///
/// # Errors
/// A sentence about a schema that is no object or asks for what nobody may set from outside.
pub fn prepare(schema: &JsonSchema) -> Result<Value, String> {
    let Value::Object(given) = schema.given() else { return Err("it must be an object".into()) };
    if given.contains_key("x-guidance") {
        return Err("the keyword \"x-guidance\" is not for requests".into());
    }
    let mut schema = schema.enforceable()?.clone();
    each(&mut schema, "#", &mut |schema, place| {
        multiples::spell(schema);
        bounds::check_values(schema, place)?;
        bounds::tame(schema, place)
    })?;
    multiples::check(&schema)?;
    let mut shared = HashSet::new();
    find_shared(&schema, false, &mut shared);
    close(&mut schema, false, "#", &shared);
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), options());
    }
    Ok(schema)
}

/// Looks at the schemas within a Lark grammar, which nobody else reads but the library.
///
/// # Errors
/// A sentence about what the library would count wrongly.
pub fn check_within(lark: &str) -> Result<(), String> {
    for (at, mark) in lark.match_indices("%json") {
        let mut schemas =
            serde_json::Deserializer::from_str(&lark[at + mark.len()..]).into_iter::<Value>();
        // What cannot be read is found by whoever compiles it, or is no schema.
        if let Some(Ok(schema)) = schemas.next() {
            multiples::check(&schema)?;
        }
    }
    Ok(())
}

/// `oneOf` is read as `anyOf` where its branches cannot be told apart: references to objects with a `const` to tell them
/// apart, as most libraries write them, are among these.
fn options() -> Value {
    json!({
        "whitespace_pattern": WHITE_SPACE,
        "json_allow_general_unicode_escapes": true,
        "coerce_one_of": true,
    })
}

/// Changes a schema and those inside of it. `place` is where it stands, as a `$ref` would name it.
fn each(
    schema: &mut Value,
    place: &str,
    change: &mut impl FnMut(&mut Map<String, Value>, &str) -> Result<(), String>,
) -> Result<(), String> {
    let Value::Object(map) = schema else { return Ok(()) };
    change(map, place)?;
    for (keyword, value) in map.iter_mut() {
        let place = || format!("{place}/{keyword}");
        let keyword = keyword.as_str();
        match value {
            Value::Object(_) if ONE.contains(&keyword) => each(value, &place(), change)?,
            Value::Object(named) if NAMED.contains(&keyword) => {
                for (name, schema) in named {
                    each(schema, &format!("{}/{name}", place()), change)?;
                }
            }
            Value::Array(list) if LIST.contains(&keyword) || SAME.contains(&keyword) => {
                for (i, schema) in list.iter_mut().enumerate() {
                    each(schema, &format!("{}/{i}", place()), change)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a schema says more than one thing about the properties of a value.
fn is_composed(map: &Map<String, Value>) -> bool {
    let parts = ["properties", "$ref", "anyOf", "oneOf"]
        .into_iter()
        .filter(|k| map.contains_key(*k))
        .count();
    map.contains_key("allOf") || parts > 1
}

/// The schemas that are referred to as a part of others: `#/$defs/…`. `part`: this one is a part itself.
fn find_shared(schema: &Value, part: bool, found: &mut HashSet<String>) {
    let Value::Object(map) = schema else { return };
    let part = part || is_composed(map);
    if let (true, Some(Value::String(name))) = (part, map.get("$ref")) {
        found.insert(name.clone());
    }
    for (keyword, value) in map {
        let part = part && SAME.contains(&keyword.as_str());
        match value {
            Value::Array(list) => list.iter().for_each(|schema| find_shared(schema, part, found)),
            Value::Object(map) if NAMED.contains(&keyword.as_str()) => {
                map.values().for_each(|schema| find_shared(schema, false, found));
            }
            _ => find_shared(value, false, found),
        }
    }
}

/// Closes the objects of a schema, but not those that are a part of what is said about a value. It is no deeper than what
/// JSON from outside may be.
fn close(schema: &mut Value, part: bool, place: &str, shared: &HashSet<String>) {
    let Value::Object(map) = schema else { return };
    let part = part || is_composed(map) || shared.contains(place);
    for keyword in ONE {
        map.get_mut(keyword).into_iter().for_each(|schema| close(schema, false, "", shared));
    }
    for (keyword, part) in LIST.map(|k| (k, false)).into_iter().chain(SAME.map(|k| (k, part))) {
        let list = map.get_mut(keyword).and_then(Value::as_array_mut).into_iter().flatten();
        list.for_each(|schema| close(schema, part, "", shared));
    }
    for keyword in NAMED {
        for (name, schema) in
            map.get_mut(keyword).and_then(Value::as_object_mut).into_iter().flatten()
        {
            close(schema, false, &format!("{place}/{keyword}/{name}"), shared);
        }
    }
    let says = |keyword: &str| map.contains_key(keyword);
    if !part && says("properties") && !says("additionalProperties") && !says("patternProperties") {
        map.insert("additionalProperties".into(), Value::Bool(false));
    }
}
