//! Generates `docs/reference/fields.md`, the table of all routes and fields, from the OpenAPI
//! document and the lists of ignored and refused fields.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use puna_api::schema::OPTION;
use serde_json::Value;

use super::ignored::IGNORED;
use super::refused::REFUSED;
use super::{document, resolve};
use crate::http::Dialect;
use crate::openapi::operation::{Operation, RequestBody, RouteStatus};
use crate::openapi::operations;
use crate::util::generated_file::assert_current;

const HEAD: &str = "# Routes and fields

This page lists every route and every field of the three dialects. It is generated from the OpenAPI
document, which [`/openapi.json`](api.md#openapi-document) returns and `/docs` shows. Tests send
every field.

- **supported**: works as the documentation of the dialect says. **additive**: the original has no
  such route or field. **refused**: answered with an error in the dialect's format.
- A field that is in no table, or that is listed as *accepted and named*, has no effect. The header
  `X-Puna-Ignored` of the answer names it, with a dot between an object and its field
  (`messages.content.cache_control`), up to 32 names.
- Names match exactly, else without regard to case. `null` counts as an absent field. A wrong type
  is a 400 with `json: cannot unmarshal … into Go struct field … of type …`. A number out of range,
  a list that is too long and a nesting that is too deep are a 400, too.
- The scope is the one that a key needs if [the server has keys](../guide/serve.md#api-keys).

";

#[test]
fn the_manual_lists_every_route_and_field() {
    let document = document();
    assert_current("docs/reference/fields.md", &manual(&document));
}

#[test]
fn the_openapi_document_describes_the_routes_and_types() {
    let document = document();
    assert_current("crates/server/src/openapi/openapi.json", &format!("{document:#}\n"));
}

fn manual(document: &Value) -> String {
    let mut out = HEAD.to_owned();
    let all = operations::all();
    let (mut types, mut answers) = (BTreeSet::new(), BTreeSet::new());
    for dialect in Dialect::ALL {
        let routes: Vec<&Operation> =
            all.iter().filter(|o| described(document, o)["tags"][0] == dialect.name()).collect();
        let _ = writeln!(
            out,
            "## {}\n\n| route | state | scope | does |\n|---|---|---|---|",
            dialect.name()
        );
        for operation in &routes {
            let described = described(document, operation);
            let scope = described["x-puna-scope"].as_str().unwrap_or("none");
            let head = operation.method == "GET"
                && document["paths"][public(operation.path)]["head"].is_object();
            let methods = if head { "GET, HEAD" } else { operation.method };
            let (state, does) = (operation.state.name(), operation.summary);
            let _ = writeln!(
                out,
                "| `{methods} {}` | {state} | {scope} | {does} |",
                public(operation.path)
            );
        }
        out.push('\n');
        for operation in routes {
            route(&mut out, document, operation, &mut types, &mut answers);
        }
    }
    out.push_str("## Objects of requests\n\n");
    objects(&mut out, document, types, "required");
    out.push_str(
        "## Objects of answers\n\nFields that are not always there are left out where they say nothing.\n\n",
    );
    objects(&mut out, document, answers, "always");
    out
}

/// Writes the tables of types and of the types that they refer to.
fn objects(out: &mut String, document: &Value, mut types: BTreeSet<String>, must: &str) {
    let mut shown = BTreeSet::new();
    while let Some(name) = types.difference(&shown).next().cloned() {
        shown.insert(name.clone());
        object(out, document, &name, must, &mut types);
    }
}

/// Describes the successful responses of a route and the statuses of its errors.
fn answer(document: &Value, operation: &Operation, types: &mut BTreeSet<String>) -> String {
    let mut answers = Vec::new();
    let mut errors = Vec::new();
    for (status, answer) in
        described(document, operation)["responses"].as_object().into_iter().flatten()
    {
        if status.as_str() >= "400" {
            errors.push(status.as_str());
            continue;
        }
        for (media, content) in answer["content"].as_object().into_iter().flatten() {
            let schema = if content["x-puna-pieces"].is_null() {
                &content["schema"]
            } else {
                &content["x-puna-pieces"]
            };
            answers.push(format!("{} (`{media}`)", kind(schema, types)));
        }
    }
    let answers = if answers.is_empty() { "nothing".to_owned() } else { answers.join(", ") };
    match errors.is_empty() {
        true => format!("Answer: {answers}."),
        false => format!("Answer: {answers}. Errors: {}.", errors.join(", ")),
    }
}

fn public(path: &str) -> String {
    path.replace("{*", "{")
}

fn described<'a>(document: &'a Value, operation: &Operation) -> &'a Value {
    &document["paths"][public(operation.path)][operation.method.to_lowercase()]
}

