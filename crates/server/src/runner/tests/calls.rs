//! Tests of tool calls in the answers of a runner.

use puna_api::ollama::Tool;
use serde_json::json;

use super::*;
use crate::canonical::{ApiError, CallOutcome, FinishReason};
use crate::runner::protocol::MAX_CALLS;

/// Runs a model with this parser that generates these pieces; returns the events before the end.
async fn ask(parser: &str, says: Vec<String>) -> Vec<Event> {
    ask_with(parser, says, |_| {}).await
}

async fn ask_with(
    parser: &str,
    says: Vec<String>,
    change: impl FnOnce(&mut GenerateTask),
) -> Vec<Event> {
    let fake = Arc::<Fake>::default();
    *fake.says.lock().unwrap() = says;
    let connection = loaded(&fake, 128).await;
    let Task::Generate(mut generate) = question("qwen3-coder", false) else { panic!() };
    generate.model.parser = Some(parser.into());
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    if let Input::Chat { tools, .. } = &mut generate.input {
        tools.push(Tool(tool));
    }
    change(&mut generate);
    let mut events = connection.submit(1, Task::Generate(generate));
    let mut all = Vec::new();
    loop {
        let event = events.next().await.unwrap();
        if event.is_end() {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            return all;
        }
        all.push(event);
    }
}

fn content(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::Content(piece) => piece.text.clone(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

/// Complete call.
#[derive(Debug)]
struct Call {
    id: String,
    index: usize,
    name: String,
    arguments: serde_json::Map<String, serde_json::Value>,
}

fn calls(events: &[Event]) -> Vec<Call> {
    let (mut calls, mut open) = (Vec::new(), None);
    for event in events {
        match event {
            Event::CallStart { index, id, name } => open = Some((*index, id.clone(), name.clone())),
            Event::CallEnd { outcome: CallOutcome::Complete(arguments), index: ended } => {
                let (index, id, name) = open.take().unwrap();
                assert_eq!(index, *ended);
                calls.push(Call { id, index, name, arguments: arguments.clone() });
            }
            _ => {}
        }
    }
    calls
}

#[tokio::test]
async fn calls_get_ids_and_indices_and_malformed_ones_become_text() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let text = format!("Hm. {call}{call} <tool_call>{{bad</tool_call> and <tool_call>{{\"na");
    let events = ask("qwen3", text.chars().map(String::from).collect()).await;
    let calls = calls(&events);
    assert_eq!(calls.iter().map(|call| call.index).collect::<Vec<_>>(), [0, 1]);
    for call in &calls {
        assert_eq!((call.name.as_str(), &call.arguments["a"]), ("f", &json!(1)));
        let random = call.id.strip_prefix("call_").unwrap();
        assert!(
            random.len() == 8
                && random.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        );
    }
    assert_ne!(calls[0].id, calls[1].id);
    assert_eq!(content(&events), "Hm.<tool_call>{bad</tool_call> and <tool_call>{\"na");
}

#[tokio::test]
async fn calls_beyond_the_limit_become_text() {
    let one = "{\"tool_name\": \"f\", \"parameters\": {\"a\": 2}}";
    let list = vec![one; MAX_CALLS + 2].join(",");
    let text = format!("x<|END_THINKING|><|START_ACTION|>[{list}]<|END_ACTION|>");
    let events = ask("cohere", vec![text]).await;
    assert_eq!(calls(&events).len(), MAX_CALLS);
    let rest = "{\"name\":\"f\",\"arguments\":{\"a\":2}}";
    assert_eq!(content(&events), rest.repeat(2));
}

/// Returns the calls of a stream: name, arguments as received, and whether the call was completed.
fn streamed(events: &[Event]) -> Vec<(String, String, bool)> {
    let mut calls: Vec<(String, String, bool)> = Vec::new();
    let (mut open, mut ids) = (None, std::collections::HashSet::new());
    for event in events {
        match event {
            Event::CallStart { id, index, name } => {
                // Clients assemble calls by index, so no two calls may share one, even if a call is
                // incomplete.
                assert_eq!((*index, open), (calls.len(), None));
                assert!(ids.insert(id));
                open = Some(*index);
                calls.push((name.clone(), String::new(), false));
            }
            Event::CallArguments { index, text } => {
                assert_eq!(open, Some(*index));
                calls[*index].1.push_str(text);
            }
            Event::CallEnd { index, outcome } => {
                assert_eq!(open.take(), Some(*index));
                let call = &mut calls[*index];
                if let CallOutcome::Complete(arguments) = outcome {
                    assert_eq!(
                        json!(arguments),
                        serde_json::from_str::<serde_json::Value>(&call.1).unwrap()
                    );
                    call.2 = true;
                }
            }
            _ => assert_eq!(open, None, "{event:?} in a call"),
        }
    }
    calls
}

#[tokio::test]
async fn arguments_are_streamed_if_the_request_asks_for_it() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let broken = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_call>";
    let text = format!("Hm. {call}{broken} So {call}");
    let says: Vec<String> = text.chars().map(String::from).collect();
    let events = ask_with("qwen3", says.clone(), |task| task.stream_calls = true).await;
    let whole = ("f".to_owned(), "{\"a\": 1}".to_owned(), true);
    let half = ("f".to_owned(), "{\"a\": ".to_owned(), false);
    assert_eq!(streamed(&events), [whole.clone(), half, whole]);
    assert_eq!(calls(&events).len(), 2);
    assert!(
        events.iter().filter(|event| matches!(event, Event::CallArguments { .. })).count() > 15
    );
    // Text of a started call is not repeated as content.
    assert_eq!(content(&events), "Hm. So");
    let plain = ask("qwen3", says).await;
    assert!(!plain.iter().any(|event| matches!(event, Event::CallArguments { .. })));
    assert!(content(&plain).contains(broken) && calls(&plain).len() == 2);
}

