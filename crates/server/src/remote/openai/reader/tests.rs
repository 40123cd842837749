use super::*;

/// Returns the events of a response with these deltas and this finish reason.
async fn events_of(deltas: &[Value], reason: Option<FinishReason>) -> Vec<Event> {
    let (to, mut from) = tokio::sync::mpsc::channel(8 * MAX_CALLS);
    let mut reader = Reader::new(&to, false);
    for delta in deltas {
        reader.chunk(&json!({"choices": [{"delta": delta}]})).await;
    }
    reader.end_calls(reason).await;
    drop(to);
    let mut all = Vec::new();
    while let Some(event) = from.recv().await {
        all.push(event);
    }
    all
}

async fn events(parts: &[Value]) -> Vec<Event> {
    let deltas: Vec<_> = parts.iter().map(|part| json!({"tool_calls": [part]})).collect();
    events_of(&deltas, Some(FinishReason::Stop)).await
}

fn text(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::Content(piece) => piece.text.clone(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

/// Returns name, sent arguments and outcome of every call.
fn calls(events: &[Event]) -> Vec<(String, String, Option<CallOutcome>)> {
    let mut calls = Vec::new();
    for event in events {
        match event {
            Event::CallStart { index, name, .. } => {
                assert_eq!(*index, calls.len(), "numbers have no gaps");
                calls.push((name.clone(), String::new(), None));
            }
            Event::CallArguments { index, text } => {
                assert_eq!(calls[*index].2, None, "the call has not ended");
                calls[*index].1 += text;
            }
            Event::CallEnd { index, outcome } => {
                assert_eq!(calls[*index].2.replace(outcome.clone()), None, "a call ends once");
            }
            _ => {}
        }
    }
    calls
}

fn part(index: usize, id: &str, name: &str, arguments: &str) -> Value {
    json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
}

fn more(index: usize, arguments: &str) -> Value {
    json!({"index": index, "function": {"arguments": arguments}})
}

fn complete(arguments: Value) -> Option<CallOutcome> {
    Some(CallOutcome::Complete(arguments.as_object().unwrap().clone()))
}

#[tokio::test]
async fn invalid_arguments_are_passed_on_with_their_call() {
    let good = part(1, "b", "g", "{}");
    for bad in ["{\"a\": bad}", "{\"a\": \"b", "[1]", "{\"a\"", "nothing"] {
        for cut in 0..=bad.len() {
            let parts = [part(0, "a", "f", &bad[..cut]), more(0, &bad[cut..]), good.clone()];
            let all = events(&parts).await;
            let [(name, sent, outcome), (_, _, other)] = calls(&all).try_into().unwrap();
            assert_eq!((name.as_str(), text(&all)), ("f", String::new()));
            assert_eq!(outcome, Some(CallOutcome::Invalid(Some(bad.into()))));
            assert_eq!(other, complete(json!({})));
            assert!(
                bad.starts_with(&sent) && !sent.contains("bad") && !sent.contains("[1"),
                "{sent}"
            );
        }
    }
}

#[tokio::test]
async fn a_call_begins_once_its_name_is_known_and_without_one_it_is_text() {
    let late = [more(0, "{\"x\":"), part(0, "a", "f", " 1}")];
    let all = events(&late).await;
    assert_eq!(calls(&all), [("f".into(), "{\"x\": 1}".into(), complete(json!({"x": 1})))]);
    assert_eq!(text(&all), "");
    let all = events(&late[..1]).await;
    assert_eq!((all.len(), text(&all)), (1, "{\"name\":\"\",\"arguments\":{\"x\":}".to_owned()));
    let many: Vec<Value> = (0..MAX_CALLS + 2).map(|i| part(i, &i.to_string(), "f", "{}")).collect();
    let all = events(&many).await;
    let rest = "{\"name\":\"f\",\"arguments\":{}}".repeat(2);
    assert_eq!((calls(&all).len(), text(&all)), (MAX_CALLS, rest));
}

#[tokio::test]
async fn arguments_of_parallel_calls_go_to_their_calls() {
    let parts = [
        part(0, "a", "f", ""),
        part(1, "b", "g", ""),
        more(0, "{\"x\""),
        more(1, "{\"y\": 2"),
        more(0, ": 1}"),
        more(1, "}"),
    ];
    let all = events(&parts).await;
    let f = ("f".into(), "{\"x\": 1}".into(), complete(json!({"x": 1})));
    let g = ("g".into(), "{\"y\": 2}".into(), complete(json!({"y": 2})));
    assert_eq!((calls(&all), text(&all)), (vec![f, g], String::new()));
}

#[tokio::test]
async fn a_complete_call_ends_before_the_next_event() {
    let call = json!({"tool_calls": [part(0, "a", "f", "{\"x\": 1}")]});
    for other in
        [json!({"content": "\n"}), json!({"reasoning_content": "hm"}), json!({"content": "so"})]
    {
        let all = events_of(&[call.clone(), other.clone()], Some(FinishReason::Stop)).await;
        assert!(
            matches!(all[2], Event::CallEnd { index: 0, outcome: CallOutcome::Complete(_) }),
            "{all:?}"
        );
        assert!(matches!(all[3], Event::Content(_) | Event::Thinking(_)), "{all:?}");
        assert_eq!(all.len(), 4, "{all:?}");
    }
    // Further parts of a call that has ended do not begin a new call.
    let deltas = [call, json!({"content": "so"}), json!({"tool_calls": [more(0, " ")]})];
    assert_eq!(calls(&events_of(&deltas, Some(FinishReason::Stop)).await).len(), 1);
}

#[tokio::test]
async fn a_call_that_the_limit_or_a_filter_cuts_off_is_not_invalid() {
    let start = json!({"tool_calls": [part(0, "a", "f", "{\"x\": \"1")]});
    for reason in [Some(FinishReason::Length), Some(FinishReason::ContentFilter), None] {
        let all = events_of(std::slice::from_ref(&start), reason).await;
        assert_eq!(calls(&all)[0].2, Some(CallOutcome::CutOff));
    }
    let empty = json!({"tool_calls": [part(0, "a", "f", "")]});
    let all = events_of(std::slice::from_ref(&empty), Some(FinishReason::Stop)).await;
    assert_eq!(calls(&all)[0].2, complete(json!({})));
    let null = json!({"tool_calls": [part(0, "a", "f", "null")]});
    let all = events_of(&[null], Some(FinishReason::Stop)).await;
    assert_eq!(calls(&all)[0].2, complete(json!({})));
    for reason in [FinishReason::Length, FinishReason::ContentFilter] {
        let all = events_of(std::slice::from_ref(&empty), Some(reason)).await;
        assert_eq!(calls(&all)[0].2, Some(CallOutcome::CutOff));
    }
}

#[tokio::test]
async fn content_may_be_a_list_of_parts() {
    let parts = json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
    assert_eq!(text(&events_of(&[parts], Some(FinishReason::Stop)).await), "ab");
}

#[tokio::test]
async fn without_ids_a_name_starts_the_next_call() {
    let f = |x: u32| ("f".to_owned(), format!("{{\"x\":{x}}}"), complete(json!({"x": x})));
    let g = |x: u32| ("g".to_owned(), format!("{{\"x\":{x}}}"), complete(json!({"x": x})));
    let bare =
        |name: &str, arguments: &str| json!({"function": {"name": name, "arguments": arguments}});
    let first = "{\"x\":1}";
    let second = "{\"x\":2}";
    for parts in [
        vec![part(0, "", "f", first), part(0, "", "g", second)],
        vec![bare("f", first), bare("g", second)],
        vec![part(0, "", "f", first), part(0, "", "g", ""), more(0, second)],
        vec![part(0, "same", "f", first), part(0, "same", "g", second)],
    ] {
        assert_eq!(calls(&events(&parts).await), [f(1), g(2)], "{parts:?}");
    }
    for parts in [
        vec![part(0, "", "f", first), part(0, "", "f", second)],
        vec![bare("f", first), bare("f", second)],
        vec![part(0, "a", "f", first), part(0, "", "f", second)],
    ] {
        assert_eq!(calls(&events(&parts).await), [f(1), f(2)], "{parts:?}");
    }
    // Servers may repeat the name with every part.
    for parts in [
        [part(0, "", "f", ""), part(0, "", "f", first)],
        [part(0, "", "f", "{\"x\""), part(0, "", "f", ":1}")],
        [part(0, "", "f", first), part(0, "", "f", "")],
        [part(0, "a", "f", "{\"x\""), part(0, "a", "f", ":1}")],
    ] {
        assert_eq!(calls(&events(&parts).await), [f(1)], "{parts:?}");
    }
}

#[tokio::test]
async fn a_repeated_call_is_one_call() {
    let whole = part(0, "a", "f", "{\"x\":1}");
    let pause = json!({"content": "\n"});
    let once = [("f".to_owned(), "{\"x\":1}".to_owned(), complete(json!({"x": 1})))];
    let calls_of = async |parts: &[Value]| {
        let delta = |part: &Value| match part.get("content") {
            Some(_) => part.clone(),
            None => json!({"tool_calls": [part]}),
        };
        let all =
            events_of(&parts.iter().map(delta).collect::<Vec<_>>(), Some(FinishReason::Stop)).await;
        assert_eq!(text(&all).trim(), "", "{all:?}");
        calls(&all)
    };
    for again in [
        vec![whole.clone()],
        vec![part(0, "a", "f", "")],
        vec![json!({"index": 0, "id": "a", "function": {"name": "f"}})],
        vec![part(0, "a", "f", ""), more(0, "{\"x\""), more(0, ":1}")],
        vec![json!({"id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}})],
    ] {
        let late = [&[whole.clone(), pause.clone()], again.as_slice()].concat();
        assert_eq!(calls_of(&late).await, once, "{again:?}");
    }
    assert_eq!(calls_of(&[whole.clone(), whole.clone()]).await, once);
    // A part with another number or other arguments begins another call.
    for other in [
        part(1, "a", "f", "{\"x\":1}"),
        part(0, "a", "f", "{\"x\":2}"),
        part(0, "b", "f", "{\"x\":1}"),
    ] {
        assert_eq!(
            calls_of(&[whole.clone(), pause.clone(), other.clone()]).await.len(),
            2,
            "{other}"
        );
    }
}

#[tokio::test]
async fn the_older_function_call_format_is_parsed() {
    let part = |call: Value| json!({"function_call": call});
    let f = [("f".to_owned(), "{\"x\":1}".to_owned(), complete(json!({"x": 1})))];
    for deltas in [
        vec![part(json!({"name": "f", "arguments": "{\"x\":1}"}))],
        vec![
            part(json!({"name": "f", "arguments": ""})),
            part(json!({"arguments": "{\"x\""})),
            part(json!({"arguments": ":1}"})),
        ],
    ] {
        assert_eq!(calls(&events_of(&deltas, Some(FinishReason::Stop)).await), f);
    }
}

#[tokio::test]
async fn content_may_have_reasoning_parts() {
    let thinking = json!({"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]});
    let delta = json!({"content": [thinking, {"type": "text", "text": "Hi"}]});
    let all = events_of(&[delta], Some(FinishReason::Stop)).await;
    assert!(matches!(&all[0], Event::Thinking(piece) if piece.text == "hm"), "{all:?}");
    assert_eq!((all.len(), text(&all)), (2, "Hi".to_owned()));
}
