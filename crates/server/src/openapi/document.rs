//! Builds the OpenAPI document from the table of operations and the request and response types.

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::operation::{Operation, RequestBody, ResponseBody, RouteStatus, SchemaOf};
use super::operations;
use crate::auth::RouteRequirement;
use crate::http::Dialect;
use crate::routes::table::Route;
use crate::version::VERSION;

/// JSON pointer of the object that holds the schemas.
const COMPONENTS: &str = "#/components/schemas/";
/// Start of a reference within the schema of the native options.
const DEFINITIONS: &str = "#/$defs/";

/// Prefix of the names of response types until [`SchemaRegistry::into_schemas`] assigns the final
/// names.
const RESPONSE_PREFIX: &str = "answer:";

const DESCRIPTION: &str = "Three dialects on one port: Ollama's, OpenAI's and Anthropic's.

The server reads a request body as JSON, whatever its `Content-Type`. A body has at most 128 MiB, or 20 MiB after decompression \
(`Content-Encoding: zstd`). Field names match exactly, else without regard to case; `null` counts as an absent field. The response \
header `X-Puna-Ignored` names unused fields, at most 32.";

/// Returns the OpenAPI document of the given routes.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut types = SchemaRegistry::new();
    let mut paths = Map::new();
    for operation in operations::all() {
        // A test checks that every operation has a route.
        let Some(route) = routes.iter().find(|route| route.path == operation.path) else {
            continue;
        };
        let described = describe_operation(&operation, route, &mut types);
        let path = paths.entry(public_path(operation.path)).or_insert_with(|| json!({}));
        if operation.method == "GET" && route.methods.contains(&"HEAD") {
            path["head"] = head_operation(&described);
        }
        path[operation.method.to_lowercase()] = described;
    }
    let (schemas, names) = types.into_schemas();
    let mut paths = Value::Object(paths);
    rename_references(&mut paths, &|name| match name.strip_prefix(RESPONSE_PREFIX) {
        Some(answer) => names.get(answer).cloned().unwrap_or_default(),
        None => name.to_owned(),
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Puna",
            "version": VERSION,
            "description": DESCRIPTION,
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
                    "description": "API key, if the server has keys.",
                },
                "key": {
                    "type": "apiKey", "in": "header", "name": "x-api-key",
                    "description": "API key, as Anthropic's clients send it.",
                },
            },
        },
    })
}

/// Turns a route pattern into an OpenAPI path: `{*x}` becomes `{x}`.
pub(super) fn public_path(pattern: &str) -> String {
    pattern.replace("{*", "{")
}

/// Derives the HEAD operation from the GET operation of the same path: its responses have no
/// content.
fn head_operation(get: &Value) -> Value {
    let mut head = get.clone();
    head["operationId"] =
        format!("{}_head", get["operationId"].as_str().unwrap_or_default()).into();
    for answer in
        head["responses"].as_object_mut().into_iter().flat_map(|responses| responses.values_mut())
    {
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("content");
        }
    }
    head
}

fn describe_operation(operation: &Operation, route: &Route, types: &mut SchemaRegistry) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "tags": [route.dialect.name()],
        "summary": operation.summary,
        "x-puna-state": operation.state.name(),
    });
    if !operation.description.is_empty() {
        described["description"] = operation.description.into();
    }
    match route.requirement {
        RouteRequirement::Open => described["security"] = json!([]),
        // The empty object stands for servers without keys, where no authentication is needed.
        RouteRequirement::Requires(scope, _) => {
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
                "name": parameter.name, "in": parameter.location, "required": parameter.location == "path",
                "description": parameter.description, "schema": schema,
            })
        })
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(body) = request_body(&operation.body, types) {
        described["requestBody"] = body;
    }
    described["responses"] = responses(operation, route, types);
    described
}

