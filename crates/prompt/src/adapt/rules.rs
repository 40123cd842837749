//! Detects which messages a template accepts by rendering small conversations.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::calls::result_as_user;
use super::message_rules::{LateSystem, MessageRules};
use crate::chat::Chat;
use crate::jinja_chat::writes_system;
use crate::message::{FunctionCall, Message, ToolCall};
use crate::render_unchanged::render_as_is;
use crate::{PromptError, Template};

impl MessageRules {
    /// Detects the rules of a template.
    pub fn probe(template: &Template) -> Self {
        let probe = Probe(template);
        if !probe.accepts(&[user(0)]) {
            return Self::permissive();
        }
        let late_systems = [
            probe.place_of_late_system(&[system(0), user(1), assistant(2), system(3), user(4)], 3),
            probe.place_of_late_system(&[user(1), system(3), assistant(4), user(5)], 3),
            probe.place_of_late_system(&[user(1), system(3)], 3),
        ];
        let late_system = match late_systems {
            _ if late_systems.contains(&LateSystem::NotInPlace) => LateSystem::NotInPlace,
            _ => LateSystem::InPlace,
        };
        let is_named =
            matches!(template, Template::BuiltIn(_)) || template.source().contains("developer");
        let system_rule = match template {
            Template::Jinja(jinja) => writes_system(jinja),
            _ => probe.writes(&[system(0), user(1)]),
        };
        let results = probe.accepts_results();
        Self {
            system: system_rule,
            moves_system: system_rule && probe.moves_system(),
            several_systems: system_rule && probe.writes(&[system(0), system(1), user(2)]),
            late_system: if system_rule { late_system } else { LateSystem::NotInPlace },
            developer: is_named
                && probe.accepts(&[developer(0), user(1)])
                && probe.accepts(&[system(0), developer(1), user(2)])
                && probe.accepts(&[user(0), assistant(1), developer(2), user(3)]),
            consecutive_users: probe.accepts(&[user(0), user(1)])
                && probe.accepts(&[user(0), assistant(1), user(2), user(3), assistant(4), user(5)]),
            consecutive_assistants: probe.accepts(&[user(0), assistant(1), assistant(2), user(3)]),
            leading_assistant: probe.accepts(&[assistant(0), user(1)]),
            no_user: probe.accepts(&[system(0)]),
            calls: probe.writes_calls(),
            results,
            text_with_calls: probe.accepts_text_with_calls(results),
            parallel_calls: probe.has_calls(&with_result_role(Probe::with_results(2), results)),
            separated_results: probe.accepts(&Probe::with_separated_result()),
            empty_answers: probe.accepts(&[user(0), Message::new("assistant", ""), user(1)]),
        }
    }
}

/// A message with the probe text of this number.
fn marked_message(role: &str, number: usize) -> Message {
    Message::new(role, marker(number))
}

/// Prefix of all probe texts. Each probe text ends with a full stop.
const MARKER: &str = "puna-probe-";
/// Longest probe text, in bytes.
const MAX_MARKER_BYTES: usize = 64;

fn marker(number: usize) -> String {
    format!("{MARKER}{number}-text.")
}

fn system(number: usize) -> Message {
    marked_message("system", number)
}

fn developer(number: usize) -> Message {
    marked_message("developer", number)
}

fn user(number: usize) -> Message {
    marked_message("user", number)
}

fn assistant(number: usize) -> Message {
    marked_message("assistant", number)
}

/// Renders probe conversations with a template.
struct Probe<'t>(&'t Template);

