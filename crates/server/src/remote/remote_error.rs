//! Reads error objects of remote servers, in any dialect.

use serde_json::Value;

use crate::canonical::ApiError;

/// Largest number of characters of a remote server's error that a message shows.
pub(super) const MAX_SHOWN_ERROR_CHARS: usize = 2000;

/// An error that a remote server reports.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RemoteError {
    /// Message of the server.
    pub(super) text: String,
    /// Tokens of the prompt and of the context, if the prompt is too long and the server states
    /// both.
    lengths: Option<(u64, u64)>,
    /// Whether the request is too long for the context.
    exceeds_context: bool,
}

impl RemoteError {
    /// Reads the error in a JSON value; `None` if it has none.
    pub(super) fn of(value: &Value) -> Option<Self> {
        let error = match value.get("error") {
            Some(error) => error,
            // Older versions of vLLM have no `error` object.
            None if value["object"] == "error" => value,
            None => return None,
        };
        if error.is_null() {
            return None;
        }
        let text = error.as_str().or_else(|| error["message"].as_str()).map(str::to_owned);
        let text = text.unwrap_or_else(|| error.to_string());
        // Puna and llama.cpp's server send these fields; in Puna's native dialect they are next to
        // `error`.
        let number = |field: &str| error[field].as_u64().or_else(|| value[field].as_u64());
        let lengths =
            number("n_prompt_tokens").zip(number("n_ctx")).or_else(|| stated_lengths(&text));
        let is_code =
            |code: &Value| code == "context_length_exceeded" || code == "exceed_context_size_error";
        let exceeds_context = lengths.is_some()
            || is_code(&error["code"])
            || is_code(&error["type"])
            || OVERFLOW_PHRASES.iter().any(|phrase| text.to_lowercase().contains(phrase));
        Some(Self { text, lengths, exceeds_context })
    }

    /// Makes an error from a text that is not JSON.
    pub(super) fn of_text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Returns the error to answer with. A request that is too long is the client's error, whatever
    /// status the server sent.
    pub(super) fn failure(&self, status: u16, message: String) -> ApiError {
        let status = if self.exceeds_context { 400 } else { status };
        let is_too_long = self.exceeds_context && self.lengths.is_none();
        ApiError { lengths: self.lengths, is_too_long, ..ApiError::new(status, message) }
    }

    /// Whether the request is too long for the context.
    pub(super) fn exceeds_context(&self) -> bool {
        self.exceeds_context
    }
}

/// Lower-case phrases of servers that report neither a code nor both lengths.
const OVERFLOW_PHRASES: [&str; 5] = [
    "exceeds the available context size",
    "exceeds the context length",
    "exceeds maximum context length",
    "longer than the context length",
    "exceeded max context length",
];

/// Lower-case phrases before the number of tokens that the context holds.
const BEFORE_CONTEXT: [&str; 8] = [
    "maximum context length is ",
    "maximum context length of ",
    "context length is only ",
    "context length (",
    "maximum model length of ",
    "context size (",
    "context is ",
    "tokens allowed (",
];

/// Lower-case phrases before the number of a prompt's tokens.
const BEFORE_PROMPT: [&str; 8] = [
    "resulted in ",
    "your request has ",
    "you passed ",
    "prompt (length ",
    "the input (",
    "prompt is too long: ",
    "prompt contains ",
    "input token count (",
];

/// Lower-case phrases after the number of a prompt's tokens.
const BEHIND_PROMPT: [&str; 5] = [
    " in the messages",
    " in your prompt",
    " in the prompt",
    " tokens from the input messages",
    " of text input",
];

/// Lower-case phrases before a number of tokens that counts as the prompt's if the server states no
/// other.
const BEFORE_REQUEST: [&str; 2] = ["you requested ", "you requested a total of "];

