//! Calls of tools and their results in the order and form that a template accepts.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value as Json, json};

use super::{Adaptation, Adaptations, PLACEHOLDER};
use crate::PromptError;
use crate::message::Message;

/// Puts the results of parallel calls in the order of the calls: templates without ids tell them apart by their places.
pub(super) fn ordered_results(mut messages: Vec<Message>, done: &mut Adaptations) -> Vec<Message> {
    let mut at = 0;
    while at < messages.len() {
        let calls: HashMap<String, usize> = messages[at]
            .tool_calls
            .iter()
            .enumerate()
            .filter(|(_, call)| !call.id.is_empty())
            .map(|(place, call)| (call.id.clone(), place))
            .collect();
        let results = messages[at + 1..].iter().take_while(|m| m.role == "tool").count();
        let run = &mut messages[at + 1..at + 1 + results];
        let place = |m: &Message| m.tool_call_id.as_ref().and_then(|id| calls.get(id)).copied();
        if calls.len() > 1 && run.iter().all(|m| place(m).is_some()) && !run.is_sorted_by_key(place)
        {
            run.sort_by_key(place);
            done.insert(Adaptation::Reordered);
        }
        at += 1 + results;
    }
    messages
}

/// A tool's result as a turn of the user.
pub(super) fn result_as_user(message: &Message) -> Message {
    let name = message.tool_name.as_deref().unwrap_or_default();
    let content = match name {
        "" => format!("<tool_result>\n{}\n</tool_result>", message.content),
        name => format!("<tool_result name={}>\n{}\n</tool_result>", json!(name), message.content),
    };
    Message { images: message.images.clone(), ..Message::new("user", content) }
}

/// Writes calls as text, one a line, where a template has no place for them.
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

/// Refuses a result whose call is not among the messages before it. Conversations whose calls have no ids tell nothing.
///
/// # Errors
/// [`PromptError::Message`] with the place of the result.
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

/// Puts results that stand behind other messages directly behind their calls.
pub(super) fn gather_results(messages: Vec<Message>, done: &mut Adaptations) -> Vec<Message> {
    let before: Vec<_> =
        messages.iter().map(|m| (m.role.clone(), m.tool_call_id.clone())).collect();
    let gathered = each_with_results(messages, |message, results, all| {
        all.push(message);
        all.extend(results);
    });
    let after = gathered.iter().map(|m| (&m.role, &m.tool_call_id));
    if !after.eq(before.iter().map(|(role, id)| (role, id))) {
        done.insert(Adaptation::Reordered);
    }
    gathered
}

/// Makes one message of each of several calls, with its result behind it.
pub(super) fn separate_calls(messages: Vec<Message>, done: &mut Adaptations) -> Vec<Message> {
    if messages.iter().all(|message| message.tool_calls.len() < 2) {
        return messages;
    }
    done.insert(Adaptation::Reordered);
    each_with_results(messages, |mut message, results, all| {
        let mut results = VecDeque::from(results);
        let calls = std::mem::take(&mut message.tool_calls);
        let mut first = Some(message);
        for mut call in calls {
            call.function.index = 0;
            let answers =
                |m: &Message| call.id.is_empty() || m.tool_call_id.as_ref() == Some(&call.id);
            // They are in the order of the calls.
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

/// Writes each message by `write`, which gets the results of its calls as well, in the order of the calls.
fn each_with_results(
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

/// The places of results by the places of the messages with their calls. Results of calls without ids follow these at once.
fn results_by_call(messages: &[Message]) -> HashMap<usize, Vec<usize>> {
    // The newest message with an open call of an id, and the call's place in it.
    let mut open: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut results: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
    let mut unnamed = None;
    for (at, message) in messages.iter().enumerate() {
        if message.role != "tool" {
            unnamed = None;
            for (place, call) in message.tool_calls.iter().enumerate() {
                match call.id.as_str() {
                    "" => unnamed = Some(at),
                    id => _ = open.insert(id, (at, place)),
                }
            }
            continue;
        }
        let named = message.tool_call_id.as_deref().and_then(|id| open.remove(id));
        if let Some((call, place)) = named.or_else(|| unnamed.map(|call| (call, at))) {
            results.entry(call).or_default().push((place, at));
        }
    }
    let in_order = |mut places: Vec<(usize, usize)>| {
        places.sort_unstable();
        places.into_iter().map(|(_, at)| at).collect()
    };
    results.into_iter().map(|(call, places)| (call, in_order(places))).collect()
}

/// Makes two messages of one with a text and calls, for templates that write only one of both. Where answers may not follow
/// each other, a turn of the user stands between.
pub(super) fn separate_texts(
    messages: Vec<Message>,
    consecutive: bool,
    done: &mut Adaptations,
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
            all.push(Message::new("user", PLACEHOLDER));
            done.insert(Adaptation::Placeholder);
        }
        all.push(message);
        done.insert(Adaptation::Moved);
    }
    all
}
