//! Which messages a template accepts, found out by rendering small conversations.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::calls::result_as_user;
use crate::chat::{Chat, render_as_is};
use crate::jinja_chat::writes_system;
use crate::message::{FunctionCall, Message, ToolCall};
use crate::{PromptError, Template};

/// Which messages a template accepts: it renders them without an error and writes their texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRules {
    /// A system message at the head.
    pub(crate) system: bool,
    /// The template writes a system message of the head behind other messages.
    pub(crate) moves_system: bool,
    /// Several system messages at the head.
    pub(crate) several_systems: bool,
    /// A system message behind other messages.
    pub(crate) late_system: LateSystem,
    /// The role `developer`, wherever it stands.
    pub(crate) developer: bool,
    /// Two messages of the user in a row.
    pub(crate) consecutive_users: bool,
    /// Two messages of the assistant in a row.
    pub(crate) consecutive_assistants: bool,
    /// An assistant's message as the first one.
    pub(crate) leading_assistant: bool,
    /// A conversation without a message of the user.
    pub(crate) no_user: bool,
    /// Calls of an assistant.
    pub(crate) calls: bool,
    /// Results of tools, also several in a row.
    pub(crate) results: bool,
    /// A text beside calls in one message, also once the calls are answered.
    pub(crate) text_with_calls: bool,
    /// Several calls in one message.
    pub(crate) parallel_calls: bool,
    /// Results with a message between them and their call.
    pub(crate) separated_results: bool,
    /// An assistant's message without a text.
    pub(crate) empty_answers: bool,
}

/// What a template does with a system message behind other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateSystem {
    /// It is written in its place.
    InPlace,
    /// The template refuses or drops it, or writes it at the head, which would cost the prefix cache.
    NotInPlace,
}

impl MessageRules {
    /// Finds out what a template accepts.
    pub fn of(template: &Template) -> Self {
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

    /// The rules that change nothing but the order of results.
    fn permissive() -> Self {
        Self {
            system: true,
            moves_system: false,
            several_systems: true,
            late_system: LateSystem::InPlace,
            developer: true,
            consecutive_users: true,
            consecutive_assistants: true,
            leading_assistant: true,
            no_user: true,
            calls: true,
            results: true,
            text_with_calls: true,
            parallel_calls: true,
            separated_results: true,
            empty_answers: true,
        }
    }

    /// The rules for an unknown template, such as that of a remote server: it takes system messages, calls, results, a leading
    /// assistant message and no user message, and apart from these only alternating turns.
    pub fn conservative() -> Self {
        let base = Self { system: true, calls: true, results: true, ..Self::alternating_only() };
        Self { leading_assistant: true, no_user: true, ..base }
    }

    /// The rules of a template that only takes turns of user and assistant, one after the other.
    fn alternating_only() -> Self {
        Self {
            system: false,
            moves_system: false,
            several_systems: false,
            late_system: LateSystem::NotInPlace,
            developer: false,
            consecutive_users: false,
            consecutive_assistants: false,
            leading_assistant: false,
            no_user: false,
            calls: false,
            results: false,
            text_with_calls: true,
            parallel_calls: true,
            separated_results: false,
            empty_answers: false,
        }
    }

    /// Rules to try in this order when the template refuses a conversation that follows these rules.
    pub(crate) fn stricter(self) -> [Self; 4] {
        let turns = Self::alternating_only();
        let merged = Self {
            system: self.system,
            moves_system: self.moves_system,
            calls: self.calls,
            results: self.results,
            developer: self.developer,
            text_with_calls: self.text_with_calls,
            parallel_calls: self.parallel_calls,
            ..turns
        };
        let without_results = Self { results: false, ..merged };
        let with_system = Self { system: self.system, moves_system: self.moves_system, ..turns };
        [merged, without_results, with_system, turns]
    }
}

fn text(role: &str, number: usize) -> Message {
    Message::new(role, mark(number))
}

/// What the texts of probes begin with. Each ends with a full stop.
const MARK: &str = "puna-probe-";
/// Bytes of a text of a probe at most.
const MARK_BYTES_MAX: usize = 64;

fn mark(number: usize) -> String {
    format!("{MARK}{number}-text.")
}

fn system(number: usize) -> Message {
    text("system", number)
}

fn developer(number: usize) -> Message {
    text("developer", number)
}

fn user(number: usize) -> Message {
    text("user", number)
}

fn assistant(number: usize) -> Message {
    text("assistant", number)
}

/// Conversations for finding out what a template accepts.
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

