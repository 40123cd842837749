//! Turns the engine's reports about a generation into events: separates reasoning, answer and tool
//! calls, and sends the summary at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_api::json::MAX_DEPTH;
use puna_api::native::{Logprob, PromptLogprob, PromptTopLogprob, TopLogprob};
use puna_engine::{
    Event as EngineEvent, Finish, Piece as EnginePiece, PromptToken, Sink, Stage, Summary,
};
use puna_prompt::{FunctionCall, OutputParser, OutputPart, OutputStage};
use puna_sampler::TokenLogprobs;
use serde_json::{Value, json};

use super::generator::Generator;
use super::protocol::CALLS_MAX;
use super::schema_check::AnswerChecks;
use super::task_handle::Handle;
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};
use crate::random_ids;
use crate::speculate::DraftCounts;

/// Number of repetitions of one token's text after which the answer ends: a model that repeats it
/// more often does not stop.
const MAX_REPEATED_PIECES: u32 = 30;

/// Number of tokens that the debug log shows on either side of the end of a cached prefix.
const CACHE_MISS_CONTEXT_TOKENS: usize = 16;

/// Minimum time between two progress reports of a prompt.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Sink of a generation: receives the engine's events and sends the answer's events.
pub(super) struct AnswerSink {
    handle: Handle,
    generator: Arc<dyn Generator>,
    parser: Option<OutputParser>,
    /// Whether the answer has a constraint.
    has_constraint: bool,
    /// Number of complete calls.
    calls: usize,
    /// Number of calls started, including incomplete ones.
    started_calls: usize,
    /// Index of the call that has started and is not complete.
    open_call: Option<usize>,
    /// Whether a limit or a stop string has ended the answer.
    is_cut_off: bool,
    /// Maximum number of calls; the answer ends after them.
    calls_max: usize,
    /// Complete calls of a forced tool call; the answer ends when one of them is repeated.
    forced_calls: Vec<FunctionCall>,
    /// Whether a forced call was repeated.
    has_repeated_call: bool,
    stop: Vec<String>,
    /// Whether stop strings apply to the answer only, not to the reasoning.
    stops_in_answer: bool,
    /// Whether the answer has text that is not blank.
    has_answered: bool,
    /// Text that starts the forced tool call.
    forced_prefix: Option<String>,
    /// Whether the constrained part of the answer has begun.
    has_begun: bool,
    /// Maximum number of reasoning tokens.
    think_budget: Option<u64>,
    /// Whether the sink is forcing the end of the reasoning.
    is_closing_thought: bool,
    /// Whether the log says that the end of the reasoning is unknown.
    has_warned_endless: bool,
    /// Checks of the finished answer against its schemas.
    checks: Option<AnswerChecks>,
    dropped_messages: u64,
    cut_tokens: u64,
    /// Text of the last piece, and how often it was repeated in a row.
    last_piece: String,
    repeated_pieces: u32,
    /// Whether the last piece was repeated too often.
    is_repeating: bool,
    /// Number of reasoning tokens, including the tags around them.
    thought_tokens: u64,
    /// Whether a piece of the answer has arrived.
    has_sent_piece: bool,
    last_progress: Instant,
}

impl AnswerSink {
    pub(super) fn new(
        handle: Handle,
        generator: Arc<dyn Generator>,
        parser: Option<OutputParser>,
    ) -> Self {
        Self {
            handle,
            generator,
            parser,
            has_constraint: false,
            calls: 0,
            started_calls: 0,
            calls_max: usize::MAX,
            forced_calls: Vec::new(),
            has_repeated_call: false,
            open_call: None,
            is_cut_off: false,
            stop: Vec::new(),
            stops_in_answer: false,
            has_answered: false,
            forced_prefix: None,
            has_begun: false,
            think_budget: None,
            is_closing_thought: false,
            has_warned_endless: false,
            checks: None,
            dropped_messages: 0,
            cut_tokens: 0,
            last_piece: String::new(),
            repeated_pieces: 0,
            is_repeating: false,
            thought_tokens: 0,
            has_sent_piece: false,
            last_progress: Instant::now(),
        }
    }

