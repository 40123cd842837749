//! Separates reasoning, answer and tool calls, and sends their events.

use puna_api::json::MAX_DEPTH;
use puna_api::ollama::Logprob;
use puna_engine::FinishReason;
use puna_prompt::{FunctionCall, OutputPart};
use serde_json::{Value, json};

use super::AnswerSink;
use crate::canonical::{CallOutcome, Event, Piece};
use crate::runner::protocol::MAX_CALLS;
use crate::util::random_ids;

impl AnswerSink {
    /// Whether all calls are complete. Later text is dropped.
    pub(super) fn has_called(&self) -> bool {
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

    /// Splits a text into reasoning, answer and calls, and sends them.
    pub(super) fn send_text(&mut self, text: String, logprobs: Vec<Logprob>) -> bool {
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
                    if (open.is_some() || self.started_calls < MAX_CALLS) && is_shallow(&call) =>
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
        if self.started_calls >= MAX_CALLS {
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
    pub(super) fn flush(&mut self, finish: &FinishReason) {
        if self.is_verbatim() {
            return;
        }
        if let Some(parser) = &mut self.parser {
            self.is_cut_off = *finish != FinishReason::End;
            let parts = if self.is_cut_off { parser.finish_truncated() } else { parser.finish() };
            self.send_parts(parts, Vec::new());
        }
    }
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
