//! Requests and answers of Anthropic's dialect, compared with the API description.

use std::time::Duration;

use puna_api::ollama::{Think, ToolChoice};
use puna_sampler::Constraint;
use serde_json::{Value, json};

use super::{MessagesEncoder, left_out, to_request};
use crate::api::answer_events::EventSequencer;
use crate::api::generation_request::GenerationRequest;
use crate::api::{AnswerEncoder, AnswerEvent, CollectedCall, CollectedResponse, Times};
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};

fn request(extra: Value) -> Result<GenerationRequest, String> {
    let mut body =
        json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    to_request(puna_api::decode::from_value(&body).map_err(|e| e.to_string())?)
        .map_err(|f| f.message)
}

fn messages(messages: Value) -> Result<Value, String> {
    request(json!({"messages": messages}))
        .map(|chat| serde_json::to_value(chat.messages()).unwrap())
}

fn blocks(role: &str, blocks: Value) -> Result<Value, String> {
    messages(json!([{"role": role, "content": blocks}]))
}

#[test]
fn only_options_in_the_request_are_set() {
    assert_eq!(
        Value::Object(request(json!({})).unwrap().options.to_map()),
        json!({"num_predict": 9})
    );
    let all = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["END"]});
    let want =
        json!({"num_predict": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop": ["END"]});
    assert_eq!(Value::Object(request(all).unwrap().options.to_map()), want);
}

#[test]
fn thinking_takes_precedence_over_effort() {
    let think = |extra| request(extra).unwrap().think;
    assert_eq!(
        think(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
        Some(Think::On)
    );
    assert_eq!(
        think(json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}})),
        Some(Think::Off)
    );
    assert_eq!(
        think(json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xHigh"}})),
        Some(Think::High)
    );
}

