//! Renders a conversation to a prompt with a template, and adapts the conversation to the template
//! if needed.

use crate::adapt::{
    Adaptation, Adaptations, MessageRules, adapt, check_roles, is_accepted, order_results,
    writes_everything,
};
use crate::chat::Chat;
use crate::go;
use crate::message::{Message, Think};
use crate::render_unchanged::render_as_is;
use crate::{PromptError, Template};

/// A prompt, and the adaptations of the conversation that the template required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The prompt.
    pub prompt: String,
    /// Changes of the conversation.
    pub adaptations: Adaptations,
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
/// stricter rules until the template writes the whole conversation. If it never does, returns the
/// first prompt, with [`Adaptation::Dropped`].
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
