//! Replay of the events of a stored response, for a stream of `GET /v1/responses/{id}`.

use serde_json::{Value, json as value};

use super::items::{CallHead, ItemKind, NamedEvent, done_event, whole_item_events};
use super::tools::ToolName;
use crate::api::openai::responses::StoredResponse;
use crate::api::push_named;

/// Appends an event with its sequence number.
pub(super) fn push_numbered_event((name, mut event): NamedEvent, number: u64, out: &mut Vec<u8>) {
    event["type"] = name.into();
    event["sequence_number"] = number.into();
    push_named(name, &event, out);
}

/// Returns the events with a sequence number above `after`, or all events.
pub(crate) fn replay(stored: &StoredResponse, after: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let is_included = |number: u64| after.is_none_or(|after| number > after);
    for (number, event) in (0..).zip(all_events(stored)).filter(|(number, _)| is_included(*number))
    {
        push_numbered_event(event, number, &mut out);
    }
    out
}

/// Returns all events of a stored response in order, with its heartbeats.
fn all_events(stored: &StoredResponse) -> Vec<NamedEvent> {
    let response = &stored.response;
    let initial = initial_response(response);
    let mut events = vec![
        ("response.created", value!({"response": initial})),
        ("response.in_progress", value!({"response": initial})),
    ];
    let items = response["output"].as_array().into_iter().flatten();
    for (index, item) in items.enumerate() {
        match ItemKind::of_item(item) {
            Some(kind) => {
                push_item_events(kind, index, item, stored.pieces.get(index), &mut events)
            }
            None => events.extend(whole_item_events(index, item)),
        }
        events.push(done_event(index, item));
    }
    let end = match response["status"].as_str() {
        Some("incomplete") => "response.incomplete",
        _ => "response.completed",
    };
    events.push((end, value!({"response": response})));
    for number in &stored.heartbeats {
        let at = usize::try_from(*number).unwrap_or(usize::MAX).min(events.len());
        events.insert(at, ("response.in_progress", value!({"response": initial})));
    }
    events
}

/// Returns the initial state of the response.
fn initial_response(response: &Value) -> Value {
    let mut initial = response.clone();
    initial["status"] = "in_progress".into();
    initial["output"] = value!([]);
    for field in ["completed_at", "incomplete_details", "usage"] {
        initial[field] = Value::Null;
    }
    initial
}

/// Appends the start, text and end events of an item. `pieces` has the byte lengths of its pieces.
fn push_item_events(
    kind: ItemKind,
    index: usize,
    item: &Value,
    pieces: Option<&Vec<usize>>,
    events: &mut Vec<NamedEvent>,
) {
    let field_text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let (id, text) = (field_text("id"), kind.text(item));
    let tool = ToolName {
        namespace: item["namespace"].as_str().map(str::to_owned),
        name: field_text("name"),
    };
    events.extend(kind.start_events(index, &id, &CallHead { id: field_text("call_id"), tool }));
    let mut at = 0;
    for bytes in pieces.into_iter().flatten() {
        let piece = text.get(at..at + bytes).unwrap_or_default();
        events.push(kind.delta_event(index, &id, piece));
        at += bytes;
    }
    if kind != ItemKind::Call || item["status"] == "completed" {
        events.extend(kind.end_events(index, &id, text));
    }
}
