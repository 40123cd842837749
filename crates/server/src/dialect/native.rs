//! Ollama's own dialect.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{
    ChatRequest, ChatResponse, DebugInfo, GenerateRequest, GenerateResponse, Message, Think, Tool, ToolCall,
    ToolChoice,
};
use puna_store::Model;
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer_events::{CallId, EndedCall};
use super::{
    AnswerEvent, Collected, CollectedCall, Encoder, Times, check_capability, check_completion, check_images,
    check_think, format, has, logprobs, metrics, model_text, prompt_logprobs,
};
use crate::canonical::{Done, Failure, Generate, Input, Prompt, RunOptions};
use crate::config::Config;
use crate::http::{Wire, error_body, json, note_ignored};
use crate::names::Name;

/// Refuses what a request for generation may not combine, or its model cannot do.
pub(crate) fn check_generate(request: &GenerateRequest, model: &Model, name: &Name) -> Result<(), Failure> {
    let context = request.context.as_ref().is_some_and(|c| !c.is_empty());
    if request.raw && (!request.template.is_empty() || !request.system.is_empty() || context) {
        return Err(Failure::bad_request("raw mode does not support template, system, or context"));
    }
    if request.raw && !request.suffix.is_empty() {
        // As it stands, a prompt has no gap to fill.
        note_ignored("suffix".into());
    }
    check_completion(model, name, "generate")?;
    check_think(model, name, request.think)?;
    check_capability(model, !request.suffix.is_empty() && !request.raw, "insert")?;
    check_images(model, request.images.len())
}

/// The canonical request of `POST /api/generate`.
pub(crate) fn generate(
    request: GenerateRequest,
    model: &Model,
    options: RunOptions,
    config: &Config,
) -> Result<Generate, Failure> {
    let wrong = |_| Failure::bad_request("context must be a list of token numbers from an earlier answer");
    let tokens = request.context.unwrap_or_default().into_iter().map(u32::try_from);
    let context = tokens.collect::<Result<Vec<u32>, _>>().map_err(wrong)?;
    let text = |text: String| Some(text).filter(|t| !t.is_empty());
    Ok(Generate {
        model: model_text(model, config),
        options,
        think: request.think,
        variables: Map::new(),
        format: format(request.format.as_ref())?,
        truncate: request.truncate.unwrap_or(true),
        shift: shift(request.shift, model),
        logprobs: logprobs(request.logprobs, request.top_logprobs)?,
        prompt_logprobs: prompt_logprobs(request.prompt_logprobs)?,
        stream_calls: false,
        render_only: request.debug_render_only,
        input: Input::Prompt(Prompt {
            text: request.prompt,
            suffix: request.suffix,
            system: text(request.system),
            template: text(request.template),
            raw: request.raw,
            context: Some(context).filter(|tokens| !tokens.is_empty()),
            images: request.images,
            tokens: None,
        }),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: true,
    })
}

/// Refuses what the model of a chat cannot do.
pub(crate) fn check_chat(request: &ChatRequest, model: &Model, name: &Name) -> Result<(), Failure> {
    check_completion(model, name, "chat")?;
    check_think(model, name, request.think)?;
    check_capability(model, !request.tools.is_empty(), "tools")?;
    check_images(model, request.messages.iter().map(|m| m.images.len()).sum())
}

/// The canonical request of `POST /api/chat`.
pub(crate) fn chat(
    request: ChatRequest,
    model: &Model,
    options: RunOptions,
    config: &Config,
) -> Result<Generate, Failure> {
    let mut messages = request.messages;
    for message in &mut messages {
        message.role = message.role.to_lowercase();
    }
    let tool_choice = request.tool_choice.unwrap_or_default();
    check_tool_choice(&tool_choice, &request.tools)?;
    let mut variables = request.chat_template_kwargs.unwrap_or_default();
    let switch = take_switch(&mut variables, model);
    Ok(Generate {
        model: model_text(model, config),
        options,
        think: request.think.or(switch),
        variables,
        format: format(request.format.as_ref())?,
        truncate: request.truncate.unwrap_or(true),
        shift: shift(request.shift, model),
        logprobs: logprobs(request.logprobs, request.top_logprobs)?,
        prompt_logprobs: prompt_logprobs(request.prompt_logprobs)?,
        stream_calls: false,
        render_only: request.debug_render_only,
        tool_choice,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        input: Input::Chat { messages, tools: request.tools },
    })
}