impl Probe<'_> {
    fn rendered(&self, messages: &[Message]) -> Option<String> {
        let parameters = json!({"type": "object", "properties": {"probe_key": {"type": "string", "description": ""}}});
        let function = json!({"name": "probe_tool", "description": "", "parameters": parameters});
        let tools = [json!({"type": "function", "function": function})];
        let uses_tools = messages.iter().any(|m| m.role == "tool" || !m.tool_calls.is_empty());
        let chat = Chat {
            now: Some(jiff::civil::DateTime::default()),
            tools: if uses_tools { &tools } else { &[] },
            ..Chat::new(messages)
        };
        render_as_is(self.0, &chat, messages).ok()
    }

    /// Returns true if the prompt contains all texts.
    fn writes(&self, messages: &[Message]) -> bool {
        self.rendered(messages).is_some_and(|prompt| has_all(&prompt, messages))
    }

    /// Returns true if the prompt contains all texts in the order of the messages.
    fn accepts(&self, messages: &[Message]) -> bool {
        self.rendered(messages).is_some_and(|prompt| has_in_order(&prompt, messages))
    }

    /// Returns true if the template writes a leading system message behind the first other message.
    fn moves_system(&self) -> bool {
        let conversations = [
            vec![system(0), user(1), assistant(2), user(3)],
            vec![system(0), assistant(1), user(2)],
            vec![system(0), user(1), user(2)],
        ];
        conversations.iter().filter_map(|conversation| self.rendered(conversation)).any(|prompt| {
            let first = prompt.find(&marker(1));
            prompt.find(&marker(0)).is_some_and(|system| first.is_some_and(|first| first < system))
        })
    }

    /// Probes where the template writes the system message numbered `late`.
    fn place_of_late_system(&self, messages: &[Message], late: usize) -> LateSystem {
        let prompt = self.rendered(messages).filter(|prompt| has_all(prompt, messages));
        let Some(prompt) = prompt else { return LateSystem::NotInPlace };
        let at = |number| prompt.find(&marker(number));
        match (at(late), at(1)) {
            (None, _) | (_, None) => LateSystem::NotInPlace,
            (Some(late), Some(user)) if late < user => LateSystem::NotInPlace,
            _ => LateSystem::InPlace,
        }
    }

    /// An assistant message with `count` probe calls.
    fn with_calls(count: usize) -> Message {
        let call = |at: usize| {
            let arguments =
                Map::from_iter([("probe_key".to_owned(), json!(format!("probe_value_{at}")))]);
            let function = FunctionCall { index: at, name: "probe_tool".into(), arguments };
            ToolCall { id: format!("probe000{at}"), function }
        };
        Message { tool_calls: (0..count).map(call).collect(), ..Message::new("assistant", "") }
    }

    /// A conversation with `count` parallel calls and their results.
    fn with_results(count: usize) -> Vec<Message> {
        let result = |at: usize| Message {
            tool_call_id: Some(format!("probe000{at}")),
            tool_name: Some("probe_tool".into()),
            ..marked_message("tool", 10 + at)
        };
        let calls = [user(0), Self::with_calls(count)].into_iter();
        calls.chain((0..count).map(result)).chain([assistant(20), user(21)]).collect()
    }

    /// A conversation with another message between a call and its result.
    fn with_separated_result() -> Vec<Message> {
        let mut messages = Self::with_results(1);
        messages.insert(2, user(5));
        messages
    }

    /// Returns true if the prompt contains all texts in order, and the arguments of all calls.
    fn has_calls(&self, messages: &[Message]) -> bool {
        let Some(prompt) = self.rendered(messages) else { return false };
        has_in_order(&prompt, messages) && has_arguments(&prompt, messages)
    }

    /// Probes messages with text and calls, with and without results.
    fn accepts_text_with_calls(&self, results: bool) -> bool {
        let mut answered = with_result_role(Self::with_results(1), results);
        answered[1].content = marker(1);
        let open = answered[..3].to_vec();
        self.has_calls(&answered) && self.has_calls(&open)
    }

    /// Returns true if the arguments of a probe call are written.
    fn writes_calls(&self) -> bool {
        let writes = |messages: &[Message]| {
            let prompt = self.rendered(messages);
            prompt.is_some_and(|prompt| prompt.contains("probe_value_0"))
        };
        writes(&Self::with_results(1)) || writes(&[user(0), Self::with_calls(1), user(2)])
    }

    /// Probes one result, several results, and a conversation that ends with a result.
    fn accepts_results(&self) -> bool {
        let ends_in_results = |mut messages: Vec<Message>| {
            messages.truncate(messages.len() - 2);
            messages
        };
        self.accepts(&Self::with_results(1))
            && self.accepts(&Self::with_results(2))
            && self.accepts(&ends_in_results(Self::with_results(1)))
    }
}

/// Converts results to user messages if the template does not accept results.
fn with_result_role(messages: Vec<Message>, results: bool) -> Vec<Message> {
    let turn = |message: Message| match message.role == "tool" && !results {
        true => result_as_user(&message),
        false => message,
    };
    messages.into_iter().map(turn).collect()
}

/// Roles that every template accepts, by adaptation where the template itself lacks one.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Refuses messages with a role for which the template writes nothing.
pub(crate) fn check_roles(template: &Template, messages: &[Message]) -> Result<(), PromptError> {
    let mut accepted: Vec<&str> = ROLES.to_vec();
    for (index, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        if accepted.contains(&role) {
            continue;
        }
        if !Probe(template).accepts(&[user(0), marked_message(role, 1)]) {
            let error =
                Box::new(PromptError::UnknownRole { role: role.chars().take(40).collect() });
            return Err(PromptError::Message { index, error });
        }
        accepted.push(role);
    }
    Ok(())
}

