//! Conversations as a template accepts them.
//!
//! Templates disagree on which messages a conversation may have: a system message anywhere or at the head only, two users in
//! a row, the results of tools. [`MessageRules::of`] finds out what a template accepts by rendering small conversations with
//! it. [`adapt`] changes a conversation to that without losing text, and returns the [`Adaptation`]s that it made.

mod calls;
mod rules;

use std::collections::BTreeSet;
use std::fmt;

pub use self::calls::check_results;
use self::calls::{
    calls_as_text, gather_results, ordered_results, result_as_user, separate_calls, separate_texts,
};
use self::rules::LateSystem;
pub use self::rules::{MessageRules, ROLES};
pub(crate) use self::rules::{check_roles, is_accepted, is_whole};
use crate::message::Message;

/// A user turn for templates that want one where a conversation has none.
const PLACEHOLDER: &str = "...";

/// What was changed in a conversation so that its template accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Adaptation {
    /// Neighbouring messages of one role became one.
    Merged,
    /// The text of a system message stands in another place, or a text stands in a message before the calls it came with.
    Moved,
    /// Calls and results were put in another order: each result behind its call.
    Reordered,
    /// A text stands for something that the template has no place for, or for a turn that it demands.
    Placeholder,
    /// A message has another role.
    Renamed,
    /// The arguments of a call that were no JSON object became one.
    Repaired,
    /// Messages, or the middle of a tool's result, were left out.
    Dropped,
}

impl Adaptation {
    /// The word for it in headers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Moved => "moved",
            Self::Reordered => "reordered",
            Self::Placeholder => "placeholder",
            Self::Renamed => "renamed",
            Self::Repaired => "repaired",
            Self::Dropped => "dropped",
        }
    }

    /// What it does, in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Merged => "neighbouring messages of one role became one message",
            Self::Moved => {
                "the text of a system message stands in another place, or a text stands before its calls in a message of its own"
            }
            Self::Reordered => "each result stands behind its call, in the order of the calls",
            Self::Placeholder => {
                "a text stands for calls, for an image, or for a turn that the template requires"
            }
            Self::Repaired => {
                "arguments of a call that were no JSON object became the text of an argument"
            }
            Self::Dropped => {
                "messages or parts of them were left out: the context is too small, or the template has no place for them"
            }
            Self::Renamed => {
                "a message has another role: developer as system, a late system message or a result as user"
            }
        }
    }
}

impl fmt::Display for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The changes of a conversation, each kind once.
pub type Adaptations = BTreeSet<Adaptation>;

/// Puts the results of parallel calls in the order of the calls, and changes nothing else.
pub(crate) fn order_results(messages: &[Message]) -> (Vec<Message>, Adaptations) {
    let mut done = Adaptations::new();
    (ordered_results(messages.to_vec(), &mut done), done)
}

/// Changes a conversation to what a template with these rules accepts.
pub fn adapt(messages: &[Message], rules: &MessageRules) -> (Vec<Message>, Adaptations) {
    let (mut messages, mut done) = order_results(messages);
    if !rules.developer {
        for message in messages.iter_mut().filter(|m| m.role == "developer") {
            message.role = "system".into();
            done.insert(Adaptation::Renamed);
        }
    }
    if !rules.separated_results {
        messages = gather_results(messages, &mut done);
    }
    if rules.calls && !rules.parallel_calls {
        messages = separate_calls(messages, &mut done);
    }
    if rules.calls && !rules.text_with_calls {
        messages = separate_texts(messages, rules.consecutive_assistants, &mut done);
    }
    if !rules.results {
        messages.iter_mut().filter(|m| m.role == "tool").for_each(|m| {
            *m = result_as_user(m);
            done.insert(Adaptation::Renamed);
        });
    }
    if !rules.calls {
        messages.iter_mut().filter(|m| !m.tool_calls.is_empty()).for_each(|m| {
            calls_as_text(m);
            done.insert(Adaptation::Placeholder);
        });
    }
    messages = drop_empty_answers(messages, rules, &mut done);
    messages = place_systems(messages, rules, &mut done);
    let merges = |message: &Message| match message.role.as_str() {
        "user" => !rules.consecutive_users,
        "assistant" => !rules.consecutive_assistants,
        _ => false,
    };
    messages = merge_neighbours(messages, merges, &mut done);
    let is_turn = |m: &Message| m.role != "system" && m.role != "developer";
    let first = messages.iter().position(is_turn);
    let wants_user = match first {
        None => !rules.no_user && !messages.is_empty(),
        Some(first) => !rules.leading_assistant && messages[first].role == "assistant",
    };
    if wants_user {
        messages.insert(first.unwrap_or(messages.len()), Message::new("user", PLACEHOLDER));
        done.insert(Adaptation::Placeholder);
    }
    (messages, done)
}

