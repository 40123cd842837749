//! The messages of a request together with what the model stores.

use crate::message::{Image, Message};

/// The messages of a chat: the model's stored ones, then the request's. The model's system text goes to the very front
/// unless the request's first message is a system message.
pub fn conversation(system: Option<&str>, stored: &[Message], request: &[Message]) -> Vec<Message> {
    let mut messages = Vec::with_capacity(1 + stored.len() + request.len());
    let own_system = request.first().is_some_and(|m| m.role == "system");
    if let Some(system) = system.filter(|s| !s.is_empty() && !own_system) {
        messages.push(Message::new("system", system));
    }
    messages.extend_from_slice(stored);
    messages.extend_from_slice(request);
    messages
}

/// The messages of a one-shot request: system text, stored messages, the prompt as the user's.
pub fn generation(
    system: Option<&str>,
    stored: &[Message],
    prompt: &str,
    images: &[Image],
) -> Vec<Message> {
    let mut messages = Vec::with_capacity(2 + stored.len());
    if let Some(system) = system.filter(|s| !s.is_empty()) {
        messages.push(Message::new("system", system));
    }
    messages.extend_from_slice(stored);
    messages.push(Message { images: images.to_vec(), ..Message::new("user", prompt) });
    messages
}

/// Removes a leading `<think>…</think>` from assistant messages before the last user message, for models whose clients
/// send the thoughts back inside the content (family qwen3, deepseek-r1).
pub fn strip_past_thoughts(messages: &mut [Message]) {
    let Some(last_user) = messages.iter().rposition(|m| m.role == "user") else { return };
    for message in messages[..last_user].iter_mut().filter(|m| m.role == "assistant") {
        let Some(after) = message.content.trim_start().strip_prefix("<think>") else { continue };
        if let Some((_, answer)) = after.split_once("</think>") {
            message.content = answer.trim_start().to_string();
        }
    }
}