    /// Sets the text that starts the forced tool call.
    pub(super) fn with_forced_prefix(mut self, prefix: Option<String>) -> Self {
        self.forced_prefix = prefix;
        self
    }

    /// Sets the number of calls after which the answer ends.
    pub(super) fn with_calls_max(mut self, calls_max: usize) -> Self {
        self.calls_max = calls_max;
        self
    }

    /// Whether all calls are complete. Later text is dropped.
    fn has_called(&self) -> bool {
        self.has_repeated_call || self.calls >= self.calls_max
    }

    /// Whether the start of a call is held back until the call is complete, because the call may be
    /// a repetition.
    fn holds_call_start(&self) -> bool {
        self.forced_prefix.is_some() && self.calls > 0
    }

    /// Whether a forced answer already has this call. A model that is forced to call repeats its
    /// calls as long as the grammar allows.
    fn repeats_call(&mut self, call: &FunctionCall) -> bool {
        if self.forced_prefix.is_none() {
            return false;
        }
        let is_same = |earlier: &FunctionCall| {
            earlier.name == call.name && earlier.arguments == call.arguments
        };
        self.has_repeated_call = self.forced_calls.iter().any(is_same);
        if !self.has_repeated_call {
            self.forced_calls.push(call.clone());
        }
        self.has_repeated_call
    }

    /// Sets the maximum number of reasoning tokens.
    pub(super) fn with_think_budget(mut self, budget: Option<u64>) -> Self {
        self.think_budget = budget;
        self
    }

    /// Sets the checks of the finished answer.
    pub(super) fn with_checks(mut self, checks: Option<AnswerChecks>) -> Self {
        self.checks = checks;
        self
    }

    /// Sets the number of messages and tokens that were left out of the prompt.
    pub(super) fn with_dropped(mut self, messages: usize, tokens: usize) -> Self {
        self.dropped_messages = messages as u64;
        self.cut_tokens = tokens as u64;
        self
    }

    /// Sets whether the answer has a constraint.
    pub(super) fn with_constraint(mut self, has_constraint: bool) -> Self {
        self.has_constraint = has_constraint;
        self
    }

    /// Sets the stop strings in the order of the engine's request, and whether the client's request
    /// named them.
    pub(super) fn with_stop(mut self, stop: &[String], is_of_request: bool) -> Self {
        (self.stop, self.stops_in_answer) = (stop.to_vec(), is_of_request);
        self
    }

    /// Handles a piece of text. Returns `false` if the task was cancelled.
    fn handle_piece(&mut self, piece: EnginePiece) -> bool {
        if self.has_called() {
            return !self.handle.state.is_cancelled();
        }
        let logprobs =
            piece.logprobs.map(|l| vec![self.logprob(piece.token, &l)]).unwrap_or_default();
        self.is_repeating = !self.has_begun && self.repeats_itself(&piece.text);
        self.send_text(piece.text, logprobs)
    }

    /// Splits a text into reasoning, answer and calls, and sends them.
    fn send_text(&mut self, text: String, logprobs: Vec<Logprob>) -> bool {
        let is_verbatim = self.is_verbatim();
        let parts = match &mut self.parser {
            Some(parser) if !is_verbatim => {
                let before = parser.is_thinking();
                let parts = parser.push(&text);
                self.thought_tokens += u64::from(before || parser.is_thinking());
                parts
            }
            _ => vec![OutputPart::Content(text)],
        };
        self.send_parts(parts, logprobs)
    }

    fn is_thinking(&self) -> bool {
        self.parser.as_ref().is_some_and(OutputParser::is_thinking)
    }

    /// Whether the answer is exactly the text that its grammar allows, so that it holds no tags.
    fn is_verbatim(&self) -> bool {
        self.has_begun && self.forced_prefix.is_none()
    }

