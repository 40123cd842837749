//! Translates requests and responses for servers with the dialect of Ollama and Puna.

use std::time::Duration;

use puna_api::ollama::{
    ChatRequest, ChatResponse, EmbedResponse, GenerateRequest, GenerateResponse, Message, Metrics,
    ToolChoice,
};
use puna_sampler::Constraint;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Sender;

use super::conversation::{conversation, unsupported};
use super::lines::invalid_response;
use super::openai::check_vectors;
use super::remote_error::RemoteError;
use super::upstream::RemoteResponse;
use crate::canonical::{
    ApiError, CallOutcome, EmbedResult, EmbedTask, EmbedText, Event, FinishReason, GenerateTask,
    GenerationSummary, Input, Overflow, Piece, Prompt, RunOptions,
};
use crate::runner::protocol::MAX_CALLS;
use crate::util::random_ids;

/// Returns path and body of the request for a generation.
pub(super) fn generation(
    generate: &GenerateTask,
    model: &str,
) -> Result<(&'static str, Value), ApiError> {
    let stored = &generate.model.messages;
    let (messages, tools) = match &generate.input {
        Input::Chat { messages, tools } => (conversation(generate, None, messages), tools.clone()),
        Input::Prompt(Prompt { tokens: Some(_), .. }) => {
            return Err(unsupported("prompts of token ids are not supported"));
        }
        // `/api/generate` has no field for the stored messages, so the prompt becomes a chat.
        Input::Prompt(prompt) if !stored.is_empty() && !prompt.raw && prompt.context.is_none() => {
            let message =
                Message { images: prompt.images.clone(), ..Message::text("user", &prompt.text) };
            (conversation(generate, prompt.system.as_deref(), &[message]), Vec::new())
        }
        Input::Prompt(prompt) => {
            return Ok(("/api/generate", json!(generate_request(generate, prompt, model))));
        }
    };
    let request = ChatRequest {
        model: model.to_owned(),
        messages,
        tools,
        tool_choice: Some(generate.tool_choice.clone())
            .filter(|choice| *choice != ToolChoice::Auto),
        parallel_tool_calls: unless_default(generate.parallel_tool_calls),
        stream: Some(true),
        format: generate.format.as_ref().map(format),
        options: options(&generate.options),
        think: generate.think,
        chat_template_kwargs: Some(generate.variables.clone())
            .filter(|variables| !variables.is_empty()),
        truncate: unless_default(generate.overflow != Overflow::Refuse),
        shift: unless_default(generate.shift),
        logprobs: generate.logprobs.is_some(),
        top_logprobs: generate.logprobs.unwrap_or(0) as i64,
        ..ChatRequest::default()
    };
    Ok(("/api/chat", json!(request)))
}

/// Builds the `/api/generate` request of a prompt.
fn generate_request(generate: &GenerateTask, prompt: &Prompt, model: &str) -> GenerateRequest {
    let system = prompt.system.clone().or_else(|| generate.model.system.clone());
    let context = prompt.context.as_ref();
    GenerateRequest {
        model: model.to_owned(),
        prompt: prompt.text.clone(),
        suffix: prompt.suffix.clone(),
        system: system.filter(|_| !prompt.raw).unwrap_or_default(),
        template: prompt.template.clone().unwrap_or_default(),
        context: context.map(|context| context.iter().map(|t| i64::from(*t)).collect()),
        stream: Some(true),
        raw: prompt.raw,
        format: generate.format.as_ref().map(format),
        images: prompt.images.clone(),
        options: options(&generate.options),
        think: generate.think,
        truncate: unless_default(generate.overflow != Overflow::Refuse),
        shift: unless_default(generate.shift),
        logprobs: generate.logprobs.is_some(),
        top_logprobs: generate.logprobs.unwrap_or(0) as i64,
        ..GenerateRequest::default()
    }
}

/// Value of a switch that is on by default: `None` for on, `Some(false)` for off.
fn unless_default(switch: bool) -> Option<bool> {
    (!switch).then_some(false)
}

/// Returns the options that the request or the model states.
fn options(options: &RunOptions) -> Option<Map<String, Value>> {
    let mut explicit = options.explicit_parameters.clone();
    if explicit.contains_key("seed") {
        // Each of several choices has its own seed.
        explicit.insert("seed".into(), options.sampling.seed.into());
    }
    Some(explicit).filter(|explicit| !explicit.is_empty())
}

fn format(format: &Constraint) -> Value {
    match format {
        Constraint::Json => "json".into(),
        Constraint::Schema(schema) => schema.value().clone(),
        Constraint::Regex(pattern) => json!({"type": "regex", "pattern": pattern}),
        Constraint::Lark(grammar) => json!({"type": "lark", "grammar": grammar}),
        Constraint::Gbnf(grammar) => json!({"type": "gbnf", "grammar": grammar}),
    }
}

