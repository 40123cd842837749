//! Encoded answers of all dialects, compared with exchanges of the protocol descriptions.

use std::time::Duration;

use puna_api::ollama::{Logprob, Message};
use puna_sampler::Constraint;
use serde_json::{Value, json};

use super::answer_events::{EndedCall, EventSequencer};
use super::ollama::{ChatEncoder, GenerateEncoder};
use super::{AnswerEncoder, AnswerEvent, Times, openai};
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};

const TIMES: Times = Times { total: 938162812, load: 1941720 };

fn content(text: &str) -> Event {
    Event::Content(Piece { text: text.into(), logprobs: Vec::new() })
}

fn thinking(text: &str) -> Event {
    Event::Thinking(Piece { text: text.into(), logprobs: Vec::new() })
}

fn call() -> [Event; 2] {
    let arguments = json!({"zone": "UTC", "a": 1}).as_object().unwrap().clone();
    let (index, id, name) = (0, "call_7h2k9qzp".into(), "get_time".into());
    [
        Event::CallStart { index, id, name },
        Event::CallEnd { index, outcome: CallOutcome::Complete(arguments) },
    ]
}

fn done(reason: FinishReason) -> Event {
    Event::Done(Box::new(GenerationSummary {
        reason,
        stop: None,
        has_usage: true,
        prompt_tokens: 12,
        cached_tokens: 0,
        prefill: Duration::from_nanos(173884000),
        generated_tokens: 2,
        thought_tokens: 0,
        decode: Duration::from_nanos(748000000),
        draft_counts: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: vec![1, 4093, 198],
        schema_violations: None,
    }))
}

fn text(mut encoder: impl AnswerEncoder, events: impl IntoIterator<Item = Event>) -> String {
    let (mut out, mut sequencer) = (Vec::new(), EventSequencer::default());
    for event in events {
        sequencer.push(event);
        while let Some(event) = sequencer.pop() {
            encoder.encode(0, event, TIMES, &mut out);
        }
    }
    String::from_utf8(out).unwrap()
}