    /// Whether all texts are written, wherever.
    fn writes(&self, messages: &[Message]) -> bool {
        self.rendered(messages).is_some_and(|prompt| has_all(&prompt, messages))
    }

    /// Whether all texts are written, each behind the one before it.
    fn accepts(&self, messages: &[Message]) -> bool {
        self.rendered(messages).is_some_and(|prompt| has_in_order(&prompt, messages))
    }

    fn moves_system(&self) -> bool {
        let talks = [
            vec![system(0), user(1), assistant(2), user(3)],
            vec![system(0), assistant(1), user(2)],
            vec![system(0), user(1), user(2)],
        ];
        talks.iter().filter_map(|talk| self.rendered(talk)).any(|prompt| {
            let first = prompt.find(&mark(1));
            prompt.find(&mark(0)).is_some_and(|system| first.is_some_and(|first| first < system))
        })
    }

    fn place_of_late_system(&self, messages: &[Message], late: usize) -> LateSystem {
        let prompt = self.rendered(messages).filter(|prompt| has_all(prompt, messages));
        let Some(prompt) = prompt else { return LateSystem::NotInPlace };
        let at = |number| prompt.find(&mark(number));
        match (at(late), at(1)) {
            (None, _) | (_, None) => LateSystem::NotInPlace,
            (Some(late), Some(user)) if late < user => LateSystem::NotInPlace,
            _ => LateSystem::InPlace,
        }
    }

    fn with_calls(count: usize) -> Message {
        let call = |at: usize| {
            let arguments =
                Map::from_iter([("probe_key".to_owned(), json!(format!("probe_value_{at}")))]);
            let function = FunctionCall { index: at, name: "probe_tool".into(), arguments };
            ToolCall { id: format!("probe000{at}"), function }
        };
        Message { tool_calls: (0..count).map(call).collect(), ..Message::new("assistant", "") }
    }

    fn with_results(count: usize) -> Vec<Message> {
        let result = |at: usize| Message {
            tool_call_id: Some(format!("probe000{at}")),
            tool_name: Some("probe_tool".into()),
            ..text("tool", 10 + at)
        };
        let calls = [user(0), Self::with_calls(count)].into_iter();
        calls.chain((0..count).map(result)).chain([assistant(20), user(21)]).collect()
    }

    /// A call that is answered behind another message.
    fn with_separated_result() -> Vec<Message> {
        let mut messages = Self::with_results(1);
        messages.insert(2, user(5));
        messages
    }

    /// Whether all texts and the arguments of all calls are written.
    fn has_calls(&self, messages: &[Message]) -> bool {
        let Some(prompt) = self.rendered(messages) else { return false };
        has_in_order(&prompt, messages) && has_arguments(&prompt, messages)
    }

    fn accepts_text_with_calls(&self, results: bool) -> bool {
        let mut answered = with_result_role(Self::with_results(1), results);
        answered[1].content = mark(1);
        let open = answered[..3].to_vec();
        self.has_calls(&answered) && self.has_calls(&open)
    }

