//! Conversion of input items and encoding of answers.

use std::sync::Arc;
use std::time::Duration;

use puna_api::ollama::{Message, ToolChoice};
use puna_sampler::Constraint;
use serde_json::{Map, Value, json};

use super::{Keep, ResponseEncoder, left_out, replay, to_request};
use crate::api::answer_events::EventSequencer;
use crate::api::generation_request::GenerationRequest;
use crate::api::openai::responses::ResponseStore;
use crate::api::{AnswerEncoder, AnswerEvent, Times};
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};
use crate::http::Owner;

fn request(extra: Value) -> Result<GenerationRequest, String> {
    let mut body = json!({"model": "m", "input": "hi"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let request = puna_api::decode::from_value(&body).map_err(|e| e.to_string())?;
    to_request(&request, &[]).map_err(|f| f.message)
}

fn input(input: Value) -> Result<Value, String> {
    request(json!({"input": input})).map(|chat| serde_json::to_value(chat.messages()).unwrap())
}

#[test]
fn input_items_become_messages() {
    let user = json!({"role": "user", "content": "x"});
    assert_eq!(input(json!("x")).unwrap(), json!([user]));
    assert_eq!(input(json!("")).unwrap(), json!([]));
    let parts = json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]);
    let got = input(json!([{"type": "message", "role": "User", "content": parts}])).unwrap();
    assert_eq!(got, json!([{"role": "user", "content": "a", "images": ["AAAA"]}]));
}

#[test]
fn one_of_branches_of_a_strict_schema_must_be_exclusive() {
    let format_request = |strict: Value, other: &str| {
        let schema = json!({"oneOf": [{"type": "string"}, {"type": other}]});
        request(
            json!({"text": {"format": {"type": "json_schema", "name": "n", "strict": strict, "schema": schema}}}),
        )
    };
    assert!(
        format_request(json!(true), "integer").is_ok()
            && format_request(json!(false), "string").is_ok()
    );
    let error = format_request(json!(true), "string").unwrap_err();
    assert!(error.starts_with("text.format: schema: \"oneOf\" at #: "), "{error}");
}

#[test]
fn calls_results_and_reasoning_are_joined_to_their_messages() {
    let got = input(json!([
        {"role": "user", "content": "x"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "h"}, {"type": "summary_text", "text": "m"}]},
        {"type": "reasoning", "id": "s", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "said"}]},
        {"type": "message", "role": "assistant", "content": "too"},
        {"type": "function_call_output", "call_id": "c2", "output": "ok"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "fine"}]},
        {"type": "reasoning", "encrypted_content": "last"},
    ]));
    let calls = json!([
        {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}},
        {"id": "c2", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]);
    let want = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "said\n\ntoo", "thinking": "hm\n\nso", "tool_calls": calls},
        {"role": "tool", "content": "ok", "tool_name": "g", "tool_call_id": "c2"},
        {"role": "tool", "content": "fine", "tool_name": "f", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "thinking": "last"},
    ]);
    assert_eq!(got.unwrap(), want);
}

#[test]
fn errors_name_unknown_items() {
    for (given, want) in [
        (json!([{"type": "item_reference", "id": "msg_1"}]), "input[0]: item \"msg_1\" not found"),
        (json!(5), "input must be a string or array: json: cannot unmarshal number"),
        (json!(["x"]), "input[0]: json: cannot unmarshal string"),
        (json!([{"foo": 1}]), "input[0]: input item missing required 'type' field"),
        (json!([{"type": "zzz"}]), "input[0]: unknown input item type: \"zzz\""),
        (
            json!([{"role": "user", "content": [{"type": "weird"}]}]),
            "input[0]: content[0]: unknown content type: weird",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_file"}]}]),
            "file inputs are not currently supported",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]),
            "input[0]: content[0]: an image needs",
        ),
    ] {
        let got = input(given).unwrap_err();
        assert!(got.starts_with(want), "{got}");
    }
    assert!(
        request(json!({"conversation": "c"}))
            .unwrap_err()
            .starts_with("conversation is not supported")
    );
    assert!(
        request(json!({"background": true}))
            .unwrap_err()
            .starts_with("background is not supported")
    );
    assert!(request(json!({"background": false})).is_ok());
}

