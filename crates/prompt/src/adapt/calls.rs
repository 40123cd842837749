//! Adapts tool calls and tool results to the order and format that a template accepts.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value as Json, json};

use super::adaptation::{Adaptation, Adaptations, PLACEHOLDER_TEXT};
use crate::PromptError;
use crate::message::Message;

/// Sorts the results of parallel calls by the order of the calls. Templates without ids match them
/// by position.
pub(super) fn ordered_results(mut messages: Vec<Message>, made: &mut Adaptations) -> Vec<Message> {
    let mut at = 0;
    while at < messages.len() {
        let calls: HashMap<String, usize> = messages[at]
            .tool_calls
            .iter()
            .enumerate()
            .filter(|(_, call)| !call.id.is_empty())
            .map(|(index, call)| (call.id.clone(), index))
            .collect();
        let results = messages[at + 1..].iter().take_while(|m| m.role == "tool").count();
        let run = &mut messages[at + 1..at + 1 + results];
        let index = |m: &Message| m.tool_call_id.as_ref().and_then(|id| calls.get(id)).copied();
        if calls.len() > 1 && run.iter().all(|m| index(m).is_some()) && !run.is_sorted_by_key(index)
        {
            run.sort_by_key(index);
            made.insert(Adaptation::Reordered);
        }
        at += 1 + results;
    }
    messages
}

/// Converts a tool result to a user message.
pub(super) fn result_as_user(message: &Message) -> Message {
    let name = message.tool_name.as_deref().unwrap_or_default();
    let content = match name {
        "" => format!("<tool_result>\n{}\n</tool_result>", message.content),
        name => format!("<tool_result name={}>\n{}\n</tool_result>", json!(name), message.content),
    };
    Message { images: message.images.clone(), ..Message::new("user", content) }
}

/// Appends calls to the content as text, one a line, for templates without tool calls.
pub(super) fn calls_as_text(message: &mut Message) {
    for call in std::mem::take(&mut message.tool_calls) {
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        let arguments = Json::Object(call.function.arguments);
        let call = json!({"name": call.function.name, "arguments": arguments});
        message.content.push_str(&format!("<tool_call>{call}</tool_call>"));
    }
}

/// Refuses a tool result if no earlier message has its call. Calls without ids cannot be checked.
///
/// # Errors
/// [`PromptError::Message`] with the index of the result.
pub fn check_results(messages: &[Message]) -> Result<(), PromptError> {
    let mut known = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let ids = message.tool_calls.iter().map(|call| call.id.as_str());
        known.extend(ids);
        if message.role != "tool" || known.contains("") {
            continue;
        }
        let id = message.tool_call_id.as_deref().unwrap_or_default();
        if (id.is_empty() && known.is_empty()) || (!id.is_empty() && !known.contains(id)) {
            let id: String = id.chars().take(80).collect();
            let error = Box::new(PromptError::ResultWithoutCall { id });
            return Err(PromptError::Message { index, error });
        }
    }
    Ok(())
}

/// Moves results that follow other messages directly behind their calls.
pub(super) fn gather_results(messages: Vec<Message>, made: &mut Adaptations) -> Vec<Message> {
    let before: Vec<_> =
        messages.iter().map(|m| (m.role.clone(), m.tool_call_id.clone())).collect();
    let gathered = rewrite_with_results(messages, |message, results, all| {
        all.push(message);
        all.extend(results);
    });
    let after = gathered.iter().map(|m| (&m.role, &m.tool_call_id));
    if !after.eq(before.iter().map(|(role, id)| (role, id))) {
        made.insert(Adaptation::Reordered);
    }
    gathered
}

/// Splits a message with several calls into one message for each call, followed by its result.
pub(super) fn separate_calls(messages: Vec<Message>, made: &mut Adaptations) -> Vec<Message> {
    if messages.iter().all(|message| message.tool_calls.len() < 2) {
        return messages;
    }
    made.insert(Adaptation::Reordered);
    rewrite_with_results(messages, |mut message, results, all| {
        let mut results = VecDeque::from(results);
        let calls = std::mem::take(&mut message.tool_calls);
        let mut first = Some(message);
        for mut call in calls {
            call.function.index = 0;
            let answers =
                |m: &Message| call.id.is_empty() || m.tool_call_id.as_ref() == Some(&call.id);
            // The results are in the order of the calls.
            let result =
                results.front().is_some_and(answers).then(|| results.pop_front()).flatten();
            let message = first.take().unwrap_or_else(|| Message::new("assistant", ""));
            all.push(Message { tool_calls: vec![call], ..message });
            all.extend(result);
        }
        all.extend(first);
        all.extend(results);
    })
}

/// Rewrites each message by `write`, which also gets the results of the message's calls, in the
/// order of the calls.
fn rewrite_with_results(
    messages: Vec<Message>,
    mut write: impl FnMut(Message, Vec<Message>, &mut Vec<Message>),
) -> Vec<Message> {
    let results = results_by_call(&messages);
    let mut rest: Vec<Option<Message>> = messages.into_iter().map(Some).collect();
    let mut all = Vec::with_capacity(rest.len());
    for at in 0..rest.len() {
        let Some(message) = rest[at].take() else { continue };
        let of_message = results.get(&at).into_iter().flatten();
        let of_message = of_message.filter_map(|&result| rest[result].take()).collect();
        write(message, of_message, &mut all);
    }
    all
}

/// Maps the index of each message with calls to the indices of the results. Results of calls
/// without ids directly follow the calls.
fn results_by_call(messages: &[Message]) -> HashMap<usize, Vec<usize>> {
    // Newest message with an unanswered call of this id, and the index of the call in it.
    let mut open: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut results: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
    let mut unnamed = None;
    for (at, message) in messages.iter().enumerate() {
        if message.role != "tool" {
            unnamed = None;
            for (index, call) in message.tool_calls.iter().enumerate() {
                match call.id.as_str() {
                    "" => unnamed = Some(at),
                    id => _ = open.insert(id, (at, index)),
                }
            }
            continue;
        }
        let named = message.tool_call_id.as_deref().and_then(|id| open.remove(id));
        if let Some((call, index)) = named.or_else(|| unnamed.map(|call| (call, at))) {
            results.entry(call).or_default().push((index, at));
        }
    }
    let in_order = |mut indices: Vec<(usize, usize)>| {
        indices.sort_unstable();
        indices.into_iter().map(|(_, at)| at).collect()
    };
    results.into_iter().map(|(call, indices)| (call, in_order(indices))).collect()
}

/// Splits messages with text and calls in two, for templates that write only one of both. If
/// assistant messages may not follow each other, a placeholder user message stands between.
pub(super) fn separate_texts(
    messages: Vec<Message>,
    consecutive: bool,
    made: &mut Adaptations,
) -> Vec<Message> {
    let mut all = Vec::with_capacity(messages.len());
    for mut message in messages {
        if message.tool_calls.is_empty() || message.content.trim().is_empty() {
            all.push(message);
            continue;
        }
        let content = std::mem::take(&mut message.content);
        all.push(Message {
            thinking: message.thinking.take(),
            images: std::mem::take(&mut message.images),
            ..Message::new("assistant", content)
        });
        if !consecutive {
            all.push(Message::new("user", PLACEHOLDER_TEXT));
            made.insert(Adaptation::Placeholder);
        }
        all.push(message);
        made.insert(Adaptation::Moved);
    }
    all
}
