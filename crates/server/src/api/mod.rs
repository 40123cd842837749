//! HTTP APIs of Ollama, OpenAI and Anthropic: their routes and dialects.
//!
//! - `ollama`, `openai` and `anthropic` have the routes and the dialect of one API each;
//! - `chat`, `completion`, `embeddings` and `rerank` have functions for routes of several APIs;
//! - `generation_request` is the result of reading a request of any dialect;
//! - `answer_events` orders the events of an answer, and `progress` reports progress before it.
//!
//! Each dialect converts its requests to the canonical request and its [`AnswerEncoder`] writes the
//! events of a generation as an answer. The routes call [`respond`] or [`respond_when`] for streams
//! and [`collect`] or [`collect_all`] for whole answers.

mod answer_events;
pub(crate) mod anthropic;
mod arguments;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embeddings;
pub(crate) mod generation_request;
pub(crate) mod image_urls;
mod images;
pub(crate) mod ollama;
pub(crate) mod openai;
#[cfg(test)]
mod order_tests;
mod paragraphs;
mod progress;
pub(crate) mod rerank;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::unfold;
use puna_api::ollama::{Logprob, Metrics, PromptLogprob, Think};
use puna_prompt::Renderer;
use puna_sampler::Constraint;
use puna_store::{GgufInfo, Model};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

pub(crate) use answer_events::{AnswerEvent, CollectedCall};
pub(crate) use arguments::{read_arguments, repaired_arguments, unparsed_arguments};
pub(crate) use images::{check_images, check_readable, hide_old_images, hide_unreadable_images};
pub(crate) use progress::respond_when;

pub(crate) use answer_events::EventSequencer;

use crate::app::RunningTask;
use crate::canonical::{ApiError, Event, GenerationSummary, PromptConfig};
use crate::config::Config;
use crate::http::{
    StreamFormat, record_adaptation, record_ignored_field, record_schema_violations,
    record_unenforced_keywords, stream,
};
use crate::models::names::Name;
use crate::util::lock::lock;

/// Writes the events of a generation as the bytes of a stream.
pub(crate) trait AnswerEncoder: Send + 'static {
    /// Format of the stream.
    const STREAM_FORMAT: StreamFormat;

    /// Bytes sent during silence, because some clients disconnect after a time without data.
    const PING: &'static [u8] = &[];

    /// Appends the ping that the server sends during silence.
    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::PING);
    }

    /// Appends the comment that the server sends before the answer begins. `phase` names the
    /// current step: waiting, loading the model or reading the prompt.
    fn announce_phase(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
    }

    /// Appends the bytes for one event of a generation. An event may add no bytes.
    ///
    /// `generation` is the index of the generation within the request, from 0. `times` are the
    /// durations of the request so far.
    fn encode(&mut self, generation: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>);

    /// Returns the whole answer to a request that only renders the prompt.
    fn rendered(&self, prompt: String) -> Response;

    /// Whether a failure before the first piece ends a stream with status 200.
    fn fails_in_stream(&self, _: &ApiError) -> bool {
        false
    }

    /// Returns the end of a stream that fails before the answer begins.
    fn encode_failure(&mut self, failure: ApiError) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(0, AnswerEvent::Error(failure), Times::default(), &mut out);
        out
    }
}

/// Duration of silence after which the server sends an [`AnswerEncoder::ping`].
const PING_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 15_000 });

/// Durations of a request in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) total: u64,
    pub(crate) load: u64,
}

impl Times {
    pub(crate) fn of(running: &RunningTask) -> Self {
        Self { total: nanos(running.total()), load: nanos(running.load_time()) }
    }
}

pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Appends a server-sent event with a name and JSON data.
pub(crate) fn push_named(name: &str, data: &impl Serialize, out: &mut Vec<u8>) {
    push_between(&format!("event: {name}\ndata: "), data, "\n\n", out);
}

/// Appends `head`, the JSON text of an object and `end`. If serialization fails, the function logs
/// the error and appends nothing.
pub(crate) fn push_between(head: &str, object: &impl Serialize, end: &str, out: &mut Vec<u8>) {
    let before = out.len();
    out.extend_from_slice(head.as_bytes());
    match serde_json::to_writer(&mut *out, object) {
        Ok(()) => out.extend_from_slice(end.as_bytes()),
        Err(error) => {
            tracing::error!(%error, "cannot encode a response chunk");
            out.truncate(before);
        }
    }
}

