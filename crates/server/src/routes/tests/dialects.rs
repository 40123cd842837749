//! Tests that every error on a path has the dialect that the table of routes names.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::{TestResponse, TestServer};
use crate::auth::{KeyFile, RouteRequirement, Scope};
use crate::http::Dialect;
use crate::routes;
use crate::routes::table::Route;

/// Whether an error has the form of a dialect.
fn has_form_of(dialect: Dialect, error: &Value) -> bool {
    match dialect {
        Dialect::Ollama | Dialect::Puna => error["error"].is_string(),
        Dialect::OpenAi => error["error"]["message"].is_string() && error["type"].is_null(),
        Dialect::Anthropic => error["error"]["message"].is_string() && error["type"] == "error",
    }
}

async fn send(
    server: &TestServer,
    method: &str,
    route: &Route,
    headers: &[(&str, &str)],
) -> TestResponse {
    let segments =
        route.path.split('/').map(|part| if part.starts_with('{') { "a:b:c" } else { part });
    let path = segments.collect::<Vec<_>>().join("/");
    let request = Request::builder().method(method).uri(path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    server.send(request.body(Body::from("[")).unwrap()).await
}

#[tokio::test]
async fn a_missing_key_is_reported_in_the_dialect_of_the_route() {
    let server = TestServer::with(|config| {
        let mut file = KeyFile::default();
        file.add("a", vec![Scope::Inference]).unwrap();
        file.write(&config.keys).unwrap();
    });
    for route in routes::all().iter().filter(|route| route.requirement != RouteRequirement::Open) {
        for method in route.methods.iter().filter(|method| **method != "HEAD") {
            let refused = send(&server, method, route, &[]).await;
            assert_eq!(refused.status, 401, "{method} {}", route.path);
            assert!(
                has_form_of(route.dialect, &refused.json()),
                "{method} {}: {}",
                route.path,
                refused.body
            );
            assert_eq!(
                refused.header("request-id").is_empty(),
                route.dialect != Dialect::Anthropic
            );
            let named = send(&server, method, route, &[("anthropic-version", "2023-06-01")]).await;
            let dialect =
                if route.shared_with_anthropic { Dialect::Anthropic } else { route.dialect };
            assert!(has_form_of(dialect, &named.json()), "{method} {}: {}", route.path, named.body);
        }
    }
}

#[tokio::test]
async fn handlers_report_errors_in_the_dialect_of_the_route_table() {
    let server = TestServer::new();
    let mut tried = 0;
    for route in routes::all().iter().filter(|route| route.methods.contains(&"POST")) {
        let refused = send(&server, "POST", route, &[]).await;
        if refused.status.as_u16() >= 400 {
            assert!(
                has_form_of(route.dialect, &refused.json()),
                "{}: {}",
                route.path,
                refused.body
            );
            tried += 1;
        }
    }
    assert!(tried > 25, "{tried}");
}

#[tokio::test]
async fn errors_of_the_model_list_have_the_anthropic_format_for_its_clients() {
    let server = TestServer::new();
    let model =
        routes::all().into_iter().find(|route| route.path == "/v1/models/{*model}").unwrap();
    for (headers, dialect) in
        [(&[][..], Dialect::OpenAi), (&[("anthropic-version", "2023-06-01")], Dialect::Anthropic)]
    {
        let refused = send(&server, "GET", &model, headers).await;
        assert!(refused.status == 400 && has_form_of(dialect, &refused.json()), "{}", refused.body);
        assert_eq!(refused.header("request-id").is_empty(), dialect == Dialect::OpenAi);
    }
}

#[tokio::test]
async fn unknown_paths_methods_and_spellings_have_specific_error_messages() {
    let server = TestServer::new();
    let nope = server.get("/nope").await;
    assert_eq!(
        (nope.status.as_u16(), nope.body.as_str(), nope.header("content-type")),
        (404, "404 page not found", "text/plain")
    );
    let method = server.post("/api/tags", json!({})).await;
    assert_eq!(
        (method.status.as_u16(), method.body.as_str(), method.header("allow")),
        (405, "405 method not allowed", "HEAD, GET")
    );
    let slash = server.get("/api/tags/?x=1").await;
    assert_eq!((slash.status.as_u16(), slash.header("location")), (301, "/api/tags?x=1"));
    assert_eq!(server.get("/api//tags").await.status, 307);
    assert_eq!(server.get("/v1/models/ns%2Fname").await.status, 404);
}
