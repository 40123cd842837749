//! Joins the messages of a request with the messages stored in the model.

use crate::message::{Image, Message};

/// Messages of a chat request: the stored messages of the model, then the messages of the request.
/// The system text of the model comes first, unless the request starts with a system message.
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

/// Messages of a generate request: system text, stored messages, and the prompt as a user message.
pub fn generate_conversation(
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

/// Removes a leading `<think>…</think>` from assistant messages before the last user message. Some
/// clients of qwen3 and deepseek-r1 models send the reasoning back inside the content.
pub fn strip_past_reasoning(messages: &mut [Message]) {
    let Some(last_user) = messages.iter().rposition(|m| m.role == "user") else { return };
    for message in messages[..last_user].iter_mut().filter(|m| m.role == "assistant") {
        let Some(after) = message.content.trim_start().strip_prefix("<think>") else { continue };
        if let Some((_, answer)) = after.split_once("</think>") {
            message.content = answer.trim_start().to_string();
        }
    }
}
