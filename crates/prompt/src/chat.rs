//! Renders a conversation to a prompt with a template, and adapts the conversation to the template
//! if needed.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use crate::adapt::{
    Adaptation, Adaptations, MessageRules, adapt, check_roles, is_accepted, order_results,
    writes_everything,
};
use crate::go;
use crate::message::{Message, Think};
use crate::{PromptError, Template, jinja_chat};

/// A conversation with the settings that a template reads.
#[derive(Debug, Clone)]
pub struct Chat<'a> {
    /// The conversation, oldest message first. The model continues a trailing assistant message.
    pub messages: &'a [Message],
    /// Tools offered, as the client sent them (`{"type":"function","function":{…}}`).
    pub tools: &'a [Json],
    /// Reasoning switch of the request; `None` selects the template's default.
    pub think: Option<Think>,
    /// Text of the beginning-of-sequence token (`bos_token` of Jinja templates).
    pub bos: &'a str,
    /// Text of the end-of-sequence token (`eos_token` of Jinja templates).
    pub eos: &'a str,
    /// Additional variables for Jinja templates (`chat_template_kwargs`). They override all other
    /// variables.
    pub variables: Map<String, Json>,
    /// Date and time that a template may print; `None` means the current local time.
    pub now: Option<jiff::civil::DateTime>,
    /// Tokens that an image needs in addition to its tag, used when a prompt is fitted to the
    /// context.
    pub image_tokens: usize,
    /// Messages that the template accepts. The conversation is adapted to these rules; without
    /// rules it is rendered unchanged.
    pub rules: Option<MessageRules>,
}

/// A prompt, and the adaptations of the conversation that the template required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The prompt.
    pub prompt: String,
    /// Changes of the conversation.
    pub adaptations: Adaptations,
}

impl<'a> Chat<'a> {
    /// A conversation without tools and settings.
    pub fn new(messages: &'a [Message]) -> Self {
        Chat {
            messages,
            tools: &[],
            think: None,
            bos: "",
            eos: "",
            variables: Map::new(),
            now: None,
            image_tokens: 0,
            rules: None,
        }
    }

    pub(crate) fn now(&self) -> jiff::civil::DateTime {
        self.now.unwrap_or_else(|| jiff::Zoned::now().datetime())
    }
}

/// Renders a conversation.
///
/// # Errors
/// See [`render_adapted`].
pub fn render(template: &Template, chat: &Chat<'_>) -> Result<String, PromptError> {
    render_adapted(template, chat).map(|rendered| rendered.prompt)
}

/// Renders a conversation and returns the adaptations made for the template ([`Chat::rules`]).
///
/// # Errors
/// The template fails, it refuses every adapted form of the conversation, or a message has an
/// unknown role.
pub fn render_adapted(template: &Template, chat: &Chat<'_>) -> Result<RenderedPrompt, PromptError> {
    render_messages(template, chat, chat.messages)
}

