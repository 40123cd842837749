//! Limits of texts, which apply before they are tokenized.

use puna_api::ollama::ToolChoice;

use super::preparer::Preparer;
use super::prompt::{PromptText, chat_bytes, refuses_long_prompts, too_long_error};
use super::protocol::LoadReport;
use super::task_handle::TaskHandle;
use crate::canonical::{ApiError, EmbedText, GenerateTask, Input, Prompt, Task};

/// Maximum bytes of a text that no context limits. A text for a context may be longer if that many
/// bytes can fit it.
pub(crate) const MAX_TEXT_BYTES: usize = if cfg!(test) { 768 << 10 } else { 8 << 20 };

/// Up to this number of bytes, a prompt that is too long is tokenized for the error's number of
/// tokens.
const MAX_COUNTED_BYTES: usize = if cfg!(test) { 64 << 10 } else { 1 << 20 };

/// Bytes at the start of a longer prompt from which its tokens are estimated.
const MAX_SAMPLE_BYTES: usize = 64 << 10;

/// Rejects a text to tokenize that is longer than [`MAX_TEXT_BYTES`].
pub(crate) fn check_request_text_bytes(bytes: usize) -> Result<(), ApiError> {
    check_bytes("the text", bytes, MAX_TEXT_BYTES)
}

/// Maximum bytes of a text for a context, with tokens of at most `max_token_bytes` bytes.
fn max_text_bytes(num_ctx: u32, max_token_bytes: Option<usize>) -> usize {
    MAX_TEXT_BYTES.max((num_ctx as usize).saturating_mul(max_token_bytes.unwrap_or(0)))
}

impl LoadReport {
    /// Maximum bytes of a text for the largest context of a request.
    pub(super) fn max_text_bytes(&self) -> usize {
        max_text_bytes(self.num_ctx, self.max_token_bytes)
    }
}

/// Rejects a task with a text of more than `max` bytes. The server checks this before it sends a
/// task, because a runner reads the messages of all clients one after the other.
pub(super) fn check_task_bytes(task: &Task, max: usize) -> Result<(), ApiError> {
    match task {
        Task::Tokenize(tokenize) => check_request_text_bytes(tokenize.text.len()),
        Task::Detokenize(_) => Ok(()),
        Task::Embed(embed) => embed.inputs.iter().try_for_each(|input| match input {
            EmbedText::Text(text) => check_bytes("the input", text.len(), max),
            EmbedText::Tokens(_) => Ok(()),
        }),
        Task::Rerank(rank) => {
            check_bytes("the query", rank.query.len(), max)?;
            let mut documents = rank.documents.iter().enumerate();
            documents
                .try_for_each(|(i, text)| check_bytes(&format!("document {i}"), text.len(), max))
        }
        Task::Generate(task) | Task::Count(task) => match &task.input {
            Input::Chat { messages, tools } => {
                let offered =
                    if task.tool_choice == ToolChoice::None { &[] } else { tools.as_slice() };
                check_bytes("the conversation", chat_bytes(messages, offered), max)
            }
            Input::Prompt(prompt) => check_bytes("the prompt", prompt.text.len(), max),
        },
    }
}

fn check_bytes(text: &str, bytes: usize, max: usize) -> Result<(), ApiError> {
    if bytes <= max {
        return Ok(());
    }
    let error = format!(
        "{text} is too long: it has {bytes} bytes, and the limit is {max}; shorten it, or send it in parts"
    );
    Err(ApiError::new(413, error))
}

impl Preparer {
    /// Rejects a text with more bytes than the tokens of the context can stand for, if these are
    /// more than [`MAX_TEXT_BYTES`].
    pub(super) fn check_text_bytes(
        &self,
        text: &str,
        bytes: usize,
        num_ctx: Option<u32>,
    ) -> Result<(), ApiError> {
        let token_bytes = self.model.model_info().max_token_bytes;
        check_bytes(text, bytes, max_text_bytes(self.context(num_ctx), token_bytes))
    }

    /// Rejects a long prompt without tokenizing it, if it has more tokens than the context whatever
    /// they are, and the request does not allow to truncate it.
    pub(super) fn check_min_token_count(
        &self,
        handle: &TaskHandle,
        text: &PromptText,
        task: &GenerateTask,
    ) -> Result<(), ApiError> {
        let has_tokens = matches!(&task.input, Input::Prompt(Prompt { tokens: Some(_), .. }));
        let Some(token_bytes) = self.model.model_info().max_token_bytes else { return Ok(()) };
        let num_ctx = self.context(task.options.num_ctx) as usize;
        let min = min_token_count(text, token_bytes);
        if has_tokens
            || text.prompt.len() <= MAX_COUNTED_BYTES
            || min < num_ctx
            || !refuses_long_prompts(task)
        {
            return Ok(());
        }
        let length = self.estimated_tokens(handle, text)?.max(min);
        Err(too_long_error(task, &format!("at least {min}"), length, num_ctx))
    }

    /// Estimates the tokens of a long prompt from its start. Clients shorten the conversation by
    /// the number in the error.
    fn estimated_tokens(&self, handle: &TaskHandle, text: &PromptText) -> Result<usize, ApiError> {
        let prompt = &text.prompt;
        let sample = &prompt[..prompt.floor_char_boundary(MAX_SAMPLE_BYTES)];
        let tokens = self.model.encode_prompt(&[(sample, true)], "", handle.cancelled())?;
        let estimate = tokens.len() as u128 * prompt.len() as u128 / sample.len().max(1) as u128;
        Ok(usize::try_from(estimate).unwrap_or(usize::MAX))
    }
}

/// Least number of tokens of a prompt. The tokenizer may skip the text of the first token.
fn min_token_count(text: &PromptText, token_bytes: usize) -> usize {
    let leading_bos = text.template.as_deref().map_or(0, |template| template.leading_bos().len());
    text.prompt.len().saturating_sub(leading_bos).div_ceil(token_bytes.max(1))
}
