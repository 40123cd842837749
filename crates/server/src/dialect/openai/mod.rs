//! OpenAI's dialect.

pub(crate) mod chat;
pub(crate) mod completions;
mod custom;
pub(crate) mod hosted;
mod request;
pub(crate) mod responses;

use puna_api::native::PromptLogprob;
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

use crate::canonical::{ApiError, GenerationSummary};
use crate::dialect::{CollectedCall, go_type};
use crate::http::openai_error;
use crate::options::RequestOptions;

/// Generations of one request at most.
const MAX_ANSWERS: i64 = 128;

/// A number of answers: one unless given, and not too many.
pub(crate) fn count(field: &str, count: Option<i64>) -> Result<usize, ApiError> {
    match count.unwrap_or(1) {
        n @ 1..=MAX_ANSWERS => Ok(n as usize),
        n if n < 1 => Err(ApiError::bad_request(format!("{field} must be at least 1, but is {n}"))),
        n => {
            Err(ApiError::bad_request(format!("{field} must be at most {MAX_ANSWERS}, but is {n}")))
        }
    }
}

/// The texts that end an answer: one, or a list of them.
fn stop_texts(stop: Option<&Value>) -> Result<Option<Vec<String>>, ApiError> {
    let wrong = |other: &Value| {
        ApiError::bad_request(format!("invalid type for 'stop' field: {}", go_type(other)))
    };
    let text = |text: &Value| text.as_str().map(str::to_owned).ok_or_else(|| wrong(text));
    match stop {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(vec![text.clone()])),
        Some(Value::Array(list)) => list.iter().map(text).collect::<Result<_, _>>().map(Some),
        Some(_) => Err(ApiError::bad_request("stop must be a string or a list of strings")),
    }
}

/// Adds a generation to a request's token counts, where they are known. A prompt counts once, however many answers it has, and so does what was
/// found of it in the cache: `cached` is what the least lucky of its generations so far found, as the others may have
/// found what that one computed.
fn add_usage(usage: &mut Option<Usage>, done: &GenerationSummary, cached: &mut Option<u64>) {
    if !done.has_usage {
        return;
    }
    let usage = usage.get_or_insert_default();
    let before = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
    let found = cached.map_or(done.cached_tokens, |least| least.min(done.cached_tokens));
    let cached_tokens = before - cached.unwrap_or(0) + found;
    usage.prompt_tokens_details =
        (cached_tokens > 0).then_some(PromptTokensDetails { cached_tokens });
    if cached.replace(found).is_none() {
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

/// An option that is 1 in this dialect where nothing is said.
pub(crate) type DefaultOption = (&'static str, fn(&mut RequestOptions) -> &mut Option<f64>);

/// The temperature.
pub(crate) const TEMPERATURE: DefaultOption = ("temperature", |options| &mut options.temperature);

/// The nucleus.
pub(crate) const TOP_P: DefaultOption = ("top_p", |options| &mut options.top_p);

/// Sets options to 1, as the dialect does, unless request or model say otherwise or the model is on another server.
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

/// Refuses log-probabilities of the prompt in a stream, which has no place for them.
fn whole_only(prompt_logprobs: Option<i64>, stream: bool) -> Result<Option<i64>, ApiError> {
    match prompt_logprobs {
        Some(_) if stream => Err(ApiError::bad_request(
            "prompt_logprobs are not told in a stream: set stream to false",
        )),
        other => Ok(other),
    }
}

/// Log-probabilities of a prompt in vLLM's form, where there are any.
fn wire_prompt(tokens: &[PromptLogprob]) -> Option<PromptLogprobs> {
    let entry = |logprob: f32, rank: u32, token: &str| value!({"logprob": logprob, "rank": rank, "decoded_token": token});
    let one = |of: &PromptLogprob| {
        let own = (of.id, entry(of.logprob?, of.rank, &of.token));
        let top = of.top_logprobs.iter().zip(1..);
        let top = top.map(|(top, rank)| (top.id, entry(top.logprob, rank, &top.token)));
        // What the token itself has counts: of equals all have the rank of the first.
        Some(top.chain([own]).map(|(id, entry)| (id.to_string(), entry)).collect())
    };
    (!tokens.is_empty()).then(|| tokens.iter().map(one).collect())
}

/// The names of a chat's custom tools.
pub(crate) fn custom_names(request: &ChatCompletionRequest) -> Vec<String> {
    request.tools.iter().filter_map(custom::name_of).map(str::to_owned).collect()
}

/// A call; one of the custom tools of these names has their form.
fn wire_call(CollectedCall { id, call }: CollectedCall, custom_names: &[String]) -> ToolCall {
    let index = call.index as i64;
    if custom_names.contains(&call.name) {
        let input = custom::input_of(&call.arguments());
        let custom = Some(CustomCall { name: call.name, input });
        return ToolCall { id, index, kind: "custom".into(), custom, ..ToolCall::default() };
    }
    let function = ToolCallFunction { name: call.name, arguments: call.text };
    ToolCall { id, index, kind: "function".into(), function, custom: None }
}

fn finish_reason(done: &GenerationSummary, called: bool) -> String {
    match done.reason.as_str() {
        "stop" if called => "tool_calls".into(),
        reason => reason.into(),
    }
}

/// Ends a stream with an error: what went wrong, and the end that clients wait for.
fn push_failure(failure: ApiError, out: &mut Vec<u8>) {
    push_event(&openai_error(&failure), out);
    out.extend_from_slice(DONE);
}

/// The end of a stream of chunks.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends a server-sent event.
fn push_event(object: &impl Serialize, out: &mut Vec<u8>) {
    super::push_between("data: ", object, "\n\n", out);
}
