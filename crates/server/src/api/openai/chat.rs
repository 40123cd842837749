//! Encodes events as a chat completion, whole or streamed.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::ollama::{DebugInfo, Logprob};
use puna_api::openai::{
    AnswerMessage, ChatCompletion, ChatCompletionChunk, Choice, ChoiceLogprobs, ChunkChoice, Delta,
    ToolCall, ToolCallFunction, Usage,
};

use super::{
    DONE, add_usage, finish_reason, push_event, push_failure, to_tool_call, vllm_prompt_logprobs,
};
use crate::api::answer_events::{CallId, EndedCall};
use crate::api::progress::PromptProgress;
use crate::api::{AnswerEncoder, AnswerEvent, CollectedCall, CollectedResponse, Times};
use crate::canonical::{GenerationSummary, Piece};
use crate::http::{StreamFormat, json_plain, stream};
use crate::util::random_ids;

/// Encodes the answer to `POST /v1/chat/completions`.
pub(crate) struct ChatEncoder {
    id: String,
    created: i64,
    model: String,
    include_usage: bool,
    /// Names of the request's custom tools.
    custom_names: Vec<String>,
    choices: Vec<ChoiceState>,
    usage: Option<Usage>,
    /// Smallest number of cached prompt tokens among the answers so far.
    cached: Option<u64>,
    ended_count: usize,
    prompt_progress: PromptProgress,
}

/// State of one choice.
#[derive(Debug, Default)]
struct ChoiceState {
    started: bool,
    /// Whether the choice has a call that the client must handle.
    has_client_call: bool,
    /// Index of the open call.
    open_call_index: usize,
    /// Id and tool of the open call until its first chunk. A call without partial arguments is sent
    /// in one chunk.
    unsent_call: Option<(CallId, String)>,
}

impl ChatEncoder {
    /// Creates an encoder for a number of answers (choices).
    pub(crate) fn new(model: String, include_usage: bool, answers: usize) -> Self {
        let (id, created) = (random_ids::alphanumeric("chatcmpl-"), Timestamp::now().as_second());
        let choices = (0..answers).map(|_| ChoiceState::default()).collect();
        let (usage, prompt_progress) = (None, PromptProgress::default());
        let custom_names = Vec::new();
        Self {
            id,
            created,
            model,
            include_usage,
            custom_names,
            choices,
            usage,
            cached: None,
            ended_count: 0,
            prompt_progress,
        }
    }

    /// Sets the names of custom tools. Calls of these tools get the custom format.
    pub(crate) fn with_custom_tools(mut self, names: Vec<String>) -> Self {
        self.custom_names = names;
        self
    }

