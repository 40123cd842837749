//! The dialects: requests to canonical ones, events to answers.

mod answer_events;
pub(crate) mod anthropic;
mod arguments;
mod images;
pub(crate) mod native;
pub(crate) mod openai;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests;
mod waiting;

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::unfold;
use puna_api::native::{Logprob, Metrics, PromptLogprob, Think};
use puna_prompt::Renderer;
use puna_sampler::Constraint;
use puna_store::{Facts, Model};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

pub(crate) use answer_events::{AnswerEvent, CollectedCall};
pub(crate) use arguments::{read_arguments, repaired_arguments, unparsed_arguments};
pub(crate) use images::{check_images, check_readable, hide_old_images, hide_unreadable_images};
pub(crate) use waiting::respond_when;

use answer_events::AnswerEvents;

use crate::app::RunningTask;
use crate::canonical::{ApiError, Event, GenerationSummary, PromptConfig};
use crate::config::Config;
use crate::http::{
    StreamFormat, note_adapted, note_ignored, note_unenforced, note_violations, stream,
};
use crate::lock::lock;
use crate::model_names::Name;

/// Turns events into the bytes of a stream.
pub(crate) trait Encoder: Send + 'static {
    /// Form of the stream.
    const WIRE: StreamFormat;

    /// What is sent while nothing happens, for clients that give up on silence.
    const PING: &'static [u8] = &[];

    /// Appends what is sent while nothing happens.
    fn ping(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::PING);
    }

    /// Appends what is sent while the answer has not begun: `phase` says what it waits for.
    fn wait(&mut self, phase: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(format!(": {phase}\n\n").as_bytes());
    }

    /// Appends what an event of a generation comes to; nothing is fine. `from` is the generation's number, 0 where there
    /// is but one; `times` are the request's so far.
    fn encode(&mut self, from: usize, event: AnswerEvent, times: Times, out: &mut Vec<u8>);

    /// The whole answer, where only the rendered prompt was asked for.
    fn rendered(&self, prompt: String) -> Response;

    /// Whether a stream that fails before anything else is answered with status 200, and the failure in the stream.
    fn fails_in_stream(&self, _: &ApiError) -> bool {
        false
    }

    /// The end of a stream that fails before the answer begins.
    fn broken(&mut self, failure: ApiError) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(0, AnswerEvent::Error(failure), Times::default(), &mut out);
        out
    }
}

/// Silence after which a [`Encoder::PING`] is sent.
const SILENCE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 15_000 });

/// Times of a request in nanoseconds.
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

/// Appends a server-sent event with a name.
pub(crate) fn push_named(name: &str, data: &impl Serialize, out: &mut Vec<u8>) {
    push_between(&format!("event: {name}\ndata: "), data, "\n\n", out);
}

/// Appends an object between two texts; nothing where it cannot be written.
pub(crate) fn push_between(head: &str, object: &impl Serialize, end: &str, out: &mut Vec<u8>) {
    let before = out.len();
    out.extend_from_slice(head.as_bytes());
    match serde_json::to_writer(&mut *out, object) {
        Ok(()) => out.extend_from_slice(end.as_bytes()),
        Err(error) => {
            tracing::error!(%error, "a piece of an answer could not be written");
            out.truncate(before);
        }
    }
}

/// The kind of a JSON value, as the original names it.
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

/// A generation, and its events in the order in which they can be sent.
struct Answer {
    running: RunningTask,
    events: AnswerEvents,
}

