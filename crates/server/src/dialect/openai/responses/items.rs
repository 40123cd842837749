//! Items of a response, and the events that tell of them.

use serde_json::{Value, json as value};

use super::tools::ToolName;

/// What is known of a call when it begins; empty for other items.
#[derive(Debug, Clone, Default)]
pub(super) struct CallHead {
    /// The call's own id.
    pub(super) id: String,
    /// Its tool.
    pub(super) tool: ToolName,
}

/// An event: its name and what it says, without its number.
pub(super) type Told = (&'static str, Value);

/// Items that come piece by piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    Call,
}

impl Kind {
    /// What an item is.
    pub(super) fn of_item(item: &Value) -> Option<Self> {
        match item["type"].as_str()? {
            "reasoning" => Some(Self::Reasoning),
            "message" => Some(Self::Message),
            "function_call" => Some(Self::Call),
            _ => None,
        }
    }

    /// The text of an item.
    pub(super) fn text(self, item: &Value) -> &str {
        let text = match self {
            Self::Reasoning => &item["summary"][0]["text"],
            Self::Message => &item["content"][0]["text"],
            Self::Call => &item["arguments"],
        };
        text.as_str().unwrap_or_default()
    }

    /// An item begins, with the call's own id and its function.
    pub(super) fn begun(self, index: usize, id: &str, call: &CallHead) -> Vec<Told> {
        let (item, part) = match self {
            Self::Reasoning => {
                let part = place(index, id, "summary_index", "part", summary(""));
                let item = value!({"id": id, "type": "reasoning", "summary": []});
                (item, Some(("response.reasoning_summary_part.added", part)))
            }
            Self::Message => {
                let part = place(index, id, "content_index", "part", part(""));
                (message(id, "in_progress", None), Some(("response.content_part.added", part)))
            }
            Self::Call => (function_call(id, "in_progress", call, ""), None),
        };
        [added(index, item)].into_iter().chain(part).collect()
    }

    /// A piece of its text.
    pub(super) fn delta(self, index: usize, id: &str, text: &str) -> Told {
        match self {
            Self::Reasoning => {
                let delta = place(index, id, "summary_index", "delta", text.into());
                ("response.reasoning_summary_text.delta", delta)
            }
            Self::Message => {
                let mut delta = place(index, id, "content_index", "delta", text.into());
                delta["logprobs"] = value!([]);
                ("response.output_text.delta", delta)
            }
            Self::Call => (
                "response.function_call_arguments.delta",
                value!({"item_id": id, "output_index": index, "delta": text}),
            ),
        }
    }

    /// Its text ends. That of a call only ends if it is complete.
    pub(super) fn ended(self, index: usize, id: &str, text: &str) -> Vec<Told> {
        match self {
            Self::Reasoning => {
                let done = place(index, id, "summary_index", "text", text.into());
                let part = place(index, id, "summary_index", "part", summary(text));
                vec![
                    ("response.reasoning_summary_text.done", done),
                    ("response.reasoning_summary_part.done", part),
                ]
            }
            Self::Message => {
                let mut done = place(index, id, "content_index", "text", text.into());
                done["logprobs"] = value!([]);
                let part = place(index, id, "content_index", "part", part(text));
                vec![("response.output_text.done", done), ("response.content_part.done", part)]
            }
            Self::Call => vec![(
                "response.function_call_arguments.done",
                value!({"item_id": id, "output_index": index, "arguments": text}),
            )],
        }
    }

    /// The whole item.
    pub(super) fn item(self, id: &str, status: &str, call: &CallHead, text: &str) -> Value {
        match self {
            Self::Reasoning => value!({
                "id": id, "type": "reasoning", "summary": [summary(text)], "encrypted_content": text,
            }),
            Self::Message => message(id, status, Some(text)),
            Self::Call => function_call(id, status, call, text),
        }
    }
}

/// What is told of an item that comes at once, before it is done.
pub(super) fn whole(index: usize, item: &Value) -> Vec<Told> {
    let mut begun = item.clone();
    begun["status"] = "in_progress".into();
    let text = item.get("input");
    if text.is_some() {
        begun["input"] = "".into();
    }
    let mut told = vec![added(index, begun)];
    if let Some(text) = text {
        let id = &item["id"];
        let delta = value!({"item_id": id, "output_index": index, "delta": text});
        let done = value!({"item_id": id, "output_index": index, "input": text});
        told.push(("response.custom_tool_call_input.delta", delta));
        told.push(("response.custom_tool_call_input.done", done));
    }
    told
}

/// An item is done.
pub(super) fn done(index: usize, item: &Value) -> Told {
    ("response.output_item.done", value!({"output_index": index, "item": item}))
}

fn added(index: usize, item: Value) -> Told {
    ("response.output_item.added", value!({"output_index": index, "item": item}))
}

/// Something of the only part of an item.
fn place(index: usize, id: &str, part: &str, field: &str, value: Value) -> Value {
    let mut event = value!({"item_id": id, "output_index": index});
    (event[part], event[field]) = (0.into(), value);
    event
}

fn message(id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<_> = text.map(part).into_iter().collect();
    value!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn function_call(id: &str, status: &str, call: &CallHead, arguments: &str) -> Value {
    let mut item = value!({
        "id": id, "type": "function_call", "status": status, "call_id": call.id, "name": call.tool.name,
        "arguments": arguments,
    });
    call.tool.add_namespace(&mut item);
    item
}

fn part(text: &str) -> Value {
    value!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn summary(text: &str) -> Value {
    value!({"type": "summary_text", "text": text})
}