#[test]
fn instructions_options_and_tools_are_converted() {
    let schema = json!({"type": "object", "properties": {}});
    let got = request(json!({
        "instructions": "Be brief.", "max_output_tokens": 5, "text": {"format": {"type": "json_schema", "schema": schema}},
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": true},
            {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "g", "parameters": schema}]},
        ],
    }))
    .unwrap();
    assert_eq!(got.messages()[0], Message::text("system", "Be brief."));
    assert_eq!(got.format, Some(Constraint::schema(schema)));
    assert_eq!(Value::Object(got.options.to_map()), json!({"num_predict": 5}));
    let names: Vec<_> = got.tools().iter().map(|tool| tool.name().to_owned()).collect();
    assert_eq!(names, ["f", "ns.g"]);
    let refused = |tool: Value| request(json!({"tools": [tool]})).unwrap_err();
    assert_eq!(
        refused(json!({"type": "mcp"})),
        "tools[0]: tools of type \"mcp\" are not supported"
    );
    assert_eq!(
        request(json!({"max_output_tokens": 0})).unwrap_err(),
        "max_output_tokens must be at least 1"
    );
}

#[test]
fn a_schema_keeps_its_name_and_strictness() {
    let format_request =
        json!({"type": "json_schema", "name": "n", "strict": false, "schema": {"type": "object"}});
    let got = request(json!({"text": {"format": format_request}})).unwrap().schema_label;
    assert_eq!((got.name.as_deref(), got.description, got.strict), (Some("n"), None, Some(false)));
}

#[test]
fn model_is_offered_only_allowed_tools() {
    let tools =
        json!([{"type": "function", "name": "weather"}, {"type": "function", "name": "add"}]);
    let allow = |name: &str, mode: &str| {
        let choice = json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name}]});
        request(json!({"tools": tools, "tool_choice": choice}))
    };
    let got = allow("add", "required").unwrap();
    assert_eq!(got.tools().iter().map(|tool| tool.name()).collect::<Vec<_>>(), ["add"]);
    assert_eq!(got.tool_choice, ToolChoice::Required);
    assert_eq!(allow("add", "auto").unwrap().tool_choice, ToolChoice::Auto);
    let error = allow("sub", "auto").unwrap_err();
    assert_eq!(error, "tool_choice allows the function \"sub\", which is not among the tools");
    assert!(allow("add", "many").unwrap_err().contains("unknown mode \"many\""));
}

#[test]
fn other_tools_are_offered_as_functions() {
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""});
    let tools = json!([
        {"type": "custom", "name": "patch", "description": "Patches.", "format": grammar},
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": false},
        {"type": "web_search_preview"},
        {"type": "image_generation"},
    ]);
    let input = json!([
        {"role": "user", "content": "x"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "local_shell_call", "id": "c2", "action": {"type": "exec", "command": ["ls"], "timeout_ms": null}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a"},
        {"type": "web_search_call", "id": "w"},
    ]);
    let got =
        request(json!({"tools": tools, "input": input, "tool_choice": {"type": "local_shell"}}))
            .unwrap();
    let names: Vec<_> = got.tools().iter().map(|tool| tool.name().to_owned()).collect();
    assert_eq!(names, ["patch", "local_shell"]);
    let function = &got.tools()[0].0["function"];
    assert!(function["description"].as_str().unwrap().ends_with("start: \"x\""), "{function}");
    assert_eq!(function["parameters"]["required"], json!(["input"]));
    assert_eq!(got.tool_choice, ToolChoice::Named("local_shell".into()));
    let calls: Vec<_> =
        got.messages().iter().flat_map(|m| &m.tool_calls).map(|c| &c.function).collect();
    assert_eq!((calls[0].name.as_str(), &calls[0].arguments["input"]), ("patch", &json!("x")));
    assert_eq!(
        (calls[1].name.as_str(), &calls[1].arguments["command"]),
        ("local_shell", &json!(["ls"]))
    );
    assert_eq!(calls[1].arguments.len(), 1);
    let results: Vec<_> = got.messages().iter().filter(|m| m.role == "tool").collect();
    assert_eq!([&results[0].tool_name, &results[1].tool_name], ["patch", "local_shell"]);
    assert_eq!(
        left_out(tools.as_array().unwrap()),
        ["tools.web_search", "tools.web_search_preview", "tools.image_generation"]
    );
    assert!(request(json!({"tools": tools, "tool_choice": {"type": "web_search"}})).is_err());
}