#[test]
fn system_blocks_become_the_first_message_joined_by_blank_lines() {
    let first = |system| request(json!({"system": system})).map(|chat| chat.messages()[0].clone());
    let want = puna_api::ollama::Message::text("system", "Be brief.");
    assert_eq!(first(json!("Be brief.")).unwrap(), want);
    let cached = json!([{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief."}]);
    assert_eq!(first(cached).unwrap().content, "Be\n\nbrief.");
    // A block that changes with every request would defeat the prefix cache.
    let header = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2.3; cch=0a1b2;"},
        {"type": "text", "text": "Be brief."},
    ]);
    assert_eq!(first(header).unwrap(), want);
    assert_eq!(first(json!("")).unwrap().role, "user");
    assert!(first(json!(5)).unwrap_err().contains("system must be a string"));
    assert!(first(json!([{"type": "image"}])).unwrap_err().contains("must be of type text"));
}

#[test]
fn blocks_of_a_message_become_one_message() {
    let got = blocks(
        "Assistant",
        json!([
            {"type": "thinking", "thinking": "hm", "signature": "xyz"},
            {"type": "thinking", "thinking": "so", "signature": "xyz"},
            {"type": "redacted_thinking", "data": "…"},
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "t2", "name": "g"},
            {"type": "text", "text": "c"},
        ]),
    );
    let calls = json!([
        {"id": "t1", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {"id": "t2", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]);
    let want = json!([{"role": "assistant", "content": "ab\n\nc", "thinking": "hm\n\nso", "tool_calls": calls}]);
    assert_eq!(got.unwrap(), want);
}

#[test]
fn tool_results_precede_user_text_and_have_the_function_name() {
    let call = json!([{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]);
    let result = |content| json!({"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": true});
    let got = |content| {
        let user = json!([{"type": "text", "text": "go"}, result(content)]);
        messages(json!([{"role": "assistant", "content": call}, {"role": "user", "content": user}]))
            .unwrap()
    };
    let tool = |content: &str| json!({"role": "tool", "content": content, "tool_name": "f", "tool_call_id": "t1"});
    for (content, text) in [
        (json!("r"), "Error: r"),
        (json!("error: no such file"), "error: no such file"),
        (json!([{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]), "Error: r\n\ns"),
        (Value::Null, "Error:"),
    ] {
        let got = got(content);
        assert_eq!((&got[1], &got[2]), (&tool(text), &json!({"role": "user", "content": "go"})));
    }
}

#[test]
fn only_base64_images_are_accepted() {
    let image = |source: Value| blocks("user", json!([{"type": "image", "source": source}]));
    let got = image(json!({"type": "base64", "media_type": "image/png", "data": "AAAA"}));
    assert_eq!(got.unwrap()[0]["images"], json!(["AAAA"]));
    assert_eq!(image(Value::Null).unwrap_err(), "invalid image source");
    assert_eq!(
        image(json!({"type": "url", "url": "http://x"})).unwrap_err(),
        "invalid image source type: url. Only base64 images are supported: the server's setting image_urls is off"
    );
    assert_eq!(
        image(json!({"type": "base64", "data": "!!"})).unwrap_err(),
        "invalid base64 image data: illegal base64 data at input byte 0"
    );
}

#[test]
fn documents_become_their_text() {
    let text = json!({"type": "document", "title": "a.txt", "source": {"type": "text", "media_type": "text/plain", "data": "x\n"}});
    let base64 = json!({"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "eQ=="}});
    let list = json!({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "z"}]}});
    let found = json!({"type": "search_result", "title": "T", "source": "u", "content": [{"type": "text", "text": "w"}]});
    let got = blocks("user", json!([text, base64, {"type": "text", "text": "?"}])).unwrap();
    let want = "<document title=\"a.txt\">\nx\n</document>\n<document>\ny\n</document>\n?";
    assert_eq!(got, json!([{"role": "user", "content": want}]));
    let got = blocks(
        "user",
        json!([{"type": "tool_result", "tool_use_id": "t", "content": [list, found]}]),
    )
    .unwrap();
    let want = "<document>\nz\n</document>\n<search_result title=\"T\" source=\"u\">\nw\n</search_result>\n";
    assert_eq!(got[0]["content"], want);
}

#[test]
fn unknown_content_is_rejected() {
    for (block, want) in [
        (
            json!({"type": "document"}),
            "document source of type \"\" is not supported: send the text",
        ),
        (
            json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}),
            "documents of type application/pdf are not supported: send the text as text/plain",
        ),
        (
            json!({"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}),
            "document content of type \"image\" is not supported: send text",
        ),
        (
            json!({"type": "container_upload"}),
            "content blocks of type container_upload are not supported",
        ),
        (json!({"text": "x"}), "a content block has no type"),
        (json!({"type": "tool_use", "name": "x"}), "tool_use block missing required 'id' field"),
        (json!({"type": "tool_use", "id": "x"}), "tool_use block missing required 'name' field"),
        (
            json!({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "tool_reference"}]}),
            "tool_result: content of type \"tool_reference\" is not supported",
        ),
        (
            json!({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}),
            "invalid tool_result image source",
        ),
    ] {
        assert_eq!(blocks("user", json!([block])).unwrap_err(), want);
    }
    assert_eq!(messages(json!([])).unwrap_err(), "messages is required");
    assert_eq!(blocks("user", json!([])).unwrap_err(), "messages is required");
    assert_eq!(messages(json!([{"role": "user"}])).unwrap_err(), "unexpected end of JSON input");
    assert_eq!(
        messages(json!([{"role": "user", "content": 5}])).unwrap_err(),
        "json: cannot unmarshal number into Go struct field MessagesRequest.messages of type []anthropic.ContentBlock"
    );
    assert_eq!(request(json!({"container": "c1"})).unwrap_err(), "container is not supported");
    assert_eq!(request(json!({"mcp_servers": [{}]})).unwrap_err(), "mcp_servers is not supported");
    assert!(request(json!({"mcp_servers": []})).is_ok());
}

#[test]
fn tools_keep_their_schemas_and_errors_name_invalid_tools() {
    let tools = |tools: Value| {
        request(json!({"tools": tools})).map(|r| serde_json::to_value(r.tools()).unwrap())
    };
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]});
    let got = tools(json!([{"name": "f", "description": "d", "input_schema": schema}])).unwrap();
    let function = json!({"name": "f", "description": "d", "parameters": schema});
    assert_eq!(got, json!([{"type": "function", "function": function}]));
    assert_eq!(
        tools(json!([{"name": "x", "input_schema": "bad"}])).unwrap_err(),
        "invalid input_schema for tool \"x\": json: cannot unmarshal string into Go value of type api.ToolFunctionParameters"
    );
    for unknown in [json!([{"type": "bogus_1"}]), json!([{"type": "bogus_1", "name": "x"}])] {
        assert!(
            tools(unknown).unwrap_err().contains("tools of type \"bogus_1\" are not supported")
        );
    }
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}, {"name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]);
    let got = tools(search).unwrap();
    let names: Vec<_> =
        got.as_array().unwrap().iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["web_search", "bash"], "the server's search stands instead of a user's");
    assert_eq!(got[0]["function"]["parameters"]["required"], json!(["query"]));
    assert!(
        got[1]["function"]["parameters"]["properties"]["command"].is_object(),
        "it has no schema of its own"
    );
    let own = json!({"type": "object", "properties": {"x": {}}});
    let defined = json!([
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}, {"type": "memory_20250818", "name": "memory"},
        {"type": "code_execution_20250825", "name": "code_execution"}, {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "custom", "name": "bash", "description": "mine", "input_schema": own},
    ]);
    let got = tools(defined.clone()).unwrap();
    let functions: Vec<_> = got.as_array().unwrap().iter().map(|t| &t["function"]).collect();
    assert_eq!(
        (functions.len(), &functions[0]["parameters"]["required"]),
        (3, &json!(["command", "path"]))
    );
    assert!(functions[1]["parameters"]["properties"]["new_path"].is_object());
    assert_eq!((&functions[2]["description"], &functions[2]["parameters"]), (&json!("mine"), &own));
    let defined: Vec<_> = puna_api::decode::from_value(&defined).unwrap();
    assert_eq!(
        left_out(&defined),
        ["tools.code_execution_20250825", "tools.tool_search_tool_regex_20251119"]
    );
}

