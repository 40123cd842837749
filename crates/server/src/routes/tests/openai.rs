//! Tests of `/v1/chat/completions` and `/v1/completions` behind the middleware: several choices,
//! log-probabilities, reasoning and template variables.

use super::*;

/// Starts a server with a model without reasoning, so that all output is content.
async fn start_server() -> TestServer {
    let server = TestServer::with(|config| config.go_template = Some(true));
    let made =
        json!({"model": "plain", "from": "cria", "template": "{{ .Prompt }}", "stream": false});
    assert_eq!(server.post("/api/create", made).await.status, 200);
    server
}

async fn completion(server: &TestServer, extra: Value) -> TestResponse {
    let mut body = json!({"model": "plain", "prompt": "hi", "max_tokens": 3});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post("/v1/completions", body).await
}

/// Returns the chunks of a stream and checks that it ends with `[DONE]`.
fn chunks(answer: &TestResponse) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), "text/event-stream", "{}", answer.body);
    let data: Vec<_> = answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, chunks) = data.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
}

/// Joins the texts of a streamed response by choice index, as a client does.
fn join_texts(chunks: &[Value], text: impl Fn(&Value) -> Option<&str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let index = choice["index"].as_u64().unwrap() as usize;
        all.resize(all.len().max(index + 1), String::new());
        all[index].push_str(text(choice).unwrap_or_default());
    }
    all
}

#[tokio::test]
async fn several_choices_of_a_chat_have_an_index_each_and_one_usage() {
    let server = TestServer::new();
    let n = json!({"n": 3, "reasoning_effort": "none"});
    let whole = server.post("/v1/chat/completions", chat(n.clone())).await.json();
    let choices = whole["choices"].as_array().unwrap();
    let indexes: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2]);
    assert!(
        choices.iter().all(|choice| choice["message"]["content"] == "w0 w1 w2 w3 w4 "),
        "{whole}"
    );
    let single =
        server.post("/v1/chat/completions", chat(json!({"reasoning_effort": "none"}))).await.json();
    assert_eq!(
        whole["usage"]["prompt_tokens"], single["usage"]["prompt_tokens"],
        "the prompt counts once"
    );
    assert_eq!(whole["usage"]["completion_tokens"], 15);
    let mut streamed = chat(n);
    streamed.as_object_mut().unwrap().extend([
        ("stream".into(), json!(true)),
        ("stream_options".into(), json!({"include_usage": true})),
    ]);
    let chunks = chunks(&server.post("/v1/chat/completions", streamed).await);
    assert_eq!(
        join_texts(&chunks, |choice| choice["delta"]["content"].as_str()),
        ["w0 w1 w2 w3 w4 "; 3]
    );
    let count = |what: fn(&Value) -> bool| chunks.iter().filter(|chunk| what(chunk)).count();
    assert_eq!(count(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant"), 3);
    assert_eq!(count(|chunk| chunk["choices"][0]["finish_reason"] == "length"), 3);
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
}

#[tokio::test]
async fn several_prompts_are_answered_in_their_order() {
    let server = start_server().await;
    let prompts = json!({"prompt": ["one", "two"], "n": 2});
    let whole = completion(&server, prompts).await.json();
    let got: Vec<_> =
        whole["choices"].as_array().unwrap().iter().map(|c| (&c["index"], &c["text"])).collect();
    let text = json!("w0 w1 w2 ");
    assert_eq!(
        got,
        [(&json!(0), &text), (&json!(1), &text), (&json!(2), &text), (&json!(3), &text)]
    );
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let one = completion(&server, json!({"prompt": "one"})).await.json();
    let two = completion(&server, json!({"prompt": ["two"]})).await.json();
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&whole), tokens(&one) + tokens(&two));
    let streamed = completion(&server, json!({"prompt": ["one", "two"], "stream": true})).await;
    assert_eq!(join_texts(&chunks(&streamed), |choice| choice["text"].as_str()), ["w0 w1 w2 "; 2]);
}