impl Answer {
    fn new(running: RunningTask) -> Self {
        Self { running, events: AnswerEvents::default() }
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
                Some(Event::Adapted(kinds)) => kinds.into_iter().for_each(note_adapted),
                Some(Event::SchemaUnenforced(keywords)) => note_unenforced(keywords),
                Some(event) => self.events.push(event),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Generations of one request side by side. Hand-made since `select_all` wakes its task once more for every event, and so
/// another thread.
struct Several {
    running: Vec<Answer>,
    /// Who is asked first: the one after the last that said something.
    first: usize,
}

impl Several {
    fn new(running: Vec<RunningTask>) -> Self {
        Self { running: running.into_iter().map(Answer::new).collect(), first: 0 }
    }

    /// The next event and whose it is; `None` when all have ended.
    async fn next(&mut self) -> Option<(usize, AnswerEvent, Times)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, AnswerEvent, Times)>> {
        let count = self.running.len();
        let mut ended = 0;
        for from in (self.first..self.first + count).map(|at| at % count) {
            match self.running[from].poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    self.first = from + 1;
                    return Poll::Ready(Some((
                        from,
                        event,
                        Times::of(&self.running[from].running),
                    )));
                }
                Poll::Ready(None) => ended += 1,
                Poll::Pending => {}
            }
        }
        if ended == count { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// An encoder that a stream has while its answer begins.
type SharedEncoder<E> = Arc<Mutex<E>>;

/// Answers with a stream. What fails before the first piece is an error with its own status.
pub(crate) async fn respond<E: Encoder>(
    running: Vec<RunningTask>,
    encoder: E,
) -> Result<Response, ApiError> {
    begin(running, Arc::new(Mutex::new(encoder))).await
}

/// The same, with an encoder that may have sent something before.
async fn begin<E: Encoder>(
    running: Vec<RunningTask>,
    encoder: SharedEncoder<E>,
) -> Result<Response, ApiError> {
    let mut several = Several::new(running);
    let mut out = Vec::new();
    while out.is_empty() {
        match several.next().await {
            None => break,
            Some((_, AnswerEvent::Error(failure), _)) => return Err(failure),
            Some((_, AnswerEvent::Rendered(prompt), _)) => {
                return Ok(lock(&encoder).rendered(prompt));
            }
            Some((from, event, times)) => lock(&encoder).encode(from, event, times, &mut out),
        }
    }
    let pieces = unfold(Some((several, encoder, out)), |state| async {
        let (mut several, encoder, mut out) = state?;
        let mut failed = false;
        // The client hears nothing of most events while its prompt is read: they are silence, too.
        let mut due = Instant::now() + SILENCE;
        while out.is_empty() {
            match timeout_at(due, several.next()).await {
                Ok(None) => return None,
                Ok(Some((from, event, times))) => {
                    failed = matches!(event, AnswerEvent::Error(_));
                    lock(&encoder).encode(from, event, times, &mut out);
                }
                Err(_) => {
                    lock(&encoder).ping(&mut out);
                    due = Instant::now() + SILENCE;
                }
            }
        }
        let piece = Bytes::from(std::mem::take(&mut out));
        // One that fails ends them all.
        Some((Ok(piece), (!failed).then_some((several, encoder, out))))
    });
    Ok(stream(E::WIRE, pieces))
}

/// Everything that a request reported.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) thinking: String,
    pub(crate) content: String,
    pub(crate) tool_calls: Vec<CollectedCall>,
    pub(crate) prompt_logprobs: Vec<PromptLogprob>,
    pub(crate) logprobs: Vec<Logprob>,
    /// How many of the log-probabilities, at their head, are of thoughts.
    pub(crate) thought_tokens: usize,
    pub(crate) rendered: Option<String>,
    pub(crate) done: Option<Box<GenerationSummary>>,
    pub(crate) times: Times,
}

/// Waits for the end.
pub(crate) async fn collect(running: RunningTask) -> Result<Collected, ApiError> {
    let (mut all, mut answer, mut open) = (Collected::default(), Answer::new(running), None);
    while let Some(event) = answer.next().await {
        match event {
            AnswerEvent::Thinking(piece) => {
                all.thinking.push_str(&piece.text);
                all.thought_tokens += piece.logprobs.len();
                all.logprobs.extend(piece.logprobs);
            }
            AnswerEvent::Prompt(tokens) => all.prompt_logprobs.extend(tokens),
            AnswerEvent::Content(piece) => {
                all.content.push_str(&piece.text);
                all.logprobs.extend(piece.logprobs);
            }
            AnswerEvent::CallStart { id, .. } => open = Some(id),
            AnswerEvent::CallEnd(call) => {
                all.tool_calls
                    .extend(open.take().map(|id| CollectedCall { id: id.into_string(), call }));
            }
            AnswerEvent::Rendered(prompt) => all.rendered = Some(prompt),
            AnswerEvent::Done(done) => {
                note_violations(done.schema_violations.clone().unwrap_or_default());
                all.done = Some(done);
            }
            AnswerEvent::Error(failure) => return Err(failure),
            _ => {}
        }
    }
    all.times = Times::of(&answer.running);
    Ok(all)
}

/// Waits for the ends of several generations, in their order; one that fails ends them all.
pub(crate) async fn collect_all(running: Vec<RunningTask>) -> Result<Vec<Collected>, ApiError> {
    try_join_all(running.into_iter().map(collect)).await
}

/// The figures of a finished generation.
pub(crate) fn metrics(done: &GenerationSummary, times: Times) -> Metrics {
    Metrics {
        total_duration: times.total,
        load_duration: times.load,
        prompt_eval_count: done.prompt_tokens,
        prompt_eval_cached_count: done.cached_tokens,
        prompt_eval_duration: nanos(done.prefill),
        eval_count: done.generated_tokens,
        eval_duration: nanos(done.decode),
        ngram_draft_count: done.guesses.ngram,
        ngram_accepted_count: done.guesses.ngram_accepted,
        model_draft_count: done.guesses.model,
        model_accepted_count: done.guesses.model_accepted,
        truncated_messages: done.dropped_messages,
        truncated_tokens: done.dropped_tokens,
    }
}

/// What a model's manifest says about prompts.
pub(crate) fn model_text(model: &Model, config: &Config) -> PromptConfig {
    let messages =
        model.messages.iter().filter_map(|m| serde_json::from_value(m.clone()).ok()).collect();
    let renderer = model.config.renderer.as_str();
    let size = model.details().parameter_size;
    PromptConfig {
        renderer: (!renderer.is_empty())
            .then(|| Renderer::resolve(renderer, &model.name.to_string(), &size).to_owned()),
        template: model.template.clone(),
        go_template: config.go_template,
        system: model.system.clone(),
        messages,
        parser: Some(model.config.parser.clone()).filter(|parser| !parser.is_empty()),
        thinking: has(model, "thinking"),
        strip_thoughts: model.facts.architecture == "qwen3" || model.name.model() == "deepseek-r1",
    }
}

/// Whether a model can do something.
pub(crate) fn has(model: &Model, capability: &str) -> bool {
    model.capabilities().iter().any(|c| c == capability)
}

/// Refuses a model that cannot generate text; `verb` is what was wanted.
pub(crate) fn check_completion(model: &Model, name: &Name, verb: &str) -> Result<(), ApiError> {
    if has(model, "completion") {
        return Ok(());
    }
    let facts = &model.facts;
    let does = match facts.pooling {
        Some(Facts::RANK_POOLING) => "; it ranks texts: POST /api/rerank".to_owned(),
        _ if facts.is_draft() => format!(
            "; `{}` is a draft model, which guesses ahead for another: name it with --speculate or draft_model, or as DRAFT in \
             the other's Modelfile",
            facts.architecture
        ),
        _ if facts.is_audio() => {
            let architecture = &facts.architecture;
            format!(
                "; `{architecture}` is a model of sound: what it makes is for a vocoder, and no text"
            )
        }
        _ => String::new(),
    };
    Err(ApiError::bad_request(format!("{:?} does not support {verb}{does}", name.given)))
}

/// Refuses a wish to think where the model cannot.
pub(crate) fn check_think(
    model: &Model,
    name: &Name,
    think: Option<Think>,
) -> Result<(), ApiError> {
    if has(model, "thinking") || matches!(think, None | Some(Think::Off)) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("{:?} does not support thinking", name.given)))
}

