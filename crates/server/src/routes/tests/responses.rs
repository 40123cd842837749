//! Tests of `/v1/responses` behind the middleware.

use std::collections::HashSet;

use super::*;

async fn respond(server: &TestServer, extra: Value) -> TestResponse {
    let mut body = json!({"model": "cria", "input": "hi", "max_output_tokens": 3, "reasoning": {"effort": "none"}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post("/v1/responses", body).await
}

/// Returns the prompt that a request renders to.
async fn rendered_prompt(server: &TestServer, extra: Value) -> String {
    let mut extra = extra;
    extra["_debug_render_only"] = json!(true);
    respond(server, extra).await.json()["_debug_info"]["rendered_template"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn responses_are_answered_whole_and_streamed() {
    let server = TestServer::new();
    let whole = respond(&server, json!({})).await.json();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["output"][0]["content"][0]["text"], "w0 w1 w2 ");
    assert_eq!(whole["usage"]["output_tokens"], 3);
    let streamed = respond(&server, json!({"stream": true})).await;
    assert_eq!(
        (streamed.header("content-type"), streamed.header("cache-control")),
        ("text/event-stream", "no-cache")
    );
    let events = streamed.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, "w0 w1 w2 ");
    assert_eq!(
        events.last().unwrap()["response"]["output"][0]["content"],
        whole["output"][0]["content"]
    );
    let empty = respond(&server, json!({"input": ""})).await.json();
    assert_eq!(
        (&empty["status"], &empty["output"][0]["content"][0]["text"]),
        (&json!("completed"), &json!(""))
    );
}

#[tokio::test]
async fn a_response_continues_a_stored_response() {
    let server = TestServer::new();
    let first = respond(&server, json!({"instructions": "Be brief."})).await.json();
    let id = first["id"].as_str().unwrap();
    assert_eq!(first["store"], true);
    let next = json!({"input": "and?", "previous_response_id": id, "instructions": "Be long."});
    let text = rendered_prompt(&server, next.clone()).await;
    let places = ["Be long.", "hi", "w0 w1 w2 ", "and?"]
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")));
    assert!(places.is_sorted() && !text.contains("Be brief."), "{text}");
    let second = respond(&server, next).await.json();
    assert_eq!(second["previous_response_id"], id);
    let third = json!({"input": "more", "previous_response_id": second["id"]});
    let text = rendered_prompt(&server, third).await;
    assert!(text.matches("w0 w1 w2 ").count() == 2 && !text.contains("Be "), "{text}");
    assert_eq!(server.get(&format!("/v1/responses/{id}")).await.json(), first);
}

#[tokio::test]
async fn a_stored_response_is_returned_whole_or_as_events() {
    let server = TestServer::new();
    let told = respond(&server, json!({"stream": true})).await;
    let events: Vec<&str> =
        told.body.split_inclusive("\n\n").filter(|event| !event.starts_with(':')).collect();
    let data = |event: &str| -> Value {
        serde_json::from_str(event.split_once("\ndata: ").unwrap().1).unwrap()
    };
    let kept = data(events.last().unwrap())["response"].clone();
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    let whole = server.get(&format!("{path}?stream=false&include[]=x&starting_after=1")).await;
    assert_eq!(whole.header("x-puna-ignored"), "include[], starting_after");
    assert_eq!(whole.json(), kept);
    assert_eq!(server.get(&format!("{path}?stream=yes")).await.status, 400);
    let again = server.get(&format!("{path}?stream=true")).await;
    assert_eq!((again.status.as_u16(), again.header("content-type")), (200, "text/event-stream"));
    assert_eq!(again.body, events.concat());
    let rest = server.get(&format!("{path}?stream=true&starting_after=4")).await;
    assert_eq!(rest.body, events[5..].concat());
    let refused = server.get(&format!("{path}?stream=true&starting_after=x")).await;
    assert!(
        refused.status == 400 && refused.body.contains("starting_after must be"),
        "{}",
        refused.body
    );
    assert_eq!(server.get("/v1/responses/resp_0?stream=true").await.status, 404);
    // A response that was not streamed can be replayed as events.
    let whole = respond(&server, json!({})).await.json();
    let told =
        server.get(&format!("/v1/responses/{}?stream=true", whole["id"].as_str().unwrap())).await;
    assert_eq!(data(told.body.trim_end().rsplit("\n\n").next().unwrap())["response"], whole);
}

#[tokio::test]
async fn a_deleted_or_unstored_response_is_not_found() {
    let server = TestServer::new();
    let gone = async |id: &str| {
        let answer = respond(&server, json!({"previous_response_id": id})).await;
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains("not found: it was not stored"), "{}", answer.body);
        assert_eq!(server.get(&format!("/v1/responses/{id}")).await.status, 404);
    };
    let unkept = respond(&server, json!({"store": false})).await.json();
    assert_eq!(unkept["store"], false);
    gone(unkept["id"].as_str().unwrap()).await;
    let kept = respond(&server, json!({"stream": false})).await.json();
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    let deleted = server.send(Request::delete(&path).body(Body::empty()).unwrap()).await;
    assert_eq!(deleted.json()["deleted"], true);
    gone(kept["id"].as_str().unwrap()).await;
    assert_eq!(server.send(Request::delete(&path).body(Body::empty()).unwrap()).await.status, 404);
}

#[tokio::test]
async fn errors_before_the_first_event_have_their_own_status() {
    let server = TestServer::new();
    let missing = respond(&server, json!({"model": "no-such", "stream": true})).await;
    assert_eq!(
        (missing.status.as_u16(), &missing.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    let empty = server.post("/v1/responses", Value::Null).await;
    assert_eq!(
        (empty.status.as_u16(), &empty.json()["error"]["message"]),
        (400, &json!("model is required"))
    );
    let files = respond(&server, json!({"tools": [{"type": "file_search"}]})).await;
    assert_eq!(
        files.json()["error"]["message"],
        "tools[0]: tools of type \"file_search\" are not supported"
    );
    let item =
        respond(&server, json!({"input": [{"type": "item_reference", "id": "msg_1"}]})).await;
    assert!(
        item.json()["error"]["message"]
            .as_str()
            .unwrap()
            .starts_with("input[0]: item \"msg_1\" not found")
    );
}

#[tokio::test]
async fn unsupported_tools_are_named() {
    let server = TestServer::new();
    let search = respond(&server, json!({"tools": [{"type": "web_search"}]})).await;
    assert_eq!(
        (search.status.as_u16(), search.header("x-puna-ignored")),
        (200, "tools.web_search")
    );
}

#[tokio::test]
async fn hosted_tools_are_left_out_of_the_tools_and_of_the_tool_choice() {
    let server = TestServer::new();
    let chat = async |allowed: Value| {
        let function = json!({"type": "function", "function": {"name": "f"}});
        let allowed = json!({"mode": "auto", "tools": allowed});
        let body = json!({"model": "cria", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2,
            "tools": [function, {"type": "web_search"}],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}});
        server.post("/v1/chat/completions", body).await
    };
    let response_of = async |mode: &str, allowed: Value| {
        let tools = json!([{"type": "function", "name": "f"}, {"type": "web_search"}]);
        let choice = json!({"type": "allowed_tools", "mode": mode, "tools": allowed});
        respond(&server, json!({"tools": tools, "tool_choice": choice})).await
    };
    let response = async |allowed: Value| response_of("auto", allowed).await;
    let named = json!({"type": "function", "name": "f"});
    let search = json!({"type": "web_search"});
    let got = response(json!([named, search, {"type": "image_generation"}])).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let ignored: HashSet<&str> = got.header("x-puna-ignored").split(", ").collect();
    let want = ["tools.web_search", "tool_choice.web_search", "tool_choice.image_generation"];
    assert_eq!(ignored, HashSet::from(want));
    assert_eq!(got.json()["tool_choice"]["tools"].as_array().unwrap().len(), 3);
    let got = chat(json!([{"type": "function", "function": {"name": "f"}}, search])).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let ignored: HashSet<&str> = got.header("x-puna-ignored").split(", ").collect();
    assert_eq!(ignored, HashSet::from(["tools.web_search", "tool_choice.web_search"]));
    // A request is valid if no tool is left but none is required.
    assert_eq!(response(json!([search])).await.status, 200);
    assert_eq!(chat(json!([search])).await.status, 200);
    assert_eq!(response_of("required", json!([search])).await.status, 400);
    let allowed = json!([named, {"type": "mcp", "server_label": "x"}]);
    for refused in [response(allowed.clone()).await, chat(allowed).await] {
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
}

#[tokio::test]
async fn items_of_stored_responses_can_be_referenced_by_their_owner() {
    let server = TestServer::new();
    let first = respond(&server, json!({})).await.json();
    let id = &first["output"].as_array().unwrap().last().unwrap()["id"];
    let input = json!([{"type": "item_reference", "id": id}, {"role": "user", "content": "again"}]);
    let said = first["output"].as_array().unwrap().last().unwrap()["content"][0]["text"]
        .as_str()
        .unwrap()
        .trim();
    let prompt = rendered_prompt(&server, json!({"input": input})).await;
    assert!(!said.is_empty() && prompt.contains(said), "{said:?} in {prompt:?}");
}

#[tokio::test]
async fn counted_input_tokens_equal_those_of_the_prompt() {
    let server = TestServer::new();
    let body = json!({"model": "cria", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 1});
    let counted = server.post("/v1/responses/input_tokens", body.clone()).await.json();
    let answered = server.post("/v1/responses", body).await.json();
    assert_eq!(
        counted,
        json!({"object": "response.input_tokens", "input_tokens": answered["usage"]["input_tokens"]})
    );
}

/// Returns a request of two turns with a prompt that exceeds the context.
fn too_long() -> Value {
    let turn = |role: &str, text: &str, times| json!({"role": role, "content": text.repeat(times)});
    let input = [turn("user", "one ", 2), turn("assistant", "two ", 30), turn("user", "three ", 3)];
    json!({"input": input, "options": {"num_ctx": 100}})
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_truncated_only_if_the_request_allows_it() {
    let server = TestServer::new();
    let with = |extra: Value| {
        let mut body = too_long();
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let figures = |response: &Value| {
        ["truncated_messages", "truncated_tokens"]
            .map(|name| response["usage"][name].as_u64().unwrap_or(0))
    };
    let whole = respond(&server, with(json!({"truncation": "auto"}))).await.json();
    let [messages, tokens] = figures(&whole);
    assert_eq!((messages, tokens), (1, 0), "{whole}");
    assert_eq!(whole["truncation"], "auto", "it was cut");
    let stream = respond(&server, with(json!({"stream": true, "truncation": "auto"}))).await.body;
    let last = stream.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(figures(&last["response"]), [messages, tokens]);

    for truncation in [json!("disabled"), Value::Null] {
        let refused = respond(&server, with(json!({"truncation": truncation}))).await;
        let error = &refused.json()["error"];
        assert_eq!(
            (refused.status.as_u16(), &error["type"]),
            (400, &json!("invalid_request_error"))
        );
        let text = error["message"].as_str().unwrap();
        assert!(
            text.starts_with("prompt is too long: ") && text.ends_with("context is 100"),
            "{text}"
        );
        assert_eq!(
            (&error["code"], &error["n_ctx"]),
            (&json!("context_length_exceeded"), &json!(100))
        );
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 100, "{error}");
        // Clients read the code of a streamed error from the last event.
        let stream =
            respond(&server, with(json!({"truncation": truncation, "stream": true}))).await;
        let last =
            stream.body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!((stream.status.as_u16(), &last["type"]), (200, &json!("response.failed")));
        assert_eq!(last["response"]["error"]["code"], "context_length_exceeded");
    }
    for (truncation, echoed) in
        [(json!("disabled"), "disabled"), (Value::Null, "disabled"), (json!("auto"), "auto")]
    {
        let fits = respond(&server, json!({"truncation": truncation})).await.json();
        assert_eq!((&fits["truncation"], figures(&fits)), (&json!(echoed), [0, 0]));
        assert!(fits["usage"].get("truncated_tokens").is_none());
    }
}
