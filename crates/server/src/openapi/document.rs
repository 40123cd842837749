//! The table of operations and the wire types to an OpenAPI document.

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::operation::{Body, Content, Operation, SchemaOf, State};
use super::operations;
use crate::http::Dialect;
use crate::keys::Access;
use crate::route_table::Route;
use crate::version::VERSION;

/// Where the schemas are.
const COMPONENTS: &str = "#/components/schemas/";

/// In front of names of types in answers, until they have got their final names.
const ANSWER: &str = "answer:";

const ABOUT: &str = "Three dialects on one port: Ollama's, OpenAI's and Anthropic's.

Bodies are JSON whatever their `Content-Type` says, may be compressed (`Content-Encoding: zstd`), and hold 128 MiB at most, 20 MiB \
once decompressed. Names of fields are matched exactly, else in any case; `null` is as good as a field that is not there. Fields that \
nobody looked at are named in the answer's header `X-Puna-Ignored`, 32 of them at most.";

/// The document, by the routes that there are.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut types = Types::new();
    let mut paths = Map::new();
    for operation in operations::all() {
        // A test sees that there is none.
        let Some(route) = routes.iter().find(|route| route.path == operation.path) else {
            continue;
        };
        let described = describe(&operation, route, &mut types);
        let path = paths.entry(public_path(operation.path)).or_insert_with(|| json!({}));
        if operation.method == "GET" && route.methods.contains(&"HEAD") {
            path["head"] = head(&described);
        }
        path[operation.method.to_lowercase()] = described;
    }
    let (schemas, names) = types.into_schemas();
    let mut paths = Value::Object(paths);
    refer(&mut paths, &|name| match name.strip_prefix(ANSWER) {
        Some(answer) => names.get(answer).cloned().unwrap_or_default(),
        None => name.to_owned(),
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Puna",
            "version": VERSION,
            "description": ABOUT,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "tags": Dialect::ALL.map(|dialect| json!({"name": dialect.name()})),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {
                    "type": "http", "scheme": "bearer",
                    "description": "A key of the server, where it has any.",
                },
                "key": {
                    "type": "apiKey", "in": "header", "name": "x-api-key",
                    "description": "The same, as Anthropic's clients send it.",
                },
            },
        },
    })
}

/// `{*x}` is `{x}` to OpenAPI.
pub(super) fn public_path(pattern: &str) -> String {
    pattern.replace("{*", "{")
}

/// What HEAD answers where GET does.
fn head(get: &Value) -> Value {
    let mut head = get.clone();
    head["operationId"] =
        format!("{}_head", get["operationId"].as_str().unwrap_or_default()).into();
    for answer in
        head["responses"].as_object_mut().into_iter().flat_map(|answers| answers.values_mut())
    {
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("content");
        }
    }
    head
}

fn describe(operation: &Operation, route: &Route, types: &mut Types) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "tags": [route.dialect.name()],
        "summary": operation.summary,
        "x-puna-state": operation.state.name(),
    });
    if !operation.about.is_empty() {
        described["description"] = operation.about.into();
    }
    match route.access {
        Access::Open => described["security"] = json!([]),
        // Without keys everybody may come.
        Access::Requires(scope) => {
            described["security"] = json!([{}, {"bearer": []}, {"key": []}]);
            described["x-puna-scope"] = scope.name().into();
        }
    }
    let parameters: Vec<Value> = operation
        .parameters
        .iter()
        .map(|parameter| {
            let schema: Value = serde_json::from_str(parameter.schema).unwrap_or(Value::Bool(true));
            json!({
                "name": parameter.name, "in": parameter.place, "required": parameter.place == "path",
                "description": parameter.about, "schema": schema,
            })
        })
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = body(&operation.body, types) {
        described["requestBody"] = body;
    }
    described["responses"] = answers(operation, route, types);
    described
}

