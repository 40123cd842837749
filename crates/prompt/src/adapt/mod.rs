//! Adapts conversations to templates.
//!
//! Templates accept different conversations: system messages anywhere or only at the start,
//! consecutive user messages or not, tool results or not. [`MessageRules::probe`] detects the rules
//! of a template by rendering small conversations. [`adapt`] changes a conversation to follow the
//! rules without losing text, and returns the [`Adaptation`]s that it made.

mod adaptation;
mod calls;
mod message_rules;
mod rules;

use self::adaptation::PLACEHOLDER_TEXT;
pub use self::adaptation::{Adaptation, Adaptations};
pub use self::calls::check_results;
use self::calls::{
    calls_as_text, gather_results, ordered_results, result_as_user, separate_calls, separate_texts,
};
use self::message_rules::LateSystem;
pub use self::message_rules::MessageRules;
pub use self::rules::ROLES;
pub(crate) use self::rules::{check_roles, is_accepted, writes_everything};
use crate::message::Message;

/// Sorts the results of parallel calls by the order of the calls, and changes nothing else.
pub(crate) fn order_results(messages: &[Message]) -> (Vec<Message>, Adaptations) {
    let mut made = Adaptations::new();
    (ordered_results(messages.to_vec(), &mut made), made)
}

/// Changes a conversation so that a template with these rules accepts it.
pub fn adapt(messages: &[Message], rules: &MessageRules) -> (Vec<Message>, Adaptations) {
    let (mut messages, mut made) = order_results(messages);
    if !rules.developer {
        for message in messages.iter_mut().filter(|m| m.role == "developer") {
            message.role = "system".into();
            made.insert(Adaptation::Renamed);
        }
    }
    if !rules.separated_results {
        messages = gather_results(messages, &mut made);
    }
    if rules.calls && !rules.parallel_calls {
        messages = separate_calls(messages, &mut made);
    }
    if rules.calls && !rules.text_with_calls {
        messages = separate_texts(messages, rules.consecutive_assistants, &mut made);
    }
    if !rules.results {
        messages.iter_mut().filter(|m| m.role == "tool").for_each(|m| {
            *m = result_as_user(m);
            made.insert(Adaptation::Renamed);
        });
    }
    if !rules.calls {
        messages.iter_mut().filter(|m| !m.tool_calls.is_empty()).for_each(|m| {
            calls_as_text(m);
            made.insert(Adaptation::Placeholder);
        });
    }
    messages = drop_empty_answers(messages, rules, &mut made);
    messages = place_systems(messages, rules, &mut made);
    let merges = |message: &Message| match message.role.as_str() {
        "user" => !rules.consecutive_users,
        "assistant" => !rules.consecutive_assistants,
        _ => false,
    };
    messages = merge_neighbours(messages, merges, &mut made);
    let is_turn = |m: &Message| m.role != "system" && m.role != "developer";
    let first = messages.iter().position(is_turn);
    let wants_user = match first {
        None => !rules.no_user && !messages.is_empty(),
        Some(first) => !rules.leading_assistant && messages[first].role == "assistant",
    };
    if wants_user {
        messages.insert(first.unwrap_or(messages.len()), Message::new("user", PLACEHOLDER_TEXT));
        made.insert(Adaptation::Placeholder);
    }
    (messages, made)
}

/// Removes assistant messages without text, reasoning, images and calls if the template refuses
/// them. The last message is kept, since the model continues it.
fn drop_empty_answers(
    messages: Vec<Message>,
    rules: &MessageRules,
    made: &mut Adaptations,
) -> Vec<Message> {
    if rules.empty_answers {
        return messages;
    }
    let last = messages.len().saturating_sub(1);
    let is_empty_answer = |message: &Message| {
        message.role == "assistant"
            && message.content.trim().is_empty()
            && message.thinking.is_none()
            && message.images.is_empty()
            && message.tool_calls.is_empty()
    };
    let all = messages.into_iter().enumerate();
    let kept = all.filter(|(at, message)| {
        let is_kept = *at == last || !is_empty_answer(message);
        if !is_kept {
            made.insert(Adaptation::Dropped);
        }
        is_kept
    });
    kept.map(|(_, message)| message).collect()
}

/// Moves system messages to places that the template accepts.
fn place_systems(
    messages: Vec<Message>,
    rules: &MessageRules,
    made: &mut Adaptations,
) -> Vec<Message> {
    let head = messages.iter().take_while(|m| m.role == "system").count();
    let mut all = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter();
    let mut first: Vec<Message> = messages.by_ref().take(head).collect();
    if first.len() > 1 && !(rules.system && rules.several_systems) {
        first = vec![join_messages(first)];
        made.insert(Adaptation::Merged);
    }
    let mut unplaced = None;
    match rules.system {
        true => {
            if rules.moves_system && !first.is_empty() {
                made.insert(Adaptation::Moved);
            }
            all.append(&mut first);
        }
        false => {
            let has_content =
                |system: &Message| !system.content.is_empty() || !system.images.is_empty();
            unplaced = first.pop().filter(has_content);
        }
    }
    for mut message in messages {
        match (message.role.as_str(), rules.late_system) {
            ("system", LateSystem::NotInPlace) => {
                let content = format!("<system>\n{}\n</system>", message.content);
                message = Message { role: "user".into(), content, ..message };
                made.insert(Adaptation::Renamed);
            }
            ("user", _) => {}
            _ => {
                all.push(message);
                continue;
            }
        }
        if let Some(system) = unplaced.take() {
            message.content = join(&system.content, &message.content);
            message.images.splice(0..0, system.images);
            made.insert(Adaptation::Moved);
        }
        all.push(message);
    }
    if let Some(system) = unplaced {
        all.insert(0, Message { role: "user".into(), ..system });
        made.insert(Adaptation::Renamed);
    }
    all
}

/// Joins neighbouring messages of one role.
fn merge_neighbours(
    messages: Vec<Message>,
    merges: impl Fn(&Message) -> bool,
    made: &mut Adaptations,
) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match all.last_mut() {
            Some(last) if last.role == message.role && merges(&message) => {
                append_message(last, message);
                made.insert(Adaptation::Merged);
            }
            _ => all.push(message),
        }
    }
    all
}

fn join_messages(messages: Vec<Message>) -> Message {
    let mut messages = messages.into_iter();
    let mut all = messages.next().unwrap_or_default();
    messages.for_each(|message| append_message(&mut all, message));
    all
}

/// Appends a message to the previous one of the same role.
fn append_message(last: &mut Message, message: Message) {
    last.content = join(&last.content, &message.content);
    last.images.extend(message.images);
    last.tool_calls.extend(message.tool_calls);
    for (place, call) in last.tool_calls.iter_mut().enumerate() {
        call.function.index = place;
    }
    last.thinking = match (last.thinking.take(), message.thinking) {
        (Some(before), Some(after)) => Some(join(&before, &after)),
        (before, after) => before.or(after),
    };
}

/// Joins two texts with an empty line between them.
fn join(before: &str, after: &str) -> String {
    match (before, after) {
        ("", text) | (text, "") => text.to_owned(),
        _ => format!("{before}\n\n{after}"),
    }
}
