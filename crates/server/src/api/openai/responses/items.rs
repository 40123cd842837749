//! Items of a response and the events that stream them.

use serde_json::{Value, json as value};

use super::tools::ToolName;

/// Data of a call that is known at its start; empty for other items.
#[derive(Debug, Clone, Default)]
pub(super) struct CallHead {
    /// Id of the call.
    pub(super) id: String,
    /// Name of the tool.
    pub(super) tool: ToolName,
}

/// Name and data of an event, without the sequence number.
pub(super) type NamedEvent = (&'static str, Value);

/// Type of an item that is streamed in pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    Reasoning,
    Message,
    Call,
}

impl ItemKind {
    /// Returns the type of an item, or `None` for items without pieces.
    pub(super) fn of_item(item: &Value) -> Option<Self> {
        match item["type"].as_str()? {
            "reasoning" => Some(Self::Reasoning),
            "message" => Some(Self::Message),
            "function_call" => Some(Self::Call),
            _ => None,
        }
    }

    /// Returns the text of an item.
    pub(super) fn text(self, item: &Value) -> &str {
        let text = match self {
            Self::Reasoning => &item["summary"][0]["text"],
            Self::Message => &item["content"][0]["text"],
            Self::Call => &item["arguments"],
        };
        text.as_str().unwrap_or_default()
    }

    /// Returns the events at the start of an item.
    pub(super) fn start_events(self, index: usize, id: &str, call: &CallHead) -> Vec<NamedEvent> {
        let (item, part) = match self {
            Self::Reasoning => {
                let part = part_event(index, id, "summary_index", "part", summary_part(""));
                let item = value!({"id": id, "type": "reasoning", "summary": []});
                (item, Some(("response.reasoning_summary_part.added", part)))
            }
            Self::Message => {
                let part = part_event(index, id, "content_index", "part", text_part(""));
                (message_item(id, "in_progress", None), Some(("response.content_part.added", part)))
            }
            Self::Call => (function_call_item(id, "in_progress", call, ""), None),
        };
        [added_event(index, item)].into_iter().chain(part).collect()
    }

    /// Returns the event for a piece of the text.
    pub(super) fn delta_event(self, index: usize, id: &str, text: &str) -> NamedEvent {
        match self {
            Self::Reasoning => {
                let delta = part_event(index, id, "summary_index", "delta", text.into());
                ("response.reasoning_summary_text.delta", delta)
            }
            Self::Message => {
                let mut delta = part_event(index, id, "content_index", "delta", text.into());
                delta["logprobs"] = value!([]);
                ("response.output_text.delta", delta)
            }
            Self::Call => (
                "response.function_call_arguments.delta",
                value!({"item_id": id, "output_index": index, "delta": text}),
            ),
        }
    }

    /// Returns the events at the end of the text. Callers skip them for an incomplete call.
    pub(super) fn end_events(self, index: usize, id: &str, text: &str) -> Vec<NamedEvent> {
        match self {
            Self::Reasoning => {
                let done = part_event(index, id, "summary_index", "text", text.into());
                let part = part_event(index, id, "summary_index", "part", summary_part(text));
                vec![
                    ("response.reasoning_summary_text.done", done),
                    ("response.reasoning_summary_part.done", part),
                ]
            }
            Self::Message => {
                let mut done = part_event(index, id, "content_index", "text", text.into());
                done["logprobs"] = value!([]);
                let part = part_event(index, id, "content_index", "part", text_part(text));
                vec![("response.output_text.done", done), ("response.content_part.done", part)]
            }
            Self::Call => vec![(
                "response.function_call_arguments.done",
                value!({"item_id": id, "output_index": index, "arguments": text}),
            )],
        }
    }

    /// Returns the whole item.
    pub(super) fn item(self, id: &str, status: &str, call: &CallHead, text: &str) -> Value {
        match self {
            Self::Reasoning => value!({
                "id": id, "type": "reasoning", "summary": [summary_part(text)], "encrypted_content": text,
            }),
            Self::Message => message_item(id, status, Some(text)),
            Self::Call => function_call_item(id, status, call, text),
        }
    }
}

/// Returns the events, before the last one, of an item that is sent at once.
pub(super) fn whole_item_events(index: usize, item: &Value) -> Vec<NamedEvent> {
    let mut initial_item = item.clone();
    initial_item["status"] = "in_progress".into();
    let text = item.get("input");
    if text.is_some() {
        initial_item["input"] = "".into();
    }
    let mut events = vec![added_event(index, initial_item)];
    if let Some(text) = text {
        let id = &item["id"];
        let delta = value!({"item_id": id, "output_index": index, "delta": text});
        let done = value!({"item_id": id, "output_index": index, "input": text});
        events.push(("response.custom_tool_call_input.delta", delta));
        events.push(("response.custom_tool_call_input.done", done));
    }
    events
}

/// Returns the last event of an item.
pub(super) fn done_event(index: usize, item: &Value) -> NamedEvent {
    ("response.output_item.done", value!({"output_index": index, "item": item}))
}

/// Returns the first event of an item.
fn added_event(index: usize, item: Value) -> NamedEvent {
    ("response.output_item.added", value!({"output_index": index, "item": item}))
}

/// Returns an event about the only part of an item.
fn part_event(index: usize, id: &str, part: &str, field: &str, value: Value) -> Value {
    let mut event = value!({"item_id": id, "output_index": index});
    (event[part], event[field]) = (0.into(), value);
    event
}

fn message_item(id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<_> = text.map(text_part).into_iter().collect();
    value!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn function_call_item(id: &str, status: &str, call: &CallHead, arguments: &str) -> Value {
    let mut item = value!({
        "id": id, "type": "function_call", "status": status, "call_id": call.id, "name": call.tool.name,
        "arguments": arguments,
    });
    call.tool.add_namespace(&mut item);
    item
}

fn text_part(text: &str) -> Value {
    value!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn summary_part(text: &str) -> Value {
    value!({"type": "summary_text", "text": text})
}