/// Reads the lines of a response, sends their events and returns the last event.
pub(super) async fn read(
    mut answer: RemoteResponse,
    to: &Sender<Event>,
) -> Result<Event, ApiError> {
    let mut calls = 0;
    while let Some(line) = answer.lines.next_json().await? {
        if let Some(error) = RemoteError::of(&line) {
            return Err(answer.failure(&error));
        }
        let wrong = |error| invalid_response(&error);
        let line = match line.get("message").is_some() {
            true => serde_json::from_value::<ChatResponse>(line).map_err(wrong)?,
            false => to_chat_response(serde_json::from_value(line).map_err(wrong)?),
        };
        let Message { content, thinking, tool_calls, .. } = line.message;
        let (mut logprobs, mut events) = (line.logprobs, Vec::new());
        if !thinking.is_empty() {
            let logprobs =
                if content.is_empty() { std::mem::take(&mut logprobs) } else { Vec::new() };
            events.push(Event::Thinking(Piece { text: thinking, logprobs }));
        }
        if !content.is_empty() || !logprobs.is_empty() {
            events.push(Event::Content(Piece { text: content, logprobs }));
        }
        for mut call in tool_calls {
            if call.id.is_empty() {
                call.id = random_ids::tool_call();
            }
            call.function.index = calls;
            calls += 1;
            if calls > MAX_CALLS as i64 {
                return Err(ApiError::new(
                    502,
                    format!("the remote server sent more than {MAX_CALLS} tool calls"),
                ));
            }
            let (index, outcome) =
                (call.function.index as usize, CallOutcome::Complete(call.function.arguments));
            events.push(Event::CallStart { index, id: call.id, name: call.function.name });
            events.push(Event::CallEnd { index, outcome });
        }
        let has_output = !events.is_empty();
        for event in events {
            let _ = to.send(event).await;
        }
        if has_output {
            answer.lines.record_output();
        }
        if line.done {
            return Ok(Event::Done(Box::new(summary(&line.done_reason, &line.metrics))));
        }
    }
    Err(ApiError::new(502, "the remote server sent an incomplete answer"))
}

/// Converts a line of `/api/generate` to one of `/api/chat`.
fn to_chat_response(line: GenerateResponse) -> ChatResponse {
    let message = Message {
        content: line.response,
        thinking: line.thinking,
        tool_calls: line.tool_calls,
        ..Message::text("assistant", "")
    };
    ChatResponse {
        message,
        done: line.done,
        done_reason: line.done_reason,
        metrics: line.metrics,
        logprobs: line.logprobs,
        ..ChatResponse::default()
    }
}

fn summary(reason: &str, metrics: &Metrics) -> GenerationSummary {
    GenerationSummary {
        reason: if reason == "length" { FinishReason::Length } else { FinishReason::Stop },
        stop: None,
        has_usage: true,
        prompt_tokens: metrics.prompt_eval_count,
        cached_tokens: metrics.prompt_eval_cached_count,
        prefill: Duration::from_nanos(metrics.prompt_eval_duration),
        generated_tokens: metrics.eval_count,
        thought_tokens: 0,
        decode: Duration::from_nanos(metrics.eval_duration),
        draft_counts: Default::default(),
        dropped_messages: metrics.truncated_messages,
        dropped_tokens: metrics.truncated_tokens,
        context: Vec::new(),
        schema_violations: None,
    }
}

/// Returns path and body of the request for embeddings.
pub(super) fn embedding(embed: &EmbedTask, model: &str) -> Result<(&'static str, Value), ApiError> {
    let text = |text: &EmbedText| match text {
        EmbedText::Text(text) => Ok(text.clone()),
        EmbedText::Tokens(_) => Err(unsupported("inputs of token ids are not supported")),
    };
    let inputs = embed.inputs.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut body = json!({"model": model, "input": inputs, "truncate": embed.truncate});
    if !embed.explicit_parameters.is_empty() {
        body["options"] = embed.explicit_parameters.clone().into();
    }
    Ok(("/api/embed", body))
}

/// Reads the response to a request for embeddings.
pub(super) async fn vectors(answer: RemoteResponse, count: usize) -> Result<EmbedResult, ApiError> {
    let body = answer.lines.into_json().await?;
    let body: EmbedResponse =
        serde_json::from_value(body).map_err(|error| invalid_response(&error))?;
    let mut vectors = body.embeddings;
    vectors.resize(count, Vec::new());
    check_vectors(EmbedResult { vectors, tokens: body.prompt_eval_count, cut: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_another_puna_are_passed_on() {
        let line = json!({
            "done_reason": "length", "prompt_eval_count": 9, "prompt_eval_cached_count": 7, "eval_count": 2,
            "truncated_messages": 3, "truncated_tokens": 40,
        });
        let line: ChatResponse = serde_json::from_value(line).unwrap();
        let done = summary(&line.done_reason, &line.metrics);
        assert_eq!(
            (done.reason, done.prompt_tokens, done.cached_tokens),
            (FinishReason::Length, 9, 7)
        );
        assert_eq!((done.generated_tokens, done.dropped_messages, done.dropped_tokens), (2, 3, 40));
    }
}