    /// Sends the parsed parts of a text. The token's log-probabilities accompany the first part
    /// that is text, or an empty text.
    fn send_parts(&mut self, parts: Vec<OutputPart>, mut logprobs: Vec<Logprob>) -> bool {
        let mut texts: Vec<(bool, String)> = Vec::new();
        let mut is_open = !self.handle.state.is_cancelled();
        for part in parts {
            if self.has_called() {
                continue;
            }
            let open = match part {
                OutputPart::CallStart(_) | OutputPart::CallArguments(_) => None,
                _ => self.open_call.take(),
            };
            if let Some(index) = open.filter(|_| !matches!(part, OutputPart::Call(_))) {
                let outcome =
                    if self.is_cut_off { CallOutcome::CutOff } else { CallOutcome::Invalid(None) };
                is_open = self.handle.send(Event::CallEnd { index, outcome });
            }
            let (is_thought, text) = match part {
                OutputPart::Thinking(text) => (true, text),
                OutputPart::Content(text) => (false, text),
                OutputPart::CallStart(_) if self.holds_call_start() => continue,
                OutputPart::CallStart(name) => {
                    is_open = self.send_texts(&mut texts, &mut logprobs);
                    is_open &= self.begin_call(name);
                    continue;
                }
                OutputPart::CallArguments(text) => {
                    if let Some(index) = self.open_call {
                        is_open &= self.handle.send(Event::CallArguments { index, text });
                    }
                    continue;
                }
                OutputPart::Call(call) if self.repeats_call(&call) => continue,
                OutputPart::Call(call)
                    if (open.is_some() || self.started_calls < CALLS_MAX) && is_shallow(&call) =>
                {
                    self.calls += 1;
                    is_open = self.send_texts(&mut texts, &mut logprobs);
                    let name = call.name;
                    if open.is_none() {
                        is_open &= self.begin_call(name.clone());
                    }
                    let index = open.or_else(|| self.open_call.take()).unwrap_or_default();
                    if let Some(checks) = &mut self.checks {
                        checks.push_call(&name, &call.arguments);
                    }
                    let outcome = CallOutcome::Complete(call.arguments);
                    is_open &= self.handle.send(Event::CallEnd { index, outcome });
                    continue;
                }
                OutputPart::Call(_) if open.is_some() => {
                    let (index, outcome) = (open.unwrap_or_default(), CallOutcome::Invalid(None));
                    is_open &= self.handle.send(Event::CallEnd { index, outcome });
                    continue;
                }
                OutputPart::Call(call) => {
                    (false, json!({"name": call.name, "arguments": call.arguments}).to_string())
                }
                // The client already has the start of the call and must not receive it again as
                // text, or the sink has held back the call.
                OutputPart::Malformed { error, .. }
                    if open.is_some() || self.holds_call_start() =>
                {
                    tracing::warn!(task = self.handle.id, %error, "incomplete tool call");
                    continue;
                }
                OutputPart::Malformed { text, error } => {
                    tracing::warn!(task = self.handle.id, %error, "cannot read a tool call; its text is passed on");
                    // A constrained answer starts with nothing else, so the text before it is
                    // reasoning. A forced tool call always has a constraint.
                    (self.has_constraint && self.forced_prefix.is_none(), text)
                }
            };
            match texts.last_mut() {
                Some((same, last_piece)) if *same == is_thought => last_piece.push_str(&text),
                _ => texts.push((is_thought, text)),
            }
        }
        if texts.is_empty() && !logprobs.is_empty() {
            texts.push((self.is_thinking(), String::new()));
        }
        if texts.is_empty() { is_open } else { self.send_texts(&mut texts, &mut logprobs) }
    }

    /// Sends the start of a call, unless the answer has too many.
    fn begin_call(&mut self, name: String) -> bool {
        if self.started_calls >= CALLS_MAX {
            return true;
        }
        let index = self.started_calls;
        self.started_calls += 1;
        self.open_call = Some(index);
        self.handle.send(Event::CallStart { index, id: random_ids::tool_call(), name })
    }

