//! Property tests: each dialect sends every call once, complete and closed, for any order of
//! events.

use std::collections::HashSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use super::answer_events::EventSequencer;
use super::anthropic::MessagesEncoder;
use super::ollama::ChatEncoder;
use super::openai::responses::ResponseEncoder;
use super::{AnswerEncoder, AnswerEvent, Times, openai};
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};

/// Number of cases for each of the two properties.
const CASES: u32 = 5_000;

/// A call as a client assembles it: id, tool, text of the arguments.
type Call = (String, String, String);

/// An answer as a client assembles it.
#[derive(Debug, Default)]
struct DecodedAnswer {
    thinking: String,
    content: String,
    calls: Vec<Call>,
    has_failed: bool,
}

fn encoded<E: AnswerEncoder>(mut encoder: E, events: &[Event]) -> String {
    let (mut sequencer, mut out) = (EventSequencer::default(), Vec::new());
    for event in events {
        sequencer.push(event.clone());
        while let Some(event) = sequencer.pop() {
            encoder.encode(0, event, Times::default(), &mut out);
        }
    }
    String::from_utf8(out).unwrap()
}

fn sse(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn string_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn decode_messages(events: &[Event]) -> DecodedAnswer {
    let (mut answer, mut open, mut blocks) = (DecodedAnswer::default(), None, 0);
    for event in sse(&encoded(MessagesEncoder::new("m".into(), Vec::new(), false), events)) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(
                    (open.replace(string_of(&event["content_block"]["type"])), &event["index"]),
                    (None, &json!(blocks))
                );
                blocks += 1;
                let block = &event["content_block"];
                if block["type"] == "tool_use" {
                    answer.calls.push((
                        string_of(&block["id"]),
                        string_of(&block["name"]),
                        String::new(),
                    ));
                }
            }
            "content_block_delta" => {
                assert_eq!(event["index"], json!(blocks - 1));
                let (delta, kind) = (&event["delta"], open.as_deref().unwrap());
                match (delta["type"].as_str().unwrap(), kind) {
                    ("thinking_delta", "thinking") => {
                        answer.thinking += &string_of(&delta["thinking"])
                    }
                    ("signature_delta", "thinking") => {}
                    ("text_delta", "text") => answer.content += &string_of(&delta["text"]),
                    ("input_json_delta", "tool_use") => {
                        answer.calls.last_mut().unwrap().2 += &string_of(&delta["partial_json"]);
                    }
                    other => panic!("{other:?}"),
                }
            }
            "content_block_stop" => {
                assert_eq!(event["index"], json!(blocks - 1));
                open.take().unwrap();
            }
            "message_start" | "ping" => {}
            "error" => answer.has_failed = true,
            "message_delta" | "message_stop" => assert_eq!(open, None),
            other => panic!("{other}"),
        }
    }
    assert_eq!(open, None);
    answer
}

fn decode_responses(events: &[Event]) -> DecodedAnswer {
    let request = puna_api::decode::from_value(&json!({"model": "m", "input": "x"})).unwrap();
    let (mut answer, mut open) = (DecodedAnswer::default(), None);
    let mut items = 0;
    for event in sse(&encoded(ResponseEncoder::new(request, None), events)) {
        let item = &event["item"];
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(
                    (open.replace(item["id"].clone()), &event["output_index"]),
                    (None, &json!(items))
                );
                if item["type"] == "function_call" {
                    answer.calls.push((
                        string_of(&item["call_id"]),
                        string_of(&item["name"]),
                        String::new(),
                    ));
                }
            }
            "response.output_item.done" => {
                assert_eq!(
                    (open.take().as_ref(), &event["output_index"]),
                    (Some(&item["id"]), &json!(items))
                );
                items += 1;
                if item["type"] == "function_call" {
                    let (id, name, arguments) = answer.calls.last().unwrap();
                    assert_eq!(
                        (&string_of(&item["call_id"]), &string_of(&item["name"])),
                        (id, name)
                    );
                    assert_eq!(&string_of(&item["arguments"]), arguments);
                }
            }
            "response.function_call_arguments.delta" => {
                assert_eq!(open.as_ref(), Some(&event["item_id"]));
                answer.calls.last_mut().unwrap().2 += &string_of(&event["delta"]);
            }
            "response.output_text.delta" => answer.content += &string_of(&event["delta"]),
            "response.reasoning_summary_text.delta" => {
                answer.thinking += &string_of(&event["delta"])
            }
            "response.failed" => answer.has_failed = true,
            _ => {}
        }
    }
    assert_eq!(open, None);
    answer
}

fn decode_chat(events: &[Event]) -> DecodedAnswer {
    let mut answer = DecodedAnswer::default();
    for chunk in sse(&encoded(openai::ChatEncoder::new("m".into(), false, 1), events)) {
        answer.has_failed |= chunk["error"].is_object();
        let delta = &chunk["choices"][0]["delta"];
        answer.thinking += &string_of(&delta["reasoning"]);
        answer.content += &string_of(&delta["content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!(index, answer.calls.len());
                answer.calls.push((
                    string_of(&call["id"]),
                    string_of(&call["function"]["name"]),
                    String::new(),
                ));
            }
            // No part of a call follows the start of the next call.
            assert_eq!(index + 1, answer.calls.len());
            answer.calls[index].2 += &string_of(&call["function"]["arguments"]);
        }
    }
    answer
}

