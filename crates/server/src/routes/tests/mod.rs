//! Tests of the routes behind the middleware, with the embedded model on a fake engine.

mod anthropic;
mod bodies;
mod calls;
mod create;
mod description;
mod dialects;
mod embeddings;
mod file_workers;
mod images;
mod metrics;
mod mutations;
mod namespaces;
mod openai;
mod outgoing;
mod prompts;
mod remote;
mod rerank;
mod residents;
mod responses;
mod schemas;
mod transfer;
mod waiting;
mod windows;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::authorizer::Authorizer;
use crate::config::Config;
use crate::middleware::Middleware;
use crate::mirror::MirrorService;
use crate::routes;
use crate::runner::launch::Launcher;
use crate::runner::tests::{Fake, FakeLauncher};

struct TestServer {
    middleware: Middleware,
    fake: Arc<Fake>,
    _models: tempfile::TempDir,
}

struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl TestResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    fn lines(&self) -> Vec<Value> {
        self.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

/// State of a server before it has its middleware.
struct TestApp {
    app: App,
    authorizer: Arc<Authorizer>,
    fake: Arc<Fake>,
    models: tempfile::TempDir,
}

impl TestApp {
    fn new(
        change: impl FnOnce(&mut Config),
        change_client: impl FnOnce(&mut puna_registry::Settings),
    ) -> Self {
        let fake = Arc::<Fake>::default();
        let launcher = Arc::new(FakeLauncher(fake.clone()));
        Self::with_launcher(change, change_client, fake, launcher)
    }

    fn with_launcher(
        change: impl FnOnce(&mut Config),
        change_client: impl FnOnce(&mut puna_registry::Settings),
        fake: Arc<Fake>,
        launcher: Arc<dyn Launcher>,
    ) -> Self {
        let models = tempfile::tempdir().unwrap();
        let mut config = Config::with_models(models.path());
        change(&mut config);
        let authorizer = Arc::new(Authorizer::new(&config.keys).unwrap());
        let mut settings = crate::models::registry_client_settings::settings(&config);
        change_client(&mut settings);
        let client = puna_registry::Registry::new(settings);
        let app = App::with_client(config, launcher, client).unwrap();
        Self { app, authorizer, fake, models }
    }

    fn serve(self, registry: Option<MirrorService>) -> TestServer {
        let Self { app, authorizer, fake, models } = self;
        let listen = ([127, 0, 0, 1], 11434).into();
        let middleware = Middleware::new(app, routes::all(), authorizer, listen, registry);
        TestServer { middleware, fake, _models: models }
    }
}

impl TestServer {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_client(change, |_| {})
    }

    /// A server with a change of its registry client, too.
    fn with_client(
        change: impl FnOnce(&mut Config),
        change_client: impl FnOnce(&mut puna_registry::Settings),
    ) -> Self {
        TestApp::new(change, change_client).serve(None)
    }

    /// A server that is a mirror, too.
    async fn with_mirror(change: impl FnOnce(&mut Config)) -> Self {
        let test = TestApp::new(change, |_| {});
        let (store, config) = (test.app.shared_store().clone(), test.app.config());
        let client =
            puna_registry::Registry::new(crate::models::registry_client_settings::settings(config));
        let registry = MirrorService::new(store, client, config, test.authorizer.clone());
        let registry = registry.await.unwrap();
        test.serve(Some(registry))
    }

    async fn send(&self, request: Request<Body>) -> TestResponse {
        let response = self.middleware.answer(request).await;
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        TestResponse { status: parts.status, headers: parts.headers, body }
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.send(Request::post(path).body(Body::from(body.to_string())).unwrap()).await
    }

    /// Creates a model from one of the small test files in `tests/data/zoo`.
    async fn store_zoo(&self, name: &str, file: &str) {
        let zoo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        let bytes = std::fs::read(zoo.join(file)).unwrap();
        let digest = format!("sha256:{}", puna_store::Digest::of(&bytes).hex());
        let upload = Request::post(format!("/api/blobs/{digest}")).body(Body::from(bytes)).unwrap();
        assert_eq!(self.send(upload).await.status, 201);
        let made = json!({"model": name, "files": {"a.gguf": digest}, "stream": false});
        assert_eq!(self.post("/api/create", made).await.status, 200);
    }

    async fn with_headers(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> TestResponse {
        let request = headers
            .iter()
            .fold(Request::builder().method(method).uri(path), |r, (k, v)| r.header(*k, *v));
        self.send(request.body(Body::empty()).unwrap()).await
    }
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "cria", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 5}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn the_server_reports_its_version() {
    let server = TestServer::new();
    let root = server.get("/").await;
    assert_eq!((root.status, root.body.as_str()), (StatusCode::OK, "Ollama is running"));
    let version = server.get("/api/version").await;
    assert_eq!(version.json(), json!({"version": crate::OLLAMA_VERSION, "puna": crate::VERSION}));
    let head = server.with_headers("HEAD", "/api/version", &[]).await;
    assert_eq!((head.status, head.body.as_str()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn every_request_has_an_id_and_a_client_may_set_it() {
    let server = TestServer::new();
    let (one, two) = (server.get("/").await, server.get("/nope").await);
    let id = one.header("x-request-id");
    assert!(id.starts_with("req_") && id.len() == 28 && id != two.header("x-request-id"), "{id}");
    let given = server.with_headers("GET", "/api/tags", &[("x-request-id", "trace-7/a")]).await;
    assert_eq!(given.header("x-request-id"), "trace-7/a");
    for bad in ["", "a b", &"x".repeat(129)] {
        let named = server.with_headers("GET", "/", &[("x-request-id", bad)]).await;
        assert!(named.header("x-request-id").starts_with("req_"), "{bad:?}");
    }
    let refused = server
        .post("/v1/messages", json!({"model": "nobody", "max_tokens": 1, "messages": []}))
        .await;
    assert_eq!(refused.json()["request_id"], refused.header("request-id"));
    assert_eq!(refused.header("request-id"), refused.header("x-request-id"));
}

#[tokio::test]
async fn escaped_paths_reach_the_same_route() {
    let server = TestServer::new();
    for path in ["/api/%67enerate", "/api%2fgenerate"] {
        let short = json!({"num_predict": 1});
        let answer = server
            .post(path, json!({"model": "cria", "prompt": "hi", "stream": false, "options": short}))
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn pages_of_other_sites_do_not_reach_the_api_without_an_origin() {
    let server = TestServer::new();
    let get = async |path, mode, site| {
        let headers = [("sec-fetch-mode", mode), ("sec-fetch-site", site)];
        server.with_headers("GET", path, &headers).await.status.as_u16()
    };
    // An image, a script and a link.
    for mode in ["no-cors", "navigate"] {
        assert_eq!(get("/api/version", mode, "cross-site").await, 403, "{mode}");
        assert_eq!(get("/api/version", mode, "same-origin").await, 200, "{mode}");
        assert_eq!(get("/api/version", mode, "none").await, 200, "{mode}");
    }
    assert_eq!(get("/", "no-cors", "cross-site").await, 403);
    assert_eq!(get("/", "navigate", "cross-site").await, 200, "other sites may link to the page");
}

#[tokio::test]
async fn origins_and_hosts_are_checked() {
    let server = TestServer::new();
    let page =
        server.with_headers("GET", "/api/version", &[("origin", "http://localhost:3000")]).await;
    assert_eq!(
        (page.status.as_u16(), page.header("access-control-allow-origin"), page.header("vary")),
        (200, "http://localhost:3000", "Origin")
    );
    assert_eq!(
        server
            .with_headers("GET", "/api/version", &[("origin", "http://example.com")])
            .await
            .status,
        403
    );
    let same = server
        .with_headers(
            "GET",
            "/api/version",
            &[("origin", "http://localhost:1"), ("host", "localhost:1")],
        )
        .await;
    assert_eq!((same.status.as_u16(), same.header("vary")), (200, ""));
    let preflight = [
        ("origin", "http://localhost:1"),
        ("host", "evil.test"),
        ("access-control-request-method", "POST"),
    ];
    let preflight = server.with_headers("OPTIONS", "/nope", &preflight).await;
    assert_eq!(
        (preflight.status.as_u16(), preflight.header("access-control-max-age")),
        (204, "43200")
    );
    assert_eq!(preflight.headers.get_all("vary").iter().count(), 3);
    assert_eq!(server.with_headers("GET", "/nope", &[("host", "evil.test")]).await.status, 403);
    assert_eq!(
        server.with_headers("OPTIONS", "/api/chat", &[("host", "localhost")]).await.status,
        204
    );
    assert_eq!(
        server.with_headers("OPTIONS", "/api/chat", &[("host", "127.0.0.1")]).await.status,
        405
    );
}

#[tokio::test]
async fn the_embedded_model_is_listed_and_shown() {
    let server = TestServer::new();
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "cria:latest");
    assert!(tags["models"][0]["details"]["context_length"].as_u64().unwrap() > 0);
    let show = server.post("/api/show", json!({"model": "cria"})).await.json();
    assert_eq!(show["details"]["format"], "gguf");
    assert_eq!(show["model_info"]["tokenizer.ggml.tokens"], Value::Null);
    assert!(show["model_info"]["general.parameter_count"].as_u64().unwrap() > 1_000_000);
    assert!(show["tensors"].as_array().unwrap().len() > 10);
    assert!(
        show["modelfile"]
            .as_str()
            .unwrap()
            .starts_with("# Modelfile generated by \"ollama show\"\n")
    );
    let models = server.get("/v1/models").await.json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["owned_by"]),
        (&json!("cria:latest"), &json!("library"))
    );
}

#[tokio::test]
async fn fields_that_another_field_disables_are_named() {
    let server = TestServer::with(|config| config.go_template = Some(true));
    let template = "{{ .Prompt }}{{ .Suffix }}";
    let made = json!({"model": "gap", "from": "cria", "template": template, "files": {"a.gguf": "sha256:0"}, "stream": false});
    let made = server.post("/api/create", made).await;
    assert_eq!(
        (made.status.as_u16(), made.header("x-puna-ignored")),
        (200, "files"),
        "{}",
        made.body
    );
    let ask = |raw: bool| {
        json!({"model": "gap", "prompt": "a", "suffix": "b", "raw": raw, "stream": false,
        "options": {"num_predict": 1}})
    };
    for (raw, named) in [(true, "suffix"), (false, "")] {
        let answer = server.post("/api/generate", ask(raw)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("x-puna-ignored")),
            (200, named),
            "{}",
            answer.body
        );
    }
    // Without a suffix the model needs no fill-in-the-middle support.
    let mut plain = ask(true);
    plain["model"] = json!("cria");
    let answer = server.post("/api/generate", plain).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-puna-ignored")),
        (200, "suffix"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn streams_and_whole_responses_have_the_same_content() {
    let server = TestServer::new();
    let stream = server.post("/api/chat", chat(json!({}))).await;
    assert_eq!(stream.header("content-type"), "application/x-ndjson");
    let lines = stream.lines();
    let joined: String = lines.iter().map(|l| l["message"]["content"].as_str().unwrap()).collect();
    let (last, pieces) = lines.split_last().unwrap();
    assert!(pieces.iter().all(|l| l["done"] == false && l.get("eval_count").is_none()));
    assert_eq!((&last["done_reason"], &last["eval_count"]), (&json!("length"), &json!(5)));
    let whole = server.post("/api/chat", chat(json!({"stream": false}))).await;
    assert_eq!(whole.header("content-type"), "application/json; charset=utf-8");
    assert_eq!(whole.json()["message"]["content"], joined);
    let openai = server.post("/v1/chat/completions", chat(json!({}))).await.json();
    assert_eq!(
        (&openai["choices"][0]["message"]["content"], &openai["object"]),
        (&json!(joined), &json!("chat.completion"))
    );
    let openai = server.post("/v1/chat/completions", chat(json!({"stream": true}))).await;
    assert!(openai.body.ends_with("data: [DONE]\n\n"), "{}", openai.body);
    assert_eq!(server.fake.started.load(Ordering::Relaxed), 1, "all on one runner");
}

#[tokio::test]
async fn invalid_and_unknown_model_names_have_specific_error_messages() {
    let server = TestServer::new();
    let error = async |path: &str, body: Value| {
        let answer = server.post(path, body).await;
        (answer.status.as_u16(), answer.json()["error"].as_str().unwrap().to_owned())
    };
    let model = |name: &str| json!({"model": name, "prompt": "x", "messages": [{"role": "user"}], "input": "x"});
    assert_eq!(
        error("/api/generate", model("no-such")).await,
        (404, "model 'no-such' not found".into())
    );
    assert_eq!(error("/api/generate", model("")).await, (404, "model '' not found".into()));
    assert_eq!(error("/api/generate", model("../x")).await, (400, "invalid model name".into()));
    assert_eq!(error("/api/chat", model("")).await, (400, "model is required".into()));
    assert_eq!(
        error("/api/show", model("no-such")).await,
        (404, "model 'no-such:latest' not found".into())
    );
    let pull = "model \"no-such\" not found, try pulling it first";
    assert_eq!(error("/api/embed", model("no-such")).await, (404, pull.into()));
    assert_eq!(
        error("/api/generate", model("m:cloud")).await,
        (403, "ollama cloud is disabled: remote model is unavailable".into())
    );
    let both = "use either :local or :cloud, not both: \"m:cloud:local\"";
    assert_eq!(error("/api/generate", model("m:cloud:local")).await, (400, both.into()));
    assert_eq!(
        error("/api/embed", model("cria")).await,
        (400, "\"cria\" does not support embeddings".into())
    );
    let insert = json!({"model": "cria", "prompt": "x", "raw": true, "system": "y"});
    assert_eq!(
        error("/api/generate", insert).await,
        (400, "raw mode does not support template, system, or context".into())
    );
    assert_eq!(
        error("/api/generate", json!({"model": "no-such", "top_logprobs": 21})).await.1,
        "top_logprobs must be between 0 and 20"
    );
    let openai = server.post("/v1/chat/completions", model("no-such")).await;
    assert_eq!(
        openai.json()["error"],
        json!({"message": "invalid message content type: <nil>", "type": "invalid_request_error", "param": null, "code": null})
    );
}

#[tokio::test]
async fn invalid_bodies_are_refused() {
    let server = TestServer::new();
    let raw = async |path: &str, body: Vec<u8>| {
        let answer = server.send(Request::post(path).body(Body::from(body)).unwrap()).await;
        (answer.status.as_u16(), answer.json()["error"].clone())
    };
    assert_eq!(raw("/api/chat", b" ".to_vec()).await, (400, json!("missing request body")));
    assert_eq!(raw("/api/chat", b"{\"model\":".to_vec()).await, (400, json!("unexpected EOF")));
    assert_eq!(raw("/v1/chat/completions", Vec::new()).await.1["message"], "EOF");
    assert_eq!(raw("/api/chat", "[".repeat(1_000_000).into()).await.0, 400);
    let huge =
        Request::post("/api/chat").header("content-length", u64::MAX).body(Body::empty()).unwrap();
    assert_eq!(server.send(huge).await.status, 413);
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn bodies_that_do_not_arrive_time_out() {
    let server = TestServer::new();
    let blob = format!("/api/blobs/sha256:{}", puna_store::Digest::of(b"abc").hex());
    for path in [blob.as_str(), "/api/chat"] {
        let never =
            Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let answer = server.send(Request::post(path).body(never).unwrap()).await;
        assert_eq!(answer.status, 408, "{path}");
        assert_eq!(answer.json()["error"], "the request body did not arrive in time");
    }
    assert_eq!(server.with_headers("HEAD", &blob, &[]).await.status, 404);
}

#[tokio::test]
async fn openai_fields_that_change_the_output_are_applied_or_refused() {
    let server = TestServer::new();
    let ask = async |extra: Value| {
        let mut body = json!({"model": "cria", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", body).await;
        let json = answer.json();
        let text = json["error"]["message"].as_str().unwrap_or_default().to_owned();
        (answer.status.as_u16(), text)
    };
    for fine in [
        json!({"n": 1, "logit_bias": {}}),
        json!({"n": null, "logit_bias": {"5": -100, "9": 0.5}}),
        json!({"response_format": {"type": "text"}}),
    ] {
        assert_eq!(ask(fine.clone()).await, (200, String::new()), "{fine}");
    }
    for (extra, want) in [
        (json!({"n": 129}), "n must be at most 128"),
        (json!({"tool_choice": "odd"}), "invalid tool_choice: \"odd\""),
        (json!({"tool_choice": "required"}), "tool_choice requires a call, but there are no tools"),
        (json!({"n": 0}), "n must be at least 1"),
        (
            json!({"n": "x"}),
            "cannot unmarshal string into Go struct field ChatCompletionRequest.n of type int",
        ),
        (
            json!({"logit_bias": [1]}),
            "ChatCompletionRequest.logit_bias of type map[string]interface {}",
        ),
        (json!({"logit_bias": {"x": 1}}), "must be an object of token ids and biases"),
        (json!({"response_format": {"type": "json_schema"}}), "needs the field json_schema.schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}),
            "json_schema.schema must be an object",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"strict": true,
                "schema": {"items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}}}}),
            "response_format: json_schema.schema: \"oneOf\" at #/items: a value could match branches 0 and 1",
        ),
    ] {
        let (status, text) = ask(extra).await;
        assert!(status == 400 && text.contains(want), "{status} {text}");
    }
}

#[tokio::test]
async fn a_model_with_a_renderer_uses_its_prompt_format() {
    let server = TestServer::new();
    let prompt = async |renderer: &str, model: &str| {
        let made = json!({"model": model, "from": "cria", "renderer": renderer, "system": "S."});
        assert_eq!(server.post("/api/create", made).await.status, 200);
        let body = json!({"model": model, "think": false, "_debug_render_only": true,
            "messages": [{"role": "user", "content": "Q?"}]});
        let answer = server.post("/api/chat", body).await;
        answer.json()["_debug_info"]["rendered_template"]
            .as_str()
            .unwrap_or(&answer.body)
            .to_owned()
    };
    assert_eq!(
        prompt("qwen3-coder", "coder").await,
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n"
    );
    let small = "<bos><|turn>system\nS.<turn|>\n<|turn>user\nQ?<turn|>\n<|turn>model\n";
    assert_eq!(prompt("gemma4", "gem").await, small);
    assert_eq!(prompt("gemma4", "gem:31b").await, format!("{small}<|channel>thought\n<channel|>"));
    let shown = server.post("/api/show", json!({"model": "coder"})).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "insert"]));
    let fill = json!({"model": "coder", "prompt": "a", "suffix": "b", "_debug_render_only": true});
    let filled = server.post("/api/generate", fill).await.json();
    assert_eq!(
        filled["_debug_info"]["rendered_template"],
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    );
}