/// Whether to think, by the names that templates have for it: taken from their variables where the model can, so that there
/// is one answer to the question. Models that never do are told so, too, by clients that tell every model.
fn take_switch(variables: &mut Map<String, Value>, model: &Model) -> Option<Think> {
    if !has(model, "thinking") {
        return None;
    }
    let told = ["enable_thinking", "thinking"].map(|name| variables.shift_remove(name)?.as_bool());
    told.into_iter().flatten().next().map(|on| if on { Think::On } else { Think::Off })
}

/// Refuses a call that cannot be made.
fn check_tool_choice(choice: &ToolChoice, tools: &[Tool]) -> Result<(), Failure> {
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(Failure::bad_request("tool_choice demands a call, but there are no tools"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name() == name) => {
            Err(Failure::bad_request(format!(
                "tool_choice names the function {name:?}, which is not among the tools"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether older tokens make room: as asked, else as the model's family can.
fn shift(asked: Option<bool>, model: &Model) -> bool {
    let details = model.details();
    let cannot = |family: &str| family == "deepseek2";
    let cannot = cannot(&model.facts.architecture)
        || cannot(&details.family)
        || details.families.iter().flatten().any(|family| cannot(family));
    asked.unwrap_or(!cannot)
}

/// The time, as it stands in answers.
pub(crate) fn now() -> String {
    Timestamp::now().to_string()
}

/// Appends an object and a line end.
pub(crate) fn push_line(object: &impl Serialize, out: &mut Vec<u8>) {
    super::push_between("", object, "\n", out);
}

/// Encodes the answer to `POST /api/generate`.
pub(crate) struct GenerateEncoder {
    model: String,
    /// The final object lists the tokens.
    with_context: bool,
    /// The id of the call that has not ended.
    open: Option<CallId>,
}

impl GenerateEncoder {
    /// An encoder for a model; with `with_context` the final object lists the tokens.
    pub(crate) fn new(model: String, with_context: bool) -> Self {
        Self { model, with_context, open: None }
    }

    fn object(&self) -> GenerateResponse {
        GenerateResponse { model: self.model.clone(), created_at: now(), ..GenerateResponse::default() }
    }

    fn end(&self, done: Done, times: Times) -> GenerateResponse {
        GenerateResponse {
            done: true,
            done_reason: done.reason.as_str().into(),
            metrics: metrics(&done, times),
            context: self.with_context.then_some(done.context),
            ..self.object()
        }
    }

    /// The answer in one object.
    pub(crate) fn whole(&self, all: Collected) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let end = match all.done {
            Some(done) => self.end(*done, all.times),
            None => self.object(),
        };
        let (response, thinking, logprobs) = (all.content, all.thinking, all.logprobs);
        let tool_calls = all.tool_calls.into_iter().map(ToolCall::from).collect();
        let prompt_logprobs = all.prompt_logprobs;
        let answer = GenerateResponse { response, thinking, logprobs, tool_calls, prompt_logprobs, ..end };
        json(StatusCode::OK, &answer)
    }

    /// The answer where nothing was to be generated.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        json(StatusCode::OK, &GenerateResponse { done: true, done_reason: reason.into(), ..self.object() })
    }
}

impl Encoder for GenerateEncoder {
    const WIRE: Wire = Wire::Ndjson;

    fn encode(&mut self, _: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>) {
        let line = match event {
            AnswerEvent::Prompt(prompt_logprobs) => GenerateResponse { prompt_logprobs, ..self.object() },
            AnswerEvent::Thinking(piece) => {
                GenerateResponse { thinking: piece.text, logprobs: piece.logprobs, ..self.object() }
            }
            AnswerEvent::Content(piece) => {
                GenerateResponse { response: piece.text, logprobs: piece.logprobs, ..self.object() }
            }
            AnswerEvent::CallStart { id, .. } => return self.open = Some(id),
            AnswerEvent::CallEnd(call) => {
                GenerateResponse { tool_calls: vec![whole_call(&mut self.open, call)], ..self.object() }
            }
            AnswerEvent::Done(done) => self.end(*done, times),
            AnswerEvent::Error(failure) => return push_line(&error_body(&failure), out),
            _ => return,
        };
        push_line(&line, out);
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        json(StatusCode::OK, &GenerateResponse { debug_info, ..self.object() })
    }
}

/// Encodes the answer to `POST /api/chat`.
pub(crate) struct ChatEncoder {
    model: String,
    /// The id of the call that has not ended.
    open: Option<CallId>,
}

/// A call that has ended, as the one object that this dialect has for it.
fn whole_call(open: &mut Option<CallId>, call: EndedCall) -> ToolCall {
    let id = open.take().map(CallId::into_string).unwrap_or_default();
    CollectedCall { id, call }.into()
}

impl ChatEncoder {
    pub(crate) fn new(model: String) -> Self {
        Self { model, open: None }
    }

    fn object(&self) -> ChatResponse {
        let message = Message::text("assistant", "");
        ChatResponse { model: self.model.clone(), created_at: now(), message, ..ChatResponse::default() }
    }

    fn end(&self, done: &Done, times: Times) -> ChatResponse {
        let (done_reason, metrics) = (done.reason.as_str().into(), metrics(done, times));
        ChatResponse { done: true, done_reason, metrics, ..self.object() }
    }

    /// The answer in one object.
    pub(crate) fn whole(&self, all: Collected) -> Response {
        if let Some(prompt) = all.rendered {
            return self.rendered(prompt);
        }
        let mut answer = match all.done {
            Some(done) => self.end(&done, all.times),
            None => self.object(),
        };
        answer.message.content = all.content;
        answer.message.thinking = all.thinking;
        answer.message.tool_calls = all.tool_calls.into_iter().map(ToolCall::from).collect();
        answer.logprobs = all.logprobs;
        answer.prompt_logprobs = all.prompt_logprobs;
        json(StatusCode::OK, &answer)
    }

    /// The answer where nothing was to be generated.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        json(StatusCode::OK, &ChatResponse { done: true, done_reason: reason.into(), ..self.object() })
    }
}

impl Encoder for ChatEncoder {
    const WIRE: Wire = Wire::Ndjson;

    fn encode(&mut self, _: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>) {
        let mut line = self.object();
        match event {
            AnswerEvent::Prompt(tokens) => line.prompt_logprobs = tokens,
            AnswerEvent::Thinking(piece) => {
                line.message.thinking = piece.text;
                line.logprobs = piece.logprobs;
            }
            AnswerEvent::Content(piece) => {
                line.message.content = piece.text;
                line.logprobs = piece.logprobs;
            }
            AnswerEvent::CallStart { id, .. } => return self.open = Some(id),
            AnswerEvent::CallEnd(call) => line.message.tool_calls = vec![whole_call(&mut self.open, call)],
            AnswerEvent::Done(done) => line = self.end(&done, times),
            AnswerEvent::Error(failure) => return push_line(&error_body(&failure), out),
            _ => return,
        }
        // Here, unlike with generate, lines with nothing in them are not sent.
        let has_logprobs = !line.logprobs.is_empty() || !line.prompt_logprobs.is_empty();
        if line.done || !line.message.is_empty() || has_logprobs {
            push_line(&line, out);
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let debug_info = Some(DebugInfo { rendered_template: prompt, image_count: 0 });
        json(StatusCode::OK, &ChatResponse { debug_info, message: Message::default(), ..self.object() })
    }
}

#[cfg(test)]
mod tests {
    use puna_store::Store;

    use super::*;

    #[test]
    fn older_tokens_make_room_as_asked_or_as_the_family_can() {
        let folder = tempfile::tempdir().unwrap();
        let model = Store::open(folder.path()).unwrap().resolve(&"cria".parse().unwrap()).unwrap();
        let of = |family: &str, families: Option<&[&str]>| {
            let mut model = model.clone();
            model.config.model_family = family.into();
            let families = families.map(|all| all.iter().map(|name| (*name).to_owned()).collect());
            model.config.model_families = families;
            model
        };
        for (model, unset) in [
            (model.clone(), true),
            (of("deepseek2", None), false),
            (of("llama", Some(&["llama", "deepseek2"])), false),
            (of("deepseek3", Some(&["deepseek3"])), true),
        ] {
            let family = model.details();
            assert_eq!(shift(None, &model), unset, "{family:?}");
            assert!(shift(Some(true), &model) && !shift(Some(false), &model), "{family:?}");
        }
    }
}