    /// Returns a chunk with these choices.
    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            choices,
            ..ChatCompletionChunk::default()
        }
    }

    /// Sends the first chunk (the role) of each choice in order of the indices. OpenAI's SDK
    /// requires this order.
    fn send_roles(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices.len() {
            self.choices[index].started = true;
            let delta = Delta {
                role: Some("assistant".into()),
                content: Some(String::new()),
                ..Delta::default()
            };
            let choice = ChunkChoice { index: index as u32, delta, ..ChunkChoice::default() };
            push_event(&self.chunk(vec![choice]), out);
        }
    }

    /// Sends a delta of a choice. The first delta of a choice has the role.
    fn send_delta(
        &mut self,
        generation: usize,
        mut delta: Delta,
        logprobs: Vec<Logprob>,
        out: &mut Vec<u8>,
    ) {
        if self.choices.len() > 1 && !self.choices[generation].started {
            self.send_roles(out);
        }
        delta.role = (!self.choices[generation].started).then(|| "assistant".into());
        self.choices[generation].started = true;
        let logprobs = choice_logprobs(logprobs);
        let choice =
            ChunkChoice { index: generation as u32, delta, logprobs, ..ChunkChoice::default() };
        push_event(&self.chunk(vec![choice]), out);
    }

    /// Sends the start of the open call, unless it was sent before.
    fn start_call(&mut self, generation: usize, arguments: String, out: &mut Vec<u8>) {
        let Some((id, name)) = self.choices[generation].unsent_call.take() else { return };
        let (id, index) = (id.into_string(), self.choices[generation].open_call_index as i64);
        let function = ToolCallFunction { name, arguments };
        let call = ToolCall { id, index, kind: "function".into(), function, custom: None };
        let (content, tool_calls) = (Some(String::new()), vec![call]);
        self.send_delta(
            generation,
            Delta { content, tool_calls, ..Delta::default() },
            Vec::new(),
            out,
        );
    }

    /// Whether the open call is an unsent call of a custom tool.
    fn is_custom(&self, generation: usize) -> bool {
        let open = self.choices[generation].unsent_call.as_ref();
        open.is_some_and(|(_, name)| self.custom_names.contains(name))
    }

    /// Sends a call of a custom tool in one chunk.
    fn send_custom_call(&mut self, generation: usize, call: EndedCall, out: &mut Vec<u8>) {
        let Some((id, _)) = self.choices[generation].unsent_call.take() else { return };
        let call = to_tool_call(CollectedCall { id: id.into_string(), call }, &self.custom_names);
        let (content, tool_calls) = (Some(String::new()), vec![call]);
        self.send_delta(
            generation,
            Delta { content, tool_calls, ..Delta::default() },
            Vec::new(),
            out,
        );
    }

    /// Sends a part of the open call's arguments.
    fn send_arguments(&mut self, generation: usize, arguments: String, out: &mut Vec<u8>) {
        if arguments.is_empty() {
            return;
        }
        let function = ToolCallFunction { arguments, ..ToolCallFunction::default() };
        let call = ToolCall {
            index: self.choices[generation].open_call_index as i64,
            function,
            ..ToolCall::default()
        };
        self.send_delta(
            generation,
            Delta { tool_calls: vec![call], ..Delta::default() },
            Vec::new(),
            out,
        );
    }

    /// Sends the end of a choice. After the last choice, the usage and `[DONE]` follow.
    fn end_choice(&mut self, generation: usize, done: &GenerationSummary, out: &mut Vec<u8>) {
        if self.choices.len() > 1 && !self.choices[generation].started {
            self.send_roles(out);
        }
        if !self.choices[generation].started {
            self.send_delta(
                generation,
                Delta { content: Some(String::new()), ..Delta::default() },
                Vec::new(),
                out,
            );
        }
        let finish_reason = Some(finish_reason(done, self.choices[generation].has_client_call));
        let choice =
            ChunkChoice { index: generation as u32, finish_reason, ..ChunkChoice::default() };
        let schema_violations = done.schema_violations.clone();
        push_event(&ChatCompletionChunk { schema_violations, ..self.chunk(vec![choice]) }, out);
        add_usage(&mut self.usage, done, &mut self.cached);
        self.ended_count += 1;
        if self.ended_count < self.choices.len() {
            return;
        }
        if self.include_usage && self.usage.is_some() {
            let chunk = ChatCompletionChunk { usage: self.usage.take(), ..self.chunk(Vec::new()) };
            push_event(&chunk, out);
        }
        out.extend_from_slice(DONE);
    }

    /// Returns the answers as one object.
    pub(crate) fn whole(&self, answers: Vec<CollectedResponse>) -> Response {
        let (mut usage, mut cached) = (None, None);
        for done in answers.iter().filter_map(|answer| answer.done.as_deref()) {
            add_usage(&mut usage, done, &mut cached);
        }
        let prompt_logprobs =
            answers.first().and_then(|answer| vllm_prompt_logprobs(&answer.prompt_logprobs));
        let rendered = answers.first().and_then(|answer| answer.rendered.clone());
        let answer = ChatCompletion {
            id: self.id.clone(),
            object: "chat.completion".into(),
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            // A request for the rendered prompt alone has no counted tokens.
            usage: usage.or_else(|| rendered.is_some().then(Usage::default)),
            prompt_logprobs,
            debug_info: rendered
                .map(|prompt| DebugInfo { rendered_template: prompt, image_count: 0 }),
            choices: answers.into_iter().zip(0..).map(|answer| self.choice(answer)).collect(),
        };
        json_plain(StatusCode::OK, &answer)
    }

    /// Converts one answer and its index.
    fn choice(&self, (answer, index): (CollectedResponse, u32)) -> Choice {
        // A request for the rendered prompt alone has no assistant message.
        let role = if answer.rendered.is_none() { "assistant" } else { "" };
        let has_client_call =
            answer.tool_calls.iter().any(|collected| collected.call.requires_client_action);
        Choice {
            index,
            finish_reason: answer.done.as_deref().map(|done| finish_reason(done, has_client_call)),
            message: AnswerMessage {
                role: role.into(),
                content: answer.content,
                reasoning: answer.thinking,
                tool_calls: answer
                    .tool_calls
                    .into_iter()
                    .map(|call| to_tool_call(call, &self.custom_names))
                    .collect(),
            },
            logprobs: choice_logprobs(answer.logprobs),
        }
    }
}