#[tokio::test]
async fn malformed_calls_before_a_constrained_answer_become_reasoning() {
    let bad = "<tool_call>{bad</tool_call>";
    for stream in [false, true] {
        let says = format!("{bad}{{}}").chars().map(String::from).collect();
        let events = ask_with("qwen3", says, |task| {
            (task.format, task.stream_calls) =
                (Some(puna_sampler::Constraint::Regex(fake::FORM.into())), stream);
        });
        let events = events.await;
        let thought = events.iter().filter_map(|event| match event {
            Event::Thinking(piece) => Some(&*piece.text),
            _ => None,
        });
        assert_eq!((content(&events), thought.collect::<String>()), ("{}".into(), bad.into()));
    }
}

#[tokio::test]
async fn an_answer_limited_to_one_call_ends_after_it() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let list = "<tool_call>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"f\", \"arguments\": {\"a\": 2}}]</tool_call>";
    for text in [format!("Hm. {call}\n{call} So."), format!("Hm. {list}")] {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        // Token by token, the second call is never generated; in one piece, it is generated and
        // dropped.
        for says in [letters, vec![text.clone()]] {
            for stream in [false, true] {
                let events = ask_with("qwen3", says.clone(), |task| {
                    (task.parallel_tool_calls, task.stream_calls) = (false, stream);
                })
                .await;
                assert_eq!(
                    (calls(&events).len(), content(&events).trim()),
                    (1, "Hm."),
                    "{text}: {events:?}"
                );
                let started =
                    events.iter().filter(|event| matches!(event, Event::CallStart { .. }));
                assert!(started.count() <= 1, "{text}");
            }
        }
    }
    let fake = Arc::<Fake>::default();
    let says: Vec<String> = format!("{call}{call}").chars().map(String::from).collect();
    *fake.says.lock().unwrap() = says;
    let connection = loaded(&fake, 128).await;
    let Task::Generate(mut generate) = question("qwen3-coder", false) else { panic!() };
    (generate.model.parser, generate.parallel_tool_calls) = (Some("qwen3".into()), false);
    let mut events = connection.submit(1, Task::Generate(generate));
    while let Some(event) = events.next().await {
        if let Event::Done(done) = event {
            // The token that ends the answer is the only additional one.
            assert_eq!(
                (done.generated_tokens as usize, done.reason),
                (call.len() + 1, FinishReason::Stop)
            );
            return;
        }
    }
    panic!("no end");
}