#[tokio::test]
async fn a_prompt_of_token_ids_is_used_unchanged_and_can_be_echoed() {
    let server = start_server().await;
    let answer = completion(&server, json!({"prompt": [104, 105], "echo": true})).await.json();
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["usage"]["prompt_tokens"]),
        (&json!("hiw0 w1 w2 "), &json!(2))
    );
    let lists = completion(&server, json!({"prompt": [[104], [105, 105]]})).await.json();
    assert_eq!(
        (lists["choices"].as_array().unwrap().len(), &lists["usage"]["prompt_tokens"]),
        (2, &json!(3))
    );
    let text = completion(&server, json!({"prompt": "hi", "echo": true, "stream": true})).await;
    assert_eq!(join_texts(&chunks(&text), |choice| choice["text"].as_str()), ["hiw0 w1 w2 "]);
    let only =
        completion(&server, json!({"prompt": "hi", "echo": true, "max_tokens": 0})).await.json();
    assert_eq!(only["choices"][0]["text"], "hi");
    let unknown = completion(&server, json!({"prompt": [104, 9999]})).await;
    assert!(
        unknown.status == 400 && unknown.body.contains("this model has no token 9999"),
        "{}",
        unknown.body
    );
}

#[tokio::test]
async fn completions_have_the_legacy_format_of_log_probabilities() {
    let server = start_server().await;
    let answer = completion(&server, json!({"logprobs": 1, "max_tokens": 2})).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    let want = json!({
        "tokens": ["w", "w"], "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"w": -0.5}, {"w": -0.5}], "text_offset": [0, 1],
    });
    assert_eq!(logprobs, &want);
    let streamed =
        chunks(&completion(&server, json!({"logprobs": 1, "max_tokens": 2, "stream": true})).await);
    let offsets: Vec<_> = streamed
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["text_offset"][0].as_u64())
        .collect();
    assert_eq!(offsets, [0, 1]);
    assert!(completion(&server, json!({})).await.json()["choices"][0].get("logprobs").is_none());
}

#[tokio::test]
async fn best_of_returns_the_best_choices_and_counts_all() {
    let server = start_server().await;
    let answer = completion(&server, json!({"n": 1, "best_of": 3})).await.json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    assert!(answer["choices"][0].get("logprobs").is_none(), "nobody asked for them");
    assert_eq!(answer["usage"]["completion_tokens"], 9);
}

