//! Turns the engine's reports about a generation into events.
//!
//! - `parts` separates reasoning, answer and tool calls, and sends them;
//! - `summary` has log-probabilities, and the summary at the end.

mod parts;
mod summary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_engine::{AnswerStage, Event as EngineEvent, Piece as EnginePiece, Sink};
use puna_prompt::{FunctionCall, OutputParser, OutputPart, OutputStage};

pub(super) use summary::summary_without_tokens;

use super::runner_model::RunnerModel;
use super::schema_check::AnswerChecks;
use super::task_handle::TaskHandle;
use crate::canonical::{ApiError, Event};

/// Number of repetitions of one token's text after which the answer ends: a model that repeats it
/// more often does not stop.
const MAX_REPEATED_PIECES: u32 = 30;

/// Minimum time between two progress reports of a prompt.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Sink of a generation: receives the engine's events and sends the answer's events.
pub(super) struct AnswerSink {
    handle: TaskHandle,
    model: Arc<dyn RunnerModel>,
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
        handle: TaskHandle,
        model: Arc<dyn RunnerModel>,
        parser: Option<OutputParser>,
    ) -> Self {
        Self {
            handle,
            model,
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

    fn is_thinking(&self) -> bool {
        self.parser.as_ref().is_some_and(OutputParser::is_thinking)
    }

    /// Whether the answer is exactly the text that its grammar allows, so that it holds no tags.
    fn is_verbatim(&self) -> bool {
        self.has_begun && self.forced_prefix.is_none()
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
}

/// Whether a forced tool call with this start ends the reasoning itself.
pub(super) fn starts_with_reasoning_end(prefix: &str, thought_end: &str) -> bool {
    let end = thought_end.trim();
    !end.is_empty() && prefix.trim_start().starts_with(end)
}

impl Sink for AnswerSink {
    fn ready(&self) -> bool {
        // A piece may produce two events.
        self.handle.state.may_send(2)
    }

    fn piece_capacity(&self) -> usize {
        self.handle.state.free_event_slots() / 2
    }

    /// A token that ends the reasoning and continues with answer text is rejected. So is a token
    /// that shows that the held-back text was no tag. Text sampled without the grammar cannot be
    /// part of the answer.
    fn stage(&self, text: &str) -> AnswerStage {
        let Some(parser) = &self.parser else { return AnswerStage::Answer };
        if !text.is_empty() && parser.keeps_thinking(text) {
            return AnswerStage::BeforeAnswer;
        }
        if let (Some(prefix), false) = (&self.forced_prefix, text.is_empty()) {
            let trimmed = text.trim();
            return match parser.peek_stage(text) == OutputStage::Answer && !trimmed.is_empty() {
                false => AnswerStage::BeforeAnswer,
                true if !parser.is_thinking() => AnswerStage::Answer,
                // A call that ends the reasoning itself would be written twice.
                true if prefix.trim_start().starts_with(trimmed) => AnswerStage::Mixed,
                true => AnswerStage::BeforeAnswer,
            };
        }
        if text.is_empty() {
            return match parser.is_thinking() {
                true => AnswerStage::BeforeAnswer,
                false if self.calls > 0 => AnswerStage::Complete,
                false => AnswerStage::Answer,
            };
        }
        let content = parser.peek(text).into_iter().filter_map(|part| match part {
            OutputPart::Content(text) => Some(text),
            _ => None,
        });
        let content: String = content.collect();
        match (content.is_empty(), content.trim_start() == text.trim_start()) {
            (true, _) => AnswerStage::BeforeAnswer,
            (false, true) => AnswerStage::Answer,
            (false, false) => AnswerStage::Mixed,
        }
    }

    /// Returns the token that ends the answer after the last call, or the tokens that end a
    /// reasoning over its budget. The latter are forced once; if they do not end the reasoning, it
    /// continues.
    fn forced(&mut self) -> Vec<u32> {
        if self.has_called() {
            let ends = self.model.model_info().end_texts.iter();
            return ends.filter_map(|end| self.model.control_token(end)).take(1).collect();
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
        let end = self.reasoning_end_tokens();
        self.is_closing_thought = !end.is_empty();
        end
    }

    fn reasoning_end_tokens(&mut self) -> Vec<u32> {
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
        let cancelled = self.handle.cancelled();
        self.model.encode_parts(&[(&end, true)], cancelled).unwrap_or_default()
    }

    /// Stop strings are ignored in the reasoning and in the blank text after it, which is not part
    /// of the answer.
    fn ignores_stops(&self, text: &str) -> bool {
        let is_behind_thought =
            self.thought_tokens > 0 && !self.has_answered && text.trim().is_empty();
        self.stops_in_answer && (self.is_thinking() || is_behind_thought)
    }

    fn answer_ends_reasoning(&self) -> bool {
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