#[test]
fn malformed_tools_and_calls_are_rejected_with_their_index() {
    let function = json!({"type": "function", "name": "f"});
    for (tool, want) in [
        (json!({"type": "custom"}), "tools[1]: a custom tool has no name"),
        (
            json!({"type": "custom", "name": "f"}),
            "at tools[0] and tools[1] have the same name \"f\"",
        ),
        (
            json!({"type": "function", "name": "g", "strict": 1}),
            "tools[1]: strict must be true or false, but is 1",
        ),
        (
            json!({"type": "custom", "name": "c", "format": {"type": "weird"}}),
            "unknown type \"weird\"",
        ),
        (
            json!({"type": "custom", "name": "c", "format": {"type": "grammar"}}),
            "needs the field definition",
        ),
    ] {
        let error = request(json!({"tools": [function, tool], "input": "x"})).unwrap_err();
        assert!(error.contains(want), "{tool}: {error}");
    }
    for item in [
        json!({"type": "function_call", "call_id": "a", "arguments": "{}"}),
        json!({"type": "custom_tool_call", "call_id": "a", "input": "x"}),
        json!({"type": "local_shell_call", "call_id": "a"}),
    ] {
        let error =
            request(json!({"input": [{"role": "user", "content": "x"}, item]})).unwrap_err();
        assert!(
            error.starts_with("input[1]: a ") && error.contains("call needs the "),
            "{item}: {error}"
        );
    }
}

#[test]
fn empty_input_is_rejected() {
    let error = request(json!({"input": []})).unwrap_err();
    assert!(error.starts_with("input must not be empty"), "{error}");
    assert!(request(json!({"input": [], "instructions": "Be brief."})).is_ok());
    let body = puna_api::decode::from_value(&json!({"model": "m", "input": []})).unwrap();
    assert!(to_request(&body, &[Message::text("user", "x")]).is_ok());
}

