//! Checks requests to remote models, and assembles their conversations.

use puna_api::ollama::Message;
use puna_prompt::{PromptError, ROLES, check_results};

use crate::canonical::{ApiError, GenerateTask, Input, Overflow};
use crate::runner::prompt_message;

/// Error for a request that a remote model cannot serve.
pub(super) fn unsupported(what: &str) -> ApiError {
    ApiError::bad_request(format!("the model is on another server: {what}"))
}

/// Refuses requests that need the model's vocabulary or weights on this server.
pub(super) fn check_supported(generate: &GenerateTask) -> Result<(), ApiError> {
    match generate {
        GenerateTask { render_only: true, .. } => {
            Err(unsupported("prompts cannot be rendered here"))
        }
        GenerateTask { prompt_logprobs: Some(_), .. } => {
            Err(unsupported("prompt_logprobs is not supported"))
        }
        GenerateTask { options, .. } if options.num_predict == 0 => {
            Err(unsupported("num_predict 0 is not supported"))
        }
        _ => check_messages(generate),
    }
}

/// Refuses a message with an unknown role, and a tool result without its call in the conversation,
/// as for local models. Ollama's dialect accepts both: its clients drop the oldest messages
/// themselves.
fn check_messages(generate: &GenerateTask) -> Result<(), ApiError> {
    let Input::Chat { messages, .. } = &generate.input else { return Ok(()) };
    if generate.overflow == Overflow::DropMessages {
        return Ok(());
    }
    let stored = &generate.model.messages;
    let all: Vec<_> = stored.iter().chain(messages).map(prompt_message).collect();
    let unknown =
        all.iter().enumerate().skip(stored.len()).find(|(_, m)| !ROLES.contains(&m.role.as_str()));
    let roles = unknown.map_or(Ok(()), |(index, message)| {
        let error =
            Box::new(PromptError::UnknownRole { role: message.role.chars().take(40).collect() });
        Err(PromptError::Message { index, error })
    });
    let checked = roles.and_then(|()| check_results(&all));
    // The error states the message's index in the request, without the stored messages.
    checked.map_err(|error| {
        ApiError::bad_request(error.without_leading_messages(stored.len()).to_string())
    })
}

/// Puts the messages of the manifest before the conversation: the stored messages, and the system
/// message if the conversation has none.
pub(super) fn conversation(
    generate: &GenerateTask,
    system: Option<&str>,
    messages: &[Message],
) -> Vec<Message> {
    let mut all: Vec<Message> = generate.model.messages.iter().chain(messages).cloned().collect();
    let system = system.or(generate.model.system.as_deref()).filter(|text| !text.is_empty());
    if let Some(text) = system
        && all.first().is_none_or(|first| first.role != "system")
    {
        all.insert(0, Message::text("system", text));
    }
    all
}