    /// Sends collected texts; the flag of each says whether it is reasoning.
    fn send_texts(&mut self, texts: &mut Vec<(bool, String)>, logprobs: &mut Vec<Logprob>) -> bool {
        let mut is_open = !self.handle.state.is_cancelled();
        for (is_thought, text) in texts.drain(..) {
            if text.is_empty() && logprobs.is_empty() {
                continue;
            }
            self.has_answered |= !is_thought && !text.trim().is_empty();
            if let Some(checks) = self.checks.as_mut().filter(|_| !is_thought) {
                checks.push_text(&text);
            }
            let piece = Piece { text, logprobs: std::mem::take(logprobs) };
            is_open = self.handle.send(if is_thought {
                Event::Thinking(piece)
            } else {
                Event::Content(piece)
            });
        }
        is_open
    }

    /// Sends the text that the parser held back as a possible start of a tag.
    fn flush(&mut self, finish: &Finish) {
        if self.is_verbatim() {
            return;
        }
        if let Some(parser) = &mut self.parser {
            self.is_cut_off = *finish != Finish::End;
            let parts = if self.is_cut_off { parser.finish_truncated() } else { parser.finish() };
            self.send_parts(parts, Vec::new());
        }
    }

    /// Counts repetitions; returns whether there are too many.
    fn repeats_itself(&mut self, text: &str) -> bool {
        let text = text.trim();
        self.repeated_pieces = if text == self.last_piece { self.repeated_pieces + 1 } else { 0 };
        if self.repeated_pieces == 0 {
            text.clone_into(&mut self.last_piece);
        }
        self.repeated_pieces > MAX_REPEATED_PIECES
    }

