//! Keywords of schemas that are checked on the finished answer.

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

/// A server whose model says a text.
async fn saying(text: &str) -> Bench {
    let b = Bench::with(|config| config.go_template = Some(true));
    b.fake.reads_forms.store(true, Ordering::Relaxed);
    let plain =
        json!({"model": "plain", "from": "cria", "template": "{{ .Prompt }}", "stream": false});
    assert_eq!(b.post("/api/create", plain).await.status, 200);
    say(&b, text);
    b
}

fn say(b: &Bench, text: &str) {
    *b.fake.says.lock().unwrap() = text.chars().map(String::from).collect();
}

/// Requests with a schema, by their paths.
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

/// The last object of a stream.
fn last(answer: &Answer) -> Value {
    let lines = answer.body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let mut objects = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.next_back().unwrap_or_else(|| panic!("{}", answer.body))
}

#[tokio::test]
async fn headers_of_whole_answers_name_what_is_checked_and_what_fails() {
    let b = saying("").await;
    for (text, violations) in [
        (r#"{"tags": ["a", "b"]}"#, ""),
        (r#"{"tags": ["a", "a"]}"#, KEYWORD),
        (r#"{"tags": ["a""#, "the answer is not complete JSON"),
    ] {
        say(&b, text);
        for (path, body) in requests(&schema(), false) {
            let answer = b.post(path, body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert_eq!(
                (answer.header(UNENFORCED), answer.header(VIOLATIONS)),
                (KEYWORD, violations),
                "{path}"
            );
            assert!(!answer.body.contains("schema_violations"), "{path}: {}", answer.body);
        }
    }
    // Where grammars enforce everything there is nothing to say.
    let enforced = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}});
    say(&b, "{}");
    for (path, body) in requests(&enforced, false) {
        let answer = b.post(path, body).await;
        assert_eq!((answer.header(UNENFORCED), answer.header(VIOLATIONS)), ("", ""), "{path}");
    }
}

#[tokio::test]
async fn the_last_event_of_a_stream_says_what_fails() {
    let b = saying("").await;
    for (text, violations) in
        [(r#"{"tags": ["a", "b"]}"#, json!([])), (r#"{"tags": ["a", "a"]}"#, json!([KEYWORD]))]
    {
        say(&b, text);
        for (path, mut body) in requests(&schema(), true) {
            let answer = b.post(path, body.clone()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.header(UNENFORCED)),
                (200, KEYWORD),
                "{path}"
            );
            let is_native = path.starts_with("/api");
            let expected = if is_native { Value::Null } else { violations.clone() };
            assert_eq!(last(&answer)["schema_violations"], expected, "{path}: {}", answer.body);
            if is_native {
                body["return_adapted"] = json!(true);
                let answer = b.post(path, body).await;
                assert_eq!(
                    last(&answer)["schema_violations"],
                    violations,
                    "{path}: {}",
                    answer.body
                );
                assert_eq!(answer.header("x-puna-ignored"), "", "{path}");
            }
        }
    }
    let enforced = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    say(&b, "{}");
    for (path, body) in requests(&enforced, true) {
        let answer = b.post(path, body).await;
        assert!(!answer.body.contains("schema_violations"), "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn strict_schemas_refuse_what_would_be_checked() {
    let b = saying("{}").await;
    let strict = [
        ("/v1/chat/completions", "/response_format/json_schema"),
        ("/v1/responses", "/text/format"),
    ];
    for (path, form) in strict {
        let body = requests(&schema(), false).into_iter().find(|(of, _)| *of == path);
        let (_, mut body) = body.unwrap();
        body.pointer_mut(form).unwrap()["strict"] = json!(true);
        let refused = b.post(path, body).await;
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
    let b = saying("").await;
    let made = json!({"model": "caller", "from": "cria", "renderer": "qwen3-coder", "parser": "qwen3-coder"});
    assert_eq!(b.post("/api/create", made).await.status, 200);
    let request = |schema: Value, strict: bool| {
        let function = json!({"name": "f", "parameters": schema, "strict": strict});
        chat(json!({
            "model": "caller", "tool_choice": "required", "tools": [{"type": "function", "function": function}],
        }))
    };
    let named = "uniqueItems at tools.f#/properties/tags";
    for (tags, violations) in [(r#"["a"]"#, ""), (r#"["a", "a"]"#, named)] {
        let argument = format!("<parameter=tags>\n{tags}\n</parameter>");
        say(&b, &format!("<tool_call>\n<function=f>\n{argument}\n</function>\n</tool_call>"));
        let answer = b.post("/v1/chat/completions", request(schema(), false)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            answer.json()["choices"][0]["message"]["tool_calls"][0].is_object(),
            "{}",
            answer.body
        );
        assert_eq!((answer.header(UNENFORCED), answer.header(VIOLATIONS)), (named, violations));
        let mut streamed = request(schema(), false);
        streamed["stream"] = json!(true);
        let answer = b.post("/v1/chat/completions", streamed).await;
        let expected = if violations.is_empty() { json!([]) } else { json!([violations]) };
        assert_eq!(last(&answer)["schema_violations"], expected, "{}", answer.body);
    }
    let refused = b.post("/v1/chat/completions", request(schema(), true)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("uniqueItems at #/properties/tags"), "{}", refused.body);
}