fn request_body(body: &RequestBody, types: &mut SchemaRegistry) -> Option<Value> {
    let (kind, content) = match body {
        RequestBody::Nothing => return None,
        RequestBody::Bytes => {
            ("application/octet-stream", json!({"schema": {"type": "string", "format": "binary"}}))
        }
        RequestBody::Json { schema, required, example } => {
            let mut schema = types.request(*schema);
            if !required.is_empty() {
                schema = json!({"allOf": [schema, {"type": "object", "required": required}]});
            }
            let example: Value = serde_json::from_str(example).unwrap_or_default();
            ("application/json", json!({"schema": schema, "example": example}))
        }
        RequestBody::Form(fields) => {
            let one = |(name, _, description): &(&str, bool, &str)| {
                let mut schema = json!({"type": "string", "description": description});
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

fn responses(operation: &Operation, route: &Route, types: &mut SchemaRegistry) -> Value {
    let mut responses = Map::new();
    for (status, description, contents) in &operation.responses {
        let mut answer = json!({"description": description});
        for content in contents {
            let (kind, schema) = match content {
                ResponseBody::Nothing => continue,
                ResponseBody::Text(kind) => (*kind, json!({"schema": {"type": "string"}})),
                ResponseBody::Json(schema) => {
                    ("application/json", json!({"schema": types.response(*schema)}))
                }
                ResponseBody::Lines(schema) => {
                    ("application/x-ndjson", ndjson_content(types.response(*schema)))
                }
                ResponseBody::Events(schema) => {
                    ("text/event-stream", sse_content(types.response(*schema)))
                }
            };
            answer["content"][kind] = schema;
        }
        if matches!(operation.body, RequestBody::Json { .. }) {
            answer["headers"]["X-Puna-Ignored"] = json!({
                "description": "Unused fields of the request.", "schema": {"type": "string"},
            });
        }
        responses.insert(status.to_string(), answer);
    }
    let auth_errors: &[u16] =
        if route.requirement == RouteRequirement::Open { &[] } else { &[401, 403, 429] };
    let mut errors: Vec<u16> = operation.errors.iter().chain(auth_errors).copied().collect();
    errors.sort_unstable();
    errors.dedup();
    let schema = types.response(operations::error_of(route));
    for status in errors {
        let mut answer = json!({"description": status_description(status)});
        if operation.method != "HEAD" {
            answer["content"]["application/json"]["schema"] = schema.clone();
        }
        responses.insert(status.to_string(), answer);
    }
    responses.into()
}

/// Describes a stream of JSON lines. OpenAPI 3.1 sees a string; `x-puna-pieces` has the schema of a
/// line.
fn ndjson_content(schema: Value) -> Value {
    json!({"schema": {"type": "string"}, "x-puna-pieces": schema})
}

/// Describes a stream of server-sent events. An event has a name and JSON data. The last event of
/// OpenAI's streams has the data `[DONE]`.
fn sse_content(schema: Value) -> Value {
    let data =
        json!({"type": "string", "contentMediaType": "application/json", "contentSchema": schema});
    let data = json!({"anyOf": [{"const": "[DONE]"}, data]});
    let properties = json!({"event": {"type": "string"}, "data": data});
    json!({"schema": {"type": "object", "properties": properties, "required": ["data"]}, "x-puna-pieces": schema})
}

fn status_description(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid.",
        401 => "The API key is missing or unknown.",
        403 => "The key lacks the scope, or the server does not allow the operation.",
        404 => "Not found.",
        408 => "The body did not arrive in time.",
        413 => "The body is too large.",
        429 => "The key has reached its rate limit; `Retry-After` says when it may continue.",
        501 => "Not supported.",
        502 => "A remote server failed.",
        503 => "The queue of waiting requests is full.",
        _ => "Internal error.",
    }
}

/// Schemas of all types, generated separately for requests and for responses.
struct SchemaRegistry {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl SchemaRegistry {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        Self {
            requests: settings.clone().into_generator(),
            responses: settings.for_serialize().into_generator(),
        }
    }

    fn request(&mut self, schema: SchemaOf) -> Value {
        schema(&mut self.requests).to_value()
    }

    /// Returns a reference to a response type, with [`RESPONSE_PREFIX`] before its name. The caller
    /// replaces it by the final name.
    fn response(&mut self, schema: SchemaOf) -> Value {
        let mut schema = schema(&mut self.responses).to_value();
        rename_references(&mut schema, &|name| format!("{RESPONSE_PREFIX}{name}"));
        schema
    }

    /// Returns all schemas by name, and the final names of the response types. A response type
    /// keeps its name unless a request type has the same one; then `Answer` is appended.
    fn into_schemas(mut self) -> (Map<String, Value>, BTreeMap<String, String>) {
        let mut all = self.requests.take_definitions(true);
        all.values_mut().for_each(make_nullable);
        let responses = self.responses.take_definitions(true);
        let name = |name: &String| {
            if all.contains_key(name) { format!("{name}Answer") } else { name.clone() }
        };
        let names: BTreeMap<String, String> =
            responses.keys().map(|old| (old.clone(), name(old))).collect();
        for (name, mut schema) in responses {
            rename_references(&mut schema, &|name| names.get(name).cloned().unwrap_or_default());
            all.insert(names[&name].clone(), schema);
        }
        all.values_mut().for_each(resolve_option_types);
        all.values_mut().for_each(join_description_lines);
        all.values_mut().for_each(annotate_fields);
        // The former name of a type, for clients that are generated from the document.
        all.insert(
            "AdapterDose".into(),
            json!({"$ref": format!("{COMPONENTS}AdapterScale"), "deprecated": true}),
        );
        all.sort_keys();
        (all, names)
    }
}

/// Renames the types that a schema refers to, in place.
fn rename_references(schema: &mut Value, renamed: &dyn Fn(&str) -> String) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(name) = text.strip_prefix(COMPONENTS) {
                            *text = format!("{COMPONENTS}{}", renamed(name));
                        }
                    }
                    value => rename_references(value, renamed),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename_references(value, renamed)),
        _ => {}
    }
}

/// Makes the types of native options, which are schemas of their own, refer to the components.
fn resolve_option_types(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if key == "$ref" => {
                        if let Some(name) = text.strip_prefix(DEFINITIONS) {
                            *text = format!("{COMPONENTS}{name}");
                        }
                    }
                    value => resolve_option_types(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(resolve_option_types),
        _ => {}
    }
}

/// Allows `null` for the optional fields of a request: it means the same as an absent field.
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

/// Marks the fields that Puna adds or refuses, and removes empty defaults.
fn annotate_fields(schema: &mut Value) {
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
        let description = map.get("description").and_then(Value::as_str).unwrap_or_default();
        if description.contains("(Puna's addition)") {
            map.insert("x-puna-state".into(), RouteStatus::Additive.name().into());
        } else if description.contains(": refused") {
            map.insert("x-puna-state".into(), RouteStatus::Refused.name().into());
        }
    });
}

/// Calls `work` with each field of a schema and of its nested schemas. The second argument says
/// whether the field is required.
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