/// Writes a route's fields and responses.
fn route(
    out: &mut String,
    document: &Value,
    operation: &Operation,
    types: &mut BTreeSet<String>,
    answers: &mut BTreeSet<String>,
) {
    let mut rows = String::new();
    for parameter in &operation.parameters {
        let location = if parameter.location == "header" { "header" } else { parameter.location };
        let _ = writeln!(
            rows,
            "| `{}` ({location}) | text | supported | {} |",
            parameter.name, parameter.description
        );
    }
    match &operation.body {
        RequestBody::Json { required, .. } if operation.state != RouteStatus::Refused => {
            let content = &described(document, operation)["requestBody"]["content"];
            let schema = resolve(&content["application/json"]["schema"], document);
            fields(&mut rows, &schema, required, "required", types);
        }
        RequestBody::Form(all) => {
            for (name, _, about) in *all {
                let _ = writeln!(rows, "| `{name}` (form) | text | refused | {about} |");
            }
        }
        _ => {}
    }
    let named: Vec<String> = IGNORED
        .iter()
        .filter(|(path, _)| *path == operation.path && operation.method == "POST")
        .flat_map(|(_, fields)| fields.iter().map(|field| format!("`{field}`")))
        .collect();
    let refused: Vec<_> = REFUSED.iter().filter(|r| r.path == operation.path).collect();
    let answer = answer(document, operation, answers);
    let _ = writeln!(out, "### `{} {}`\n\n{answer}\n", operation.method, public(operation.path));
    if !rows.is_empty() {
        let _ = writeln!(out, "| field | type | state | what |\n|---|---|---|---|\n{rows}");
    }
    if !named.is_empty() {
        let _ = writeln!(out, "Accepted and named: {}.\n", named.join(", "));
    }
    if !refused.is_empty() {
        out.push_str("| refused | status | text |\n|---|---|---|\n");
        for refusal in refused {
            let text = refusal.text.replace('|', "\\|");
            let _ = writeln!(out, "| {} | {} | `{text}` |", refusal.what, refusal.status);
        }
        out.push('\n');
    }
}

fn fields(
    rows: &mut String,
    schema: &Value,
    required: &[&str],
    must: &str,
    types: &mut BTreeSet<String>,
) {
    let all = schema["properties"].as_object().into_iter().flatten();
    let (named, own): (Vec<_>, Vec<_>) = all.partition(|(_, field)| !field[OPTION].is_null());
    for (name, field) in own {
        let state = field["x-puna-state"].as_str().unwrap_or("supported");
        let about = field["description"].as_str().unwrap_or_default();
        let about = about
            .replace(" (Puna's addition)", "")
            .replace("; Puna's addition)", ")")
            .replace('|', "\\|");
        let must =
            if required.contains(&name.as_str()) { format!("; {must}") } else { String::new() };
        let kind = kind(field, types);
        let default = match &field["default"] {
            Value::Null | Value::Bool(false) => String::new(),
            default => format!(" Default: `{default}`."),
        };
        let _ = writeln!(rows, "| `{name}` | {kind}{must} | {state} | {about}{default} |");
    }
    if !named.is_empty() {
        let names: Vec<String> = named.iter().map(|(name, _)| format!("`{name}`")).collect();
        let about = "The [option](#options) of this name; it wins over the one in `options`.";
        let _ = writeln!(
            rows,
            "| {} | as in [Options](#options) | additive | {about} |",
            names.join(", ")
        );
    }
}

/// Describes a type in words.
fn kind(schema: &Value, types: &mut BTreeSet<String>) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.trim_start_matches("#/components/schemas/");
        types.insert(name.to_owned());
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let several = |list: &Value, types: &mut BTreeSet<String>| {
        let kinds: Vec<String> =
            list.as_array().into_iter().flatten().map(|one| kind(one, types)).collect();
        let kinds: Vec<String> = kinds.into_iter().filter(|kind| kind != "null").collect();
        kinds.join(" or ")
    };
    if schema["anyOf"].is_array() {
        return several(&schema["anyOf"], types);
    }
    if !schema["const"].is_null() {
        return format!("`{}`", schema["const"]);
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> =
            values.iter().filter(|v| !v.is_null()).map(|v| format!("`{v}`")).collect();
        return values.join(", ");
    }
    let name = match &schema["type"] {
        Value::Array(kinds) => kinds[0].as_str().unwrap_or_default(),
        kind => kind.as_str().unwrap_or_default(),
    };
    match name {
        "array" => format!("list of {}", kind(&schema["items"], types)),
        "object" => "object".into(),
        "string" => "text".into(),
        "integer" => "integer".into(),
        "" => "any".into(),
        other => other.into(),
    }
}

fn object(
    out: &mut String,
    document: &Value,
    name: &str,
    must: &str,
    types: &mut BTreeSet<String>,
) {
    let schema = &document["components"]["schemas"][name];
    let about = schema["description"].as_str().unwrap_or_default();
    let _ = writeln!(out, "### {name}\n\n{about}");
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for form in schema["oneOf"].as_array().into_iter().flatten() {
        let mut rows = String::new();
        fields(&mut rows, form, &[], must, types);
        let tag = form["properties"]["type"]["const"].as_str().unwrap_or_default();
        let about = form["description"].as_str().unwrap_or_default();
        let _ = writeln!(
            out,
            "\n`{tag}`: {about}\n\n| field | type | state | what |\n|---|---|---|---|\n{rows}"
        );
    }
    if schema["oneOf"].is_array() {
        return;
    }
    if schema["properties"].is_object() {
        let mut rows = String::new();
        fields(&mut rows, schema, &required, must, types);
        let _ = writeln!(out, "\n| field | type | state | what |\n|---|---|---|---|\n{rows}");
    } else {
        let _ = writeln!(out, "Type: {}.\n", kind(schema, types));
    }
}
