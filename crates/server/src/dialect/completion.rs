//! OpenAI's older dialect of single texts.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::GenerateRequest;
use puna_api::openai::{Completion, CompletionChoice, CompletionChunk, CompletionRequest, ErrorBody, Usage};
use serde_json::{Map, Value, json as value};

use super::openai::{check_count, push_event, usage};
use super::{Collected, Encoder, Times};
use crate::canonical::{Event, Failure};
use crate::http::{Wire, json_plain};
use crate::routes::random_id;

/// The native request that a completion comes to.
pub(crate) fn to_native(request: CompletionRequest) -> Result<GenerateRequest, Failure> {
    check_count("n", request.n)?;
    check_count("best_of", request.best_of)?;
    if request.echo == Some(true) {
        return Err(Failure::bad_request(
            "echo is not supported yet: put the prompt before the answer yourself",
        ));
    }
    let options = options(&request)?;
    Ok(GenerateRequest {
        model: request.model,
        prompt: request.prompt,
        suffix: request.suffix,
        keep_alive: request.keep_alive,
        options: Some(options),
        logprobs: request.logprobs.is_some_and(|n| n > 0),
        top_logprobs: request.logprobs.unwrap_or(0).max(0),
        debug_render_only: request.debug_render_only,
        ..GenerateRequest::default()
    })
}

fn options(request: &CompletionRequest) -> Result<Map<String, Value>, Failure> {
    let mut options = request.options.clone().unwrap_or_default();
    let mut set = |name: &str, value: Value| drop(options.insert(name.to_owned(), value));
    match &request.stop {
        Some(Value::String(stop)) => set("stop", value!([stop])),
        Some(Value::Array(list)) => match list.iter().find(|stop| !stop.is_string()) {
            None => set("stop", list.clone().into()),
            Some(other) => {
                let kind = super::go_type(other);
                return Err(Failure::bad_request(format!("invalid type for 'stop' field: {kind}")));
            }
        },
        _ => {}
    }
    if let Some(n) = request.max_tokens {
        set("num_predict", n.into());
    }
    if let Some(seed) = request.seed {
        set("seed", seed.into());
    }
    if let Some(bias) = request.logit_bias.as_ref().filter(|bias| !bias.is_empty()) {
        set("logit_bias", bias.clone().into());
    }
    // Without a word from the client these have values of their own, whatever the model says.
    set("temperature", request.temperature.unwrap_or(1.0).into());
    set("top_p", request.top_p.filter(|p| *p != 0.0).unwrap_or(1.0).into());
    set("frequency_penalty", request.frequency_penalty.into());
    set("presence_penalty", request.presence_penalty.into());
    Ok(options)
}

/// Encodes the answer to `POST /v1/completions`.
pub(crate) struct CompletionEncoder {
    id: String,
    model: String,
    include_usage: bool,
}

impl CompletionEncoder {
    pub(crate) fn new(model: String, include_usage: bool) -> Self {
        Self { id: random_id("cmpl-"), model, include_usage }
    }

    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Usage) -> CompletionChunk {
        CompletionChunk {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: Timestamp::now().as_second(),
            choices,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            usage: self.include_usage.then_some(usage),
        }
    }

    fn answer(&self, text: String, finish_reason: Option<String>, usage: Usage) -> Response {
        let answer = Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: Timestamp::now().as_second(),
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            choices: vec![CompletionChoice { text, index: 0, finish_reason }],
            usage,
        };
        json_plain(StatusCode::OK, &answer)
    }

    /// The answer in one object.
    pub(crate) fn whole(&self, all: Collected) -> Response {
        let reason = all.done.as_ref().map(|done| done.reason.as_str().to_owned());
        self.answer(all.content, reason, all.done.as_deref().map(usage).unwrap_or_default())
    }

    /// The answer where nothing was to be generated.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        self.answer(String::new(), Some(reason.to_owned()), Usage::default())
    }
}

impl Encoder for CompletionEncoder {
    const WIRE: Wire = Wire::Sse;

    fn encode(&mut self, _: usize, event: Event, _: Times, out: &mut Vec<u8>) {
        match event {
            Event::Content(piece) if !piece.text.is_empty() => {
                let choice = CompletionChoice { text: piece.text, ..CompletionChoice::default() };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
            }
            Event::Done(done) => {
                let finish_reason = Some(done.reason.as_str().to_owned());
                let choice = CompletionChoice { finish_reason, ..CompletionChoice::default() };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
                if self.include_usage {
                    push_event(&self.chunk(Vec::new(), usage(&done)), out);
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Event::Error(failure) => push_event(&ErrorBody::new(failure.status, failure.message), out),
            // Thoughts have no place in this dialect.
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        self.answer(prompt, Some("load".into()), Usage::default())
    }
}
