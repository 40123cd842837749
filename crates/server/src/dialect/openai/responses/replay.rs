//! The events of a response that is kept, as its stream had them or would have had.

use serde_json::{Value, json as value};

use super::items::{CallHead, Kind, Told, done, whole};
use super::tools::ToolName;
use crate::dialect::push_named;
use crate::response_store::StoredResponse;

/// Appends an event.
pub(super) fn push((name, mut event): Told, number: u64, out: &mut Vec<u8>) {
    event["type"] = name.into();
    event["sequence_number"] = number.into();
    push_named(name, &event, out);
}

/// The events behind that of a number, or all of them.
pub(crate) fn replay(kept: &StoredResponse, after: Option<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let wanted = |number: u64| after.is_none_or(|after| number > after);
    for (number, told) in (0..).zip(told(kept)).filter(|(number, _)| wanted(*number)) {
        push(told, number, &mut out);
    }
    out
}

fn told(kept: &StoredResponse) -> Vec<Told> {
    let response = &kept.response;
    let begun = begun(response);
    let mut told = vec![
        ("response.created", value!({"response": begun})),
        ("response.in_progress", value!({"response": begun})),
    ];
    let items = response["output"].as_array().into_iter().flatten();
    for (index, item) in items.enumerate() {
        match Kind::of_item(item) {
            Some(kind) => pieces(kind, index, item, kept.pieces.get(index), &mut told),
            None => told.extend(whole(index, item)),
        }
        told.push(done(index, item));
    }
    let end = match response["status"].as_str() {
        Some("incomplete") => "response.incomplete",
        _ => "response.completed",
    };
    told.push((end, value!({"response": response})));
    for number in &kept.heartbeats {
        let at = usize::try_from(*number).unwrap_or(usize::MAX).min(told.len());
        told.insert(at, ("response.in_progress", value!({"response": begun})));
    }
    told
}

/// The response as it was when it began.
fn begun(response: &Value) -> Value {
    let mut begun = response.clone();
    begun["status"] = "in_progress".into();
    begun["output"] = value!([]);
    for field in ["completed_at", "incomplete_details", "usage"] {
        begun[field] = Value::Null;
    }
    begun
}

/// What was told of an item that came in pieces of so many bytes.
fn pieces(
    kind: Kind,
    index: usize,
    item: &Value,
    pieces: Option<&Vec<usize>>,
    told: &mut Vec<Told>,
) {
    let of = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let (id, text) = (of("id"), kind.text(item));
    let tool =
        ToolName { namespace: item["namespace"].as_str().map(str::to_owned), name: of("name") };
    told.extend(kind.begun(index, &id, &CallHead { id: of("call_id"), tool }));
    let mut at = 0;
    for bytes in pieces.into_iter().flatten() {
        let piece = text.get(at..at + bytes).unwrap_or_default();
        told.push(kind.delta(index, &id, piece));
        at += bytes;
    }
    if kind != Kind::Call || item["status"] == "completed" {
        told.extend(kind.ended(index, &id, text));
    }
}