/// Removes assistant messages without text, thoughts, images and calls where the template refuses them. The last message stays:
/// the model continues it.
fn drop_empty_answers(
    messages: Vec<Message>,
    rules: &MessageRules,
    done: &mut Adaptations,
) -> Vec<Message> {
    if rules.empty_answers {
        return messages;
    }
    let last = messages.len().saturating_sub(1);
    let says_nothing = |message: &Message| {
        message.role == "assistant"
            && message.content.trim().is_empty()
            && message.thinking.is_none()
            && message.images.is_empty()
            && message.tool_calls.is_empty()
    };
    let all = messages.into_iter().enumerate();
    let kept = all.filter(|(at, message)| {
        let is_kept = *at == last || !says_nothing(message);
        if !is_kept {
            done.insert(Adaptation::Dropped);
        }
        is_kept
    });
    kept.map(|(_, message)| message).collect()
}

/// Puts system messages where the template accepts them.
fn place_systems(
    messages: Vec<Message>,
    rules: &MessageRules,
    done: &mut Adaptations,
) -> Vec<Message> {
    let head = messages.iter().take_while(|m| m.role == "system").count();
    let mut all = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter();
    let mut first: Vec<Message> = messages.by_ref().take(head).collect();
    if first.len() > 1 && !(rules.system && rules.several_systems) {
        first = vec![join_messages(first)];
        done.insert(Adaptation::Merged);
    }
    let mut unplaced = None;
    match rules.system {
        true => {
            if rules.moves_system && !first.is_empty() {
                done.insert(Adaptation::Moved);
            }
            all.append(&mut first);
        }
        false => {
            let says_something =
                |system: &Message| !system.content.is_empty() || !system.images.is_empty();
            unplaced = first.pop().filter(says_something);
        }
    }
    for mut message in messages {
        match (message.role.as_str(), rules.late_system) {
            ("system", LateSystem::NotInPlace) => {
                let content = format!("<system>\n{}\n</system>", message.content);
                message = Message { role: "user".into(), content, ..message };
                done.insert(Adaptation::Renamed);
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
            done.insert(Adaptation::Moved);
        }
        all.push(message);
    }
    if let Some(system) = unplaced {
        all.insert(0, Message { role: "user".into(), ..system });
        done.insert(Adaptation::Renamed);
    }
    all
}

/// Joins neighbours of one role.
fn merge_neighbours(
    messages: Vec<Message>,
    merges: impl Fn(&Message) -> bool,
    done: &mut Adaptations,
) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match all.last_mut() {
            Some(last) if last.role == message.role && merges(&message) => {
                append_message(last, message);
                done.insert(Adaptation::Merged);
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

/// Adds a message to the one before it, of the same role.
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

/// Two texts with a blank line between.
fn join(before: &str, after: &str) -> String {
    match (before, after) {
        ("", text) | (text, "") => text.to_owned(),
        _ => format!("{before}\n\n{after}"),
    }
}