fn choice_logprobs(logprobs: Vec<Logprob>) -> Option<ChoiceLogprobs> {
    (!logprobs.is_empty()).then_some(ChoiceLogprobs { content: logprobs })
}

impl AnswerEncoder for ChatEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::Sse;

    fn encode(&mut self, generation: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        let is_empty = |piece: &Piece| piece.text.is_empty() && piece.logprobs.is_empty();
        match event {
            AnswerEvent::Thinking(piece) | AnswerEvent::Content(piece) if is_empty(&piece) => {}
            AnswerEvent::Thinking(Piece { text, logprobs }) => {
                let delta = Delta {
                    content: Some(String::new()),
                    reasoning: Some(text),
                    ..Delta::default()
                };
                self.send_delta(generation, delta, logprobs, out);
            }
            AnswerEvent::Content(Piece { text, logprobs }) => {
                self.send_delta(
                    generation,
                    Delta { content: Some(text), ..Delta::default() },
                    logprobs,
                    out,
                );
            }
            AnswerEvent::CallStart { id, index, name } => {
                (self.choices[generation].open_call_index, self.choices[generation].unsent_call) =
                    (index, Some((id, name)));
            }
            // The input of a custom tool is known only at the end of the call.
            AnswerEvent::CallArguments(_) if self.is_custom(generation) => {}
            AnswerEvent::CallArguments(text) => {
                self.start_call(generation, String::new(), out);
                self.send_arguments(generation, text, out);
            }
            AnswerEvent::CallEnd(call) => {
                self.choices[generation].has_client_call |= call.requires_client_action;
                if self.is_custom(generation) {
                    return self.send_custom_call(generation, call, out);
                }
                match self.choices[generation].unsent_call.is_some() {
                    true => self.start_call(generation, call.rest, out),
                    false => self.send_arguments(generation, call.rest, out),
                }
            }
            AnswerEvent::Done(done) => self.end_choice(generation, &done, out),
            AnswerEvent::Progress { done, total } if generation == 0 => {
                self.prompt_progress.report(done, total, out)
            }
            AnswerEvent::Error(failure) => push_failure(failure, out),
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let delta = Delta {
            role: Some("assistant".into()),
            content: Some(String::new()),
            ..Delta::default()
        };
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        let chunk = self.chunk(vec![ChunkChoice { delta, ..ChunkChoice::default() }]);
        let mut out = Vec::new();
        push_event(&ChatCompletionChunk { debug_info, ..chunk }, &mut out);
        stream(StreamFormat::Sse, futures_util::stream::iter([Ok(out.into())]))
    }
}
