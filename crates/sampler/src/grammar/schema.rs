//! Prepares JSON Schemas of requests for `llguidance`.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{multiple_of, number_bounds, pattern_intersections};
use crate::schema::JsonSchema;
use crate::schema::keywords::{NAMED_SCHEMAS, SAME_VALUE_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMA};

/// White space between the tokens of a JSON text: none, one space, or one or two line breaks with
/// indentation. Without a bound, an uncertain model may write white space forever.
const WHITE_SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// Schema of any JSON object.
pub fn any_object() -> Value {
    json!({ "type": "object", "x-guidance": options() })
}

/// Prepares a request's schema. Objects that list properties allow no others unless the schema says
/// so, as in Ollama and llama.cpp.
///
/// # Errors
/// A sentence about a schema that is not an object, or that contains a keyword reserved for this
/// server.
pub fn prepare(schema: &JsonSchema) -> Result<Value, String> {
    let Value::Object(given) = schema.value() else { return Err("it must be an object".into()) };
    if given.contains_key("x-guidance") {
        return Err("the keyword \"x-guidance\" is not supported".into());
    }
    let mut schema = schema.enforceable()?.clone();
    pattern_intersections::check(&schema)?;
    visit_schemas(&mut schema, "#", &mut |schema, place| {
        multiple_of::adjust_fraction(schema);
        number_bounds::check_values(schema, place)?;
        number_bounds::limit_bounds(schema, place)
    })?;
    multiple_of::check(&schema)?;
    let mut shared = HashSet::new();
    find_shared(&schema, false, &mut shared);
    close_objects(&mut schema, false, "#", &shared);
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), options());
    }
    Ok(schema)
}

/// Checks the schemas in a Lark grammar, which only the library reads.
///
/// # Errors
/// A sentence about a number that the library would compute wrongly, or about too many patterns.
pub fn check_lark(lark: &str) -> Result<(), String> {
    for (at, mark) in lark.match_indices("%json") {
        let mut schemas =
            serde_json::Deserializer::from_str(&lark[at + mark.len()..]).into_iter::<Value>();
        // An unreadable schema is reported by the compiler, or is not a schema.
        if let Some(Ok(schema)) = schemas.next() {
            multiple_of::check(&schema)?;
            pattern_intersections::check(&schema)?;
        }
    }
    Ok(())
}

/// Options for the library. It reads `oneOf` as `anyOf` if it cannot tell the branches apart. This
/// includes references to objects with a distinguishing `const`, which most libraries generate.
fn options() -> Value {
    json!({
        "whitespace_pattern": WHITE_SPACE,
        "json_allow_general_unicode_escapes": true,
        "coerce_one_of": true,
    })
}

/// Calls `change` on a schema and its subschemas. `place` is the location, in the syntax of `$ref`.
fn visit_schemas(
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
            Value::Object(_) if SINGLE_SCHEMA.contains(&keyword) => {
                visit_schemas(value, &place(), change)?
            }
            Value::Object(named) if NAMED_SCHEMAS.contains(&keyword) => {
                for (name, schema) in named {
                    visit_schemas(schema, &format!("{}/{name}", place()), change)?;
                }
            }
            Value::Array(list)
                if SCHEMA_LISTS.contains(&keyword) || SAME_VALUE_SCHEMAS.contains(&keyword) =>
            {
                for (i, schema) in list.iter_mut().enumerate() {
                    visit_schemas(schema, &format!("{}/{i}", place()), change)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether several keywords of a schema describe the properties of one value.
fn is_composed(map: &Map<String, Value>) -> bool {
    let parts = ["properties", "$ref", "anyOf", "oneOf"]
        .into_iter()
        .filter(|k| map.contains_key(*k))
        .count();
    map.contains_key("allOf") || parts > 1
}

/// Collects definitions that are referenced from a subschema of the same value: `#/$defs/…`.
/// `is_part`: this schema is one of several for the same value.
fn find_shared(schema: &Value, is_part: bool, found: &mut HashSet<String>) {
    let Value::Object(map) = schema else { return };
    let is_part = is_part || is_composed(map);
    if let (true, Some(Value::String(name))) = (is_part, map.get("$ref")) {
        found.insert(name.clone());
    }
    for (keyword, value) in map {
        let is_part = is_part && SAME_VALUE_SCHEMAS.contains(&keyword.as_str());
        match value {
            Value::Array(list) => {
                list.iter().for_each(|schema| find_shared(schema, is_part, found))
            }
            Value::Object(map) if NAMED_SCHEMAS.contains(&keyword.as_str()) => {
                map.values().for_each(|schema| find_shared(schema, false, found));
            }
            _ => find_shared(value, false, found),
        }
    }
}

/// Closes the objects of a schema, except schemas that are one of several for the same value. The
/// depth is that of the request's JSON, which is limited.
fn close_objects(schema: &mut Value, is_part: bool, place: &str, shared: &HashSet<String>) {
    let Value::Object(map) = schema else { return };
    let is_part = is_part || is_composed(map) || shared.contains(place);
    for keyword in SINGLE_SCHEMA {
        map.get_mut(keyword)
            .into_iter()
            .for_each(|schema| close_objects(schema, false, "", shared));
    }
    for (keyword, is_part) in
        SCHEMA_LISTS.map(|k| (k, false)).into_iter().chain(SAME_VALUE_SCHEMAS.map(|k| (k, is_part)))
    {
        let list = map.get_mut(keyword).and_then(Value::as_array_mut).into_iter().flatten();
        list.for_each(|schema| close_objects(schema, is_part, "", shared));
    }
    for keyword in NAMED_SCHEMAS {
        for (name, schema) in
            map.get_mut(keyword).and_then(Value::as_object_mut).into_iter().flatten()
        {
            close_objects(schema, false, &format!("{place}/{keyword}/{name}"), shared);
        }
    }
    let says = |keyword: &str| map.contains_key(keyword);
    if !is_part && says("properties") && !says("additionalProperties") && !says("patternProperties")
    {
        map.insert("additionalProperties".into(), Value::Bool(false));
    }
}