#[test]
fn tool_choice_accepts_four_types() {
    let choice = |choice| {
        request(json!({"tool_choice": choice})).map(|r| (r.tool_choice, r.parallel_tool_calls))
    };
    assert_eq!(choice(json!({"type": "auto"})).unwrap(), (ToolChoice::Auto, true));
    assert_eq!(
        choice(json!({"type": "any", "disable_parallel_tool_use": true})).unwrap(),
        (ToolChoice::Required, false)
    );
    assert_eq!(choice(json!({"type": "none"})).unwrap().0, ToolChoice::None);
    assert_eq!(
        choice(json!({"type": "tool", "name": "f"})).unwrap().0,
        ToolChoice::Named("f".into())
    );
    for wrong in [
        json!({"type": "tool"}),
        json!({"type": "required"}),
        json!({"type": "zzz"}),
        json!("any"),
        json!({}),
    ] {
        let error = choice(wrong.clone()).unwrap_err();
        assert!(
            error.starts_with(&format!(
                "invalid tool_choice: {wrong} (must be an object of type \"auto\""
            )),
            "{error}"
        );
    }
}

#[test]
fn unknown_thinking_and_effort_values_are_rejected() {
    let think = |extra: Value| request(extra).map(|r| r.think);
    assert!(
        think(json!({"thinking": {"type": "zzz"}}))
            .unwrap_err()
            .contains("'adaptive', 'disabled', 'enabled'")
    );
    assert!(think(json!({"thinking": {}})).unwrap_err().contains("discriminator 'type'"));
    assert!(
        think(json!({"output_config": {"effort": "zzz"}}))
            .unwrap_err()
            .contains("'xhigh' or 'max'")
    );
}