/// Returns the Go type name of a JSON value. Error messages use it for compatibility with Ollama.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A generation and its events in an order that every dialect can send.
struct AnswerStream {
    running: RunningTask,
    events: EventSequencer,
}

impl AnswerStream {
    fn new(running: RunningTask) -> Self {
        Self { running, events: EventSequencer::default() }
    }

    async fn next(&mut self) -> Option<AnswerEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        loop {
            if let Some(event) = self.events.pop() {
                return Poll::Ready(Some(event));
            }
            match ready!(self.running.poll_next(cx)) {
                Some(Event::Adapted(kinds)) => kinds.into_iter().for_each(record_adaptation),
                Some(Event::SchemaUnenforced(keywords)) => record_unenforced_keywords(keywords),
                Some(event) => self.events.push(event),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Merges the events of several generations of one request.
///
/// `futures_util::stream::select_all` wakes its task once more for each event, and this wakes
/// another thread. The merger polls all generations directly to avoid these wake-ups.
struct EventMerger {
    answers: Vec<AnswerStream>,
    /// Index of the generation to poll first: the one after the source of the last event.
    first: usize,
}

impl EventMerger {
    fn new(running: Vec<RunningTask>) -> Self {
        Self { answers: running.into_iter().map(AnswerStream::new).collect(), first: 0 }
    }

    /// Waits for the next event. Returns the index of its generation, the event and the durations
    /// so far, or `None` after all generations end.
    async fn next(&mut self) -> Option<(usize, AnswerEvent, Times)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, AnswerEvent, Times)>> {
        let count = self.answers.len();
        let mut ended = 0;
        for generation in (self.first..self.first + count).map(|at| at % count) {
            match self.answers[generation].poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    self.first = generation + 1;
                    return Poll::Ready(Some((
                        generation,
                        event,
                        Times::of(&self.answers[generation].running),
                    )));
                }
                Poll::Ready(None) => ended += 1,
                Poll::Pending => {}
            }
        }
        if ended == count { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// An encoder shared by the stream and the task that starts the answer.
type SharedEncoder<E> = Arc<Mutex<E>>;

/// Responds with a stream. An error before the first piece becomes a response with its own status.
pub(crate) async fn respond<E: AnswerEncoder>(
    running: Vec<RunningTask>,
    encoder: E,
) -> Result<Response, ApiError> {
    respond_with_shared(running, Arc::new(Mutex::new(encoder))).await
}

/// Responds as [`respond`] does, with an encoder that may already have sent bytes.
async fn respond_with_shared<E: AnswerEncoder>(
    running: Vec<RunningTask>,
    encoder: SharedEncoder<E>,
) -> Result<Response, ApiError> {
    let mut merger = EventMerger::new(running);
    let mut out = Vec::new();
    while out.is_empty() {
        match merger.next().await {
            None => break,
            Some((_, AnswerEvent::Error(failure), _)) => return Err(failure),
            Some((_, AnswerEvent::Rendered(prompt), _)) => {
                return Ok(lock(&encoder).rendered(prompt));
            }
            Some((generation, event, times)) => {
                lock(&encoder).encode(generation, event, times, &mut out)
            }
        }
    }
    let pieces = unfold(Some((merger, encoder, out)), |state| async {
        let (mut merger, encoder, mut out) = state?;
        let mut failed = false;
        // Most events during prompt processing send no bytes. The client needs pings then, too.
        let mut due = Instant::now() + PING_INTERVAL;
        while out.is_empty() {
            match timeout_at(due, merger.next()).await {
                Ok(None) => return None,
                Ok(Some((generation, event, times))) => {
                    failed = matches!(event, AnswerEvent::Error(_));
                    lock(&encoder).encode(generation, event, times, &mut out);
                }
                Err(_) => {
                    lock(&encoder).ping(&mut out);
                    due = Instant::now() + PING_INTERVAL;
                }
            }
        }
        let piece = Bytes::from(std::mem::take(&mut out));
        // The failure of one generation ends the whole stream.
        Some((Ok(piece), (!failed).then_some((merger, encoder, out))))
    });
    Ok(stream(E::STREAM_FORMAT, pieces))
}

/// All results of one generation.
#[derive(Debug, Default)]
pub(crate) struct CollectedResponse {
    pub(crate) thinking: String,
    pub(crate) content: String,
    pub(crate) tool_calls: Vec<CollectedCall>,
    pub(crate) prompt_logprobs: Vec<PromptLogprob>,
    pub(crate) logprobs: Vec<Logprob>,
    /// Number of entries at the start of `logprobs` that belong to thinking tokens.
    pub(crate) thought_tokens: usize,
    pub(crate) rendered: Option<String>,
    pub(crate) done: Option<Box<GenerationSummary>>,
    pub(crate) times: Times,
}

/// Waits for the end of a generation and collects its results.
///
/// # Errors
/// The generation fails.
pub(crate) async fn collect(running: RunningTask) -> Result<CollectedResponse, ApiError> {
    let (mut collected, mut answer, mut open_id) =
        (CollectedResponse::default(), AnswerStream::new(running), None);
    while let Some(event) = answer.next().await {
        match event {
            AnswerEvent::Thinking(piece) => {
                collected.thinking.push_str(&piece.text);
                collected.thought_tokens += piece.logprobs.len();
                collected.logprobs.extend(piece.logprobs);
            }
            AnswerEvent::Prompt(tokens) => collected.prompt_logprobs.extend(tokens),
            AnswerEvent::Content(piece) => {
                collected.content.push_str(&piece.text);
                collected.logprobs.extend(piece.logprobs);
            }
            AnswerEvent::CallStart { id, .. } => open_id = Some(id),
            AnswerEvent::CallEnd(call) => {
                collected
                    .tool_calls
                    .extend(open_id.take().map(|id| CollectedCall { id: id.into_string(), call }));
            }
            AnswerEvent::Rendered(prompt) => collected.rendered = Some(prompt),
            AnswerEvent::Done(done) => {
                record_schema_violations(done.schema_violations.clone().unwrap_or_default());
                collected.done = Some(done);
            }
            AnswerEvent::Error(failure) => return Err(failure),
            _ => {}
        }
    }
    collected.times = Times::of(&answer.running);
    Ok(collected)
}

/// Waits for the ends of several generations and returns their results in the same order. If one
/// generation fails, the function drops the others.
pub(crate) async fn collect_all(
    running: Vec<RunningTask>,
) -> Result<Vec<CollectedResponse>, ApiError> {
    try_join_all(running.into_iter().map(collect)).await
}

/// Returns the durations and token counts of a finished generation.
pub(crate) fn metrics(done: &GenerationSummary, times: Times) -> Metrics {
    Metrics {
        total_duration: times.total,
        load_duration: times.load,
        prompt_eval_count: done.prompt_tokens,
        prompt_eval_cached_count: done.cached_tokens,
        prompt_eval_duration: nanos(done.prefill),
        eval_count: done.generated_tokens,
        eval_duration: nanos(done.decode),
        ngram_draft_count: done.draft_counts.ngram,
        ngram_accepted_count: done.draft_counts.ngram_accepted,
        model_draft_count: done.draft_counts.model,
        model_accepted_count: done.draft_counts.model_accepted,
        truncated_messages: done.dropped_messages,
        truncated_tokens: done.dropped_tokens,
    }
}

/// Returns the prompt settings from a model's manifest.
pub(crate) fn model_text(model: &Model, config: &Config) -> PromptConfig {
    let messages =
        model.messages.iter().filter_map(|m| serde_json::from_value(m.clone()).ok()).collect();
    let renderer = model.config.renderer.as_str();
    let size = model.details().parameter_size;
    PromptConfig {
        name: model.name.to_string().to_lowercase(),
        renderer: (!renderer.is_empty())
            .then(|| Renderer::resolve(renderer, &model.name.to_string(), &size).to_owned()),
        template: model.template.clone(),
        go_template: config.go_template,
        system: model.system.clone(),
        messages,
        parser: Some(model.config.parser.clone()).filter(|parser| !parser.is_empty()),
        thinking: has(model, "thinking"),
        strip_thoughts: model.gguf_info.architecture == "qwen3"
            || model.name.model() == "deepseek-r1",
    }
}

/// Whether a model has a capability.
pub(crate) fn has(model: &Model, capability: &str) -> bool {
    model.capabilities().iter().any(|c| c == capability)
}

/// Rejects a model that cannot generate text. `verb` names the requested operation in the error
/// message.
pub(crate) fn check_completion(model: &Model, name: &Name, verb: &str) -> Result<(), ApiError> {
    if has(model, "completion") {
        return Ok(());
    }
    let info = &model.gguf_info;
    let does = match info.pooling {
        Some(GgufInfo::RANK_POOLING) => ": it is a reranker, use POST /api/rerank".to_owned(),
        _ if info.is_draft() => format!(
            ": `{}` is a draft model, use it with --speculate, draft_model, or DRAFT in a Modelfile",
            info.architecture
        ),
        _ if info.is_audio() => {
            let architecture = &info.architecture;
            format!(": `{architecture}` is an audio model, its output is not text")
        }
        _ => String::new(),
    };
    Err(ApiError::bad_request(format!("{:?} does not support {verb}{does}", name.requested)))
}

/// Rejects a request for thinking if the model does not support it.
pub(crate) fn check_think(
    model: &Model,
    name: &Name,
    think: Option<Think>,
) -> Result<(), ApiError> {
    if has(model, "thinking") || matches!(think, None | Some(Think::Off)) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("{:?} does not support thinking", name.requested)))
}

/// Rejects a request that needs a capability the model lacks. The error message has the model's
/// full name.
pub(crate) fn check_capability(
    model: &Model,
    wanted: bool,
    capability: &str,
) -> Result<(), ApiError> {
    if !wanted || has(model, capability) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("{} does not support {capability}", model.name.full())))
}

