//! The table of routes says which dialect a path speaks: whoever answers an error there keeps to it.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::{Answer, Bench};
use crate::http::Dialect;
use crate::keys::{Access, KeyFile, Scope};
use crate::route_table::Route;
use crate::routes;

/// Whether an error has the form of a dialect.
fn is_of(dialect: Dialect, error: &Value) -> bool {
    match dialect {
        Dialect::Ollama | Dialect::Puna => error["error"].is_string(),
        Dialect::OpenAi => error["error"]["message"].is_string() && error["type"].is_null(),
        Dialect::Anthropic => error["error"]["message"].is_string() && error["type"] == "error",
    }
}

async fn send(b: &Bench, method: &str, route: &Route, headers: &[(&str, &str)]) -> Answer {
    let segments =
        route.path.split('/').map(|part| if part.starts_with('{') { "a:b:c" } else { part });
    let path = segments.collect::<Vec<_>>().join("/");
    let request = Request::builder().method(method).uri(path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    b.send(request.body(Body::from("[")).unwrap()).await
}

#[tokio::test]
async fn who_shows_no_key_is_told_so_in_the_routes_own_dialect() {
    let b = Bench::with(|config| {
        let mut file = KeyFile::default();
        file.add("a", vec![Scope::Inference]).unwrap();
        file.write(&config.keys).unwrap();
    });
    for route in routes::all().iter().filter(|route| route.access != Access::Open) {
        for method in route.methods.iter().filter(|method| **method != "HEAD") {
            let refused = send(&b, method, route, &[]).await;
            assert_eq!(refused.status, 401, "{method} {}", route.path);
            assert!(
                is_of(route.dialect, &refused.json()),
                "{method} {}: {}",
                route.path,
                refused.body
            );
            assert_eq!(
                refused.header("request-id").is_empty(),
                route.dialect != Dialect::Anthropic
            );
            let named = send(&b, method, route, &[("anthropic-version", "2023-06-01")]).await;
            let dialect =
                if route.shared_with_anthropic { Dialect::Anthropic } else { route.dialect };
            assert!(is_of(dialect, &named.json()), "{method} {}: {}", route.path, named.body);
        }
    }
}

#[tokio::test]
async fn handlers_refuse_in_the_dialect_that_the_table_names() {
    let b = Bench::new();
    let mut tried = 0;
    for route in routes::all().iter().filter(|route| route.methods.contains(&"POST")) {
        let refused = send(&b, "POST", route, &[]).await;
        if refused.status.as_u16() >= 400 {
            assert!(is_of(route.dialect, &refused.json()), "{}: {}", route.path, refused.body);
            tried += 1;
        }
    }
    assert!(tried > 25, "{tried}");
}

#[tokio::test]
async fn the_models_are_refused_in_anthropics_form_to_its_clients() {
    let b = Bench::new();
    let model =
        routes::all().into_iter().find(|route| route.path == "/v1/models/{*model}").unwrap();
    for (headers, dialect) in
        [(&[][..], Dialect::OpenAi), (&[("anthropic-version", "2023-06-01")], Dialect::Anthropic)]
    {
        let refused = send(&b, "GET", &model, headers).await;
        assert!(refused.status == 400 && is_of(dialect, &refused.json()), "{}", refused.body);
        assert_eq!(refused.header("request-id").is_empty(), dialect == Dialect::OpenAi);
    }
}

#[tokio::test]
async fn unknown_paths_methods_and_spellings_have_their_texts() {
    let b = Bench::new();
    let nope = b.get("/nope").await;
    assert_eq!(
        (nope.status.as_u16(), nope.body.as_str(), nope.header("content-type")),
        (404, "404 page not found", "text/plain")
    );
    let method = b.post("/api/tags", json!({})).await;
    assert_eq!(
        (method.status.as_u16(), method.body.as_str(), method.header("allow")),
        (405, "405 method not allowed", "HEAD, GET")
    );
    let slash = b.get("/api/tags/?x=1").await;
    assert_eq!((slash.status.as_u16(), slash.header("location")), (301, "/api/tags?x=1"));
    assert_eq!(b.get("/api//tags").await.status, 307);
    assert_eq!(b.get("/v1/models/ns%2Fname").await.status, 404);
}
