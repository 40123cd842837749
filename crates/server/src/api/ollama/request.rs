//! Converts requests of `POST /api/generate` and `POST /api/chat` to the canonical request.

use puna_api::ollama::{ChatRequest, GenerateRequest};

use crate::api::generation_request::GenerationRequest;
use crate::api::{check_readable, format, hide_unreadable_images, logprobs, prompt_logprobs};
use crate::canonical::{ApiError, Input, Overflow, Prompt};
use crate::options::RequestOptions;

/// Converts a request of `POST /api/generate`.
pub(crate) fn convert_generate(request: GenerateRequest) -> Result<GenerationRequest, ApiError> {
    let invalid =
        |_| ApiError::bad_request("context must be a list of token ids from an earlier answer");
    let tokens = request.context.unwrap_or_default().into_iter().map(u32::try_from);
    let context = tokens.collect::<Result<Vec<u32>, _>>().map_err(invalid)?;
    let text = |text: String| Some(text).filter(|t| !t.is_empty());
    check_readable(&request.images)?;
    let prompt = Prompt {
        text: request.prompt,
        suffix: request.suffix,
        system: text(request.system),
        template: text(request.template),
        raw: request.raw,
        context: Some(context).filter(|tokens| !tokens.is_empty()),
        images: request.images,
        tokens: None,
    };
    Ok(GenerationRequest {
        options: RequestOptions::named(request.options.as_ref()),
        think: request.think,
        format: format(request.format.as_ref())?,
        keep_alive: request.keep_alive,
        overflow: overflow(request.truncate),
        names_overflow: request.truncate.is_some(),
        shift: request.shift,
        logprobs: logprobs(request.logprobs, request.top_logprobs)?,
        prompt_logprobs: prompt_logprobs(request.prompt_logprobs)?,
        render_only: request.debug_render_only,
        cache_salt: request.cache_salt,
        ..GenerationRequest::new(request.model, Input::Prompt(prompt))
    })
}

/// Converts a request of `POST /api/chat`.
pub(crate) fn convert_chat(request: ChatRequest) -> Result<GenerationRequest, ApiError> {
    let mut messages = request.messages;
    for message in &mut messages {
        message.role = message.role.to_lowercase();
    }
    hide_unreadable_images(&mut messages)?;
    let mut chat = GenerationRequest {
        options: RequestOptions::named(request.options.as_ref()),
        think: request.think,
        variables: request.chat_template_kwargs.unwrap_or_default(),
        format: format(request.format.as_ref())?,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        keep_alive: request.keep_alive,
        overflow: overflow(request.truncate),
        names_overflow: request.truncate.is_some(),
        shift: request.shift,
        logprobs: logprobs(request.logprobs, request.top_logprobs)?,
        prompt_logprobs: prompt_logprobs(request.prompt_logprobs)?,
        render_only: request.debug_render_only,
        cache_salt: request.cache_salt,
        ..GenerationRequest::new(request.model, Input::Chat { messages, tools: Vec::new() })
    };
    chat.set_tools(request.tools, request.tool_choice.unwrap_or_default())?;
    Ok(chat)
}

/// Returns the handling of a prompt that exceeds the context. As in Ollama, the server drops
/// messages unless the client sets `truncate` to false.
fn overflow(truncate: Option<bool>) -> Overflow {
    if truncate == Some(false) { Overflow::Refuse } else { Overflow::DropMessages }
}
