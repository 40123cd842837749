//! Tool calls in the answers of a runner.

use puna_api::native::Tool;
use serde_json::json;

use super::*;
use crate::runner::answer::CALLS_MAX;

/// Asks a model with this parser, which says these pieces; what came before the end.
async fn ask(parser: &str, says: Vec<String>) -> Vec<Event> {
    let fake = Arc::<Fake>::default();
    *fake.says.lock().unwrap() = says;
    let link = loaded(&fake, 128).await;
    let Task::Generate(mut generate) = question("qwen3-coder", false) else { panic!() };
    generate.model.parser = Some(parser.into());
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    if let Input::Chat { tools, .. } = &mut generate.input {
        tools.push(Tool(tool));
    }
    let mut events = link.submit(1, Task::Generate(generate));
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

fn calls(events: &[Event]) -> Vec<&puna_api::native::ToolCall> {
    let mut calls = Vec::new();
    for event in events {
        if let Event::ToolCall(call) = event {
            calls.push(call);
        }
    }
    calls
}

#[tokio::test]
async fn calls_get_ids_and_numbers_and_what_cannot_be_read_comes_back_as_text() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let text = format!("Hm. {call}{call} <tool_call>{{bad</tool_call> and <tool_call>{{\"na");
    let events = ask("qwen3", text.chars().map(String::from).collect()).await;
    let calls = calls(&events);
    assert_eq!(calls.iter().map(|call| call.function.index).collect::<Vec<_>>(), [0, 1]);
    for call in &calls {
        assert_eq!((call.function.name.as_str(), &call.function.arguments["a"]), ("f", &json!(1)));
        let random = call.id.strip_prefix("call_").unwrap();
        assert!(random.len() == 8 && random.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    }
    assert_ne!(calls[0].id, calls[1].id);
    assert_eq!(content(&events), "Hm.<tool_call>{bad</tool_call> and <tool_call>{\"na");
}

#[tokio::test]
async fn any_number_of_calls_may_come_at_once() {
    let one = "{\"tool_name\": \"f\", \"parameters\": {\"a\": 2}}";
    let list = vec![one; CALLS_MAX + 2].join(",");
    let text = format!("x<|END_THINKING|><|START_ACTION|>[{list}]<|END_ACTION|>");
    let events = ask("cohere", vec![text]).await;
    assert_eq!(calls(&events).len(), CALLS_MAX);
    let rest = "{\"name\":\"f\",\"arguments\":{\"a\":2}}";
    assert_eq!(content(&events), rest.repeat(2));
}
