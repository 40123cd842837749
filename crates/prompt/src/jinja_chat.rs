//! Variables of Hugging Face chat templates, and adaptation of the input to a particular template.
//!
//! Templates differ in the input they accept: some refuse system messages, others expect call
//! arguments as text or contents as lists of parts. Each property is probed once by rendering a
//! small conversation.

use serde_json::{Map, Value as Json, json};

use crate::PromptError;
use crate::chat::Chat;
use crate::jinja::JinjaTemplate;
use crate::message::{Message, Think, ToolCall};
use crate::thinking::tags_in_jinja;

pub(crate) fn render(
    template: &JinjaTemplate,
    chat: &Chat<'_>,
    messages: &[Message],
    think: Option<&Think>,
) -> Result<String, PromptError> {
    // The model continues a trailing assistant message, but most templates would close it.
    let (closed, open) = match messages.split_last() {
        Some((last, before))
            if last.role == "assistant" && last.tool_calls.is_empty() && !before.is_empty() =>
        {
            (before, Some(last))
        }
        _ => (messages, None),
    };
    let mut variables = base_variables(template, chat, think);
    variables.insert("messages".into(), messages_value(template, closed));
    variables.extend(chat.variables.clone());
    let mut prompt = run(template, &mut variables, chat.now())?;
    if let Some(message) = open {
        continue_answer(template, &mut prompt, message);
    }
    Ok(prompt)
}

/// Renders a template. A template that fails without tools because it always lists them is rendered
/// again with an empty list.
fn run(
    template: &JinjaTemplate,
    variables: &mut Map<String, Json>,
    now: jiff::civil::DateTime,
) -> Result<String, PromptError> {
    let render = |variables: &Map<String, Json>| {
        template.render(variables.iter().map(|(k, v)| (k.as_str(), v)), now)
    };
    match render(variables) {
        Err(PromptError::JinjaRender { .. })
            if variables.get("tools").is_some_and(Json::is_null) =>
        {
            variables.insert("tools".into(), json!([]));
            render(variables)
        }
        result => result,
    }
}

/// Variables that do not depend on the messages.
fn base_variables(
    template: &JinjaTemplate,
    chat: &Chat<'_>,
    think: Option<&Think>,
) -> Map<String, Json> {
    let mut variables = Map::new();
    let mut set = |name: &str, value: Json| _ = variables.insert(name.into(), value);
    let now = chat.now();
    let date = |format: &str| jiff::fmt::strtime::format(format, now).unwrap_or_default();
    set("add_generation_prompt", json!(true));
    set("bos_token", json!(chat.bos));
    set("eos_token", json!(chat.eos));
    set("tools", if chat.tools.is_empty() { Json::Null } else { json!(chat.tools) });
    set("documents", Json::Null);
    set("date_string", json!(date("%d %b %Y")));
    set("datetime", json!(date("%b %d %Y")));
    if let Some(think) = think {
        set("enable_thinking", json!(think.is_on()));
        set("thinking", json!(think.is_on()));
        if let Think::Level(level) = think {
            set("reasoning_effort", json!(level));
        }
    }
    // Old templates read tools as `functions`, the name in OpenAI's first tool API.
    if template.source().contains("functions") && !template.source().contains("tools") {
        set("functions", json!(chat.tools));
    }
    variables
}

/// Appends an unfinished assistant message to the generation prompt: first the reasoning in its
/// tags, then the content.
fn continue_answer(template: &JinjaTemplate, prompt: &mut String, message: &Message) {
    let thinking = message.thinking.as_deref().unwrap_or("");
    if let Some(tags) = tags_in_jinja(template.source()) {
        let is_open = prompt.trim_end().ends_with(&tags.open);
        if !thinking.is_empty() && !is_open {
            prompt.push_str(&tags.open);
        }
        if !thinking.is_empty() || is_open {
            if !prompt.ends_with('\n') {
                prompt.push('\n');
            }
            prompt.push_str(thinking);
            prompt.push('\n');
            prompt.push_str(&tags.close);
            prompt.push_str("\n\n");
        }
    }
    prompt.push_str(&message.content);
}

/// The variable `messages`, adapted to the template.
fn messages_value(template: &JinjaTemplate, messages: &[Message]) -> Json {
    let has_system = messages.iter().any(|m| m.role == "system" || m.role == "developer");
    let merged = if has_system && !writes_system(template) {
        merge_system(messages)
    } else {
        messages.to_vec()
    };
    let text_arguments =
        merged.iter().any(|m| !m.tool_calls.is_empty()) && wants_text_arguments(template);
    let parts = wants_parts(template);
    Json::Array(merged.iter().map(|m| message_value(template, m, text_arguments, parts)).collect())
}

