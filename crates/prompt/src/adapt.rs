//! Conversations as a template accepts them.
//!
//! Templates disagree on which messages a conversation may have: a system message anywhere or at the head only, two users in
//! a row, the results of tools. [`MessageRules::of`] finds out what a template accepts by rendering small conversations with
//! it. [`adapt`] changes a conversation to that without losing text, and returns the [`Adaptation`]s that it made.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde_json::{Map, Value as Json, json};

use crate::chat::{Chat, render_as_is};
use crate::jinja_chat::writes_system;
use crate::message::{FunctionCall, Message, ToolCall};
use crate::{PromptError, Template};

/// A user turn for templates that want one where a conversation has none.
const PLACEHOLDER: &str = "...";

/// What was changed in a conversation so that its template accepts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Adaptation {
    /// Neighbouring messages of one role became one.
    Merged,
    /// The text of a system message stands in another place.
    Moved,
    /// Results of parallel calls were put in the order of the calls.
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
            Self::Moved => "the text of a system message stands in another place of the prompt",
            Self::Reordered => "results of parallel calls stand in the order of the calls",
            Self::Placeholder => "a text stands for calls or for a turn that the template demands",
            Self::Repaired => "arguments of a call that were no JSON object became the text of an argument",
            Self::Dropped => {
                "messages or the middle of a tool's result were left out, since the context is too small"
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
}

/// What a template does with a system message behind other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateSystem {
    /// It is written in its place.
    InPlace,
    /// The template refuses or drops it, or writes it at the head, which would cost the prefix cache.
    Unknown,
}

impl MessageRules {
    /// Finds out what a template accepts.
    pub fn of(template: &Template) -> Self {
        let probe = Probe(template);
        if !probe.accepts(&[user(0)]) {
            return Self::of_everything();
        }
        let late_systems = [
            probe.place_of_late_system(&[system(0), user(1), assistant(2), system(3), user(4)], 3),
            probe.place_of_late_system(&[user(1), system(3), assistant(4), user(5)], 3),
            probe.place_of_late_system(&[user(1), system(3)], 3),
        ];
        let late_system = match late_systems {
            _ if late_systems.contains(&LateSystem::Unknown) => LateSystem::Unknown,
            _ => LateSystem::InPlace,
        };
        let is_named = matches!(template, Template::BuiltIn(_)) || template.source().contains("developer");
        let system_rule = match template {
            Template::Jinja(jinja) => writes_system(jinja),
            _ => probe.writes(&[system(0), user(1)]),
        };
        Self {
            system: system_rule,
            moves_system: system_rule && probe.moves_system(),
            several_systems: system_rule && probe.writes(&[system(0), system(1), user(2)]),
            late_system: if system_rule { late_system } else { LateSystem::Unknown },
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
            results: probe.accepts_results(),
        }
    }