#[tokio::test]
async fn every_call_of_a_list_is_streamed() {
    let call = |a| format!("{{\"name\": \"f\", \"arguments\": {{\"a\": {a}}}}}");
    let expected_call = |a| ("f".to_owned(), format!("{{\"a\": {a}}}"), true);
    let text = format!("<tool_call>[{}, {},{}]</tool_call>", call(1), call(2), call(3));
    let stream = |text: String| {
        let says = text.chars().map(String::from).collect();
        ask_with("qwen3", says, |task| task.stream_calls = true)
    };
    let events = stream(text).await;
    assert_eq!(streamed(&events), [expected_call(1), expected_call(2), expected_call(3)]);
    assert_eq!(calls(&events).len(), 3);
    assert!(content(&events).trim().is_empty(), "{}", content(&events));
    // An incomplete call after complete ones becomes text, without the complete ones.
    let events =
        stream(format!("<tool_call>[{}, {}, {{\"name\": \"f\", \"arg", call(1), call(2))).await;
    assert_eq!(
        (streamed(&events), calls(&events).len()),
        (vec![expected_call(1), expected_call(2)], 2)
    );
    assert_eq!(content(&events), "{\"name\": \"f\", \"arg");
}

#[tokio::test]
async fn a_forced_call_of_the_embedded_model_is_streamed() {
    let connection = loaded_file(None, 512).await;
    let Task::Generate(mut generate) = task("", 100, 4, true, true) else { panic!() };
    let question = puna_api::ollama::Message {
        role: "user".into(),
        content: "What is the weather in Paris?".into(),
        ..Default::default()
    };
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool =
        json!({"type": "function", "function": {"name": "get_weather", "parameters": parameters}});
    generate.input = Input::Chat { messages: vec![question], tools: vec![Tool(tool)] };
    generate.tool_choice = puna_api::ollama::ToolChoice::Required;
    generate.parallel_tool_calls = false;
    generate.options.sampling.temperature = 0.0;
    generate.stream_calls = true;
    let mut events = connection.submit(1, Task::Generate(generate));
    let mut all = Vec::new();
    loop {
        match events.next().await.unwrap() {
            Event::Error(failure) => panic!("{failure}"),
            event if event.is_end() => break,
            event => all.push(event),
        }
    }
    let calls = streamed(&all);
    assert_eq!(calls.len(), 1, "{all:?}");
    assert!(
        calls[0].0 == "get_weather" && calls[0].1.contains("\"city\"") && calls[0].2,
        "{calls:?}"
    );
    let pieces = all.iter().filter(|event| matches!(event, Event::CallArguments { .. })).count();
    assert!(pieces > 2, "{all:?}");
}

#[tokio::test]
async fn a_forced_answer_ends_when_a_call_is_repeated() {
    use puna_api::ollama::ToolChoice::{Named, Required};
    let connection = loaded_file(None, 2048).await;
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]});
    let tool =
        json!({"type": "function", "function": {"name": "get_weather", "parameters": schema}});
    for (choice, stream_calls) in
        [(Named("get_weather".into()), true), (Required, true), (Required, false)]
    {
        let Task::Generate(mut generate) = task("", 600, 4, true, true) else { panic!() };
        let question = puna_api::ollama::Message::text("user", "What is the weather in Paris?");
        generate.input = Input::Chat { messages: vec![question], tools: vec![Tool(tool.clone())] };
        let max = if choice == Required { 2 } else { 1 };
        generate.tool_choice = choice;
        generate.options.sampling.temperature = 0.0;
        generate.stream_calls = stream_calls;
        let mut events = connection.submit(1, Task::Generate(generate));
        let mut all = Vec::new();
        let done = loop {
            match events.next().await.unwrap() {
                Event::Done(done) => break done,
                event => all.push(event),
            }
        };
        let arguments: Vec<_> = calls(&all).into_iter().map(|call| call.arguments).collect();
        assert!((1..=max).contains(&arguments.len()), "{arguments:?}");
        assert!(arguments.len() == 1 || arguments[0] != arguments[1], "{arguments:?}");
        assert_eq!((done.reason.as_str(), content(&all).as_str()), ("stop", ""), "{all:?}");
    }
}

