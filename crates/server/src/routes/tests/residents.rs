//! Tests of loading, unloading and failures of models.

use super::*;
use crate::runner::tests::wait_until;

#[tokio::test]
async fn contexts_of_different_size_share_a_runner() {
    let server = TestServer::new();
    for num_ctx in [json!(512), json!(4096), json!(4), json!(null)] {
        let answer = server
            .post("/api/chat", chat(json!({"options": {"num_predict": 1, "num_ctx": num_ctx}})))
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    assert_eq!(server.fake.started.load(Ordering::Relaxed), 1);
    let ps = server.get("/api/ps").await.json();
    assert_eq!(ps["models"][0]["context_length"], 2048, "what the model was trained with: {ps}");
    assert!(ps["models"][0].get("state").is_none(), "only before it takes requests");
}

#[tokio::test]
async fn a_deleted_model_is_unloaded() {
    let server = TestServer::new();
    server.post("/api/create", json!({"model": "gone", "from": "cria", "stream": false})).await;
    let short = json!({"num_predict": 1});
    let asked = json!({"model": "gone", "prompt": "hi", "keep_alive": -1, "stream": false, "options": short});
    assert_eq!(server.post("/api/generate", asked).await.status, StatusCode::OK);
    assert_eq!(server.get("/api/ps").await.json()["models"][0]["name"], "gone:latest");
    let request =
        Request::delete("/api/delete").body(Body::from(json!({"model": "Gone"}).to_string()));
    assert_eq!(server.send(request.unwrap()).await.status, StatusCode::OK);
    wait_for_unload(&server).await;
}

/// Waits until no model is loaded.
async fn wait_for_unload(server: &TestServer) {
    for _ in 0..2000 {
        if server.get("/api/ps").await.json() == json!({"models": []}) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{}", server.get("/api/ps").await.body);
}

#[tokio::test]
async fn options_are_checked_when_a_request_only_unloads() {
    let server = TestServer::new();
    for (path, text) in [("/api/generate", "prompt"), ("/api/chat", "messages")] {
        let empty = if text == "prompt" { json!("") } else { json!([]) };
        let leave = |options: Value| json!({"model": "cria", text: empty, "keep_alive": 0, "options": options});
        let wrong = server.post(path, leave(json!({"dynatemp_range": false}))).await;
        assert_eq!(
            (wrong.status.as_u16(), wrong.json()["error"].as_str().unwrap()),
            (400, "option \"dynatemp_range\" must be of type float32")
        );
        let unknown = server.post(path, leave(json!({"zz": 1}))).await;
        assert_eq!(
            (unknown.status.as_u16(), unknown.header("x-puna-ignored")),
            (200, "options.zz")
        );
    }
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_on_demand() {
    let server = TestServer::new();
    let load =
        server.post("/api/generate", json!({"model": "CRIA", "keep_alive": "90s"})).await.json();
    assert_eq!(
        (&load["model"], &load["done_reason"], &load["response"]),
        (&json!("CRIA"), &json!("load"), &json!(""))
    );
    let ps = server.get("/api/ps").await.json();
    assert_eq!(ps["models"][0]["name"], "cria:latest");
    let expires: jiff::Timestamp = ps["models"][0]["expires_at"].as_str().unwrap().parse().unwrap();
    let left = expires.as_second() - jiff::Timestamp::now().as_second();
    assert!((85..=91).contains(&left), "{left}");
    let unload = server
        .post("/api/chat", json!({"model": "cria", "messages": [], "keep_alive": 0}))
        .await
        .json();
    assert_eq!(
        (&unload["done_reason"], &unload["message"]),
        (&json!("unload"), &json!({"role": "assistant", "content": ""}))
    );
    wait_for_unload(&server).await;
}

#[tokio::test]
async fn a_model_larger_than_memory_is_refused_with_the_numbers() {
    let server = TestServer::new();
    server.fake.need.store(1 << 50, Ordering::Relaxed);
    let answer = server.post("/api/chat", chat(json!({}))).await;
    assert_eq!(answer.status, 500);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.starts_with("model requires more system memory (1024.0 TiB) than is available ("),
        "{error}"
    );
}

#[tokio::test]
async fn a_load_that_fails_is_an_error_and_the_next_one_works() {
    let server = TestServer::new();
    server.fake.broken.store(true, Ordering::Relaxed);
    let answer = server.post("/api/chat", chat(json!({}))).await;
    assert_eq!(answer.status, 500);
    assert!(answer.json()["error"].as_str().unwrap().contains("the fake is broken"));
    server.fake.broken.store(false, Ordering::Relaxed);
    assert_eq!(server.post("/api/chat", chat(json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_runner_crash_ends_the_response_with_an_error_and_the_next_request_works() {
    let server = TestServer::new();
    let body = chat(json!({"options": {"num_predict": 1_000_000}}));
    let request = Request::post("/api/chat").body(Body::from(body.to_string())).unwrap();
    let response = server.middleware.answer(request).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    server.fake.crash();
    let rest = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let last: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert!(
        last["error"].as_str().unwrap().starts_with("model runner has unexpectedly stopped"),
        "{last}"
    );
    assert_eq!(server.post("/api/chat", chat(json!({}))).await.status, 200);
    assert_eq!(server.fake.started.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_hanging_model_is_killed_and_the_next_request_works() {
    let server = TestServer::with(|config| config.step_timeout = Some(Duration::from_millis(300)));
    server.fake.hangs.store(true, Ordering::Relaxed);
    let answer = server.post("/api/chat", chat(json!({}))).await;
    server.fake.hangs.store(false, Ordering::Relaxed);
    assert_eq!(answer.status, 500);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("a step took more than"), "{error}");
    assert_eq!(server.post("/api/chat", chat(json!({}))).await.status, 200);
    assert_eq!(server.fake.started.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn all_names_of_the_same_weights_are_listed_as_loaded() {
    let server = TestServer::new();
    assert_eq!(
        server.post("/api/copy", json!({"source": "cria", "destination": "twin"})).await.status,
        200
    );
    for name in ["cria", "twin", "cria", "twin"] {
        let short = json!({"num_predict": 1});
        let asked = json!({"model": name, "prompt": "hi", "stream": false, "options": short});
        assert_eq!(server.post("/api/generate", asked).await.status, 200);
        let ps = server.get("/api/ps").await.json();
        let models = ps["models"].as_array().unwrap();
        let names: Vec<_> = models.iter().map(|model| (&model["name"], &model["also"])).collect();
        let also = if name == "cria" && names[0].1.is_null() {
            Value::Null
        } else {
            json!(["twin:latest"])
        };
        assert_eq!(names, [(&json!("cria:latest"), &also)], "they share one place: {ps}");
    }
}

#[tokio::test]
async fn a_disconnect_stops_the_generation_and_starts_the_keep_alive() {
    let server = TestServer::new();
    let body = chat(json!({"options": {"num_predict": 1_000_000}, "keep_alive": 0}));
    let request = Request::post("/api/chat").body(Body::from(body.to_string())).unwrap();
    let mut body = server.middleware.answer(request).await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    wait_for_unload(&server).await;
    wait_until(|| server.fake.works.load(Ordering::Relaxed) == 0).await;
    assert!(server.fake.generated.load(Ordering::Relaxed) < 1_000_000);
}