/// Returns the number of alternatives to report with each token. `None` disables log-probabilities.
/// As in Ollama, `top` has no effect unless `wanted` is set; the answer then lists `top_logprobs`
/// as an ignored field.
///
/// # Errors
/// `top` is outside 0..=20.
pub(crate) fn logprobs(wanted: bool, top: i64) -> Result<Option<usize>, ApiError> {
    match usize::try_from(top) {
        Ok(top @ 0..=20) => {
            if top > 0 && !wanted {
                record_ignored_field("top_logprobs".into());
            }
            Ok(wanted.then_some(top))
        }
        _ => Err(ApiError::bad_request("top_logprobs must be between 0 and 20")),
    }
}

/// Returns the number of alternatives to report with each prompt token. `None` disables
/// log-probabilities.
///
/// # Errors
/// The number is outside 0..=20.
pub(crate) fn prompt_logprobs(wanted: Option<i64>) -> Result<Option<usize>, ApiError> {
    match wanted.map(usize::try_from) {
        None => Ok(None),
        Some(Ok(top @ 0..=20)) => Ok(Some(top)),
        Some(_) => Err(ApiError::bad_request("prompt_logprobs must be between 0 and 20")),
    }
}

/// Returns the constraint for the field `format`. The field is `"json"`, a JSON Schema, `{"type":
/// "regex", "pattern": …}`, or `{"type": "gbnf" or "lark", "grammar": …}`. The three types do not
/// exist in JSON Schema, so the cases are distinct.
pub(crate) fn format(value: Option<&Value>) -> Result<Option<Constraint>, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Constraint::Json)),
        Some(Value::Object(map)) => match map.get("type").and_then(Value::as_str) {
            Some(kind @ ("regex" | "gbnf" | "lark")) => {
                let text = |field: &str| map.get(field).and_then(Value::as_str).map(str::to_owned);
                grammar_format(kind, text("pattern"), text("grammar")).map(Some)
            }
            _ => Ok(Some(Constraint::schema(Value::Object(map.clone())))),
        },
        Some(other) => {
            let shown = other.to_string();
            let text = format!(
                "invalid format: {shown:?}; expected \"json\" or a valid JSON Schema object"
            );
            Err(ApiError::bad_request(text))
        }
    }
}

/// Returns the constraint for a format of the type `regex`, `gbnf` or `lark`.
///
/// # Errors
/// The field with the pattern or grammar is missing.
pub(crate) fn grammar_format(
    kind: &str,
    pattern: Option<String>,
    grammar: Option<String>,
) -> Result<Constraint, ApiError> {
    let (field, text, make): (_, _, fn(String) -> Constraint) = match kind {
        "regex" => ("pattern", pattern, Constraint::Regex),
        "gbnf" => ("grammar", grammar, Constraint::Gbnf),
        _ => ("grammar", grammar, Constraint::Lark),
    };
    let missing =
        || ApiError::bad_request(format!("invalid format: type {kind} needs the field {field}"));
    text.map(make).ok_or_else(missing)
}

/// Formats a time for responses (RFC 3339).
pub(crate) fn rfc3339(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX).to_string()
}