/// Refuses what needs a capability that the model lacks, by the model's full name.
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

/// How many alternatives to report with each token, if any. Without `logprobs` there are none, as Ollama has it.
pub(crate) fn logprobs(wanted: bool, top: i64) -> Result<Option<usize>, ApiError> {
    match usize::try_from(top) {
        Ok(top @ 0..=20) => {
            if top > 0 && !wanted {
                note_ignored("top_logprobs".into());
            }
            Ok(wanted.then_some(top))
        }
        _ => Err(ApiError::bad_request("top_logprobs must be between 0 and 20")),
    }
}

/// How many alternatives to report with each token of the prompt, if any.
pub(crate) fn prompt_logprobs(wanted: Option<i64>) -> Result<Option<usize>, ApiError> {
    match wanted.map(usize::try_from) {
        None => Ok(None),
        Some(Ok(top @ 0..=20)) => Ok(Some(top)),
        Some(_) => Err(ApiError::bad_request("prompt_logprobs must be between 0 and 20")),
    }
}

/// The form of the answer that `format` asks for: `"json"`, a JSON Schema, or one of
/// `{"type": "regex", "pattern": …}`, `{"type": "gbnf" or "lark", "grammar": …}`, which no schema can be.
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

/// The constraint of a form of the type `regex`, `gbnf` or `lark`.
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
        || ApiError::bad_request(format!("invalid format: type {kind} needs the text in {field}"));
    text.map(make).ok_or_else(missing)
}