fn decode_native(events: &[Event]) -> DecodedAnswer {
    let mut answer = DecodedAnswer::default();
    for line in encoded(ChatEncoder::new("m".into()), events).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        answer.has_failed |= line.get("error").is_some();
        answer.thinking += &string_of(&line["message"]["thinking"]);
        answer.content += &string_of(&line["message"]["content"]);
        for call in line["message"]["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["function"]["index"], json!(answer.calls.len()));
            let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
            answer.calls.push((string_of(&call["id"]), string_of(name), arguments.to_string()));
        }
    }
    answer
}

/// Name of a dialect and the answer that its client receives.
type Dialect = (&'static str, fn(&[Event]) -> DecodedAnswer);

const DIALECTS: [Dialect; 4] = [
    ("messages", decode_messages),
    ("responses", decode_responses),
    ("chat", decode_chat),
    ("native", decode_native),
];

fn end(reason: FinishReason) -> Event {
    Event::Done(Box::new(GenerationSummary {
        reason,
        stop: None,
        has_usage: true,
        prompt_tokens: 1,
        cached_tokens: 0,
        prefill: Duration::ZERO,
        generated_tokens: 1,
        thought_tokens: 0,
        decode: Duration::ZERO,
        draft_counts: Default::default(),
        dropped_messages: 0,
        dropped_tokens: 0,
        context: Vec::new(),
        schema_violations: None,
    }))
}

fn piece(text: &str) -> Piece {
    Piece { text: text.to_owned(), logprobs: Vec::new() }
}

/// A call of the source: the tool's name, the arguments in pieces and the outcome.
#[derive(Debug, Clone)]
struct SourceCall {
    name: &'static str,
    pieces: Vec<String>,
    outcome: CallOutcome,
}

fn source_call() -> impl Strategy<Value = SourceCall> {
    let objects =
        ["{}", "{\"a\":1}", "{\"city\": \"Zürich\", \"n\": [1, null, {}]}", "{\"x\":\"\\\"}{\"}"];
    let cuts = vec(any::<Index>(), 0..4);
    (select(vec!["f", "g"]), select(objects.to_vec()), cuts, 0..4_u8).prop_map(
        |(name, text, cuts, kind)| {
            let arguments: Map<String, Value> = serde_json::from_str(text).unwrap();
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&ends)).collect();
            cuts.sort_unstable();
            let (sent, outcome) = match kind {
                // The source sends the call complete, without pieces.
                0 => ("", CallOutcome::Complete(arguments)),
                1 => (&text[..cuts.last().copied().unwrap_or(0)], CallOutcome::CutOff),
                2 => (
                    &text[..cuts.first().copied().unwrap_or(0)],
                    CallOutcome::Invalid(Some(format!("{text}?"))),
                ),
                _ => (text, CallOutcome::Complete(arguments)),
            };
            let cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= sent.len()).collect();
            let bounds = [&[0], cuts.as_slice(), &[sent.len()]].concat();
            let pieces = bounds.windows(2).map(|pair| sent[pair[0]..pair[1]].to_owned()).collect();
            SourceCall { name, pieces, outcome }
        },
    )
}

/// Returns the events of one call in order.
fn events_of(index: usize, source: &SourceCall) -> Vec<Event> {
    let start = Event::CallStart { index, id: format!("c{index}"), name: source.name.into() };
    let arguments =
        source.pieces.iter().map(|text| Event::CallArguments { index, text: text.clone() });
    let end = Event::CallEnd { index, outcome: source.outcome.clone() };
    [start].into_iter().chain(arguments).chain([end]).collect()
}

/// Interleaves lists of events and keeps the order within each list. `choices` select the next
/// list.
fn interleaved(rows: Vec<Vec<Event>>, choices: &[Index]) -> Vec<Event> {
    let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).map(Iterator::peekable).collect();
    let (mut all, mut choices) = (Vec::new(), choices.iter().cycle());
    loop {
        rows.retain_mut(|row| row.peek().is_some());
        if rows.is_empty() {
            return all;
        }
        let at = choices.next().map_or(0, |choice| choice.index(rows.len()));
        all.extend(rows[at].next());
    }
}