fn body(body: &Body, types: &mut Types) -> Option<Value> {
    let (kind, content) = match body {
        Body::Nothing => return None,
        Body::Bytes => {
            ("application/octet-stream", json!({"schema": {"type": "string", "format": "binary"}}))
        }
        Body::Json { schema, required, example } => {
            let mut schema = types.request(*schema);
            if !required.is_empty() {
                schema = json!({"allOf": [schema, {"type": "object", "required": required}]});
            }
            let example: Value = serde_json::from_str(example).unwrap_or_default();
            ("application/json", json!({"schema": schema, "example": example}))
        }
        Body::Form(fields) => {
            let one = |(name, _, about): &(&str, bool, &str)| {
                let mut schema = json!({"type": "string", "description": about});
                if *name == "file" {
                    schema["format"] = "binary".into();
                }
                ((*name).to_owned(), schema)
            };
            let properties: Map<String, Value> = fields.iter().map(one).collect();
            let required: Vec<_> = fields
                .iter()
                .filter(|(_, required, _)| *required)
                .map(|(name, ..)| *name)
                .collect();
            let schema = json!({"type": "object", "properties": properties, "required": required});
            ("multipart/form-data", json!({"schema": schema}))
        }
    };
    Some(json!({"required": true, "content": {kind: content}}))
}

fn answers(operation: &Operation, route: &Route, types: &mut Types) -> Value {
    let mut answers = Map::new();
    for (status, about, contents) in &operation.answers {
        let mut answer = json!({"description": about});
        for content in contents {
            let (kind, schema) = match content {
                Content::Nothing => continue,
                Content::Text(kind) => (*kind, json!({"schema": {"type": "string"}})),
                Content::Json(schema) => {
                    ("application/json", json!({"schema": types.answer(*schema)}))
                }
                Content::Lines(schema) => ("application/x-ndjson", lines(types.answer(*schema))),
                Content::Events(schema) => ("text/event-stream", events(types.answer(*schema))),
            };
            answer["content"][kind] = schema;
        }
        if matches!(operation.body, Body::Json { .. }) {
            answer["headers"]["X-Puna-Ignored"] = json!({
                "description": "Fields of the request that nobody looked at.", "schema": {"type": "string"},
            });
        }
        answers.insert(status.to_string(), answer);
    }
    let door: &[u16] = if route.access == Access::Open { &[] } else { &[401, 403, 429] };
    let mut errors: Vec<u16> = operation.errors.iter().chain(door).copied().collect();
    errors.sort_unstable();
    errors.dedup();
    let schema = types.answer(operations::error_of(route));
    for status in errors {
        let mut answer = json!({"description": meaning(status)});
        if operation.method != "HEAD" {
            answer["content"]["application/json"]["schema"] = schema.clone();
        }
        answers.insert(status.to_string(), answer);
    }
    answers.into()
}

/// A stream of lines is a text to OpenAPI 3.1; what a line is, is said beside.
fn lines(schema: Value) -> Value {
    json!({"schema": {"type": "string"}, "x-puna-pieces": schema})
}

/// An event has a name and data, which are JSON; but for the last one in OpenAI's streams, `[DONE]`.
fn events(schema: Value) -> Value {
    let data =
        json!({"type": "string", "contentMediaType": "application/json", "contentSchema": schema});
    let data = json!({"anyOf": [{"const": "[DONE]"}, data]});
    let properties = json!({"event": {"type": "string"}, "data": data});
    json!({"schema": {"type": "object", "properties": properties, "required": ["data"]}, "x-puna-pieces": schema})
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong.",
        401 => "The server has keys, and the request shows none of them.",
        403 => "The key has not the scope, or the server does not do this for anybody.",
        404 => "There is no such thing.",
        408 => "The body did not arrive in time.",
        413 => "The body is too large.",
        429 => "The key has used up its share; `Retry-After` says when there is more.",
        501 => "The server cannot do this.",
        502 => "Another server failed.",
        503 => "Too many requests wait already.",
        _ => "Something failed.",
    }
}

/// The schemas of all types, once as requests and once as answers.
struct Types {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Types {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        Self {
            requests: settings.clone().into_generator(),
            answers: settings.for_serialize().into_generator(),
        }
    }

