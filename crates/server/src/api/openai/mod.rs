//! OpenAI's API: chat completions, completions and responses.

pub(crate) mod audio;
pub(crate) mod chat;
pub(crate) mod completions;
mod custom;
pub(crate) mod hosted;
mod request;
pub(crate) mod responses;
pub(crate) mod routes;

use puna_api::ollama::PromptLogprob;
use puna_api::openai::{
    ChatCompletionRequest, CompletionTokensDetails, CustomCall, PromptLogprobs,
    PromptTokensDetails, ToolCall, ToolCallFunction, Usage,
};
use puna_store::Model;
use serde::Serialize;
use serde_json::{Value, json as value};

pub(crate) use chat::ChatEncoder;
#[cfg(test)]
pub(crate) use request::image as request_image;
pub(crate) use request::{has_sound, to_request, wishes_to_think};

use crate::api::{CollectedCall, go_type};
use crate::canonical::{ApiError, GenerationSummary};
use crate::http::openai_error;
use crate::options::RequestOptions;

/// Maximum number of generations of one request.
const MAX_ANSWERS: i64 = 128;

/// Returns a number of answers, 1 by default.
///
/// # Errors
/// The number is outside 1..=128.
pub(crate) fn count(field: &str, count: Option<i64>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        n @ 1..=MAX_ANSWERS => Ok(n as usize),
        n if n < 1 => Err(ApiError::bad_request(format!("{field} must be at least 1, but is {n}"))),
        n => {
            Err(ApiError::bad_request(format!("{field} must be at most {MAX_ANSWERS}, but is {n}")))
        }
    }
}

/// Returns the stop sequences: one text, or a list of texts.
fn stop_texts(stop: Option<&Value>) -> Result<Option<Vec<String>>, ApiError> {
    let invalid = |other: &Value| {
        ApiError::bad_request(format!("invalid type for 'stop' field: {}", go_type(other)))
    };
    let text = |text: &Value| text.as_str().map(str::to_owned).ok_or_else(|| invalid(text));
    match stop {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(vec![text.clone()])),
        Some(Value::Array(list)) => list.iter().map(text).collect::<Result<_, _>>().map(Some),
        Some(_) => Err(ApiError::bad_request("stop must be a string or a list of strings")),
    }
}

/// Adds a generation to the token counts of a request, if its usage is known.
///
/// A prompt counts once regardless of its number of answers, and so do its cached tokens. `cached`
/// is the smallest cached count of the prompt's generations so far, because the other generations
/// may have found pages that the first one computed.
fn add_usage(usage: &mut Option<Usage>, done: &GenerationSummary, cached: &mut Option<u64>) {
    if !done.has_usage {
        return;
    }
    let usage = usage.get_or_insert_default();
    let before = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
    let smallest = cached.map_or(done.cached_tokens, |min| min.min(done.cached_tokens));
    let cached_tokens = before - cached.unwrap_or(0) + smallest;
    usage.prompt_tokens_details =
        (cached_tokens > 0).then_some(PromptTokensDetails { cached_tokens });
    if cached.replace(smallest).is_none() {
        usage.prompt_tokens += done.prompt_tokens;
    }
    usage.completion_tokens += done.generated_tokens;
    let before = usage.completion_tokens_details.map_or(0, |details| details.reasoning_tokens);
    let reasoning_tokens = before + done.thought_tokens;
    usage.completion_tokens_details =
        (reasoning_tokens > 0).then_some(CompletionTokensDetails { reasoning_tokens });
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
    usage.truncated_messages = usage.truncated_messages.max(done.dropped_messages);
    usage.truncated_tokens = usage.truncated_tokens.max(done.dropped_tokens);
}

/// An option with the default 1 in this dialect: its name and an accessor.
pub(crate) type DefaultOption = (&'static str, fn(&mut RequestOptions) -> &mut Option<f64>);

/// Default of the temperature.
pub(crate) const TEMPERATURE: DefaultOption = ("temperature", |options| &mut options.temperature);

/// Default of `top_p` (nucleus sampling).
pub(crate) const TOP_P: DefaultOption = ("top_p", |options| &mut options.top_p);

/// Sets options to OpenAI's default 1. Values of the request or the model take precedence, and
/// remote models keep their server's defaults.
pub(crate) fn set_defaults(
    options: &mut RequestOptions,
    model: &Model,
    defaults: &[DefaultOption],
) {
    if !model.config.remote_host.is_empty() {
        return;
    }
    for (name, field) in defaults {
        if !options.named.contains_key(*name) && !model.params.contains_key(*name) {
            field(options).get_or_insert(1.0);
        }
    }
}

/// Rejects log-probabilities of the prompt in a stream because chunks have no field for them.
fn reject_in_stream(prompt_logprobs: Option<i64>, stream: bool) -> Result<Option<i64>, ApiError> {
    match prompt_logprobs {
        Some(_) if stream => Err(ApiError::bad_request(
            "prompt_logprobs is not supported in streams: set stream to false",
        )),
        other => Ok(other),
    }
}

/// Returns the log-probabilities of a prompt in vLLM's format, if there are any.
fn vllm_prompt_logprobs(tokens: &[PromptLogprob]) -> Option<PromptLogprobs> {
    let entry = |logprob: f32, rank: u32, token: &str| value!({"logprob": logprob, "rank": rank, "decoded_token": token});
    let position = |prompt_token: &PromptLogprob| {
        let own_entry =
            (prompt_token.id, entry(prompt_token.logprob?, prompt_token.rank, &prompt_token.token));
        let top = prompt_token.top_logprobs.iter().zip(1..);
        let top = top.map(|(top, rank)| (top.id, entry(top.logprob, rank, &top.token)));
        // The entry of the prompt token replaces its entry among the alternatives, because it has
        // the correct rank among equal values.
        Some(top.chain([own_entry]).map(|(id, entry)| (id.to_string(), entry)).collect())
    };
    (!tokens.is_empty()).then(|| tokens.iter().map(position).collect())
}

/// Returns the names of a chat's custom tools.
pub(crate) fn custom_names(request: &ChatCompletionRequest) -> Vec<String> {
    request.tools.iter().filter_map(custom::name_of).map(str::to_owned).collect()
}

/// Converts a call. A call of a custom tool gets the custom format.
fn to_tool_call(CollectedCall { id, call }: CollectedCall, custom_names: &[String]) -> ToolCall {
    let index = call.index as i64;
    if custom_names.contains(&call.name) {
        let input = custom::input_of(&call.arguments());
        let custom = Some(CustomCall { name: call.name, input });
        return ToolCall { id, index, kind: "custom".into(), custom, ..ToolCall::default() };
    }
    let function = ToolCallFunction { name: call.name, arguments: call.text };
    ToolCall { id, index, kind: "function".into(), function, custom: None }
}

fn finish_reason(done: &GenerationSummary, has_client_call: bool) -> String {
    match done.reason.as_str() {
        "stop" if has_client_call => "tool_calls".into(),
        reason => reason.into(),
    }
}

/// Ends a stream with the error and the `[DONE]` event, for which clients wait.
fn push_failure(failure: ApiError, out: &mut Vec<u8>) {
    push_event(&openai_error(&failure), out);
    out.extend_from_slice(DONE);
}

/// Last event of a stream of chunks.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends a server-sent event.
fn push_event(object: &impl Serialize, out: &mut Vec<u8>) {
    super::push_between("data: ", object, "\n\n", out);
}
