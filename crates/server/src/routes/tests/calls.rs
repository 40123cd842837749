//! Tests of streamed tool calls in each dialect; the model generates single characters.

use super::*;

const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
/// A call that ends within its arguments.
const BROKEN: &str = r#"<tool_call>{"name": "f", "arguments": {"a": "#;

fn parameters() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}}})
}

/// Returns the data of a stream's events.
async fn events(path: &str, says: &str, body: Value) -> Vec<Value> {
    events_of(&server_with_tools().await, path, says, body).await
}

async fn server_with_tools() -> TestServer {
    let server = TestServer::new();
    let made =
        json!({"model": "caller", "from": "cria", "renderer": "qwen3-coder", "parser": "qwen3"});
    assert_eq!(server.post("/api/create", made).await.status, 200);
    server
}

async fn events_of(server: &TestServer, path: &str, says: &str, body: Value) -> Vec<Value> {
    *server.fake.says.lock().unwrap() = says.chars().map(String::from).collect();
    let answer = server.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn chat_deltas(says: &str) -> (Vec<Value>, Value) {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters()}});
    let chunks = events(
        "/v1/chat/completions",
        says,
        chat(json!({"model": "caller", "stream": true, "tools": [tool]})),
    )
    .await;
    let reason = chunks.last().unwrap()["choices"][0]["finish_reason"].clone();
    let calls =
        chunks.into_iter().map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].clone());
    (calls.filter(|call| !call.is_null()).collect(), reason)
}

