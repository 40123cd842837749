//! Tests of pull and push behind the middleware. The crate `registry` tests the transfers
//! themselves.

use std::sync::Mutex;

use puna_store::{Digest, ModelName, Store};

use super::*;

/// Starts a registry with one model of one blob; returns its address and its log of requests.
async fn registry(pause: Duration) -> (String, Arc<Mutex<Vec<String>>>) {
    let blob = b"not weights, but bytes".to_vec();
    let digest = Digest::of(&blob).to_string();
    let manifest =
        json!({"layers": [{"mediaType": "x/y", "digest": digest, "size": blob.len()}]}).to_string();
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noted = asked.clone();
    let router = axum::Router::new().fallback(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        noted.lock().unwrap().push(format!("{} {path}", request.method()));
        let (manifest, blob) = (manifest.clone(), blob.clone());
        async move {
            match path.contains("/manifests/") {
                true if path.ends_with("/absent") => (StatusCode::NOT_FOUND, Body::empty()),
                true => (StatusCode::OK, Body::from(manifest)),
                false => {
                    tokio::time::sleep(pause).await;
                    (StatusCode::OK, Body::from(blob))
                }
            }
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (host, asked)
}

fn is_stored(server: &TestServer, name: &str) -> bool {
    let store = Store::open(server._models.path()).unwrap();
    store.find(&ModelName::parse(name).unwrap()).unwrap().is_some()
}

#[tokio::test]
async fn a_pull_streams_its_lines_or_answers_with_the_last() {
    let (host, _) = registry(Duration::ZERO).await;
    let server = TestServer::new();
    let name = format!("{host}/me/m");
    let streamed =
        server.post("/api/pull", json!({"name": name, "insecure": true, "username": "x"})).await;
    assert_eq!(
        (streamed.status, streamed.header("content-type")),
        (StatusCode::OK, "application/x-ndjson")
    );
    let lines = streamed.lines();
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    let blob = lines.iter().rfind(|line| line["total"] == 22).unwrap();
    assert_eq!(blob["completed"], 22);
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}));
    assert!(is_stored(&server, &name));
    let whole =
        server.post("/api/pull", json!({"model": name, "insecure": true, "stream": false})).await;
    assert_eq!((whole.status, whole.header("content-type")), (StatusCode::OK, "application/json"));
    assert_eq!(whole.json(), json!({"status": "success"}));
}

#[tokio::test]
async fn failures_are_the_status_or_the_last_line() {
    let (host, _) = registry(Duration::ZERO).await;
    let server = TestServer::new();
    let absent = json!({"model": format!("{host}/me/m:absent"), "insecure": true, "stream": false});
    let answer = server.post("/api/pull", absent.clone()).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.json(), json!({"error": "pull model manifest: file does not exist"}));
    let streamed =
        server.post("/api/pull", json!({"model": absent["model"], "insecure": true})).await;
    assert_eq!(streamed.status, StatusCode::OK);
    assert_eq!(streamed.lines().last().unwrap(), &answer.json());
    for (path, body, status, error) in [
        ("/api/pull", json!({"model": "../x"}), 400, "invalid model name"),
        ("/api/pull", json!({}), 400, "invalid model name"),
        (
            "/api/pull",
            json!({"model": "m", "mirror": "a b"}),
            400,
            "invalid mirror \"a b\": use HOST, HOST:PORT, or an http or https URL without a user name, such as https://registry.example.com:5000",
        ),
        ("/api/push", json!({}), 400, "model is required"),
        ("/api/push", json!({"model": "../../etc/passwd"}), 400, "invalid model name"),
        (
            "/api/pull",
            json!({"model": "m:cloud"}),
            403,
            "ollama cloud is disabled: remote model is unavailable",
        ),
        (
            "/api/push",
            json!({"model": "me/none", "stream": false}),
            500,
            "model 'me/none:latest' not found",
        ),
    ] {
        let answer = server.post(path, body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error"].as_str().unwrap()),
            (status, error),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_disconnect_cancels_the_pull() {
    let (host, asked) = registry(Duration::from_millis(200)).await;
    for stream in [true, false] {
        let server = TestServer::new();
        let name = format!("{host}/me/m");
        let body = json!({"model": name, "insecure": true, "stream": stream});
        asked.lock().unwrap().clear();
        let wants_blob = || asked.lock().unwrap().iter().any(|line| line.contains("/blobs/"));
        let fetching = async {
            while !wants_blob() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = server.post("/api/pull", body) => panic!("it waits for the blob"),
            () = fetching => {}
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(!is_stored(&server, &name));
    }
}

#[tokio::test]
async fn create_pulls_the_base_model() {
    let (host, asked) = registry(Duration::ZERO).await;
    let server = TestServer::new();
    let from = format!("http://{host}/me/m");
    let answer = server.post("/api/create", json!({"model": "mine", "from": from})).await;
    let lines = answer.lines();
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    assert!(asked.lock().unwrap().iter().any(|line| line.contains("/blobs/")));
    assert!(is_stored(&server, &from), "{lines:?}");
    let absent = json!({"model": "mine", "from": format!("{from}:absent"), "stream": false});
    let answer = server.post("/api/create", absent).await;
    assert_eq!(answer.json()["error"], "pull model manifest: file does not exist");
}
