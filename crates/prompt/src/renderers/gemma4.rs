//! Gemma 4, small and large: results in the turn of their calls, strings between `<|"|>` marks.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::RenderInput;
use super::gemma4_schema::declare;
use super::json::number;
use crate::PromptError;
use crate::message::{Message, ToolCall};

/// Mark on both sides of a string.
pub(super) const QUOTE: &str = "<|\"|>";

pub(super) fn small(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, "", out);
    Ok(())
}

/// The large model expects an empty reasoning block if it is not to reason.
pub(super) fn large(input: &RenderInput<'_>, out: &mut String) -> Result<(), PromptError> {
    render(input, "<|channel>thought\n<channel|>", out);
    Ok(())
}

/// How the last message that is not a tool result ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    Text,
    /// With calls that have no results.
    Calls,
    Results,
}

fn render(input: &RenderInput<'_>, no_thought: &str, out: &mut String) {
    let thinks = input.thinks(false);
    let messages = head(input, thinks, out);
    let question = messages.iter().rposition(|m| m.role == "user");
    let mut turn_end = TurnEnd::Text;
    let mut after_answer = false;
    for (i, message) in messages.iter().enumerate().filter(|(_, m)| m.role != "tool") {
        let is_answer = message.role == "assistant";
        if !(is_answer && after_answer) {
            out.extend(["<|turn>", if is_answer { "model" } else { &message.role }, "\n"]);
        }
        let thought = message.thinking.as_deref().filter(|text| !text.is_empty() && is_answer);
        if let Some(thought) = thought.filter(|_| question.is_none_or(|question| i > question)) {
            out.extend(["<|channel>thought\n", thought, "\n<channel|>"]);
        }
        turn_end = calls(&messages[i..], out);
        let content = if is_answer {
            without_reasoning(&message.content)
        } else {
            message.content.trim().into()
        };
        out.push_str(&content);
        let next = messages[i + 1..].iter().find(|m| m.role != "tool").map(|m| m.role.as_str());
        let goes_on = is_answer
            && next == Some("assistant")
            && (message.tool_calls.is_empty() || turn_end == TurnEnd::Results);
        let waits = turn_end == TurnEnd::Results && next.is_none() && content.trim().is_empty();
        if turn_end == TurnEnd::Calls {
            out.push_str("<|tool_response>");
        } else if !goes_on && !waits {
            out.push_str("<turn|>\n");
        }
        after_answer = is_answer;
    }
    match turn_end {
        TurnEnd::Text => out.extend(["<|turn>model\n", if thinks { "" } else { no_thought }]),
        TurnEnd::Results if thinks => out.push_str("<|channel>thought\n"),
        TurnEnd::Results | TurnEnd::Calls => {}
    }
}

/// Writes the system turn. Returns the messages behind it.
fn head<'a>(input: &RenderInput<'a>, thinks: bool, out: &mut String) -> &'a [&'a Message] {
    let (system, messages) = match input.messages.split_first() {
        Some((first, rest)) if first.role == "system" || first.role == "developer" => {
            (Some(first), rest)
        }
        _ => (None, input.messages),
    };
    out.push_str("<bos>");
    if system.is_some() || !input.tools.is_empty() || thinks {
        out.extend(["<|turn>system\n", if thinks { "<|think|>\n" } else { "" }]);
        out.push_str(system.map_or("", |system| system.content.trim()));
        input.tools.iter().for_each(|tool| declare(tool, out));
        out.push_str("<turn|>\n");
    }
    messages
}

/// Writes the calls of the first message, and the results behind it.
fn calls(messages: &[&Message], out: &mut String) -> TurnEnd {
    let Some((message, rest)) = messages.split_first().filter(|(m, _)| !m.tool_calls.is_empty())
    else {
        return TurnEnd::Text;
    };
    let mut names: HashMap<&str, &str> = HashMap::new();
    for ToolCall { id, function } in &message.tool_calls {
        names.entry(id).or_insert(&function.name);
        let mut arguments: Vec<_> = function.arguments.iter().collect();
        arguments.sort_unstable_by_key(|(name, _)| *name);
        let arguments: Vec<String> = arguments
            .iter()
            .map(|(name, value)| format!("{name}:{}", literal(value, "")))
            .collect();
        out.extend([
            "<|tool_call>call:",
            &function.name,
            "{",
            &arguments.join(","),
            "}<tool_call|>",
        ]);
    }
    let mut turn_end = TurnEnd::Calls;
    for result in rest.iter().take_while(|m| m.role == "tool") {
        let by_id =
            result.tool_call_id.as_deref().filter(|id| !id.is_empty()).and_then(|id| names.get(id));
        let own = result.tool_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("unknown");
        out.extend(["<|tool_response>response:", by_id.copied().unwrap_or(own), "{value:", QUOTE]);
        out.extend([&result.content, QUOTE, "}<tool_response|>"]);
        turn_end = TurnEnd::Results;
    }
    turn_end
}

/// The trimmed text of an answer without `<|channel>…<channel|>`.
fn without_reasoning(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, thought)) = rest.split_once("<|channel>") {
        shown.push_str(before);
        rest = thought.split_once("<channel|>").map_or("", |(_, after)| after);
    }
    shown.push_str(rest);
    shown.trim().to_owned()
}

/// Writes a value with marks around strings and `around` on both sides of keys.
pub(super) fn literal(value: &Json, around: &str) -> String {
    match value {
        Json::Null => "null".into(),
        Json::Bool(on) => on.to_string(),
        Json::Number(n) => number(n),
        Json::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Json::Array(items) => {
            let all: Vec<String> = items.iter().map(|item| literal(item, around)).collect();
            format!("[{}]", all.join(","))
        }
        Json::Object(map) => {
            let one = |(key, value)| format!("{around}{key}{around}:{}", literal(value, around));
            format!("{{{}}}", map.iter().map(one).collect::<Vec<_>>().join(","))
        }
    }
}
