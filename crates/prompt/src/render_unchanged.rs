//! Renders messages as they are, without adaptation to the template.

use std::borrow::Cow;

use crate::chat::Chat;
use crate::message::{Message, Think};
use crate::{PromptError, Template, go, jinja_chat};

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