/// Forces a call of the embedded model; returns its events or the error.
async fn demand(
    connection: &RunnerConnection,
    functions: Vec<serde_json::Value>,
) -> Result<Vec<Event>, ApiError> {
    let Task::Generate(mut generate) = task("", 60, 4, true, true) else { panic!() };
    let content = "What is the weather in Paris?".into();
    let question = puna_api::ollama::Message { role: "user".into(), content, ..Default::default() };
    let tool = |function| Tool(json!({"type": "function", "function": function}));
    generate.input =
        Input::Chat { messages: vec![question], tools: functions.into_iter().map(tool).collect() };
    generate.tool_choice = puna_api::ollama::ToolChoice::Required;
    generate.parallel_tool_calls = false;
    generate.options.sampling.temperature = 0.0;
    let mut events = connection.submit(1, Task::Generate(generate));
    let mut all = Vec::new();
    loop {
        match events.next().await.unwrap() {
            Event::Error(failure) => return Err(failure),
            event if event.is_end() => return Ok(all),
            event => all.push(event),
        }
    }
}

#[tokio::test]
async fn tools_that_cannot_be_called_are_rejected_by_name() {
    let connection = loaded_file(None, 512).await;
    let fine = json!({"name": "fine", "parameters": {"type": "object", "properties": {}}});
    let f = |parameters| json!({"name": "f", "parameters": parameters});
    let a = |schema| f(json!({"type": "object", "properties": {"a": schema}}));
    let cases = [
        (json!({"parameters": {}}), vec!["tools[1]", "no name"]),
        (json!({"name": "a b\"c{}<tool_call>"}), vec!["a b\\\"c{}<tool_call>", "letters"]),
        (f(json!({"type": "string"})), vec!["\"f\"", "\"string\"", "must be object"]),
        (f(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]})), vec!["\"f\""]),
        (a(json!({"type": "string", "pattern": "(b"})), vec!["\"f\"", "(b"]),
    ];
    for (tool, words) in cases {
        let failure = demand(&connection, vec![fine.clone(), tool.clone()]).await.unwrap_err();
        assert_eq!(failure.status, 400, "{tool}: {}", failure.message);
        for word in words {
            assert!(failure.message.contains(word), "{tool}: {}", failure.message);
        }
        for inside in ["at 1(", "at 4(", "in format", "invalid grammar"] {
            assert!(!failure.message.contains(inside), "{tool}: {}", failure.message);
        }
    }
}

#[tokio::test]
async fn forced_call_arguments_are_an_object_even_if_the_schema_allows_other_types() {
    let connection = loaded_file(None, 512).await;
    let allowed = [
        json!({"type": ["object", "null"], "properties": {}}),
        json!({"type": ["null", "object"], "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
        json!({"properties": {"a": {"type": "string", "format": "password", "maxLength": 3}}, "required": ["a"]}),
        json!({"anyOf": [{"type": "integer"}, {"properties": {"a": {"type": "null"}}, "required": ["a"]}]}),
        json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}}}),
    ];
    for parameters in allowed {
        let events =
            demand(&connection, vec![json!({"name": "f", "parameters": parameters})]).await;
        let events = events.unwrap_or_else(|failure| panic!("{parameters}: {}", failure.message));
        assert_eq!(calls(&events).len(), 1, "{parameters}: {events:?}");
        assert_eq!(calls(&events)[0].name, "f");
    }
}