    fn writes_calls(&self) -> bool {
        let writes = |messages: &[Message]| {
            let prompt = self.rendered(messages);
            prompt.is_some_and(|prompt| prompt.contains("probe_value_0"))
        };
        writes(&Self::with_results(1)) || writes(&[user(0), Self::with_calls(1), user(2)])
    }

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

/// The results as the template gets them: turns of the user where it takes no results.
fn with_result_role(messages: Vec<Message>, results: bool) -> Vec<Message> {
    let turn = |message: Message| match message.role == "tool" && !results {
        true => result_as_user(&message),
        false => message,
    };
    messages.into_iter().map(turn).collect()
}

/// The roles of messages that every template accepts: a conversation is adapted where the template itself lacks one.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Refuses a message with a role of which the template writes nothing.
pub(crate) fn check_roles(template: &Template, messages: &[Message]) -> Result<(), PromptError> {
    let mut accepted: Vec<&str> = ROLES.to_vec();
    for (index, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        if accepted.contains(&role) {
            continue;
        }
        if !Probe(template).accepts(&[user(0), text(role, 1)]) {
            let error =
                Box::new(PromptError::UnknownRole { role: role.chars().take(40).collect() });
            return Err(PromptError::Message { index, error });
        }
        accepted.push(role);
    }
    Ok(())
}

/// Whether a template accepts a conversation of this form: a conversation of the same roles and calls, with texts of its own,
/// is written whole and in order.
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
    let Some((prompt, form)) = render_with_markers(template, chat, messages) else {
        return messages.is_empty();
    };
    has_arguments(&prompt, &form) && has_in_order(&prompt, &form)
}

/// Whether a template writes all texts and calls of a conversation of this form, with system messages wherever.
pub(crate) fn is_whole(template: &Template, chat: &Chat<'_>, messages: &[Message]) -> bool {
    let Some((prompt, form)) = render_with_markers(template, chat, messages) else {
        return messages.is_empty();
    };
    let is_system = |m: &Message| matches!(m.role.as_str(), "system" | "developer");
    let (systems, turns): (Vec<Message>, Vec<Message>) = form.into_iter().partition(is_system);
    has_all(&prompt, &systems) && has_in_order(&prompt, &turns) && has_arguments(&prompt, &turns)
}

/// Renders the conversation with a marker in place of each text and argument: the prompt and the marked messages. `None` if the
/// template refuses it, or if there are no messages. A trailing answer that the model continues is not rendered.
fn render_with_markers(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Option<(String, Vec<Message>)> {
    let (open, closed) = messages.split_last()?;
    let form = |(number, message): (usize, &Message)| {
        let call = |(at, call): (usize, &ToolCall)| {
            let value = json!(format!("{MARK}{number}-call-{at}."));
            let arguments = Map::from_iter([("probe_key".to_owned(), value)]);
            let function = FunctionCall { index: at, name: "probe_tool".into(), arguments };
            ToolCall { id: call.id.clone(), function }
        };
        let calls = message.tool_calls.iter().enumerate().map(call).collect();
        // A call may stand alone.
        let content = if message.content.is_empty() { String::new() } else { mark(number) };
        Message { content, tool_calls: calls, ..message.clone() }
    };
    let is_open = open.role == "assistant" && open.tool_calls.is_empty();
    let said = if is_open && !closed.is_empty() { closed } else { messages };
    let form: Vec<Message> = said.iter().enumerate().map(form).collect();
    Some((render_as_is(template, chat, &form).ok()?, form))
}

/// Whether the arguments of all calls stand in a prompt.
fn has_arguments(prompt: &str, messages: &[Message]) -> bool {
    let calls = messages.iter().flat_map(|m| &m.tool_calls);
    let mut arguments =
        calls.flat_map(|call| call.function.arguments.values()).filter_map(Json::as_str);
    let written = marks_in(prompt);
    arguments.all(|argument| match argument.starts_with(MARK) {
        true => written.contains(argument),
        false => prompt.contains(argument),
    })
}

/// Whether the texts of messages stand in a prompt, wherever.
fn has_all(prompt: &str, messages: &[Message]) -> bool {
    let written = marks_in(prompt);
    messages.iter().all(|message| match message.content.starts_with(MARK) {
        true => written.contains(&*message.content),
        false => prompt.contains(&message.content),
    })
}

/// The texts of probes in a prompt, found in one pass: conversations may have hundreds of thousands of calls.
fn marks_in<'a>(prompt: &'a str) -> HashSet<&'a str> {
    let mark = |(at, _): (usize, &'a str)| {
        let end =
            prompt.as_bytes()[at..].iter().take(MARK_BYTES_MAX).position(|byte| *byte == b'.')?;
        prompt.get(at..=at + end)
    };
    prompt.match_indices(MARK).filter_map(mark).collect()
}

/// Whether the texts of messages stand in a prompt, each behind the one before it.
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