#[test]
fn schema_is_read_from_output_format_and_output_config() {
    let schema = json!({"type": "object"});
    let format = json!({"type": "json_schema", "schema": schema});
    for extra in [json!({"output_format": format}), json!({"output_config": {"format": format}})] {
        assert_eq!(request(extra).unwrap().format, Some(Constraint::schema(schema.clone())));
    }
    assert!(request(json!({"output_format": {"type": "json_schema", "schema": 5}})).is_err());
    for (given, constraint) in [
        (json!({"type": "text"}), None),
        (json!({"type": "json_object"}), Some(Constraint::Json)),
        (json!({"type": "regex", "pattern": "a+"}), Some(Constraint::Regex("a+".into()))),
        (json!({"type": "lark", "grammar": "g"}), Some(Constraint::Lark("g".into()))),
    ] {
        assert_eq!(request(json!({"output_format": given})).unwrap().format, constraint);
    }
}

fn content(text: &str) -> Event {
    Event::Content(Piece { text: text.into(), logprobs: Vec::new() })
}

fn thinking(text: &str) -> Event {
    Event::Thinking(Piece { text: text.into(), logprobs: Vec::new() })
}

fn call(name: &str) -> [Event; 2] {
    let arguments = json!({"city": "Paris"}).as_object().unwrap().clone();
    let (index, id, name) = (0, "call_c0f8jguf".into(), name.into());
    [
        Event::CallStart { index, id, name },
        Event::CallEnd { index, outcome: CallOutcome::Complete(arguments) },
    ]
}

fn done(reason: FinishReason, stop: Option<&str>) -> Event {
    Event::Done(Box::new(GenerationSummary {
        reason,
        stop: stop.map(str::to_owned),
        has_usage: true,
        prompt_tokens: 100,
        cached_tokens: 64,
        prefill: Duration::ZERO,
        generated_tokens: 9,
        thought_tokens: 0,
        decode: Duration::ZERO,
        draft_counts: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: Vec::new(),
        schema_violations: None,
    }))
}

/// Returns the events of a stream without pings. Asserts that each event's name equals its type.
fn stream(events: impl IntoIterator<Item = Event>) -> Vec<Value> {
    let mut encoder = MessagesEncoder::new("t".into(), vec!["END".into()], true);
    let (mut out, mut sequencer) = (Vec::new(), EventSequencer::default());
    for event in [Event::Started { prompt_tokens: 100 }].into_iter().chain(events) {
        sequencer.push(event);
        while let Some(event) = sequencer.pop() {
            encoder.encode(0, event, Times::default(), &mut out);
        }
    }
    let text = String::from_utf8(out).unwrap();
    let one = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    let events = text.strip_suffix("\n\n").unwrap().split("\n\n").map(one);
    events.filter(|event| event["type"] != "ping").collect()
}

#[test]
fn thinking_and_text_are_streamed_as_blocks() {
    let got =
        stream([thinking("o"), thinking("k"), content("Hello"), done(FinishReason::Stop, None)]);
    let message = &got[0]["message"];
    assert_eq!(message["id"].as_str().unwrap().len(), "msg_".len() + 24);
    assert_eq!(
        (&message["content"], &message["stop_reason"], &message["stop_sequence"]),
        (&json!([]), &Value::Null, &Value::Null)
    );
    assert_eq!(message["usage"]["input_tokens"], 100, "known before the first token");
    let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let want = [
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "o"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "k"})),
        delta(0, json!({"type": "signature_delta", "signature": "cHVuYQ=="})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Hello"})),
        stop(1),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {
            "input_tokens": 36, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64, "output_tokens": 9,
        }}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(got[1..], want);
}

#[test]
fn call_and_following_text_are_separate_blocks() {
    let got = stream(
        [content("a")]
            .into_iter()
            .chain(call("get_weather"))
            .chain([content("b"), done(FinishReason::Length, None)]),
    );
    let kinds: Vec<_> = got
        .iter()
        .map(|e| e["type"].as_str().unwrap().trim_start_matches("content_block_"))
        .collect();
    let want = "message_start start delta stop start delta stop start delta stop message_delta message_stop";
    assert_eq!(kinds.join(" "), want);
    let block =
        json!({"type": "tool_use", "id": "call_c0f8jguf", "name": "get_weather", "input": {}});
    assert_eq!((&got[4]["index"], &got[4]["content_block"]), (&json!(1), &block));
    assert_eq!(
        got[5]["delta"],
        json!({"type": "input_json_delta", "partial_json": "{\"city\":\"Paris\"}"})
    );
    assert_eq!(got[10]["delta"]["stop_reason"], "tool_use", "also when cut by length");
    let filtered =
        stream(call("get_weather").into_iter().chain([done(FinishReason::ContentFilter, None)]));
    let end = filtered.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(end["delta"]["stop_reason"], "refusal");
}