/// Reads the lengths of prompt and context in a sentence such as OpenAI's "This model's maximum
/// context length is 8192 tokens. However, your messages resulted in 9000 tokens."
///
/// Returns `None` if the prompt fits into the context: then the requested output is too long, not
/// the prompt.
fn stated_lengths(text: &str) -> Option<(u64, u64)> {
    let text = text.to_lowercase();
    let behind = |phrase: &&str| number_at_start(text.split_once(*phrase)?.1);
    let before = |phrase: &&str| number_at_end(text.split_once(*phrase)?.0);
    let context = BEFORE_CONTEXT.iter().find_map(behind)?;
    let prompt =
        BEHIND_PROMPT.iter().find_map(before).or_else(|| BEFORE_PROMPT.iter().find_map(behind));
    let prompt = prompt.or_else(|| BEFORE_REQUEST.iter().find_map(behind))?;
    (prompt >= context).then_some((prompt, context))
}

fn number_at_start(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Reads the number at the end of a text, before the word "tokens" if it is present.
fn number_at_end(text: &str) -> Option<u64> {
    let text = text.strip_suffix(" tokens").unwrap_or(text);
    let start = text.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    text.get(start..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::{anthropic_error, openai_error};

    fn failure(error: Value) -> ApiError {
        let error = RemoteError::of(&error).unwrap();
        error.failure(502, error.text.clone())
    }

    #[test]
    fn lengths_are_read_from_the_fields_and_sentences_of_all_servers() {
        let sentences = [
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens in the messages, Please \
             reduce the length of the messages.",
            "This model's maximum context length is 8192 tokens, however you requested 9100 tokens (9000 in your prompt; 100 \
             for the completion).",
            "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens.",
            "You passed 9000 input tokens and requested 100 output tokens. However, the model's context length is only 8192 \
             tokens, resulting in a maximum input length of 8092 tokens.",
            "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9500 \
             tokens: 9000 tokens from the input messages and 500 tokens for the completion.",
            "The input token count (9000) exceeds the maximum number of tokens allowed (8192).",
            "prompt is too long: 9000 tokens, context is 8192",
        ];
        let sentences = sentences.map(
            |text| json!({"error": {"message": text, "type": "BadRequestError", "code": 400}}),
        );
        let message = "the request exceeds the available context size";
        let llama = json!({"error": {
            "code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192,
        }});
        let native = json!({"error": "too long", "n_prompt_tokens": 9000, "n_ctx": 8192});
        for error in sentences.into_iter().chain([llama, native]) {
            let failure = failure(error.clone());
            assert_eq!((failure.status, failure.lengths), (400, Some((9000, 8192))), "{error}");
        }
    }

    #[test]
    fn a_request_that_is_too_long_has_its_code_without_lengths_too() {
        let sum = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the \
                   messages, 1000 in the completion).";
        for error in [
            json!({"message": "too long", "code": "context_length_exceeded"}),
            json!({"message": "too long", "type": "exceed_context_size_error"}),
            json!({"message": sum, "code": "context_length_exceeded"}),
            json!("the input length exceeds the context length"),
        ] {
            let failure = failure(json!({"error": error}));
            assert_eq!((failure.status, failure.lengths), (400, None), "{error}");
            assert_eq!(
                openai_error(&failure).error.code.as_deref(),
                Some("context_length_exceeded")
            );
            let message = anthropic_error(&failure, None).error.message;
            assert_eq!(message, format!("prompt is too long: {}", failure.message));
        }
    }

    #[test]
    fn other_errors_do_not_count_as_a_prompt_that_is_too_long() {
        for text in [
            "'max_tokens' is too large: 9000. This model's maximum context length is 8192 tokens and your request has 200 input \
             tokens.",
            "model not found",
            "",
        ] {
            let failure = failure(json!({"error": {"message": text}}));
            assert_eq!((failure.status, failure.exceeds_context()), (502, false), "{text}");
        }
        assert_eq!(RemoteError::of(&json!({"error": null})), None);
    }
}