    fn request(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.requests).to_value()
    }

    /// A reference to a type in an answer; its final name is found at the end.
    fn answer(&mut self, schema: SchemaOf) -> Value {
        let mut schema = schema(&mut self.answers).to_value();
        refer(&mut schema, &|name| format!("{ANSWER}{name}"));
        schema
    }

    /// All of them by name, and the names that those of answers have got: their own, except where requests have a type
    /// of that name too.
    fn into_schemas(mut self) -> (Map<String, Value>, BTreeMap<String, String>) {
        let mut all = self.requests.take_definitions(true);
        all.values_mut().for_each(make_nullable);
        let answers = self.answers.take_definitions(true);
        let name = |name: &String| {
            if all.contains_key(name) { format!("{name}Answer") } else { name.clone() }
        };
        let names: BTreeMap<String, String> =
            answers.keys().map(|old| (old.clone(), name(old))).collect();
        for (name, mut schema) in answers {
            refer(&mut schema, &|name| names.get(name).cloned().unwrap_or_default());
            all.insert(names[&name].clone(), schema);
        }
        all.values_mut().for_each(join_description_lines);
        all.values_mut().for_each(tidy);
        // The former name of a type, for clients that are generated from the document.
        all.insert(
            "AdapterDose".into(),
            json!({"$ref": format!("{COMPONENTS}AdapterScale"), "deprecated": true}),
        );
        all.sort_keys();
        (all, names)
    }
}

/// Renames the types that a schema refers to.
fn refer(schema: &mut Value, renamed: &dyn Fn(&str) -> String) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(name) = text.strip_prefix(COMPONENTS) {
                            *text = format!("{COMPONENTS}{}", renamed(name));
                        }
                    }
                    value => refer(value, renamed),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| refer(value, renamed)),
        _ => {}
    }
}

/// In requests `null` is as good as a field that is not there.
fn make_nullable(schema: &mut Value) {
    for_each_field(schema, &mut |field, required| {
        let null = json!("null");
        if required {
            return;
        }
        match field {
            Value::Object(map) if map.contains_key("type") && !map.contains_key("const") => {
                match &mut map["type"] {
                    Value::Array(kinds) if !kinds.contains(&null) => kinds.push(null),
                    Value::String(kind) => map["type"] = json!([kind, "null"]),
                    _ => {}
                }
                if let Some(Value::Array(values)) = map.get_mut("enum")
                    && !values.contains(&Value::Null)
                {
                    values.push(Value::Null);
                }
            }
            Value::Object(map)
                if map.keys().all(|key| key == "description" || key == "default") => {}
            Value::Object(map) => {
                let nothing = json!({"type": "null"});
                if let Some(Value::Array(any)) = map.get_mut("anyOf") {
                    if !any.contains(&nothing) {
                        any.push(nothing);
                    }
                    return;
                }
                let kept: Vec<_> = ["description", "default"]
                    .into_iter()
                    .filter_map(|k| Some((k, map.remove(k)?)))
                    .collect();
                let mut any = json!({"anyOf": [Value::Object(std::mem::take(map)), nothing]});
                kept.into_iter().for_each(|(key, value)| any[key] = value);
                *field = any;
            }
            _ => {}
        }
    });
}

/// Joins the lines of descriptions, which are wrapped as comments in the source.
fn join_description_lines(schema: &mut Value) {
    match schema {
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| match value {
            Value::String(text) if key == "description" => {
                let paragraphs = text.split("\n\n").map(|text| text.replace('\n', " "));
                *text = paragraphs.collect::<Vec<_>>().join("\n\n");
            }
            value => join_description_lines(value),
        }),
        Value::Array(list) => list.iter_mut().for_each(join_description_lines),
        _ => {}
    }
}

/// Marks additions and refusals, and leaves out defaults that say nothing.
fn tidy(schema: &mut Value) {
    for_each_field(schema, &mut |field, _| {
        let Some(map) = field.as_object_mut() else { return };
        let empty = |value: &Value| match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::Bool(_) => false,
        };
        if map.get("default").is_some_and(empty) {
            map.remove("default");
        }
        let about = map.get("description").and_then(Value::as_str).unwrap_or_default();
        if about.contains("(Puna's addition)") {
            map.insert("x-puna-state".into(), State::Additive.name().into());
        } else if about.contains(": refused") {
            map.insert("x-puna-state".into(), State::Refused.name().into());
        }
    });
}

/// Does something with the fields of a schema and of those within it; the second argument is whether a field is required.
fn for_each_field(schema: &mut Value, work: &mut dyn FnMut(&mut Value, bool)) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(|value| for_each_field(value, work));
            let required = map.get("required").cloned().unwrap_or_default();
            let is_required =
                |name: &str| required.as_array().is_some_and(|names| names.contains(&name.into()));
            if let Some(Value::Object(fields)) = map.get_mut("properties") {
                fields.iter_mut().for_each(|(name, field)| work(field, is_required(name)));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| for_each_field(value, work)),
        _ => {}
    }
}