    fn logprob(&self, token: u32, logprobs: &TokenLogprobs) -> Logprob {
        let text = |token| {
            let bytes = self.generator.token_bytes(token);
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let top = |(token, logprob): &(u32, f32)| {
            let (token, bytes) = text(*token);
            TopLogprob { token, logprob: *logprob, bytes }
        };
        let top_logprobs = logprobs.top.iter().map(top).collect();
        let (token, bytes) = text(token);
        Logprob { token, logprob: logprobs.logprob, bytes, top_logprobs }
    }

    fn prompt_logprob(&self, prompt_token: &PromptToken) -> PromptLogprob {
        let text = |token| String::from_utf8_lossy(&self.generator.token_bytes(token)).into_owned();
        let top = prompt_token.logprobs.iter().flat_map(|logprobs| &logprobs.top);
        let top = top.map(|&(id, logprob)| PromptTopLogprob { token: text(id), id, logprob });
        PromptLogprob {
            token: text(prompt_token.token),
            id: prompt_token.token,
            logprob: prompt_token.logprobs.as_ref().map(|logprobs| logprobs.logprob),
            rank: prompt_token.rank,
            bytes: self.generator.token_bytes(prompt_token.token),
            top_logprobs: top.collect(),
        }
    }

    /// Logs where the cached prefix of the prompt ended, which helps users find what changes at the
    /// start of their prompts. Prompts are private, so only the debug log shows their text.
    fn log_cache_miss(&self, summary: &Summary) {
        let (at, prompt) = (summary.cached_tokens, summary.prompt_tokens);
        let is_known = summary.shifted_tokens == 0 && at < prompt && prompt <= summary.tokens.len();
        if !is_known || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let before = self
            .generator
            .decode(&summary.tokens[at.saturating_sub(CACHE_MISS_CONTEXT_TOKENS)..at]);
        let behind =
            self.generator.decode(&summary.tokens[at..prompt.min(at + CACHE_MISS_CONTEXT_TOKENS)]);
        let task = self.handle.id;
        tracing::debug!(task, cache_miss_at = at, prompt, %before, %behind, "prompt differs from the prefix cache");
    }

    /// Sends the end of the answer. Checks run on their own thread, because they may take as long
    /// as several engine steps.
    fn send_done(&mut self, mut done: GenerationSummary) -> bool {
        let Some(checks) = self.checks.take() else {
            return self.handle.send(Event::Done(Box::new(done)));
        };
        let handle = self.handle.clone();
        let check = move || {
            done.schema_violations = Some(checks.violations());
            handle.send(Event::Done(Box::new(done)))
        };
        let thread = std::thread::Builder::new().name("schema check".into()).spawn(check);
        if let Err(error) = &thread {
            let message = format!("cannot check the answer: cannot start a thread: {error}");
            return self.handle.send(Event::Error(ApiError::internal(message)));
        }
        !self.handle.state.is_cancelled()
    }

    fn generation_summary(&self, summary: Summary) -> GenerationSummary {
        GenerationSummary {
            reason: match summary.finish {
                Finish::End | Finish::Stop(_) => FinishReason::Stop,
                Finish::Length => FinishReason::Length,
            },
            stop: match summary.finish {
                Finish::Stop(index) => self.stop.get(index).cloned(),
                Finish::End | Finish::Length => None,
            },
            has_usage: true,
            prompt_tokens: summary.prompt_tokens as u64,
            cached_tokens: summary.cached_tokens as u64,
            prefill: summary.prefill,
            generated_tokens: summary.generated_tokens as u64,
            thought_tokens: self.thought_tokens,
            decode: summary.decode,
            guesses: summary.speculated.into(),
            dropped_messages: self.dropped_messages,
            dropped_tokens: self.cut_tokens + summary.shifted_tokens as u64,
            context: self.without_bos(summary.tokens),
            schema_violations: None,
        }
    }

    fn without_bos(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if tokens.first().is_some_and(|token| self.generator.is_bos(*token)) {
            tokens.remove(0);
        }
        tokens
    }
}

/// Whether a forced tool call with this start ends the reasoning itself.
pub(super) fn starts_with_reasoning_end(prefix: &str, thought_end: &str) -> bool {
    let end = thought_end.trim();
    !end.is_empty() && prefix.trim_start().starts_with(end)
}

/// Whether the nesting depth of a call's arguments is below the limit for requests, so that they
/// can be sent.
fn is_shallow(call: &FunctionCall) -> bool {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    call.arguments.values().map(depth).max().unwrap_or(0) < MAX_DEPTH
}

/// Summary of a request that wants no tokens of an answer.
pub(super) fn summary_without_tokens(answer: &AnswerSink, prompt: Vec<u32>) -> GenerationSummary {
    GenerationSummary {
        reason: FinishReason::Length,
        stop: None,
        has_usage: true,
        prompt_tokens: prompt.len() as u64,
        cached_tokens: 0,
        prefill: Duration::ZERO,
        generated_tokens: 0,
        thought_tokens: 0,
        decode: Duration::ZERO,
        guesses: DraftCounts::default(),
        dropped_messages: answer.dropped_messages,
        dropped_tokens: answer.cut_tokens,
        context: answer.without_bos(prompt),
        schema_violations: None,
    }
}

impl Sink for AnswerSink {
    fn ready(&self) -> bool {
        // A piece may produce two events.
        self.handle.state.may_send(2)
    }

    fn room(&self) -> usize {
        self.handle.state.room() / 2
    }

    /// A token that ends the reasoning and continues with answer text is rejected. So is a token
    /// that shows that the held-back text was no tag. Text sampled without the grammar cannot be
    /// part of the answer.
    fn stage(&self, text: &str) -> Stage {
        let Some(parser) = &self.parser else { return Stage::Answer };
        if !text.is_empty() && parser.keeps_thinking(text) {
            return Stage::Before;
        }
        if let (Some(prefix), false) = (&self.forced_prefix, text.is_empty()) {
            let trimmed = text.trim();
            return match parser.peek_stage(text) == OutputStage::Answer && !trimmed.is_empty() {
                false => Stage::Before,
                true if !parser.is_thinking() => Stage::Answer,
                // A call that ends the reasoning itself would be written twice.
                true if prefix.trim_start().starts_with(trimmed) => Stage::Mixed,
                true => Stage::Before,
            };
        }
        if text.is_empty() {
            return match parser.is_thinking() {
                true => Stage::Before,
                false if self.calls > 0 => Stage::Enough,
                false => Stage::Answer,
            };
        }
        let content = parser.peek(text).into_iter().filter_map(|part| match part {
            OutputPart::Content(text) => Some(text),
            _ => None,
        });
        let content: String = content.collect();
        match (content.is_empty(), content.trim_start() == text.trim_start()) {
            (true, _) => Stage::Before,
            (false, true) => Stage::Answer,
            (false, false) => Stage::Mixed,
        }
    }