/// Renders `messages` with the settings of `chat`. A template may refuse a conversation although it
/// accepts its parts in probes; then ever stricter rules are tried. If all fail, the first error is
/// returned.
pub(crate) fn render_messages(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Result<RenderedPrompt, PromptError> {
    let Some(rules) = chat.rules else {
        let prompt = render_as_is(template, chat, messages)?;
        return Ok(RenderedPrompt { prompt, adaptations: Adaptations::new() });
    };
    check_roles(template, messages)?;
    let attempt = |messages: &[Message]| render_adapting(template, chat, &rules, messages);
    let error = match attempt(messages) {
        Err(error) if error.is_refusal() => error,
        other => return other,
    };
    // A template that refuses a single question does not refuse one particular message.
    let is_short =
        messages.len() <= MAX_MESSAGES_SEARCHED && attempt(&[Message::new("user", "?")]).is_ok();
    let refused =
        (0..messages.len()).filter(|_| is_short).find(|last| attempt(&messages[..=*last]).is_err());
    match refused {
        // The template refuses the conversation as a whole, not its first message.
        Some(0) if messages.len() > 1 && attempt(&messages[..2]).is_ok() => Err(error),
        Some(index) => Err(PromptError::Message { index, error: Box::new(error) }),
        None => Err(error),
    }
}

/// Renders a conversation unchanged if the template accepts it. Otherwise adapts it by ever
/// stricter rules until the template writes all of it. If it never does, returns the first prompt,
/// with [`Adaptation::Dropped`].
fn render_adapting(
    template: &Template,
    chat: &Chat<'_>,
    rules: &MessageRules,
    messages: &[Message],
) -> Result<RenderedPrompt, PromptError> {
    if is_accepted(template, chat, rules, messages) {
        let (ordered, adaptations) = order_results(messages);
        match render_as_is(template, chat, &ordered) {
            Ok(prompt) => return Ok(RenderedPrompt { prompt, adaptations }),
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    let (mut refusal, mut incomplete) = (None, None);
    for rules in [*rules].into_iter().chain(rules.stricter()) {
        let (adapted, mut adaptations) = adapt(messages, &rules);
        match render_as_is(template, chat, &adapted) {
            Ok(prompt) if writes_everything(template, chat, &adapted) => {
                return Ok(RenderedPrompt { prompt, adaptations });
            }
            Ok(prompt) => {
                adaptations.insert(Adaptation::Dropped);
                _ = incomplete.get_or_insert(RenderedPrompt { prompt, adaptations });
            }
            Err(error) if error.is_refusal() => _ = refusal.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    incomplete.ok_or_else(|| refusal.unwrap_or(PromptError::Refused(String::new())))
}

/// Longest conversation, in messages, in which the refused message is searched for.
const MAX_MESSAGES_SEARCHED: usize = 32;

/// Renders messages without adaptation.
pub(crate) fn render_as_is(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Result<String, PromptError> {
    // A built-in renderer places images itself.
    let messages = match template {
        Template::BuiltIn(_) => Cow::Borrowed(messages),
        Template::Go(_) | Template::Jinja(_) => with_image_tags(messages),
    };
    let think = supported_think(template, chat.think.as_ref());
    match template {
        Template::Go(go) => {
            let input = go::GoInput {
                messages: &messages,
                tools: chat.tools,
                think: think.as_deref(),
                now: chat.now(),
            };
            let mut out = String::new();
            go.render(&input, &mut out)?;
            Ok(out)
        }
        Template::Jinja(jinja) => jinja_chat::render(jinja, chat, &messages, think.as_deref()),
        Template::BuiltIn(renderer) => renderer.render(chat, &messages),
    }
}

/// Renders a fill-in-the-middle prompt: the model generates the text between `prompt` and `suffix`.
/// Neither may be empty.
pub fn render_insert(
    template: &Template,
    prompt: &str,
    suffix: &str,
    think: Option<&Think>,
) -> Result<String, PromptError> {
    let Template::Go(go) = template else { return Err(PromptError::NoInsert) };
    if !go.reads("suffix") {
        return Err(PromptError::NoInsert);
    }
    let input =
        go::GoInput { messages: &[], tools: &[], think, now: jiff::Zoned::now().datetime() };
    let mut out = String::new();
    go.render_insert(prompt, suffix, &input, &mut out)?;
    Ok(out)
}

/// Maps the level `max` to `high` for gpt-oss, which has no higher level. Its templates contain
/// both marks.
fn supported_think<'t>(template: &Template, think: Option<&'t Think>) -> Option<Cow<'t, Think>> {
    let is_harmony = || {
        let text = template.source();
        text.contains("<|start|>") && text.contains("<|end|>")
    };
    match think {
        Some(Think::Level(level)) if level == "max" && is_harmony() => {
            Some(Cow::Owned(Think::Level("high".into())))
        }
        other => other.map(Cow::Borrowed),
    }
}

/// Inserts `[img-N]` for every image, numbered over the conversation. A tag replaces an `[img]` of
/// the text, or is put in front of the text.
fn with_image_tags(messages: &[Message]) -> Cow<'_, [Message]> {
    if messages.iter().all(|m| m.images.is_empty()) {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    let mut id = 0;
    for message in &mut messages {
        let mut front = String::new();
        for _ in &message.images {
            let tag = format!("[img-{id}]");
            id += 1;
            if message.content.contains("[img]") {
                message.content = message.content.replacen("[img]", &tag, 1);
            } else {
                front.push_str(&tag);
            }
        }
        message.content.insert_str(0, &front);
    }
    Cow::Owned(messages)
}