#[test]
fn calls_have_the_format_of_their_tool() {
    let tools = json!([{"type": "custom", "name": "f"}, {"type": "local_shell"}]);
    let called = |name: &str, arguments: Value| {
        let request = json!({"model": "m", "input": "x", "tools": tools});
        let mut encoder =
            ResponseEncoder::new(puna_api::decode::from_value(&request).unwrap(), None);
        let arguments = arguments.as_object().unwrap().clone();
        events(
            &mut encoder,
            whole("call_1", name, arguments).into_iter().chain([done(FinishReason::Stop)]),
        )
    };
    let got = called("f", json!({"input": "a\nb"}));
    let want = "created in_progress output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done completed";
    assert_eq!(kinds(&got).join(" "), want);
    assert_eq!(
        (&got[2]["item"]["input"], &got[3]["delta"], &got[4]["input"]),
        (&json!(""), &json!("a\nb"), &json!("a\nb"))
    );
    let item = &got[5]["item"];
    assert_eq!(
        (&item["type"], &item["call_id"], &item["name"]),
        (&json!("custom_tool_call"), &json!("call_1"), &json!("f"))
    );
    assert_eq!(called("f", json!({"other": 1}))[5]["item"]["input"], r#"{"other":1}"#);
    let got = called("local_shell", json!({"command": ["ls", "-l"], "timeout_ms": 5}));
    assert_eq!(
        kinds(&got).join(" "),
        "created in_progress output_item.added output_item.done completed"
    );
    let action = json!({"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": null, "timeout_ms": 5});
    assert_eq!((&got[3]["item"]["action"], got[3]["item"].get("name")), (&action, None));
    let line = called("local_shell", json!({"command": "ls -l"}));
    assert_eq!(line[3]["item"]["action"]["command"], json!(["sh", "-c", "ls -l"]));
}

#[test]
fn namespace_tool_is_called_by_namespace_and_name() {
    let group = json!({"type": "namespace", "name": "mcp__x", "tools": [
        {"type": "function", "name": "get", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch"},
    ]});
    let body = json!({"model": "m", "tools": [], "input": [
        {"type": "additional_tools", "tools": [group]},
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c1", "namespace": "mcp__x", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ], "tool_choice": {"type": "function", "name": "get"}});
    let mut request: puna_api::responses::ResponsesRequest =
        puna_api::decode::from_value(&body).unwrap();
    super::take_additional_tools(&mut request);
    let chat = to_request(&request, &[]).unwrap();
    let names: Vec<_> = chat.tools().iter().map(|tool| tool.name().to_owned()).collect();
    assert_eq!(names, ["mcp__x.get", "mcp__x.patch"]);
    assert_eq!(chat.messages()[1].tool_calls[0].function.name, "mcp__x.get");
    assert_eq!(chat.messages()[2].tool_name, "mcp__x.get");
    assert_eq!(chat.tool_choice, ToolChoice::Named("mcp__x.get".into()));
    let mut encoder = ResponseEncoder::new(request, None);
    let calls = whole("c2", "mcp__x.get", Map::new()).into_iter();
    let text = json!({"input": "a"}).as_object().unwrap().clone();
    let calls = calls.chain(whole("c3", "mcp__x.patch", text)).chain([done(FinishReason::Stop)]);
    let got = events(&mut encoder, calls);
    let output = got.last().unwrap()["response"]["output"].clone();
    let names =
        |item: &Value| [item["type"].clone(), item["namespace"].clone(), item["name"].clone()];
    assert_eq!(names(&output[0]), ["function_call", "mcp__x", "get"].map(Value::from));
    assert_eq!(names(&output[1]), ["custom_tool_call", "mcp__x", "patch"].map(Value::from));
    let added = got.iter().find(|event| event["type"] == "response.output_item.added").unwrap();
    assert_eq!(names(&added["item"]), ["function_call", "mcp__x", "get"].map(Value::from));
}

#[test]
fn tool_choice_resolves_names_in_namespaces() {
    let get = json!({"type": "function", "name": "get", "parameters": {"type": "object"}});
    let group = |name: &str| json!({"type": "namespace", "name": name, "tools": [get]});
    let tools = json!([get, group("mcp__x"), group("mcp__y")]);
    let choose = |choice: &Value| request(json!({"tools": tools, "tool_choice": choice}));
    let tool = |namespace: &str| json!({"type": "function", "name": "get", "namespace": namespace});
    let allowed = |namespace: &str| json!({"type": "allowed_tools", "mode": "auto", "tools": [tool(namespace)]});
    for namespace in ["mcp__x", "mcp__y"] {
        let full = format!("{namespace}.get");
        assert_eq!(choose(&tool(namespace)).unwrap().tool_choice, ToolChoice::Named(full.clone()));
        let got = choose(&allowed(namespace)).unwrap();
        assert_eq!(got.tools().iter().map(|tool| tool.name()).collect::<Vec<_>>(), [full]);
    }
    assert_eq!(choose(&tool("")).unwrap().tool_choice, ToolChoice::Named("get".into()));
    let error = choose(&allowed("mcp__z")).unwrap_err();
    assert_eq!(
        error,
        "tool_choice allows the function \"mcp__z.get\", which is not among the tools"
    );
    assert_eq!(
        choose(&tool("mcp__z")).unwrap().tool_choice,
        ToolChoice::Named("mcp__z.get".into())
    );
    let body = json!({"model": "m", "input": "x", "tools": tools, "tool_choice": tool("mcp__x")});
    let mut encoder = ResponseEncoder::new(puna_api::decode::from_value(&body).unwrap(), None);
    let got = events(&mut encoder, [done(FinishReason::Stop)]);
    assert_eq!(got[0]["response"]["tool_choice"], tool("mcp__x"));
}

fn piece(text: &str) -> Piece {
    Piece { text: text.into(), logprobs: Vec::new() }
}

/// Returns the events of a call without partial arguments.
fn whole(id: &str, name: &str, arguments: Map<String, Value>) -> [Event; 2] {
    let (index, id, name) = (0, id.into(), name.into());
    [
        Event::CallStart { index, id, name },
        Event::CallEnd { index, outcome: CallOutcome::Complete(arguments) },
    ]
}

fn call() -> [Event; 2] {
    whole("call_1", "f", Map::new())
}

fn done(reason: FinishReason) -> Event {
    Event::Done(Box::new(GenerationSummary {
        reason,
        stop: None,
        has_usage: true,
        prompt_tokens: 10,
        cached_tokens: 4,
        prefill: Duration::ZERO,
        generated_tokens: 3,
        thought_tokens: 2,
        decode: Duration::ZERO,
        draft_counts: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: Vec::new(),
        schema_violations: None,
    }))
}

fn stream(given: impl IntoIterator<Item = Event>, keep: Option<Keep>) -> Vec<Value> {
    let request = puna_api::decode::from_value(&json!({"model": "m", "input": "x"})).unwrap();
    events(&mut ResponseEncoder::new(request, keep), given)
}

/// Returns the encoded events.
fn events(encoder: &mut ResponseEncoder, given: impl IntoIterator<Item = Event>) -> Vec<Value> {
    let text = text(encoder, given);
    let one = |(number, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        data
    };
    text.strip_suffix("\n\n").unwrap().split("\n\n").enumerate().map(one).collect()
}

/// Returns the encoded stream as text.
fn text(encoder: &mut ResponseEncoder, given: impl IntoIterator<Item = Event>) -> String {
    let (mut out, mut sequencer) = (Vec::new(), EventSequencer::default());
    for event in [Event::Started { prompt_tokens: 10 }].into_iter().chain(given) {
        sequencer.push(event);
        while let Some(event) = sequencer.pop() {
            encoder.encode(0, event, Times::default(), &mut out);
        }
    }
    String::from_utf8(out).unwrap()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap())
        .collect()
}

#[test]
fn each_item_ends_before_the_next_starts() {
    let texts =
        [Event::Thinking(piece("hm")), Event::Content(piece("a")), Event::Content(piece("b"))];
    let events = texts.into_iter().chain(call()).chain([done(FinishReason::Stop)]);
    let got = stream(events, None);
    let want = "created in_progress \
        output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.done reasoning_summary_part.done output_item.done \
        output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done \
        output_item.added function_call_arguments.delta function_call_arguments.done output_item.done completed";
    assert_eq!(kinds(&got).join(" "), want);
    let places: Vec<_> = got.iter().filter_map(|event| event["output_index"].as_u64()).collect();
    assert_eq!(places, [[0; 6].as_slice(), &[1; 7], &[2; 4]].concat());
    let ends = got
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| event["item"].clone());
    let response = &got.last().unwrap()["response"];
    assert_eq!(
        response["output"],
        Value::Array(ends.collect()),
        "the whole holds what the pieces said"
    );
    assert_eq!(response["output"][1]["content"][0]["text"], "ab");
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
    assert!(response["completed_at"].is_i64() && got[0]["response"]["completed_at"].is_null());
}

#[test]
fn empty_answer_is_an_empty_message_and_truncated_answer_is_incomplete() {
    let got = stream([done(FinishReason::Length)], None);
    let end = got.last().unwrap();
    assert_eq!(end["type"], "response.incomplete");
    let response = &end["response"];
    assert_eq!(
        (&response["status"], &response["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
    assert_eq!(response["output"][0]["content"][0]["text"], "");
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[test]
fn truncated_item_is_incomplete() {
    for reason in [FinishReason::Length, FinishReason::ContentFilter] {
        let cut = [
            Event::CallStart { index: 1, id: "call_2".into(), name: "f".into() },
            Event::CallArguments { index: 1, text: "{\"x\"".into() },
            Event::CallEnd { index: 1, outcome: CallOutcome::CutOff },
        ];
        for (last, kinds) in [
            (vec![Event::Content(piece("b"))], vec!["message"]),
            (vec![], vec![]),
            (cut.to_vec(), vec!["function_call"]),
        ] {
            let given = [Event::Content(piece("a"))].into_iter().chain(call()).chain(last);
            let got = stream(given.chain([done(reason)]), None);
            let output = got.last().unwrap()["response"]["output"].as_array().unwrap().clone();
            assert_eq!(
                (&output[0]["status"], &output[1]["status"]),
                (&json!("completed"), &json!("completed"))
            );
            let rest: Vec<_> =
                output[2..].iter().map(|item| item["type"].as_str().unwrap()).collect();
            assert_eq!(rest, kinds);
            assert!(output[2..].iter().all(|item| item["status"] == "incomplete"), "{output:?}");
        }
    }
    let tools = json!([{"type": "custom", "name": "c"}]);
    let request =
        puna_api::decode::from_value(&json!({"model": "m", "input": "x", "tools": tools})).unwrap();
    let cut = [
        Event::CallStart { index: 0, id: "call_1".into(), name: "c".into() },
        Event::CallEnd { index: 0, outcome: CallOutcome::CutOff },
        done(FinishReason::Length),
    ];
    let got = events(&mut ResponseEncoder::new(request, None), cut);
    assert_eq!(got.last().unwrap()["response"]["output"][0]["status"], "incomplete");
}

#[test]
fn prompt_progress_is_sent_as_comments_at_intervals() {
    let request = puna_api::decode::from_value(&json!({"model": "m", "input": "x"})).unwrap();
    let (mut encoder, mut out) = (ResponseEncoder::new(request, None), Vec::new());
    for done in [1, 2, 3, 3] {
        std::thread::sleep(Duration::from_millis(250));
        encoder.encode(0, AnswerEvent::Progress { done, total: 3 }, Times::default(), &mut out);
    }
    assert_eq!(
        String::from_utf8(out).unwrap(),
        ": reading the prompt, 66 %\n\n: reading the prompt, 100 %\n\n"
    );
}

#[test]
fn failed_generation_ends_with_failed_response() {
    let keep = Keep { owner: Owner(0), client: 0, responses: Arc::default(), messages: Vec::new() };
    let got = stream(
        [Event::Content(piece("a")), Event::Error(ApiError::internal("broken"))],
        Some(keep),
    );
    let end = got.last().unwrap();
    assert_eq!(
        (&end["type"], &end["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(end["response"]["error"], json!({"code": "server_error", "message": "broken"}));
    assert_eq!(end["response"]["store"], false, "nobody finds it later");
}

#[test]
fn context_overflow_is_reported_in_the_stream_with_its_code() {
    let request = puna_api::decode::from_value(&json!({"model": "m", "input": "x"})).unwrap();
    let mut encoder = ResponseEncoder::new(request, None);
    let failure = ApiError { is_too_long: true, ..ApiError::bad_request("too long") };
    assert!(encoder.fails_in_stream(&failure));
    let got = events(&mut encoder, [Event::Error(failure)]);
    let error = &got.last().unwrap()["response"]["error"];
    assert_eq!(*error, json!({"code": "context_length_exceeded", "message": "too long"}));
}

#[test]
fn response_too_large_to_store_reports_store_false() {
    let responses = Arc::<ResponseStore>::default();
    let keep =
        Keep { owner: Owner(0), client: 0, responses: responses.clone(), messages: Vec::new() };
    let got = stream(
        [Event::Content(piece(&"x".repeat(70 << 10))), done(FinishReason::Stop)],
        Some(keep),
    );
    let response = &got.last().unwrap()["response"];
    assert_eq!(response["store"], false);
    assert!(responses.get(response["id"].as_str().unwrap(), Owner(0)).is_none());
}

#[test]
fn stored_response_has_the_conversation_and_the_answer() {
    let responses = Arc::<ResponseStore>::default();
    let keep = Keep {
        owner: Owner(0),
        client: 0,
        responses: responses.clone(),
        messages: vec![Message::text("user", "x")],
    };
    let got = stream(
        [Event::Thinking(piece("hm")), Event::Content(piece("a"))]
            .into_iter()
            .chain(call())
            .chain([done(FinishReason::Stop)]),
        Some(keep),
    );
    let response = &got.last().unwrap()["response"];
    assert_eq!((&response["store"], &got[0]["response"]["store"]), (&json!(true), &json!(true)));
    let stored = responses.get(response["id"].as_str().unwrap(), Owner(0)).unwrap();
    assert_eq!(&stored.response, response);
    assert_eq!((stored.messages[0].content.as_str(), stored.messages.len()), ("x", 2));
    let answer = &stored.messages[1];
    assert_eq!(
        (answer.role.as_str(), answer.thinking.as_str(), answer.content.as_str()),
        ("assistant", "hm", "a")
    );
    assert_eq!(answer.tool_calls[0].id, "call_1");
}

#[test]
fn replay_equals_the_original_stream() {
    let tools = json!([{"type": "custom", "name": "c"}, {"type": "local_shell"}]);
    let body = json!({"model": "m", "input": "x", "tools": tools, "instructions": "Be brief.", "metadata": {"a": "b"}});
    let named = |name: &str, arguments: Value| {
        whole(&format!("call_{name}"), name, arguments.as_object().unwrap().clone()).to_vec()
    };
    let starts = || Event::CallStart { index: 1, id: "call_g".into(), name: "g".into() };
    let arguments = |text: &str| Event::CallArguments { index: 1, text: text.into() };
    let whole_g = CallOutcome::Complete(json!({"a": 1}).as_object().unwrap().clone());
    let answers = [
        vec![done(FinishReason::Stop)],
        [
            vec![
                Event::Thinking(piece("h")),
                Event::Thinking(piece("m ä")),
                Event::Content(piece("é")),
                Event::Content(piece("b")),
            ],
            call().to_vec(),
            vec![
                starts(),
                arguments("{\"a\""),
                arguments(":1}"),
                Event::CallEnd { index: 1, outcome: whole_g },
            ],
            named("c", json!({"input": "a\nb"})),
            named("local_shell", json!({"command": ["ls"]})),
            vec![done(FinishReason::Stop)],
        ]
        .concat(),
        vec![Event::Content(piece("a")), starts(), arguments("{\"a"), done(FinishReason::Length)],
    ];
    for given in answers {
        let responses = Arc::<ResponseStore>::default();
        let keep =
            Keep { owner: Owner(0), client: 0, responses: responses.clone(), messages: Vec::new() };
        let mut encoder =
            ResponseEncoder::new(puna_api::decode::from_value(&body).unwrap(), Some(keep));
        let original = text(&mut encoder, given);
        let last = original.trim_end().rsplit("\ndata: ").next().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        let stored = responses.get(last["response"]["id"].as_str().unwrap(), Owner(0)).unwrap();
        let again = |after| String::from_utf8(replay(&stored, after)).unwrap();
        assert_eq!(again(None), original);
        let events: Vec<_> = original.split_inclusive("\n\n").collect();
        for after in [0, 3, events.len() - 1, 1000] {
            let rest = events.get(after + 1..).unwrap_or_default().concat();
            assert_eq!(again(Some(after as u64)), rest, "after {after}");
        }
    }
}
