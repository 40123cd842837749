//! Tests of creating, copying and deleting models.

use super::*;

#[tokio::test]
async fn blobs_are_uploaded_once_and_checked() {
    let server = TestServer::new();
    let digest = format!("sha256:{}", puna_store::Digest::of(b"abc").hex());
    let path = format!("/api/blobs/{digest}");
    assert_eq!(server.with_headers("HEAD", &path, &[]).await.status, 404);
    let upload = async |path: &str, body: &'static str| {
        server.send(Request::post(path).body(Body::from(body)).unwrap()).await
    };
    let wrong = upload(&path, "abd").await;
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.json()["error"]
            .as_str()
            .unwrap()
            .starts_with(&format!("digest mismatch, expected \"{digest}\""))
    );
    assert_eq!(upload(&path, "abc").await.status, 201);
    assert_eq!(upload(&path, "abc").await.status, 200);
    assert_eq!(server.with_headers("HEAD", &path, &[]).await.status, 200);
    assert_eq!(upload("/api/blobs/sha256:00", "").await.json()["error"], "invalid digest format");
}

#[tokio::test]
async fn models_are_created_copied_and_deleted() {
    let server = TestServer::new();
    let made = server
        .post("/api/create", json!({"model": "mine", "from": "cria", "system": "Be brief."}))
        .await;
    assert_eq!(made.lines().last().unwrap(), &json!({"status": "success"}));
    let show = server.post("/api/show", json!({"model": "mine"})).await.json();
    assert_eq!(show["system"], "Be brief.");
    assert_eq!(
        server
            .post("/api/copy", json!({"source": "mine", "destination": "me/other:v1"}))
            .await
            .status,
        200
    );
    let tags = server.get("/api/tags").await.json();
    assert!(tags["models"].as_array().unwrap().iter().any(|m| m["name"] == "me/other:v1"));
    let delete = async |model: &str| {
        let body = Body::from(json!({"model": model}).to_string());
        server.send(Request::delete("/api/delete").body(body).unwrap()).await
    };
    assert_eq!(delete("mine").await.status, 200);
    assert_eq!(delete("mine").await.json()["error"], "model 'mine' not found");
    let nothing = server.post("/api/create", json!({"model": "x"})).await;
    assert_eq!(
        (nothing.status.as_u16(), &nothing.json()["error"]),
        (400, &json!("neither 'from' or 'files' was specified"))
    );
    let empty = server.post("/api/create", json!({"model": "x", "files": {}})).await;
    assert_eq!(empty.json()["error"], "unknown type");
}

#[tokio::test]
async fn create_refuses_parameters_that_no_request_can_run_with() {
    let server = TestServer::new();
    let error = async |parameters: Value| {
        let answer = server
            .post("/api/create", json!({"model": "m", "from": "cria", "parameters": parameters}))
            .await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        answer.json()["error"].as_str().unwrap().to_owned()
    };
    assert!(
        error(json!({"repeat_penalty": -1}))
            .await
            .contains("'repeat_penalty': Value must be finite and")
    );
    assert_eq!(
        error(json!({"num_batch": 0})).await,
        "option \"num_batch\" is out of range: 0 is not between 1 and 4294967295"
    );
    assert!(error(json!({"repeat_last_n": -2})).await.contains("between -1 <= value"));
    assert!(error(json!({"temperature": 1e308})).await.contains("out of range"));
    assert_eq!(
        error(json!({"num_ctx": -5})).await,
        "parameter 'num_ctx' must be at least 1, but is -5"
    );
    assert!(error(json!({"top_p": 1.5})).await.contains("between 0 and 1"));
    let renderer =
        server.post("/api/create", json!({"model": "m", "from": "cria", "renderer": "nope"})).await;
    assert!(
        renderer.status == 400 && renderer.body.contains("unknown renderer"),
        "{}",
        renderer.body
    );
    let requires = server
        .post("/api/create", json!({"model": "m", "from": "cria", "requires": "99.0.0"}))
        .await;
    assert!(
        requires.status == 400 && requires.body.contains("requires version 99.0.0"),
        "{}",
        requires.body
    );
}