/// Returns true if a template accepts a conversation of this structure. Renders the same roles and
/// calls with probe texts, and checks that all of them are written in order.
pub(crate) fn is_accepted(
    template: &Template,
    chat: &Chat<'_>,
    rules: &MessageRules,
    messages: &[Message],
) -> bool {
    let has = |role: &str| messages.iter().any(|m| m.role == role);
    if (!rules.developer && has("developer")) || (!rules.system && has("system")) {
        return false;
    }
    let Some((prompt, probe)) = render_with_markers(template, chat, messages) else {
        return messages.is_empty();
    };
    has_arguments(&prompt, &probe) && has_in_order(&prompt, &probe)
}

/// Returns true if a template writes all texts and calls of a conversation of this structure.
/// System messages may stand anywhere.
pub(crate) fn writes_everything(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> bool {
    let Some((prompt, probe)) = render_with_markers(template, chat, messages) else {
        return messages.is_empty();
    };
    let is_system = |m: &Message| matches!(m.role.as_str(), "system" | "developer");
    let (systems, turns): (Vec<Message>, Vec<Message>) = probe.into_iter().partition(is_system);
    has_all(&prompt, &systems) && has_in_order(&prompt, &turns) && has_arguments(&prompt, &turns)
}

/// Renders the conversation with a marker for each text and argument. Returns the prompt and the
/// marked messages, or `None` if the template refuses them or there are no messages. A trailing
/// assistant message, which the model continues, is left out.
fn render_with_markers(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Option<(String, Vec<Message>)> {
    let (open, closed) = messages.split_last()?;
    let probe = |(number, message): (usize, &Message)| {
        let call = |(at, call): (usize, &ToolCall)| {
            let value = json!(format!("{MARKER}{number}-call-{at}."));
            let arguments = Map::from_iter([("probe_key".to_owned(), value)]);
            let function = FunctionCall { index: at, name: "probe_tool".into(), arguments };
            ToolCall { id: call.id.clone(), function }
        };
        let calls = message.tool_calls.iter().enumerate().map(call).collect();
        // A message may consist of calls only.
        let content = if message.content.is_empty() { String::new() } else { marker(number) };
        Message { content, tool_calls: calls, ..message.clone() }
    };
    let is_open = open.role == "assistant" && open.tool_calls.is_empty();
    let rendered = if is_open && !closed.is_empty() { closed } else { messages };
    let probe: Vec<Message> = rendered.iter().enumerate().map(probe).collect();
    Some((render_as_is(template, chat, &probe).ok()?, probe))
}

/// Returns true if a prompt contains the arguments of all calls.
fn has_arguments(prompt: &str, messages: &[Message]) -> bool {
    let calls = messages.iter().flat_map(|m| &m.tool_calls);
    let mut arguments =
        calls.flat_map(|call| call.function.arguments.values()).filter_map(Json::as_str);
    let written = markers_in(prompt);
    arguments.all(|argument| match argument.starts_with(MARKER) {
        true => written.contains(argument),
        false => prompt.contains(argument),
    })
}

/// Returns true if a prompt contains the texts of all messages.
fn has_all(prompt: &str, messages: &[Message]) -> bool {
    let written = markers_in(prompt);
    messages.iter().all(|message| match message.content.starts_with(MARKER) {
        true => written.contains(&*message.content),
        false => prompt.contains(&message.content),
    })
}

/// Finds all markers in a prompt in one pass, since a conversation may have hundreds of thousands
/// of calls.
fn markers_in<'a>(prompt: &'a str) -> HashSet<&'a str> {
    let marker = |(at, _): (usize, &'a str)| {
        let end =
            prompt.as_bytes()[at..].iter().take(MAX_MARKER_BYTES).position(|byte| *byte == b'.')?;
        prompt.get(at..=at + end)
    };
    prompt.match_indices(MARKER).filter_map(marker).collect()
}

/// Returns true if a prompt contains the texts of all messages in order.
fn has_in_order(prompt: &str, messages: &[Message]) -> bool {
    let mut rest = prompt;
    messages.iter().all(|message| match rest.find(&message.content) {
        Some(at) => {
            rest = &rest[at + message.content.len()..];
            true
        }
        None => false,
    })
}
