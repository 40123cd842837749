//! Data of Go templates, built from a conversation as in Ollama.
//!
//! Tools are reduced to the fields that Ollama decodes, since models were trained on these prompts:
//! `type, items, function{name, description, parameters{type, $defs, items, required,
//! properties}}`, and for properties `anyOf, type, items, description, enum, properties, required`.
//! Jinja templates get the client's schema unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::value::{Field, List, Map, PrintStyle, Struct, Value};
use crate::message::{Message, Think, ToolCall};

/// The map that a template sees as `.`.
pub(super) fn root_map(
    entries: impl IntoIterator<Item = (&'static str, Value)>,
    think: Option<&Think>,
) -> Value {
    let mut map: BTreeMap<Arc<str>, Value> =
        entries.into_iter().map(|(k, v)| (Arc::from(k), v)).collect();
    map.insert("Think".into(), Value::Bool(think.is_some_and(Think::is_on)));
    map.insert("ThinkLevel".into(), Value::str(think.map_or("", Think::level)));
    map.insert("IsThinkSet".into(), Value::Bool(think.is_some()));
    Value::Map(Arc::new(Map {
        entries: map,
        order: None,
        print_style: PrintStyle::Plain,
        nil: false,
    }))
}

pub(super) fn messages(messages: &[Message]) -> Value {
    Value::List(List::new(messages.iter().map(message).collect(), PrintStyle::Plain))
}

fn message(m: &Message) -> Value {
    let images = m.images.iter().map(|image| Value::str(&image.0)).collect();
    let calls = m.tool_calls.iter().map(tool_call).collect();
    structure(
        "*template.templateMessage",
        PrintStyle::Plain,
        vec![
            field("Role", Value::str(&m.role)),
            field("Content", Value::str(&m.content)),
            field("Thinking", Value::str(m.thinking.as_deref().unwrap_or(""))),
            field("Images", slice(images)),
            field("ToolCalls", slice(calls)),
            field("ToolName", Value::str(m.tool_name.as_deref().unwrap_or(""))),
            field("ToolCallID", Value::str(m.tool_call_id.as_deref().unwrap_or(""))),
        ],
    )
}

/// An empty list becomes Go's nil slice: `null` in JSON, false in conditions, no iterations in
/// loops.
fn slice(items: Vec<Value>) -> Value {
    if items.is_empty() { empty_list() } else { Value::List(List::new(items, PrintStyle::Plain)) }
}

fn empty_list() -> Value {
    Value::List(List::new(Vec::new(), PrintStyle::NilSlice))
}

fn tool_call(call: &ToolCall) -> Value {
    let function = structure(
        "template.templateToolCallFunction",
        PrintStyle::Plain,
        vec![
            field("Index", Value::Int(i64::try_from(call.function.index).unwrap_or(i64::MAX))),
            field("Name", Value::str(&call.function.name)),
            field("Arguments", Value::map(&call.function.arguments, PrintStyle::Json)),
        ],
    );
    let fields = vec![field("ID", Value::str(&call.id)), field("Function", function)];
    structure("template.templateToolCall", PrintStyle::Plain, fields)
}

pub(super) fn tools(tools: &[Json]) -> Value {
    Value::List(List::new(tools.iter().map(tool).collect(), PrintStyle::Json))
}

fn tool(json: &Json) -> Value {
    structure(
        "template.templateTool",
        PrintStyle::Json,
        vec![
            named("Type", "type", false, text(json, "type")),
            named("Items", "items", true, any(json, "items")),
            named(
                "Function",
                "function",
                false,
                function(json.get("function").unwrap_or(&Json::Null)),
            ),
        ],
    )
}

fn function(json: &Json) -> Value {
    structure(
        "template.templateToolFunction",
        PrintStyle::Plain,
        vec![
            named("Name", "name", false, text(json, "name")),
            named("Description", "description", false, text(json, "description")),
            named(
                "Parameters",
                "parameters",
                false,
                parameters(json.get("parameters").unwrap_or(&Json::Null)),
            ),
        ],
    )
}

fn parameters(json: &Json) -> Value {
    structure(
        "template.templateToolFunctionParameters",
        PrintStyle::Json,
        vec![
            named("Type", "type", false, text(json, "type")),
            named("Defs", "$defs", true, any(json, "$defs")),
            named("Items", "items", true, any(json, "items")),
            named("Required", "required", true, strings(json, "required")),
            named("Properties", "properties", false, properties(json, false)),
        ],
    )
}

/// Properties of an object: sorted by name at the top level, in the client's order below it.
fn properties(json: &Json, keep_order: bool) -> Value {
    let mut map =
        Map { entries: BTreeMap::new(), order: None, print_style: PrintStyle::Json, nil: true };
    if let Some(Json::Object(properties)) = json.get("properties") {
        map.nil = false;
        map.entries =
            properties.iter().map(|(k, v)| (Arc::from(k.as_str()), property(v))).collect();
        map.order = keep_order.then(|| properties.keys().map(|k| Arc::from(k.as_str())).collect());
    }
    Value::Map(Arc::new(map))
}

fn property(json: &Json) -> Value {
    let any_of = match json.get("anyOf") {
        Some(Json::Array(items)) => items.iter().map(property).collect(),
        _ => Vec::new(),
    };
    let types = match json.get("type") {
        Some(Json::String(one)) => vec![Value::str(one)],
        Some(Json::Array(many)) => many.iter().filter_map(Json::as_str).map(Value::str).collect(),
        _ => Vec::new(),
    };
    structure(
        "api.ToolProperty",
        PrintStyle::Plain,
        vec![
            named("AnyOf", "anyOf", true, Value::List(List::new(any_of, PrintStyle::Plain))),
            named("Type", "type", true, Value::List(List::new(types, PrintStyle::TypeNames))),
            named("Items", "items", true, any(json, "items")),
            named("Description", "description", true, text(json, "description")),
            named("Enum", "enum", true, any(json, "enum")),
            named("Properties", "properties", true, properties(json, true)),
            named("Required", "required", true, strings(json, "required")),
        ],
    )
}

fn text(json: &Json, key: &str) -> Value {
    Value::str(json.get(key).and_then(Json::as_str).unwrap_or(""))
}

fn any(json: &Json, key: &str) -> Value {
    json.get(key).map_or(Value::Nil, Value::from_json)
}

fn strings(json: &Json, key: &str) -> Value {
    match json.get(key) {
        Some(Json::Array(items)) => {
            slice(items.iter().filter_map(Json::as_str).map(Value::str).collect())
        }
        _ => empty_list(),
    }
}

fn field(name: &'static str, value: Value) -> Field {
    named(name, name, false, value)
}

fn named(name: &'static str, json: &'static str, omit_empty: bool, value: Value) -> Field {
    Field { name, json, omit_empty, value }
}

fn structure(type_name: &'static str, print_style: PrintStyle, fields: Vec<Field>) -> Value {
    Value::Struct(Arc::new(Struct { type_name, fields, print_style }))
}
