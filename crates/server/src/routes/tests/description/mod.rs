//! Tests the OpenAPI document against the routes: sends requests with the fields that it describes.

mod ignored;
mod manual;
mod refused;

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Map, Value, json};

use ignored::IGNORED;
use refused::REFUSED;

use super::TestServer;
use crate::openapi::operation::{self, Operation, RouteStatus};
use crate::openapi::{self, operations};

fn document() -> Value {
    openapi::document(&super::super::all())
}

/// Returns the operations with a JSON body that are not refused, and the schemas of their bodies.
fn with_bodies(document: &Value) -> Vec<(Operation, Value)> {
    let all = operations::all().into_iter();
    let taking = all.filter(|o| {
        matches!(o.body, operation::RequestBody::Json { .. }) && o.state != RouteStatus::Refused
    });
    let schema = |o: &Operation| {
        let described = &document["paths"][o.path][o.method.to_lowercase()];
        described["requestBody"]["content"]["application/json"]["schema"].clone()
    };
    taking.map(|o| (schema(&o), o)).map(|(schema, o)| (o, schema)).collect()
}

fn described_operation<'a>(document: &'a Value, operation: &Operation) -> &'a Value {
    &document["paths"][operation.path.replace("{*", "{")][operation.method.to_lowercase()]
}

/// Resolves references; of `allOf` it returns the first part, which has all fields.
fn resolve(schema: &Value, document: &Value) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        return resolve(&document["components"]["schemas"][name], document);
    }
    match schema["allOf"].as_array() {
        Some(parts) => resolve(&parts[0], document),
        None => schema.clone(),
    }
}

/// Returns sample values of a schema: one for each variant; objects have all of their fields.
fn samples(schema: &Value, document: &Value) -> Vec<Value> {
    let schema = resolve(schema, document);
    if let Some(examples) = schema["examples"].as_array() {
        return examples.clone();
    }
    if !schema["const"].is_null() {
        return vec![schema["const"].clone()];
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().filter(|value| !value.is_null()).cloned().collect();
    }
    if let Some(forms) = schema["anyOf"].as_array() {
        return forms
            .iter()
            .flat_map(|form| samples(form, document))
            .filter(|value| !value.is_null())
            .collect();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[0].as_str().unwrap_or_default(),
        kind => kind.as_str().unwrap_or_default(),
    };
    match kind {
        "null" => vec![Value::Null],
        "boolean" => vec![json!(true)],
        "integer" | "number" => vec![json!(1)],
        "array" => vec![samples(&schema["items"], document).into()],
        "object" if schema["properties"].is_object() => objects(&schema, document),
        "object" => match &schema["additionalProperties"] {
            values @ Value::Object(_) => vec![json!({"1": samples(values, document)[0]})],
            _ => vec![json!({"type": "object"})],
        },
        _ => vec![json!("x")],
    }
}

/// Returns objects with all fields, as many as needed to use each sample of each field once.
fn objects(schema: &Value, document: &Value) -> Vec<Value> {
    let fields: Vec<(&String, Vec<Value>)> = schema["properties"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, field)| (name, samples(field, document)))
        .collect();
    let max = fields.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let one = |i: usize| {
        let object: Map<String, Value> = fields
            .iter()
            .map(|(name, values)| ((*name).clone(), values[i.min(values.len() - 1)].clone()))
            .collect();
        Value::Object(object)
    };
    (0..max).map(one).collect()
}

#[test]
fn every_method_of_every_route_is_described_and_no_other() {
    let document = document();
    let routes: BTreeSet<(String, String)> = super::super::all()
        .iter()
        .flat_map(|route| {
            route.methods.iter().map(|m| (m.to_lowercase(), route.path.replace("{*", "{")))
        })
        .collect();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|m| (m.clone(), path.clone()))
        })
        .collect();
    let missing: Vec<_> = routes.difference(&described).collect();
    assert!(missing.is_empty(), "not in openapi/operations.rs: {missing:?}");
    let too_many: Vec<_> = described.difference(&routes).collect();
    assert!(too_many.is_empty(), "no routes: {too_many:?}");
    let operations = operations::all();
    let ids: BTreeSet<_> = operations.iter().map(|o| o.id).collect();
    assert_eq!(ids.len(), operations.len(), "every operation has a name of its own");
    let nowhere = operations.iter().find(|o| described_operation(&document, o).is_null());
    assert!(nowhere.is_none(), "no route: {:?}", nowhere.map(|o| o.path));
}