    /// The rules that change nothing but the order of results.
    fn of_everything() -> Self {
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
        }
    }

    /// The rules for an unknown template, such as that of a remote server: it takes system messages, calls and results, and
    /// nothing else beside alternating turns.
    pub fn of_unknown() -> Self {
        let consecutive = Self { system: true, calls: true, results: true, ..Self::of_turns() };
        Self { leading_assistant: true, no_user: true, ..consecutive }
    }

    /// The rules of a template that only takes turns of user and assistant, one after the other.
    fn of_turns() -> Self {
        Self {
            system: false,
            moves_system: false,
            several_systems: false,
            late_system: LateSystem::Unknown,
            developer: false,
            consecutive_users: false,
            consecutive_assistants: false,
            leading_assistant: false,
            no_user: false,
            calls: false,
            results: false,
        }
    }

    /// Rules to try in this order when the template refuses a conversation that follows these rules.
    pub(crate) fn stricter(self) -> [Self; 4] {
        let turns = Self::of_turns();
        let merged = Self {
            system: self.system,
            moves_system: self.moves_system,
            calls: self.calls,
            results: self.results,
            developer: self.developer,
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

fn mark(number: usize) -> String {
    format!("puna-probe-{number}-text")
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
        let parameters =
            json!({"type": "object", "properties": {"probe_key": {"type": "string", "description": ""}}});
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
        let Some(prompt) = prompt else { return LateSystem::Unknown };
        let at = |number| prompt.find(&mark(number));
        match (at(late), at(1)) {
            (None, _) | (_, None) => LateSystem::Unknown,
            (Some(late), Some(user)) if late < user => LateSystem::Unknown,
            _ => LateSystem::InPlace,
        }
    }

    fn with_calls(count: usize) -> Message {
        let call = |at: usize| {
            let arguments = Map::from_iter([("probe_key".to_owned(), json!(format!("probe_value_{at}")))]);
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

/// Refuses a message with a role of which the template writes nothing.
pub(crate) fn check_roles(template: &Template, messages: &[Message]) -> Result<(), PromptError> {
    const KNOWN: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
    let mut accepted: Vec<&str> = KNOWN.to_vec();
    for (index, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        if accepted.contains(&role) {
            continue;
        }
        if !Probe(template).accepts(&[user(0), text(role, 1)]) {
            let error = Box::new(PromptError::UnknownRole { role: role.chars().take(40).collect() });
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
    let Some((open, closed)) = messages.split_last() else { return true };
    let form = |(number, message): (usize, &Message)| {
        let call = |(at, call): (usize, &ToolCall)| {
            let value = json!(format!("puna-probe-{number}-call-{at}"));
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
    let Ok(prompt) = render_as_is(template, chat, &form) else { return false };
    let calls = form.iter().flat_map(|m| &m.tool_calls).flat_map(|call| call.function.arguments.values());
    let mut calls = calls.filter_map(Json::as_str);
    calls.all(|call| prompt.contains(call)) && has_in_order(&prompt, &form)
}

/// Whether the texts of messages stand in a prompt, wherever.
fn has_all(prompt: &str, messages: &[Message]) -> bool {
    messages.iter().all(|message| prompt.contains(&message.content))
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

/// Puts what belongs together in order, and changes nothing else.
pub(crate) fn ordered(messages: &[Message]) -> (Vec<Message>, Adaptations) {
    let mut done = Adaptations::new();
    (ordered_results(messages.to_vec(), &mut done), done)
}

/// Changes a conversation to what a template with these rules accepts.
pub fn adapt(messages: &[Message], rules: &MessageRules) -> (Vec<Message>, Adaptations) {
    let (mut messages, mut done) = ordered(messages);
    if !rules.developer {
        for message in messages.iter_mut().filter(|m| m.role == "developer") {
            message.role = "system".into();
            done.insert(Adaptation::Renamed);
        }
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
    let mut messages = systems(messages, rules, &mut done);
    let merges = |message: &Message| match message.role.as_str() {
        "user" => !rules.consecutive_users,
        "assistant" => !rules.consecutive_assistants,
        _ => false,
    };
    messages = merged(messages, merges, &mut done);
    let is_turn = |m: &Message| m.role != "system" && m.role != "developer";
    let first = messages.iter().position(is_turn);
    let wants_user = match first {
        None => !rules.no_user && !messages.is_empty(),
        Some(first) => {
            !rules.leading_assistant && messages[first].role == "assistant" && first + 1 < messages.len()
        }
    };
    if wants_user {
        messages.insert(first.unwrap_or(messages.len()), Message::new("user", PLACEHOLDER));
        done.insert(Adaptation::Placeholder);
    }
    (messages, done)
}

/// Puts the results of parallel calls in the order of the calls: templates without ids tell them apart by their places.
fn ordered_results(mut messages: Vec<Message>, done: &mut Adaptations) -> Vec<Message> {
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
        if calls.len() > 1 && run.iter().all(|m| place(m).is_some()) && !run.is_sorted_by_key(place) {
            run.sort_by_key(place);
            done.insert(Adaptation::Reordered);
        }
        at += 1 + results;
    }
    messages
}

/// A tool's result as a turn of the user.
fn result_as_user(message: &Message) -> Message {
    let name = message.tool_name.as_deref().unwrap_or_default();
    let content = match name {
        "" => format!("<tool_result>\n{}\n</tool_result>", message.content),
        name => format!("<tool_result name={}>\n{}\n</tool_result>", json!(name), message.content),
    };
    Message { images: message.images.clone(), ..Message::new("user", content) }
}

/// Writes calls as text, one a line, where a template has no place for them.
fn calls_as_text(message: &mut Message) {
    for call in std::mem::take(&mut message.tool_calls) {
        if !message.content.is_empty() {
            message.content.push('\n');
        }
        let arguments = Json::Object(call.function.arguments);
        let call = json!({"name": call.function.name, "arguments": arguments});
        message.content.push_str(&format!("<tool_call>{call}</tool_call>"));
    }
}

/// Puts system messages where the template accepts them.
fn systems(messages: Vec<Message>, rules: &MessageRules, done: &mut Adaptations) -> Vec<Message> {
    let head = messages.iter().take_while(|m| m.role == "system").count();
    let mut all = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter();
    let mut first: Vec<Message> = messages.by_ref().take(head).collect();
    if first.len() > 1 && !(rules.system && rules.several_systems) {
        first = vec![joined(first)];
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
        false => unplaced = first.pop().filter(|system| !system.content.is_empty()),
    }
    for mut message in messages {
        match (message.role.as_str(), rules.late_system) {
            ("system", LateSystem::Unknown) => {
                let content = format!("<system>\n{}\n</system>", message.content);
                message = Message { role: "user".into(), content, ..message };
                done.insert(Adaptation::Renamed);
            }
            ("user", _) => {
                if let Some(system) = unplaced.take() {
                    message.content = join(&system.content, &message.content);
                    message.images.splice(0..0, system.images);
                    done.insert(Adaptation::Moved);
                }
            }
            _ => {}
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
fn merged(messages: Vec<Message>, merges: impl Fn(&Message) -> bool, done: &mut Adaptations) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match all.last_mut() {
            Some(last) if last.role == message.role && merges(&message) => {
                add(last, message);
                done.insert(Adaptation::Merged);
            }
            _ => all.push(message),
        }
    }
    all
}

fn joined(messages: Vec<Message>) -> Message {
    let mut messages = messages.into_iter();
    let mut all = messages.next().unwrap_or_default();
    messages.for_each(|message| add(&mut all, message));
    all
}

/// Adds a message to the one before it, of the same role.
fn add(last: &mut Message, message: Message) {
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