#[tokio::test]
async fn a_prompt_is_scored_without_output_and_once_for_several_choices() {
    let server = start_server().await;
    let ask = json!({"prompt": [97, 98], "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = completion(&server, ask.clone()).await.json();
    let (choice, usage) = (&answer["choices"][0], &answer["usage"]);
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("ab"), &json!("length")));
    let want = json!({"tokens": ["a", "b"], "token_logprobs": [null, -1.5], "top_logprobs": [null, {"w": -0.5}],
        "text_offset": [0, 1]});
    assert_eq!(choice["logprobs"], want);
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(2), &json!(0)));
    let mut streamed = ask.clone();
    streamed["stream"] = json!(true);
    let chunks = chunks(&completion(&server, streamed).await);
    assert_eq!(join_texts(&chunks, |choice| choice["text"].as_str()), ["ab"]);
    let scored = chunks
        .iter()
        .find_map(|chunk| chunk["choices"][0]["logprobs"]["token_logprobs"].as_array());
    assert_eq!(scored, Some(&vec![json!(null), json!(-1.5)]));
    // Without the prompt the response has no text, but it is valid.
    let none = completion(&server, json!({"max_tokens": 0})).await.json();
    assert_eq!(
        (&none["choices"][0]["text"], &none["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    assert_eq!(none["usage"]["completion_tokens"], 0);
    // Several choices share one computation of the prompt's log-probabilities, and each choice
    // repeats them.
    let before = server.fake.scored.load(Ordering::Relaxed);
    let several =
        completion(&server, json!({"prompt": [97, 98], "n": 3, "prompt_logprobs": 1})).await.json();
    assert_eq!(server.fake.scored.load(Ordering::Relaxed) - before, 2);
    let lists: Vec<_> =
        several["choices"].as_array().unwrap().iter().map(|c| &c["prompt_logprobs"]).collect();
    assert!(
        lists.len() == 3 && lists[0].is_array() && lists.iter().all(|list| *list == lists[0]),
        "{several}"
    );
}

#[tokio::test]
async fn reasoning_is_returned_and_can_be_switched_off() {
    let server = TestServer::new();
    let ask = |extra: Value| {
        let mut body = json!({"model": "cria", "prompt": "hi", "max_tokens": 3});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/completions", body)
    };
    *server.fake.says.lock().unwrap() =
        ["why", "not", "</think>", "yes"].map(String::from).to_vec();
    let choice = ask(json!({})).await.json()["choices"][0].clone();
    assert_eq!(
        (&choice["text"], &choice["reasoning"]),
        (&json!("yes"), &json!("whynot")),
        "{choice}"
    );
    let chunks = chunks(&ask(json!({"stream": true, "echo": true})).await);
    assert_eq!(join_texts(&chunks, |choice| choice["text"].as_str()), ["hiyes"]);
    assert_eq!(join_texts(&chunks, |choice| choice["reasoning"].as_str()), ["whynot"]);
    // The output ends within the reasoning.
    server.fake.says.lock().unwrap().truncate(2);
    let choice = ask(json!({})).await.json()["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["reasoning"]), (&json!(""), &json!("whynot")), "{choice}");
    *server.fake.says.lock().unwrap() = vec!["yes".into()];
    for off in [
        json!({"think": false}),
        json!({"reasoning_effort": "none"}),
        json!({"reasoning": {"effort": "none"}}),
    ] {
        let answer = ask(off).await;
        assert_eq!(answer.header("x-puna-ignored"), "");
        let choice = answer.json()["choices"][0].clone();
        assert!(choice["text"] == "yes" && choice.get("reasoning").is_none(), "{choice}");
    }
    let wrong = ask(json!({"reasoning_effort": "zz"})).await;
    assert!(
        wrong.status == 400 && wrong.body.contains("invalid reasoning value"),
        "{}",
        wrong.body
    );
}

#[tokio::test]
async fn template_variables_are_accepted_as_by_other_servers() {
    let server = TestServer::new();
    let prompt = async |extra: Value| {
        let mut body = json!({"model": "cria", "messages": [{"role": "user", "content": "Q?"}], "_debug_render_only": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", body).await;
        assert_eq!(answer.header("x-puna-ignored"), "");
        answer.json()["_debug_info"]["rendered_template"].as_str().expect("a prompt").to_owned()
    };
    let kwargs = async |given: Value| prompt(json!({"chat_template_kwargs": given})).await;
    let (thinking, direct) =
        (prompt(json!({})).await, prompt(json!({"reasoning_effort": "none"})).await);
    assert_ne!(thinking, direct);
    for name in ["enable_thinking", "thinking"] {
        assert_eq!(kwargs(json!({name: false})).await, direct, "{name}");
        assert_eq!(kwargs(json!({name: true})).await, thinking, "{name}");
    }
    // The dialect's own field takes precedence.
    let both =
        json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(prompt(both).await, thinking);
}

#[tokio::test]
async fn incompatible_fields_are_refused() {
    let server = start_server().await;
    for (extra, want) in [
        (json!({"n": 3, "best_of": 2}), "best_of must be at least n"),
        (json!({"best_of": 2, "stream": true}), "best_of greater than n cannot be streamed"),
        (json!({"prompt": [1], "suffix": "x"}), "suffix needs a prompt of text"),
        (
            json!({"prompt": ["a", 5]}),
            "cannot unmarshal number into Go struct field CompletionRequest.prompt",
        ),
        (json!({"prompt": []}), "prompt: the list is empty"),
        (json!({"prompt": [1, "a"]}), "must contain token ids only"),
        (json!({"prompt": [-1]}), "must contain token ids only"),
        (
            json!({"prompt": vec!["x"; 65], "n": 2}),
            "65 prompts with 2 answers each exceed the limit of 128 answers",
        ),
    ] {
        let answer = completion(&server, extra).await;
        assert!(answer.status == 400 && answer.body.contains(want), "{want}: {}", answer.body);
    }
}