#[tokio::test]
async fn the_document_and_its_page_are_sent_once() {
    let server = TestServer::new();
    for (path, kind) in
        [("/openapi.json", "application/json"), ("/docs", "text/html; charset=utf-8")]
    {
        let whole = server.get(path).await;
        assert_eq!((whole.status.as_u16(), whole.header("content-type")), (200, kind));
        let tag = whole.header("etag");
        assert!(tag.len() == 34 && tag.starts_with('"'), "{tag}");
        let again = server
            .with_headers("GET", path, &[("if-none-match", &format!("\"other\", W/{tag}"))])
            .await;
        assert_eq!(
            (again.status.as_u16(), again.body.as_str(), again.header("etag")),
            (304, "", tag)
        );
        assert_eq!(
            server.with_headers("GET", path, &[("if-none-match", "\"other\"")]).await.status,
            200
        );
        let head = server.with_headers("HEAD", path, &[]).await;
        assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
        assert!(head.header("content-security-policy").starts_with("default-src 'none'"));
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_other_servers() {
    let page = TestServer::new().get("/docs").await.body;
    assert_eq!((page.matches("<script>").count(), page.matches("<style>").count()), (1, 1));
    for outside in
        ["src=", "href=\"http", "//cdn", "@import", "url(", "style=\"", "onclick=", "innerHTML"]
    {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn names_of_types_are_unique_and_references_resolve() {
    let document = document();
    let types = document["components"]["schemas"].as_object().unwrap();
    let numbered: Vec<_> =
        types.keys().filter(|name| name.ends_with(|c: char| c.is_ascii_digit())).collect();
    assert!(
        numbered.is_empty(),
        "two types of one name: give one a name by schemars(rename): {numbered:?}"
    );
    let text = document.to_string();
    let references: BTreeSet<&str> =
        text.split("\"$ref\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    for reference in &references {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let names = references.iter().map(|name| name.trim_start_matches("#/components/schemas/"));
    let used: BTreeSet<&str> = names.collect();
    for (name, _) in types.iter().filter(|(_, schema)| schema["deprecated"] != true) {
        assert!(used.contains(name.as_str()), "nothing refers to {name}");
    }
}

/// Sends a body; returns the status, the ignored fields and the response's body.
async fn send_for_ignored(
    server: &TestServer,
    operation: &Operation,
    body: &Value,
) -> (u16, String, String) {
    let request = Request::builder().method(operation.method).uri(operation.path);
    let answer = server.send(request.body(Body::from(body.to_string())).unwrap()).await;
    let header = answer.header("x-puna-ignored").to_owned();
    (answer.status.as_u16(), header, answer.body)
}

#[tokio::test]
async fn every_described_field_is_read() {
    let server = TestServer::new();
    let document = document();
    for (operation, schema) in with_bodies(&document) {
        let bodies = samples(&schema, &document);
        assert!(
            !bodies.is_empty() && bodies[0].as_object().is_some_and(|o| !o.is_empty()),
            "{}",
            operation.path
        );
        for mut body in bodies {
            // Invalid model names make the routes read all fields and then do nothing.
            for name in ["model", "name", "source"] {
                if !body[name].is_null() {
                    body[name] = "../x".into();
                }
            }
            // The unknown field `zz` is reported, which proves that the other fields were read.
            body["zz"] = json!(1);
            let (status, header, answer) = send_for_ignored(&server, &operation, &body).await;
            assert_eq!(
                header, "zz",
                "{} {}: {status} {answer}\n{body:#}",
                operation.method, operation.path
            );
            // `/api/prune` names no model, and does nothing in a store without garbage.
            if operation.path != "/api/prune" {
                assert!((400..=501).contains(&status), "{}: {status} {answer}", operation.path);
            }
        }
    }
}

#[tokio::test]
async fn examples_work_and_required_fields_are_required() {
    let server = TestServer::new();
    for (operation, _) in with_bodies(&document()) {
        let operation::RequestBody::Json { required, example, .. } = &operation.body else {
            continue;
        };
        let example: Value =
            serde_json::from_str(example).unwrap_or_else(|e| panic!("{}: {e}", operation.path));
        let elsewhere = ["/api/pull", "/api/push", "/api/delete"].contains(&operation.path);
        if !elsewhere && example["model"] != "minilm" && example["model"] != "reranker" {
            let (status, header, answer) = send_for_ignored(&server, &operation, &example).await;
            assert_eq!((status, header.as_str()), (200, ""), "{}: {answer}", operation.path);
        }
        for field in *required {
            let mut body = example.clone();
            assert!(
                body.as_object_mut().unwrap().remove(*field).is_some(),
                "{}: {field}",
                operation.path
            );
            let (status, _, answer) = send_for_ignored(&server, &operation, &body).await;
            assert!(
                (400..500).contains(&status),
                "{} without {field}: {status} {answer}",
                operation.path
            );
        }
    }
}

#[tokio::test]
async fn ignored_fields_are_named() {
    let server = TestServer::new();
    let operations = operations::all();
    for (path, fields) in IGNORED {
        let operation = operations.iter().find(|o| o.path == *path && o.method == "POST").unwrap();
        for field in *fields {
            let mut body = json!({"model": "../x"});
            set_field(&mut body, field);
            let (status, header, answer) = send_for_ignored(&server, operation, &body).await;
            assert_eq!(header, *field, "{path}: {status} {answer}");
        }
    }
}

/// Sets a field in a body, and creates objects and lists on its path.
fn set_field(body: &mut Value, path: &str) {
    let lists = ["messages", "tools", "content", "input", "system"];
    match path.split_once('.') {
        None => body[path] = json!("x"),
        Some((outer, rest)) => {
            let mut inside = json!({});
            set_field(&mut inside, rest);
            body[outer] = if lists.contains(&outer) { json!([inside]) } else { inside };
        }
    }
}

#[tokio::test]
async fn refused_values_have_specific_error_messages() {
    let server = TestServer::new();
    let mut wrong = Vec::new();
    for refusal in REFUSED {
        let body: Value =
            serde_json::from_str(refusal.body).unwrap_or_else(|e| panic!("{}: {e}", refusal.body));
        let answer = server.post(refusal.path, body).await;
        let error = &answer.json()["error"];
        let text = error.as_str().or(error["message"].as_str()).unwrap_or_default().to_owned();
        if (answer.status.as_u16(), text.as_str()) != (refusal.status, refusal.text) {
            wrong.push(format!(
                "{} {}\n    {} {text}",
                refusal.path,
                refusal.body,
                answer.status.as_u16()
            ));
        }
    }
    assert!(wrong.is_empty(), "other answers:\n{}", wrong.join("\n"));
}
