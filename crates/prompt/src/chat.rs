//! Rendering a conversation.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use crate::adapt::{
    Adaptation, Adaptations, MessageRules, adapt, check_roles, is_accepted, is_whole, order_results,
};
use crate::go;
use crate::message::{Message, Think};
use crate::{PromptError, Template, jinja_chat};

/// A conversation and what goes with it into a template.
#[derive(Debug, Clone)]
pub struct Chat<'a> {
    /// The conversation, oldest first. A trailing assistant message is left open for the model to go on with.
    pub messages: &'a [Message],
    /// Tools offered, as the client sent them (`{"type":"function","function":{…}}`).
    pub tools: &'a [Json],
    /// The thinking switch; `None` leaves it to the template.
    pub think: Option<Think>,
    /// Text of the beginning-of-sequence token, for Jinja templates that write it.
    pub bos: &'a str,
    /// Text of the end-of-sequence token, for Jinja templates that write it.
    pub eos: &'a str,
    /// More variables for Jinja templates (`chat_template_kwargs`); they override all others.
    pub variables: Map<String, Json>,
    /// Date and time that a template may show; `None` is the local time.
    pub now: Option<jiff::civil::DateTime>,
    /// Tokens that an image takes beyond its tag, when prompts are fitted.
    pub image_tokens: usize,
    /// What the template accepts: the conversation is changed to that. Without rules it is rendered as it is.
    pub rules: Option<MessageRules>,
}

/// A prompt, and what was changed in the conversation so that the template accepts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub prompt: String,
    /// What was changed.
    pub adaptations: Adaptations,
}

impl<'a> Chat<'a> {
    /// A conversation without tools or switches.
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
/// As of [`render_adapted`].
pub fn render(template: &Template, chat: &Chat<'_>) -> Result<String, PromptError> {
    render_adapted(template, chat).map(|rendered| rendered.prompt)
}

/// Renders a conversation, and says what was changed in it for the template ([`Chat::rules`]).
///
/// # Errors
/// The template fails, or refuses the conversation however it is changed; a role that it does not know.
pub fn render_adapted(template: &Template, chat: &Chat<'_>) -> Result<Rendered, PromptError> {
    render_messages(template, chat, chat.messages)
}

/// Renders other messages with the settings of `chat`. A template that refuses what it accepted in small conversations gets
/// ever simpler ones; of the errors the first one counts.
pub(crate) fn render_messages(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Result<Rendered, PromptError> {
    let Some(rules) = chat.rules else {
        let prompt = render_as_is(template, chat, messages)?;
        return Ok(Rendered { prompt, adaptations: Adaptations::new() });
    };
    check_roles(template, messages)?;
    let attempt = |messages: &[Message]| render_whole(template, chat, &rules, messages);
    let error = match attempt(messages) {
        Err(error) if error.is_refusal() => error,
        other => return other,
    };
    // A template that refuses even a question refuses no message of this conversation.
    let is_short = messages.len() <= SEARCHED_MAX && attempt(&[Message::new("user", "?")]).is_ok();
    let refused =
        (0..messages.len()).filter(|_| is_short).find(|last| attempt(&messages[..=*last]).is_err());
    match refused {
        // The conversation as a whole, and not one of its messages.
        Some(0) if messages.len() > 1 && attempt(&messages[..2]).is_ok() => Err(error),
        Some(index) => Err(PromptError::Message { index, error: Box::new(error) }),
        None => Err(error),
    }
}

/// Renders a conversation as it is where the template accepts that, else changed by ever stricter rules until the template
/// writes all of it. Where it never does, the first prompt counts, with [`Adaptation::Dropped`].
fn render_whole(
    template: &Template,
    chat: &Chat<'_>,
    rules: &MessageRules,
    messages: &[Message],
) -> Result<Rendered, PromptError> {
    if is_accepted(template, chat, rules, messages) {
        let (ordered, adaptations) = order_results(messages);
        match render_as_is(template, chat, &ordered) {
            Ok(prompt) => return Ok(Rendered { prompt, adaptations }),
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    let (mut refusal, mut incomplete) = (None, None);
    for rules in [*rules].into_iter().chain(rules.stricter()) {
        let (adapted, mut adaptations) = adapt(messages, &rules);
        match render_as_is(template, chat, &adapted) {
            Ok(prompt) if is_whole(template, chat, &adapted) => {
                return Ok(Rendered { prompt, adaptations });
            }
            Ok(prompt) => {
                adaptations.insert(Adaptation::Dropped);
                _ = incomplete.get_or_insert(Rendered { prompt, adaptations });
            }
            Err(error) if error.is_refusal() => _ = refusal.get_or_insert(error),
            Err(error) => return Err(error),
        }
    }
    incomplete.ok_or_else(|| refusal.unwrap_or(PromptError::Refused(String::new())))
}

/// In longer conversations the message that a template refuses is not searched for.
const SEARCHED_MAX: usize = 32;

/// Renders messages as they are.
pub(crate) fn render_as_is(
    template: &Template,
    chat: &Chat<'_>,
    messages: &[Message],
) -> Result<String, PromptError> {
    // A renderer has its own places for images.
    let messages = match template {
        Template::BuiltIn(_) => Cow::Borrowed(messages),
        Template::Go(_) | Template::Jinja(_) => with_image_tags(messages),
    };
    let think = think_for(template, chat.think.as_ref());
    match template {
        Template::Go(go) => {
            let input = go::Input {
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

/// Renders a text with a gap for the model to fill: `prompt` before it, `suffix` after it; neither may be empty.
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
    let input = go::Input { messages: &[], tools: &[], think, now: jiff::Zoned::now().datetime() };
    let mut out = String::new();
    go.render_insert(prompt, suffix, &input, &mut out)?;
    Ok(out)
}

/// gpt-oss (its templates have both marks) knows no level above high.
fn think_for<'t>(template: &Template, think: Option<&'t Think>) -> Option<Cow<'t, Think>> {
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

/// Puts `[img-N]` for every image, numbered over the conversation: in the place of an `[img]`, or else in front.
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