/// Returns the lines without timestamps, which differ between runs.
fn lines(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        assert!(object["created_at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        object["created_at"] = json!("…");
        object.to_string()
    };
    text.lines().map(line).collect()
}

fn sse(text: &str) -> Vec<Value> {
    let events = text.strip_suffix("\n\n").unwrap().split("\n\n");
    events
        .map(|e| e.strip_prefix("data: ").unwrap())
        .map(|d| serde_json::from_str(d).unwrap_or(json!(d)))
        .collect()
}

#[test]
fn native_chat_streams_pieces_then_metrics() {
    let events = [content("Hello"), content(""), content(" there"), done(FinishReason::Length)];
    assert_eq!(
        lines(&text(ChatEncoder::new("tiny".into()), events)),
        [
            r#"{"model":"tiny","created_at":"…","message":{"role":"assistant","content":"Hello"},"done":false}"#,
            r#"{"model":"tiny","created_at":"…","message":{"role":"assistant","content":" there"},"done":false}"#,
            r#"{"model":"tiny","created_at":"…","message":{"role":"assistant","content":""},"done":true,"done_reason":"length","total_duration":938162812,"load_duration":1941720,"prompt_eval_count":12,"prompt_eval_duration":173884000,"eval_count":2,"eval_duration":748000000}"#,
        ]
    );
}

#[test]
fn native_thinking_and_calls_have_separate_fields() {
    let events = [thinking("hm")].into_iter().chain(call());
    assert_eq!(
        lines(&text(ChatEncoder::new("t".into()), events)),
        [
            r#"{"model":"t","created_at":"…","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#,
            r#"{"model":"t","created_at":"…","message":{"role":"assistant","content":"","tool_calls":[{"id":"call_7h2k9qzp","function":{"index":0,"name":"get_time","arguments":{"zone":"UTC","a":1}}}]},"done":false}"#,
        ]
    );
}

#[test]
fn generate_ends_with_context_tokens() {
    let encoder = GenerateEncoder::new("tiny".into(), true);
    let got = lines(&text(encoder, [content("Hello"), done(FinishReason::Stop)]));
    assert_eq!(got[0], r#"{"model":"tiny","created_at":"…","response":"Hello","done":false}"#);
    assert_eq!(
        got[1],
        r#"{"model":"tiny","created_at":"…","response":"","done":true,"done_reason":"stop","context":[1,4093,198],"total_duration":938162812,"load_duration":1941720,"prompt_eval_count":12,"prompt_eval_duration":173884000,"eval_count":2,"eval_duration":748000000}"#
    );
    let raw = GenerateEncoder::new("tiny".into(), false);
    assert!(!text(raw, [done(FinishReason::Stop)]).contains("context"));
}

#[test]
fn failed_stream_ends_with_error_in_every_dialect() {
    let failure = || {
        Event::Error(ApiError { lengths: Some((310, 128)), ..ApiError::bad_request("too long") })
    };
    let line = "{\"error\":\"too long\",\"n_prompt_tokens\":310,\"n_ctx\":128}\n";
    assert_eq!(text(ChatEncoder::new("m".into()), [failure()]), line);
    assert_eq!(text(GenerateEncoder::new("m".into(), true), [failure()]), line);
    let events = sse(&text(openai::ChatEncoder::new("m".into(), false, 1), [failure()]));
    assert_eq!(
        (&events[0]["error"]["message"], &events[1]),
        (&json!("too long"), &json!("[DONE]"))
    );
}

#[test]
fn openai_stream_sends_role_once_and_ends_with_done() {
    let events = [content("Hello"), content(" there"), done(FinishReason::Length)];
    let got = sse(&text(openai::ChatEncoder::new("tiny".into(), true, 1), events));
    assert_eq!(
        got[0]["choices"],
        json!([{"index":0,"delta":{"role":"assistant","content":"Hello"},"finish_reason":null}])
    );
    assert_eq!(
        got[1]["choices"],
        json!([{"index":0,"delta":{"content":" there"},"finish_reason":null}])
    );
    assert_eq!(got[2]["choices"], json!([{"index":0,"delta":{},"finish_reason":"length"}]));
    assert_eq!(got[3]["choices"], json!([]));
    assert_eq!(
        got[3]["usage"],
        json!({"prompt_tokens":12,"completion_tokens":2,"total_tokens":14})
    );
    assert_eq!(got[4], "[DONE]");
    assert!(got[0].get("usage").is_none() && got[0]["id"].as_str().unwrap().len() > 24);
    assert!(got[..4].iter().all(|c| c["id"] == got[0]["id"] && c["created"] == got[0]["created"]));
}

#[test]
fn openai_choices_start_in_index_order() {
    for first in [
        vec![(2, content("c")), (0, content("a")), (1, done(FinishReason::Stop))],
        vec![(1, done(FinishReason::Stop)), (2, content("c"))],
    ] {
        let (mut encoder, mut out) =
            (openai::ChatEncoder::new("tiny".into(), false, 3), Vec::new());
        for (generation, event) in first {
            let mut sequencer = EventSequencer::default();
            sequencer.push(event);
            while let Some(event) = sequencer.pop() {
                encoder.encode(generation, event, TIMES, &mut out);
            }
        }
        let chunks = sse(&String::from_utf8(out).unwrap());
        let choices: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
        for (index, choice) in choices[..3].iter().enumerate() {
            let delta = json!({"role": "assistant", "content": ""});
            assert_eq!((&choice["index"], &choice["delta"]), (&json!(index), &delta));
        }
        assert!(
            choices[3..].iter().all(|choice| choice["delta"].get("role").is_none()),
            "{choices:?}"
        );
    }
}

#[test]
fn openai_usage_reports_truncation() {
    let Event::Done(mut cut) = done(FinishReason::Stop) else { panic!("no end") };
    (cut.dropped_messages, cut.dropped_tokens) = (2, 244);
    let got = sse(&text(openai::ChatEncoder::new("tiny".into(), true, 1), [Event::Done(cut)]));
    let usage = got.iter().find(|chunk| chunk["usage"].is_object()).unwrap();
    assert_eq!(usage["usage"]["truncated_messages"], 2);
    assert_eq!(usage["usage"]["truncated_tokens"], 244);
}

#[test]
fn openai_usage_excludes_tokens_cached_by_the_same_request() {
    let end = |cached| {
        let Event::Done(mut done) = done(FinishReason::Stop) else { panic!("no end") };
        done.cached_tokens = cached;
        AnswerEvent::Done(done)
    };
    let usage = |cached: [u64; 3]| {
        let (mut encoder, mut out) = (openai::ChatEncoder::new("tiny".into(), true, 3), Vec::new());
        (0..3).zip(cached).for_each(|(generation, cached)| {
            encoder.encode(generation, end(cached), TIMES, &mut out)
        });
        let chunks = sse(&String::from_utf8(out).unwrap());
        chunks.into_iter().find(|chunk| chunk["usage"].is_object()).unwrap()["usage"].clone()
    };
    let want = json!({"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18});
    assert_eq!(usage([11, 0, 11]), want);
    let mut cached = want;
    cached["prompt_tokens_details"] = json!({"cached_tokens": 5});
    assert_eq!(usage([11, 11, 5]), cached);
}

#[test]
fn openai_calls_set_finish_reason_and_send_arguments_as_text() {
    let got = sse(&text(
        openai::ChatEncoder::new("m".into(), false, 1),
        [thinking("hm")].into_iter().chain(call()).chain([done(FinishReason::Stop)]),
    ));
    assert_eq!(
        got[0]["choices"][0]["delta"],
        json!({"role":"assistant","content":"","reasoning":"hm"})
    );
    let call = json!({"id":"call_7h2k9qzp","index":0,"type":"function","function":{"name":"get_time","arguments":"{\"zone\":\"UTC\",\"a\":1}"}});
    assert_eq!(got[1]["choices"][0]["delta"], json!({"content":"","tool_calls":[call]}));
    assert_eq!(got[2]["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn empty_openai_answer_has_a_first_chunk() {
    let got =
        sse(&text(openai::ChatEncoder::new("m".into(), false, 1), [done(FinishReason::Stop)]));
    assert_eq!(got[0]["choices"][0]["delta"], json!({"role":"assistant","content":""}));
    assert_eq!(got.len(), 3);
}

#[test]
fn logprobs_are_sent_with_their_piece() {
    let logprob = Logprob {
        token: " x".into(),
        logprob: -0.5,
        bytes: vec![32, 120],
        top_logprobs: Vec::new(),
    };
    let piece = || Event::Content(Piece { text: " x".into(), logprobs: vec![logprob.clone()] });
    let native: Value =
        serde_json::from_str(&text(ChatEncoder::new("m".into()), [piece()])).unwrap();
    assert_eq!(native["logprobs"], json!([{"token":" x","logprob":-0.5,"bytes":[32,120]}]));
    let openai = sse(&text(openai::ChatEncoder::new("m".into(), false, 1), [piece()]));
    assert_eq!(openai[0]["choices"][0]["logprobs"]["content"], native["logprobs"]);
}

#[test]
fn chat_completions_become_canonical_requests() {
    let request = |body: Value| {
        let request = puna_api::decode::from_value(&body).map_err(|e| e.to_string())?;
        openai::to_request(request).map_err(|f| f.message)
    };
    let got = request(json!({
        "model": "m", "max_tokens": 3, "stop": "END", "seed": 7, "reasoning_effort": "xhigh",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    }))
    .unwrap();
    let messages = got.messages();
    assert_eq!(messages[0].content, "a\n\nb");
    assert_eq!(messages[1].tool_calls[0].function.arguments["x"], 1);
    assert_eq!(messages[2].tool_name, "f");
    assert_eq!(got.format, Some(Constraint::schema(json!({"type": "object"}))));
    let options = json!({"stop": ["END"], "num_predict": 3, "seed": 7});
    assert_eq!(Value::Object(got.options.to_map()), options);

    let user =
        |content: Value| json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    assert_eq!(request(json!({"model": "m"})).unwrap_err(), "[] is too short - 'messages'");
    assert_eq!(request(user(json!(5))).unwrap_err(), "invalid message content type: float64");
    assert_eq!(request(user(Value::Null)).unwrap_err(), "invalid message content type: <nil>");
    assert_eq!(request(user(json!(["x"]))).unwrap_err(), "invalid message format");
    let url = |url: &str| {
        request(user(json!([{"type": "image_url", "image_url": {"url": url}}]))).unwrap_err()
    };
    assert!(url("http://x/y.png").starts_with("image URLs are not currently supported"));
    assert_eq!(url("data:image/gif;base64,AAAA"), "invalid image input");
}

#[test]
fn images_are_replaced_in_earlier_turns_and_rejected_in_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let model =
        puna_store::Store::open(folder.path()).unwrap().resolve(&"cria".parse().unwrap()).unwrap();
    let image = || vec![puna_api::ollama::Image::Bytes(vec![1])];
    let seen = |role: &str| Message { images: image(), ..Message::text(role, "look") };
    let mut earlier =
        vec![seen("user"), Message::text("assistant", "a"), Message::text("user", "b")];
    super::hide_old_images(&model, &mut earlier).unwrap();
    assert_eq!(earlier[0].content, "look\n\n[image: this model cannot see images]");
    assert!(earlier[0].images.is_empty() && earlier[2].content == "b");
    let mut newest = vec![Message::text("assistant", "a"), seen("user")];
    let error = super::hide_old_images(&model, &mut newest).unwrap_err();
    assert_eq!(error.message, "model does not support image input");
    // An image in a tool result must not stop an agent.
    let mut result = vec![Message::text("assistant", "a"), seen("tool")];
    super::hide_old_images(&model, &mut result).unwrap();
    assert!(result[1].content.starts_with("look\n\n[image"));
    // A partial answer at the end does not make its question an earlier turn.
    let mut begun = vec![seen("user"), Message::text("assistant", "I see")];
    assert!(super::hide_old_images(&model, &mut begun).is_err());
}

#[test]
fn unreadable_images_are_replaced_in_earlier_turns_and_rejected_in_the_newest() {
    let request = |body: Value| {
        let request = puna_api::decode::from_value(&body).map_err(|e| e.to_string())?;
        openai::to_request(request).map_err(|f| f.message)
    };
    let (link, broken) = ("http://x/y.png", "data:image/png;base64,!!");
    let user = |content: Value| json!({"role": "user", "content": content});
    let answer = json!({"role": "assistant", "content": "a"});
    let hidden = "[image: it could not be read]";
    for url in [link, broken] {
        let part = json!({"type": "image_url", "image_url": {"url": url}});
        let chat = |messages: Value| request(json!({"model": "m", "messages": messages}));
        assert!(chat(json!([user(json!([part]))])).is_err());
        assert!(chat(json!([user(json!("hi")), answer, user(json!([part]))])).is_err());
        let text = json!({"type": "text", "text": "look"});
        let got = chat(json!([user(json!([text, part, part])), answer, user(json!("b"))])).unwrap();
        assert_eq!(got.messages()[0].content, format!("look\n\n{hidden}\n\n{hidden}"));
        assert!(got.messages()[0].images.is_empty());
        let result = json!({"role": "tool", "tool_call_id": "c", "content": [part]});
        let got = chat(json!([user(json!("hi")), answer, result])).unwrap();
        assert_eq!(got.messages()[2].content, hidden);
    }
    let native = |messages: Value| {
        let request =
            puna_api::decode::from_value(&json!({"model": "m", "messages": messages})).unwrap();
        super::ollama::convert_chat(request).map_err(|failure| failure.message)
    };
    let seen = json!({"role": "user", "content": "look", "images": [link, null]});
    assert_eq!(native(json!([seen])).unwrap_err(), "illegal base64 data at input byte 4");
    let got = native(json!([seen, answer, user(json!("b"))])).unwrap();
    assert_eq!(got.messages()[0].content, format!("look\n\n{hidden}\n\n{hidden}"));
    let prompt =
        puna_api::decode::from_value(&json!({"model": "m", "prompt": "x", "images": ["!!"]}))
            .unwrap();
    assert_eq!(
        super::ollama::convert_generate(prompt).unwrap_err().message,
        "illegal base64 data at input byte 0"
    );
}

#[test]
fn store_lists_all_renderers_and_their_capabilities() {
    let listed: Vec<_> =
        puna_store::RENDERERS.iter().map(|one| (one.name, one.tools, one.thinking)).collect();
    let implemented: Vec<_> = puna_prompt::Renderer::names()
        .map(|name| {
            let capabilities =
                puna_prompt::Template::parse(puna_prompt::TemplateFormat::BuiltIn, name)
                    .unwrap()
                    .capabilities();
            (name, capabilities.tools, capabilities.thinking)
        })
        .collect();
    assert_eq!(listed, implemented);
}

#[test]
fn store_lists_all_parsers() {
    let listed: Vec<_> = puna_store::PARSERS.iter().map(|one| one.name).collect();
    assert_eq!(listed, puna_prompt::OutputParser::names().collect::<Vec<_>>());
}

#[test]
fn malformed_chat_tools_and_calls_are_rejected_with_their_index() {
    let body = |extra: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request = puna_api::decode::from_value(&body).map_err(|e| e.to_string())?;
        openai::to_request(request).map_err(|f| f.message)
    };
    let function = json!({"type": "function", "function": {"name": "f"}});
    let custom = |extra: Value| {
        let mut custom = json!({"name": "c"});
        custom.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"type": "custom", "custom": custom})
    };
    let same = custom(json!({"name": "f"}));
    for (tool, want) in [
        (json!({"type": "custom", "custom": null}), "tools[1]: a custom tool has no name"),
        (json!({"type": "custom", "custom": {"name": ""}}), "tools[1]: a custom tool has no name"),
        (
            same,
            "the custom tool and the function at tools[0] and tools[1] have the same name \"f\"",
        ),
        (
            json!({"type": "function", "function": {"name": "g", "strict": "yes"}}),
            "tools[1]: strict must be",
        ),
        (custom(json!({"format": "text"})), "tools[1]: format must be an object"),
        (custom(json!({"format": {"type": "weird"}})), "format: unknown type \"weird\""),
        (
            custom(json!({"format": {"type": "grammar", "grammar": {"syntax": "lark"}}})),
            "needs the field definition",
        ),
        (
            custom(json!({"format": {"type": "grammar", "grammar": 5}})),
            "needs the field definition",
        ),
        (
            custom(
                json!({"format": {"type": "grammar", "grammar": {"syntax": "x", "definition": "a"}}}),
            ),
            "unknown syntax \"x\"",
        ),
    ] {
        let error = body(json!({"tools": [function, tool]})).unwrap_err();
        assert!(error.contains(want), "{tool}: {error}");
    }
    let call = |call: Value| {
        let messages =
            json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]);
        body(json!({"messages": messages}))
            .map(|got| got.messages()[1].tool_calls[0].function.name.clone())
    };
    for (given, want) in [
        (json!({"id": "a", "type": "weird", "function": {"name": "f"}}), "unknown type \"weird\""),
        (json!({"id": "a", "type": "function"}), "needs the object function"),
        (json!({"id": "a", "type": "custom", "custom": null}), "needs the object custom"),
        (json!({"id": "a"}), "needs the object function"),
    ] {
        let error = call(given.clone()).unwrap_err();
        assert!(
            error.starts_with("messages[1].tool_calls[0]: ") && error.contains(want),
            "{given}: {error}"
        );
    }
    assert_eq!(call(json!({"custom": {"name": "c", "input": "x"}})).unwrap(), "c");
    assert_eq!(call(json!({"function": {"name": "f", "arguments": ""}})).unwrap(), "f");
}

#[test]
fn call_cut_off_after_its_object_keeps_the_arguments() {
    let arguments = |text: &str| {
        let (name, text, rest) = ("f".to_owned(), text.to_owned(), String::new());
        let outcome = CallOutcome::CutOff;
        EndedCall { index: 0, name, text, rest, outcome, requires_client_action: false }.arguments()
    };
    assert_eq!(Value::Object(arguments(r#"{"a": 1}"#)), json!({"a": 1}));
    assert_eq!(Value::Object(arguments(r#"{"a": "#)), json!({"unparsed_arguments": r#"{"a": "#}));
}
