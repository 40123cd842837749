//! Renders a tool call with a template, to detect how the template writes calls.

use serde_json::{Map, Value as Json, json};

use crate::Template;
use crate::chat::Chat;
use crate::message::{FunctionCall, Message, ToolCall};
use crate::rendering::render;

/// Key in the probe call's result.
pub(super) const PROBE_RESULT: &str = "third";
/// Name of the called tool.
pub(super) const PROBE_TOOL: &str = "puna_probe_tool";
/// Text of the user message before the probe call.
pub(super) const PROBE_USER: &str = "puna-probe-user";

/// The declared tool of the probe call.
pub(super) fn probe_tools() -> [Json; 1] {
    [json!({"type": "function", "function": {
        "name": PROBE_TOOL, "description": "", "parameters": {"type": "object", "required": ["first"], "properties": {
            "first": {"type": "string", "description": ""}, "second": {"type": "integer", "description": ""},
        }},
    }})]
}

/// Text that a template writes behind the user message for a call, with and without its result; and
/// the header of the next answer.
pub(super) fn probe_answers(template: &Template) -> Option<(Vec<String>, String)> {
    probe_answers_with(template, &probe_tools(), &probe_arguments())
}

/// Like [`probe_answers`], for a call of the tool in `tools` with these arguments.
pub(super) fn probe_answers_with(
    template: &Template,
    tools: &[Json],
    arguments: &Map<String, Json>,
) -> Option<(Vec<String>, String)> {
    let header = after_user(template, &[Message::new("user", PROBE_USER)], tools)?;
    Some((probe_calls(template, tools, arguments).collect(), header))
}

/// Text that a template writes behind the user message for a call.
pub(super) fn probe_call(template: &Template, tools: &[Json]) -> Option<String> {
    probe_calls(template, tools, &probe_arguments()).next()
}

/// Renders the probe call with its result, then without.
fn probe_calls(
    template: &Template,
    tools: &[Json],
    arguments: &Map<String, Json>,
) -> impl Iterator<Item = String> {
    let mut call = Message::new("assistant", "");
    call.tool_calls = vec![ToolCall {
        id: "abcDEF123".into(),
        function: FunctionCall { index: 0, name: PROBE_TOOL.into(), arguments: arguments.clone() },
    }];
    let result = Message {
        tool_name: Some(PROBE_TOOL.into()),
        tool_call_id: Some("abcDEF123".into()),
        ..Message::new("tool", format!("{{\"{PROBE_RESULT}\": 3}}"))
    };
    let messages = [Message::new("user", PROBE_USER), call, result];
    [3, 2].into_iter().filter_map(move |count| {
        let text = after_user(template, &messages[..count], tools)?;
        text.contains(PROBE_TOOL).then_some(text)
    })
}

/// Arguments of the probe call.
pub(super) fn probe_arguments() -> Map<String, Json> {
    let mut arguments = Map::new();
    arguments.insert("first".into(), "x y".into());
    arguments.insert("second".into(), 2.into());
    arguments
}

/// Renders messages and returns the text behind the user message.
pub(super) fn after_user(
    template: &Template,
    messages: &[Message],
    tools: &[Json],
) -> Option<String> {
    let chat = Chat { tools, now: Some(jiff::civil::DateTime::default()), ..Chat::new(messages) };
    let text = render(template, &chat).ok()?;
    let (_, after) = text.rsplit_once(PROBE_USER)?;
    Some(after.to_owned())
}

/// The text of an answer behind its header.
pub(super) fn answer_of<'t>(written: &'t str, header: &str) -> Option<&'t str> {
    let common = written.char_indices().zip(header.chars()).find(|((_, a), b)| a != b);
    let mut from = common.map_or_else(|| written.len().min(header.len()), |((at, _), _)| at);
    // Two tags may share a prefix: do not split inside a tag.
    from = whole_tags(&written[..from]);
    written.get(from..)
}

/// Length of a text without an incomplete tag at its end.
pub(super) fn whole_tags(text: &str) -> usize {
    let tag = text.rfind(['<', '[']).filter(|at| !text[*at..].contains(['>', ']']));
    tag.unwrap_or(text.len())
}