/// Moves system texts in front of the next user message, for templates that refuse or ignore system
/// messages.
fn merge_system(messages: &[Message]) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    let mut system = String::new();
    for message in messages {
        if message.role == "system" || message.role == "developer" {
            if !system.is_empty() {
                system.push('\n');
            }
            system.push_str(&message.content);
            continue;
        }
        let mut message = message.clone();
        if message.role == "user" && !system.is_empty() {
            let between = if message.content.is_empty() { "" } else { "\n" };
            message.content = format!("{system}{between}{}", message.content);
            system.clear();
        }
        merged.push(message);
    }
    if !system.is_empty() {
        merged.push(Message::new("user", system));
    }
    merged
}

fn message_value(template: &JinjaTemplate, m: &Message, text_arguments: bool, parts: bool) -> Json {
    let source = template.source();
    // `developer` is OpenAI's newer name of `system`. Few templates support it.
    let role =
        if m.role == "developer" && !source.contains("developer") { "system" } else { &m.role };
    let content =
        if parts { json!([{"type": "text", "text": m.content}]) } else { json!(m.content) };
    let mut value = json!({"role": role, "content": content});
    let mut set =
        |name: &str, field: Json| _ = value.as_object_mut().map(|o| o.insert(name.into(), field));
    if let Some(thinking) = m.thinking.as_deref().filter(|t| !t.is_empty()) {
        if source.contains("reasoning_content") || !source.contains("thinking") {
            set("reasoning_content", json!(thinking));
        } else {
            set("thinking", json!(thinking));
        }
    }
    if !m.tool_calls.is_empty() {
        set(
            "tool_calls",
            m.tool_calls.iter().map(|call| call_value(call, text_arguments)).collect(),
        );
    }
    if let Some(name) = &m.tool_name {
        set("name", json!(name));
    }
    if let Some(id) = &m.tool_call_id {
        set("tool_call_id", json!(id));
    }
    value
}

fn call_value(call: &ToolCall, text_arguments: bool) -> Json {
    let arguments = Json::Object(call.function.arguments.clone());
    let arguments = if text_arguments { Json::String(arguments.to_string()) } else { arguments };
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    })
}

const PROBE_SYSTEM: &str = "puna-probe-system";
const PROBE_USER: &str = "puna-probe-user";

pub(crate) fn writes_system(template: &JinjaTemplate) -> bool {
    *template.probe_results().writes_system.get_or_init(|| {
        let content = |text: &str| probe_content(template, text);
        let messages = json!([
            {"role": "system", "content": content(PROBE_SYSTEM)},
            {"role": "user", "content": content(PROBE_USER)},
        ]);
        probe(template, messages, Json::Null).is_some_and(|text| text.contains(PROBE_SYSTEM))
    })
}

/// Probes whether the template expects contents as lists of parts.
fn wants_parts(template: &JinjaTemplate) -> bool {
    *template.probe_results().wants_parts.get_or_init(|| {
        let writes = |content: Json| {
            let messages = json!([{"role": "user", "content": content}]);
            probe(template, messages, Json::Null).is_some_and(|text| text.contains(PROBE_USER))
        };
        !writes(json!(PROBE_USER)) && writes(json!([{"type": "text", "text": PROBE_USER}]))
    })
}

/// Probes whether the template expects call arguments as JSON text.
fn wants_text_arguments(template: &JinjaTemplate) -> bool {
    *template.probe_results().wants_text_arguments.get_or_init(|| {
        let render = |arguments: Json| {
            let function = json!({"name": "probe_tool", "arguments": arguments});
            let messages = json!([
                {"role": "user", "content": probe_content(template, PROBE_USER)},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "probe0001", "type": "function", "function": function},
                ]},
            ]);
            let parameters =
                json!({"type": "object", "properties": {"probe_key": {"type": "string", "description": ""}}});
            let tools = json!([{"type": "function", "function":
                {"name": "probe_tool", "description": "", "parameters": parameters}}]);
            probe(template, messages, tools)
        };
        // Written from an object, the arguments must not look like a Python dict.
        let writes_object = render(json!({"probe_key": "probe_value"}))
            .is_some_and(|text| text.contains("probe_value") && !text.contains("{'probe_key'"));
        !writes_object
            && render(json!("{\"probe_key\": \"probe_value\"}"))
                .is_some_and(|text| text.contains("{\"probe_key\": \"probe_value\"}"))
    })
}

fn probe_content(template: &JinjaTemplate, text: &str) -> Json {
    if wants_parts(template) { json!([{"type": "text", "text": text}]) } else { json!(text) }
}

/// Renders probe messages. Returns `None` if the template fails.
fn probe(template: &JinjaTemplate, messages: Json, tools: Json) -> Option<String> {
    let chat = Chat { now: Some(jiff::civil::DateTime::default()), ..Chat::new(&[]) };
    let mut variables = base_variables(template, &chat, None);
    variables.insert("messages".into(), messages);
    variables.insert("tools".into(), tools);
    run(template, &mut variables, chat.now()).ok()
}
