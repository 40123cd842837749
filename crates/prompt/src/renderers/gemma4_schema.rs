//! Tool declarations of Gemma 4: JSON schemas without quotes, with sorted keys and upper-case type
//! names.
//!
//! Two oddities of the published template are kept. Properties named like a schema keyword are left
//! out. Several types of a declared property become one text that looks like a Python list.

use indexmap::IndexSet;
use serde_json::{Map, Value as Json, json};

use super::gemma4::{QUOTE, literal};
use super::tools::{Tool, text, texts, types};

pub(super) fn declare(tool: &Tool, out: &mut String) {
    let parameters = tool.parameters();
    let kind = text(parameters, "type");
    out.extend(["<|tool>declaration:", tool.name(), "{description:", &quoted(tool.description())]);
    if tool.properties().is_some() || !kind.is_empty() {
        let mut parts = Vec::new();
        if let Some(all) = tool.properties().filter(|all| !all.is_empty()) {
            parts.push(properties(all, true));
        }
        parts.extend(required(parameters));
        if !kind.is_empty() {
            parts.push(format!("type:{}", quoted(&kind.to_uppercase())));
        }
        out.extend([",parameters:{", &parts.join(","), "}"]);
    }
    out.push_str("}<tool|>");
}

/// Writes the properties of an object. `declared` is true for properties of the tool itself, false
/// inside free schemas.
fn properties(all: &Map<String, Json>, declared: bool) -> String {
    let is_keyword = |name: &str| {
        matches!(name, "description" | "type" | "properties" | "required" | "nullable")
    };
    let mut all: Vec<_> =
        all.iter().filter(|(name, schema)| schema.is_object() && !is_keyword(name)).collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    let parts: Vec<String> = all
        .iter()
        .map(|(name, schema)| format!("{name}:{{{}}}", property(schema, declared)))
        .collect();
    format!("properties:{{{}}}", parts.join(","))
}

fn property(schema: &Json, declared: bool) -> String {
    let mut parts = Vec::new();
    let description = text(schema, "description");
    if !description.is_empty() {
        parts.push(format!("description:{}", quoted(description)));
    }
    let types = type_names(schema, declared);
    match (types.first().map(String::as_str), schema.get("enum"), schema.get("items")) {
        (Some("STRING"), Some(Json::Array(values)), _) if !values.is_empty() => {
            parts.push(format!("enum:{}", quoted_list(values.iter().map(plain))));
        }
        (Some("ARRAY"), _, Some(Json::Object(schema))) if !schema.is_empty() => {
            parts.push(format!("items:{{{}}}", items(schema)));
        }
        _ => {}
    }
    if schema.get("nullable") == Some(&Json::Bool(true)) {
        parts.push("nullable:true".into());
    }
    if types.first().is_some_and(|first| first == "OBJECT") {
        parts.push(match (schema.get("properties"), schema) {
            (Some(Json::Object(all)), _) => properties(all, declared),
            // The schema itself is treated as a list of properties.
            (_, Json::Object(schema)) => properties(schema, false),
            _ => String::new(),
        });
        parts.extend(required(schema));
    }
    parts.extend(type_part(&types));
    parts.join(",")
}

/// Writes the schema of array items: all of its keys, sorted.
fn items(schema: &Map<String, Json>) -> String {
    let mut all: Vec<_> = schema.iter().filter(|(_, value)| !value.is_null()).collect();
    all.sort_unstable_by_key(|(key, _)| *key);
    let part = |(key, value): (&String, &Json)| match key.as_str() {
        "properties" => {
            Some(value.as_object().map_or("properties:{}".into(), |all| properties(all, false)))
        }
        "required" => {
            let names = value.as_array().into_iter().flatten().filter_map(Json::as_str);
            Some(format!("required:{}", quoted_list(names)))
        }
        "type" => type_part(&type_names(&json!({"type": value}), false)),
        _ => Some(format!("{key}:{}", literal(value, QUOTE))),
    };
    all.into_iter().filter_map(part).collect::<Vec<_>>().join(",")
}

/// Type names in upper case. Several types of a declared property are one name; simple alternatives
/// count as types.
fn type_names(schema: &Json, declared: bool) -> Vec<String> {
    let names =
        |schema: &Json| types(schema).iter().map(|name| name.to_uppercase()).collect::<Vec<_>>();
    let mut all = names(schema);
    if !declared {
        return all;
    }
    if let (true, Some(Json::Array(some))) = (all.is_empty(), schema.get("anyOf")) {
        let is_bare = |one: &Json| {
            one.as_object().is_some_and(|one| one.len() == 1 && one.contains_key("type"))
        };
        if some.iter().all(is_bare) {
            all = some.iter().flat_map(names).collect::<IndexSet<_>>().into_iter().collect();
        }
    }
    if all.len() > 1 {
        let quoted: Vec<String> = all.iter().map(|name| format!("'{name}'")).collect();
        all = vec![format!("[{}]", quoted.join(", "))];
    }
    all
}

fn type_part(types: &[String]) -> Option<String> {
    match types {
        [] => None,
        [one] => Some(format!("type:{}", quoted(one))),
        many => Some(format!("type:{}", quoted_list(many))),
    }
}

fn required(schema: &Json) -> Option<String> {
    let mut names = texts(schema, "required").peekable();
    names.peek()?;
    Some(format!("required:{}", quoted_list(names)))
}

/// Writes a value of an `enum` without marks around strings.
fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| literal(value, ""), str::to_owned)
}

fn quoted_list(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let all: Vec<String> = texts.into_iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", all.join(","))
}

fn quoted(text: &str) -> String {
    format!("{QUOTE}{text}{QUOTE}")
}
