//! Tests of JSON Schema keywords that are checked on the finished output, not enforced by the
//! grammar.

use super::*;

const UNENFORCED: &str = "x-puna-schema-unenforced";
const VIOLATIONS: &str = "x-puna-schema-violations";
const KEYWORD: &str = "uniqueItems at #/properties/tags";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}},
        "required": ["tags"],
    })
}

/// Starts a server on which the model generates `text`.
async fn server_generating(text: &str) -> TestServer {
    let server = TestServer::with(|config| config.go_template = Some(true));
    server.fake.reads_forms.store(true, Ordering::Relaxed);
    let plain =
        json!({"model": "plain", "from": "cria", "template": "{{ .Prompt }}", "stream": false});
    assert_eq!(server.post("/api/create", plain).await.status, 200);
    set_output(&server, text);
    server
}

fn set_output(server: &TestServer, text: &str) {
    *server.fake.says.lock().unwrap() = text.chars().map(String::from).collect();
}

/// Returns requests with a schema, by route.
fn requests(schema: &Value, stream: bool) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "go"}]);
    let form = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let flat = json!({"type": "json_schema", "name": "n", "schema": schema});
    vec![
        ("/api/chat", json!({"messages": messages, "format": schema})),
        ("/api/generate", json!({"prompt": "go", "format": schema})),
        ("/v1/chat/completions", json!({"messages": messages, "response_format": form})),
        ("/v1/responses", json!({"input": "go", "text": {"format": flat}})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 99, "output_config": {"format": flat}}),
        ),
    ]
    .into_iter()
    .map(|(path, mut body)| {
        body["model"] = json!("plain");
        body["stream"] = json!(stream);
        (path, body)
    })
    .collect()
}

/// Returns the last JSON object of a stream.
fn last_object(answer: &TestResponse) -> Value {
    let lines = answer.body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let mut objects = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.next_back().unwrap_or_else(|| panic!("{}", answer.body))
}

#[tokio::test]
async fn headers_name_checked_keywords_and_violations() {
    let server = server_generating("").await;
    for (text, violations) in [
        (r#"{"tags": ["a", "b"]}"#, ""),
        (r#"{"tags": ["a", "a"]}"#, KEYWORD),
        (r#"{"tags": ["a""#, "the answer is not complete JSON"),
    ] {
        set_output(&server, text);
        for (path, body) in requests(&schema(), false) {
            let answer = server.post(path, body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert_eq!(
                (answer.header(UNENFORCED), answer.header(VIOLATIONS)),
                (KEYWORD, violations),
                "{path}"
            );
            assert!(!answer.body.contains("schema_violations"), "{path}: {}", answer.body);
        }
    }
    // The headers are absent if the grammar enforces every keyword.
    let enforced = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}});
    set_output(&server, "{}");
    for (path, body) in requests(&enforced, false) {
        let answer = server.post(path, body).await;
        assert_eq!((answer.header(UNENFORCED), answer.header(VIOLATIONS)), ("", ""), "{path}");
    }
}

#[tokio::test]
async fn the_last_event_of_a_stream_lists_the_violations() {
    let server = server_generating("").await;
    for (text, violations) in
        [(r#"{"tags": ["a", "b"]}"#, json!([])), (r#"{"tags": ["a", "a"]}"#, json!([KEYWORD]))]
    {
        set_output(&server, text);
        for (path, mut body) in requests(&schema(), true) {
            let answer = server.post(path, body.clone()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header(UNENFORCED)),
                (200, KEYWORD),
                "{path}"
            );
            let is_native = path.starts_with("/api");
            let expected = if is_native { Value::Null } else { violations.clone() };
            assert_eq!(
                last_object(&answer)["schema_violations"],
                expected,
                "{path}: {}",
                answer.body
            );
            if is_native {
                body["return_adapted"] = json!(true);
                let answer = server.post(path, body).await;
                assert_eq!(
                    last_object(&answer)["schema_violations"],
                    violations,
                    "{path}: {}",
                    answer.body
                );
                assert_eq!(answer.header("x-puna-ignored"), "", "{path}");
            }
        }
    }
    let enforced = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    set_output(&server, "{}");
    for (path, body) in requests(&enforced, true) {
        let answer = server.post(path, body).await;
        assert!(!answer.body.contains("schema_violations"), "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn strict_schemas_refuse_keywords_that_the_grammar_does_not_enforce() {
    let server = server_generating("{}").await;
    let strict = [
        ("/v1/chat/completions", "/response_format/json_schema"),
        ("/v1/responses", "/text/format"),
    ];
    for (path, form) in strict {
        let body = requests(&schema(), false).into_iter().find(|(of, _)| *of == path);
        let (_, mut body) = body.unwrap();
        body.pointer_mut(form).unwrap()["strict"] = json!(true);
        let refused = server.post(path, body).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert!(
            refused.body.contains(KEYWORD) && refused.body.contains("strict"),
            "{path}: {}",
            refused.body
        );
    }
}

#[tokio::test]
async fn arguments_of_forced_calls_are_checked() {
    let server = server_generating("").await;
    let made = json!({"model": "caller", "from": "cria", "renderer": "qwen3-coder", "parser": "qwen3-coder"});
    assert_eq!(server.post("/api/create", made).await.status, 200);
    let request = |schema: Value, strict: bool| {
        let function = json!({"name": "f", "parameters": schema, "strict": strict});
        chat(json!({
            "model": "caller", "tool_choice": "required", "tools": [{"type": "function", "function": function}],
        }))
    };
    let named = "uniqueItems at tools.f#/properties/tags";
    for (tags, violations) in [(r#"["a"]"#, ""), (r#"["a", "a"]"#, named)] {
        let argument = format!("<parameter=tags>\n{tags}\n</parameter>");
        set_output(
            &server,
            &format!("<tool_call>\n<function=f>\n{argument}\n</function>\n</tool_call>"),
        );
        let answer = server.post("/v1/chat/completions", request(schema(), false)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            answer.json()["choices"][0]["message"]["tool_calls"][0].is_object(),
            "{}",
            answer.body
        );
        assert_eq!((answer.header(UNENFORCED), answer.header(VIOLATIONS)), (named, violations));
        let mut streamed = request(schema(), false);
        streamed["stream"] = json!(true);
        let answer = server.post("/v1/chat/completions", streamed).await;
        let expected = if violations.is_empty() { json!([]) } else { json!([violations]) };
        assert_eq!(last_object(&answer)["schema_violations"], expected, "{}", answer.body);
    }
    let refused = server.post("/v1/chat/completions", request(schema(), true)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("uniqueItems at #/properties/tags"), "{}", refused.body);
}