fn assert_ids_differ(dialect: &str, answer: &DecodedAnswer) {
    let ids: HashSet<&str> = answer.calls.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(ids.len(), answer.calls.len(), "{dialect}: {answer:?}");
    assert!(!ids.contains(""), "{dialect}: {answer:?}");
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

/// Generates a random event, regardless of any valid order.
fn any_event() -> impl Strategy<Value = Event> {
    let texts = || select(vec!["", "{", "}", "{\"a\":1}", "so", "\n"]);
    let outcomes = select(vec![
        CallOutcome::Complete(Map::new()),
        CallOutcome::Invalid(None),
        CallOutcome::Invalid(Some("so".into())),
        CallOutcome::CutOff,
    ]);
    prop_oneof![
        texts().prop_map(|text| Event::Thinking(piece(text))),
        texts().prop_map(|text| Event::Content(piece(text))),
        (0..3_usize, select(vec!["", "c0", "c1"])).prop_map(|(index, id)| Event::CallStart {
            index,
            id: id.into(),
            name: "f".into()
        }),
        (0..3_usize, texts())
            .prop_map(|(index, text)| Event::CallArguments { index, text: text.into() }),
        (0..3_usize, outcomes).prop_map(|(index, outcome)| Event::CallEnd { index, outcome }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn interleaved_calls_are_each_sent_once_with_their_arguments(
        sources in vec(source_call(), 0..5),
        texts in vec(select(vec!["a", "b\n", " ", "ç"]), 0..5),
        thoughts in vec(select(vec!["hm", "\n"]), 0..3),
        choices in vec(any::<Index>(), 1..40),
        reason in select(vec![FinishReason::Stop, FinishReason::Length]),
    ) {
        let mut rows: Vec<_> = sources.iter().enumerate().map(|(index, source)| events_of(index, source)).collect();
        rows.push(texts.iter().map(|text| Event::Content(piece(text))).collect());
        rows.push(thoughts.iter().map(|text| Event::Thinking(piece(text))).collect());
        let mut events = interleaved(rows, &choices);
        events.push(end(reason));
        for (dialect, answer_of) in DIALECTS {
            let answer = answer_of(&events);
            assert_ids_differ(dialect, &answer);
            prop_assert_eq!((&answer.content, &answer.thinking), (&texts.concat(), &thoughts.concat()), "{}", dialect);
            prop_assert_eq!(answer.calls.len(), sources.len(), "{}", dialect);
            for (index, source) in sources.iter().enumerate() {
                let id = format!("c{index}");
                let (_, name, arguments) = answer.calls.iter().find(|call| call.0 == id).unwrap();
                prop_assert_eq!(name, source.name);
                match &source.outcome {
                    CallOutcome::Complete(map) => {
                        let sent: Value = serde_json::from_str(arguments).unwrap();
                        prop_assert_eq!(&sent, &Value::Object(map.clone()), "{}", dialect);
                    }
                    _ if dialect == "native" => prop_assert!(is_object(arguments)),
                    CallOutcome::CutOff => {
                        let sent = source.pieces.concat();
                        prop_assert!(*arguments == sent || dialect == "messages" && is_object(arguments), "{dialect}");
                    }
                    CallOutcome::Invalid(all) => {
                        let is_all = Some(arguments) == all.as_ref();
                        let is_start = source.pieces.concat() == *arguments || is_object(arguments);
                        prop_assert!(if dialect == "messages" { is_start } else { is_all }, "{dialect}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_event_order_repeats_an_id_or_leaves_a_block_open(
        events in vec(any_event(), 0..25),
        fails in any::<bool>(),
    ) {
        let mut events = events;
        events.push(if fails { Event::Error(ApiError::internal("broken")) } else { end(FinishReason::Stop) });
        let text = |is: fn(&Event) -> Option<&Piece>| -> String {
            events.iter().filter_map(is).map(|piece| piece.text.as_str()).collect()
        };
        let content = text(|event| if let Event::Content(piece) = event { Some(piece) } else { None });
        let starts = events.iter().filter(|event| matches!(event, Event::CallStart { .. })).count();
        for (dialect, answer_of) in DIALECTS {
            let answer = answer_of(&events);
            assert_ids_differ(dialect, &answer);
            prop_assert_eq!(&answer.content, &content, "{}", dialect);
            prop_assert_eq!((answer.calls.len(), answer.has_failed), (starts, fails), "{}", dialect);
        }
    }
}

#[test]
fn first_part_of_arguments_is_not_white_space() {
    let start = || Event::CallStart { index: 0, id: "a".into(), name: "f".into() };
    let part = |text: &str| Event::CallArguments { index: 0, text: text.into() };
    let complete = || CallOutcome::Complete(Map::from_iter([("x".to_owned(), json!(1))]));
    let all = "{\"x\":1}";
    for (parts, outcome) in [
        (vec![" ", "\n", all], complete()),
        (vec!["\n{\"x\"", ":1}"], complete()),
        (vec![" "], complete()),
        (vec!["\n{"], CallOutcome::Invalid(Some("\n{\"x\":1}".into()))),
    ] {
        let mut sequencer = EventSequencer::default();
        let events = [start()].into_iter().chain(parts.iter().map(|text| part(text)));
        events
            .chain([Event::CallEnd { index: 0, outcome }])
            .for_each(|event| sequencer.push(event));
        let mut sent = String::new();
        while let Some(event) = sequencer.pop() {
            match event {
                AnswerEvent::CallArguments(text) => {
                    assert!(!text.trim().is_empty(), "{parts:?}");
                    sent += &text;
                }
                AnswerEvent::CallEnd(call) => {
                    sent += &call.rest;
                    assert_eq!((call.text.as_str(), sent.as_str()), (all, all), "{parts:?}");
                }
                _ => {}
            }
        }
    }
}