#[tokio::test]
async fn chat_streams_the_name_of_a_call_and_then_its_arguments() {
    let (deltas, reason) = chat_deltas(&format!("{CALL}{CALL}")).await;
    assert_eq!(reason, "tool_calls");
    let mut calls: Vec<(Value, String)> = Vec::new();
    for delta in &deltas {
        let function = &delta["function"];
        if let Some(id) = delta["id"].as_str() {
            assert!(
                id.starts_with("call_") && delta["type"] == "function" && function["name"] == "f"
            );
            assert_eq!(
                (function["arguments"].as_str(), delta["index"].as_u64()),
                (Some(""), Some(calls.len() as u64))
            );
            calls.push((delta["index"].clone(), String::new()));
            continue;
        }
        let keys: Vec<&String> = delta.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["index", "function"], "the rest is not said again");
        assert_eq!(function.as_object().unwrap().len(), 1);
        let (index, arguments) = calls.last_mut().unwrap();
        assert_eq!(delta["index"], *index);
        arguments.push_str(function["arguments"].as_str().unwrap());
    }
    let arguments: Vec<&str> = calls.iter().map(|(_, arguments)| arguments.as_str()).collect();
    assert_eq!(arguments, [r#"{"a": 1}"#; 2]);
    assert_eq!(deltas.len(), 2 * (1 + r#"{"a": 1}"#.len()));
}

#[tokio::test]
async fn chat_streams_the_arguments_of_a_truncated_call() {
    let (deltas, reason) = chat_deltas(BROKEN).await;
    let arguments: String =
        deltas.iter().map(|d| d["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!((arguments.as_str(), reason), (r#"{"a": "#, json!("tool_calls")));
}

#[tokio::test]
async fn messages_stream_a_block_for_each_call() {
    let body = json!({"model": "caller", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": parameters()}]});
    for (says, whole) in [(format!("Hm. {CALL}{CALL}"), true), (format!("Hm. {BROKEN}"), false)] {
        let events = events("/v1/messages", &says, body.clone()).await;
        let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
        let starts = of("content_block_start");
        assert_eq!(starts.len(), if whole { 3 } else { 2 });
        assert_eq!(of("content_block_stop").len(), starts.len());
        assert_eq!(
            (&starts[1]["content_block"]["type"], &starts[1]["content_block"]["input"]),
            (&json!("tool_use"), &json!({}))
        );
        let deltas = of("content_block_delta").into_iter().filter(|e| e["index"] == 1);
        let pieces: Vec<&str> =
            deltas.map(|e| e["delta"]["partial_json"].as_str().unwrap()).collect();
        assert!(pieces.len() > 5);
        assert_eq!(pieces.concat(), if whole { r#"{"a": 1}"# } else { r#"{"a": "# });
        let reason = if whole { "tool_use" } else { "end_turn" };
        assert_eq!(of("message_delta")[0]["delta"]["stop_reason"], reason);
    }
}

#[tokio::test]
async fn responses_stream_an_item_for_each_call() {
    let body = json!({"model": "caller", "stream": true, "input": "hi",
        "tools": [{"type": "function", "name": "f", "parameters": parameters()}]});
    for (says, whole) in [(format!("{CALL}{CALL}"), true), (BROKEN.to_owned(), false)] {
        let events = events("/v1/responses", &says, body.clone()).await;
        let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
        let numbers: Vec<u64> =
            events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
        let added = of("response.output_item.added");
        assert_eq!(
            (added.len(), &added[0]["item"]["status"]),
            (1 + usize::from(whole), &json!("in_progress"))
        );
        let item = &added[0]["item"]["id"];
        let deltas = of("response.function_call_arguments.delta")
            .into_iter()
            .filter(|e| e["item_id"] == *item);
        let pieces: Vec<&str> = deltas.map(|e| e["delta"].as_str().unwrap()).collect();
        let wanted = if whole { r#"{"a": 1}"# } else { r#"{"a": "# };
        assert!(pieces.len() > 5 && pieces.concat() == wanted, "{pieces:?}");
        let done = of("response.output_item.done");
        assert_eq!(done[0]["item"]["arguments"], wanted);
        assert_eq!(done[0]["item"]["status"], if whole { "completed" } else { "incomplete" });
        assert_eq!(of("response.function_call_arguments.done").len(), if whole { 2 } else { 0 });
        let last = events.last().unwrap();
        assert_eq!(last["response"]["output"].as_array().unwrap().len(), added.len());
    }
}

/// Joins a stream: its text, its calls with whether each is complete, and the finish reason.
fn join_stream(path: &str, events: &[Value]) -> (String, Vec<(String, bool)>, String) {
    let (mut text, mut calls, mut reason) =
        (String::new(), Vec::<(String, bool)>::new(), String::new());
    let said = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for event in events {
        match path {
            "/v1/chat/completions" => {
                let choice = &event["choices"][0];
                text += &said(&choice["delta"]["content"]);
                for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                    if call["id"].is_string() {
                        calls.push((String::new(), false));
                    }
                    assert_eq!(call["index"], calls.len() - 1);
                    calls.last_mut().unwrap().0 += &said(&call["function"]["arguments"]);
                }
                reason += &said(&choice["finish_reason"]);
            }
            "/v1/messages" => {
                text += &said(&event["delta"]["text"]);
                if event["content_block"]["type"] == "tool_use" {
                    calls.push((String::new(), false));
                }
                if event["delta"]["type"] == "input_json_delta" {
                    calls.last_mut().unwrap().0 += &said(&event["delta"]["partial_json"]);
                }
                reason += &said(&event["delta"]["stop_reason"]);
            }
            _ => {
                if event["type"] == "response.output_text.delta" {
                    text += &said(&event["delta"]);
                }
                if event["type"] == "response.output_item.done"
                    && event["item"]["type"] == "function_call"
                {
                    calls.push((
                        said(&event["item"]["arguments"]),
                        event["item"]["status"] == "completed",
                    ));
                }
                reason += &said(&event["response"]["status"]);
            }
        }
    }
    for (arguments, complete) in &mut calls {
        *complete |= serde_json::from_str::<Value>(arguments).is_ok();
    }
    (text, calls, reason)
}

#[tokio::test]
async fn a_truncated_or_malformed_call_is_sent_once_in_every_dialect() {
    let server = server_with_tools().await;
    let function = json!({"name": "f", "parameters": parameters()});
    let mut flat = function.clone();
    flat["type"] = "function".into();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let bodies = [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": [{"type": "function", "function": function}]}),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 99, "tools": [{"name": "f", "input_schema": parameters()}]}),
        ),
        ("/v1/responses", json!({"input": "hi", "tools": [flat]})),
    ];
    let cuts = (1..CALL.len()).map(|cut| CALL[..cut].to_owned());
    let malformed = [
        "{\"name\": \"f\", \"arguments\": {\"a\": bad}}",
        "{\"name\": \"f\"",
        "{\"name\": \"f\", \"arguments\": {}, \"name\": \"g\"}",
        "bad",
    ];
    let malformed = malformed.map(|inside| format!("<tool_call>{inside}</tool_call>"));
    for says in cuts.chain(malformed) {
        for (path, body) in &bodies {
            let mut body = body.clone();
            (body["model"], body["stream"]) = ("caller".into(), true.into());
            let (text, calls, reason) =
                join_stream(path, &events_of(&server, path, &says, body.clone()).await);
            assert!(calls.len() <= 1, "{path} {says}: {calls:?}");
            // Output before the start of a call is text; no part of a call is.
            let text = if calls.is_empty() { text == says } else { text.is_empty() };
            assert!(text, "{path} {says}: {calls:?}");
            // The arguments that are sent are always a prefix of JSON.
            assert!(
                calls.iter().all(|(json, _)| r#"{"a": 1}"#.starts_with(json) || json == "{}"),
                "{path} {says}: {calls:?}"
            );
            let is_reported =
                calls.iter().any(|(json, is_complete)| !json.is_empty() && !is_complete);
            let is_called = *path == "/v1/chat/completions" && is_reported;
            assert_eq!(reason.contains("tool"), is_called, "{path} {says}: {reason}");
            body["stream"] = false.into();
            let whole = server.post(path, body).await;
            assert_eq!(whole.status, 200, "{path} {says}: {}", whole.body);
            let whole: Value = serde_json::from_str(&whole.body).unwrap();
            let (text, call) = match *path {
                "/v1/chat/completions" => {
                    let message = &whole["choices"][0]["message"];
                    (&message["content"], &message["tool_calls"][0]["function"]["arguments"])
                }
                "/v1/messages" => (&whole["content"][0]["text"], &whole["content"][0]["input"]),
                _ => (&whole["output"][0]["content"][0]["text"], &whole["output"][0]["arguments"]),
            };
            match calls.first() {
                None => assert_eq!((text, call), (&json!(says), &Value::Null), "{path}"),
                Some((arguments, _)) if *path == "/v1/messages" => {
                    let unparsed = json!({"unparsed_arguments": arguments});
                    assert!(
                        arguments.is_empty()
                            || *call == unparsed
                            || serde_json::from_str::<Value>(arguments)
                                .is_ok_and(|sent| sent == *call),
                        "{says}: {call}"
                    );
                }
                Some((arguments, _)) => assert_eq!(call, arguments, "{path} {says}"),
            }
        }
    }
}