#[test]
fn web_search_fails_and_ends_the_turn() {
    let got = stream(
        call("web_search")
            .into_iter()
            .chain(call("web_search"))
            .chain([done(FinishReason::Stop, None)]),
    );
    let blocks: Vec<_> =
        got.iter().map(|e| &e["content_block"]).filter(|block| block.is_object()).collect();
    let kinds: Vec<_> = blocks.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["server_tool_use", "web_search_tool_result"].repeat(2));
    let error = json!({"type": "web_search_tool_result_error", "error_code": "unavailable"});
    for pair in blocks.chunks(2) {
        assert_eq!((&pair[0]["id"], &pair[1]["content"]), (&pair[1]["tool_use_id"], &error));
        assert!(pair[0]["id"].as_str().unwrap().starts_with("srvtoolu_"));
    }
    assert_ne!(blocks[0]["id"], blocks[2]["id"]);
    assert_eq!(got[got.len() - 2]["delta"]["stop_reason"], "end_turn");
}

#[tokio::test]
async fn call_cut_off_by_content_filter_is_a_refusal() {
    let name = || "f".to_owned();
    let events = [
        Event::CallStart { index: 0, id: "t1".into(), name: name() },
        Event::CallArguments { index: 0, text: "{\"x\"".into() },
        Event::CallEnd { index: 0, outcome: CallOutcome::CutOff },
        done(FinishReason::ContentFilter, None),
    ];
    let mut sequencer = EventSequencer::default();
    events.clone().into_iter().for_each(|event| sequencer.push(event));
    let mut all = CollectedResponse::default();
    while let Some(event) = sequencer.pop() {
        match event {
            AnswerEvent::CallEnd(call) => {
                all.tool_calls.push(CollectedCall { id: "t1".into(), call })
            }
            AnswerEvent::Done(done) => all.done = Some(done),
            _ => {}
        }
    }
    let body = MessagesEncoder::new("t".into(), Vec::new(), false).whole(all).into_body();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let whole: Value = serde_json::from_slice(&body).unwrap();
    let streamed = stream(events);
    let delta = streamed.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(
        (&whole["stop_reason"], &delta["delta"]["stop_reason"]),
        (&json!("refusal"), &json!("refusal"))
    );
}

#[test]
fn stop_reason_names_the_matching_stop_sequence_of_the_request() {
    let delta = |events: [Event; 1]| {
        let got = stream(events);
        assert_eq!(got.len(), 3, "without output there are no blocks");
        got[1]["delta"].clone()
    };
    let reason = |reason: &str, stop: Value| json!({"stop_reason": reason, "stop_sequence": stop});
    assert_eq!(
        delta([done(FinishReason::Stop, Some("END"))]),
        reason("stop_sequence", json!("END"))
    );
    assert_eq!(
        delta([done(FinishReason::Stop, Some("<|im_end|>"))]),
        reason("end_turn", Value::Null),
        "the model's own"
    );
    assert_eq!(delta([done(FinishReason::Length, None)]), reason("max_tokens", Value::Null));
}

#[test]
fn end_reports_truncated_messages_and_tokens() {
    let Event::Done(mut end) = done(FinishReason::Stop, None) else { unreachable!() };
    (end.dropped_messages, end.dropped_tokens) = (2, 40);
    let got = stream([content("a"), Event::Done(end)]);
    let usage = &got[got.len() - 2]["usage"];
    assert_eq!((&usage["truncated_messages"], &usage["truncated_tokens"]), (&json!(2), &json!(40)));
}

#[test]
fn failed_stream_ends_with_an_error_event() {
    let got = stream([content("a"), Event::Error(ApiError::internal("broken"))]);
    let want = json!({"type": "error", "error": {"type": "api_error", "message": "broken"}});
    assert_eq!(got.last().unwrap(), &want);
}