    /// Returns the token that ends the answer after the last call, or the tokens that end a
    /// reasoning over its budget. The latter are forced once; if they do not end the reasoning, it
    /// continues.
    fn forced(&mut self) -> Vec<u32> {
        if self.has_called() {
            let ends = self.generator.facts().end_texts.iter();
            return ends.filter_map(|end| self.generator.control_token(end)).take(1).collect();
        }
        let is_spent = self.think_budget.is_some_and(|budget| self.thought_tokens >= budget);
        if !is_spent || !self.is_thinking() {
            self.is_closing_thought = false;
            return Vec::new();
        }
        if self.is_closing_thought {
            return Vec::new();
        }
        // The end of the reasoning may be known only later, for instance between two messages.
        let end = self.end_thought();
        self.is_closing_thought = !end.is_empty();
        end
    }

    fn end_thought(&mut self) -> Vec<u32> {
        let Some(end) = self.parser.as_ref().and_then(OutputParser::reasoning_end) else {
            if !std::mem::replace(&mut self.has_warned_endless, true) {
                let task = self.handle.id;
                tracing::warn!(
                    task,
                    "think_budget not enforced: the model has no end-of-reasoning token"
                );
            }
            return Vec::new();
        };
        self.generator.encode_parts(&[(&end, true)])
    }

    /// Stop strings are ignored in the reasoning and in the blank text after it, which is not part
    /// of the answer.
    fn ignores_stops(&self, text: &str) -> bool {
        let is_behind_thought =
            self.thought_tokens > 0 && !self.has_answered && text.trim().is_empty();
        self.stops_in_answer && (self.is_thinking() || is_behind_thought)
    }

    fn answer_ends_thought(&self) -> bool {
        let end = self.parser.as_ref().and_then(OutputParser::reasoning_end);
        let (Some(prefix), Some(end)) = (&self.forced_prefix, end) else { return false };
        starts_with_reasoning_end(prefix, &end)
    }

    fn begin_answer(&mut self) {
        self.has_begun = true;
    }

    fn has_enough(&self) -> bool {
        self.is_repeating
    }

    fn send(&mut self, event: EngineEvent) -> bool {
        match event {
            EngineEvent::Prefill { done, total } => {
                // A diffusion model reads the prompt in every step.
                if self.has_sent_piece
                    || self.last_progress.elapsed() < PROGRESS_INTERVAL
                    || !self.ready()
                {
                    return !self.handle.state.is_cancelled();
                }
                self.last_progress = Instant::now();
                self.handle.send(Event::Progress { done: done as u64, total: total as u64 })
            }
            EngineEvent::Prompt(tokens) => {
                let tokens = tokens.iter().map(|token| self.prompt_logprob(token)).collect();
                self.handle.send(Event::Prompt(tokens))
            }
            EngineEvent::Piece(piece) => {
                self.has_sent_piece = true;
                self.handle_piece(piece)
            }
            EngineEvent::Done(summary) => {
                self.flush(&summary.finish);
                self.log_cache_miss(&summary);
                let done = self.generation_summary(summary);
                self.send_done(done)
            }
            EngineEvent::Failed(message) => {
                let message =
                    format!("an error was encountered while running the model: {message}");
                self.handle.send(Event::Error(ApiError::internal(message)))
            }
            EngineEvent::Refused(message) => {
                self.handle.send(Event::Error(ApiError::bad_request(message)))
            }
        }
    }
}
