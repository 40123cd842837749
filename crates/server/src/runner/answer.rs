//! From what the engine reports to events: thoughts and answer apart, figures at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_api::json::MAX_DEPTH;
use puna_api::native::{Logprob, PromptLogprob, PromptTopLogprob, TopLogprob};
use puna_engine::{
    Event as EngineEvent, Finish, Piece as EnginePiece, PromptToken, Sink, Stage, Summary,
};
use puna_prompt::{FunctionCall, OutputParser, OutputPart, OutputStage as Place};
use puna_sampler::TokenLogprobs;
use serde_json::{Value, json};

use super::generator::Generator;
use super::protocol::CALLS_MAX;
use super::schema_check::AnswerChecks;
use super::worker::Handle;
use crate::canonical::{ApiError, CallOutcome, Event, FinishReason, GenerationSummary, Piece};
use crate::random_ids;
use crate::speculate::DraftCounts;

/// A model that says the same more often than this, token for token, is not going to say anything else.
const REPEATS: u32 = 30;

/// Tokens on either side of the end of a cached prefix that the debug log shows.
const CACHE_MISS_TOKENS: usize = 16;

/// How often the progress of a prompt is reported at most.
const PROGRESS: Duration = Duration::from_millis(100);

/// Takes the events of a job.
pub(super) struct Answer {
    handle: Handle,
    generator: Arc<dyn Generator>,
    parser: Option<OutputParser>,
    /// The answer has a form.
    formed: bool,
    /// Calls so far.
    calls: usize,
    /// Numbers that calls were given so far, also those that broke off.
    numbers: usize,
    /// The number of the call that has begun and is not complete.
    open_call: Option<usize>,
    /// A limit or a stop string has ended the answer.
    is_cut_off: bool,
    /// Calls at most: the answer ends behind them.
    calls_max: usize,
    /// Calls of an answer that must be one or several calls: it ends where one comes again.
    forced_calls: Vec<FunctionCall>,
    /// Such a call has come again.
    is_repeated: bool,
    stop: Vec<String>,
    /// Stop strings count in the answer only.
    stops_in_answer: bool,
    /// There was text of the answer that is not blank.
    has_answered: bool,
    /// The answer must be a call, which begins like this.
    forced: Option<String>,
    /// The answer that has a form has begun.
    begun: bool,
    /// Tokens that thoughts may have.
    think_budget: Option<u64>,
    /// The thought is being ended.
    closing: bool,
    /// It was said that it is not known how.
    told_endless: bool,
    /// What is checked of the finished answer.
    checks: Option<AnswerChecks>,
    dropped_messages: u64,
    cut_tokens: u64,
    /// The last piece, and how often it has come in a row.
    last: String,
    repeats: u32,
    /// It has come too often.
    enough: bool,
    /// Tokens of thoughts, with the tags around them.
    thought: u64,
    /// There was a piece of the answer.
    told: bool,
    progress: Instant,
}

impl Answer {
    pub(super) fn new(
        handle: Handle,
        generator: Arc<dyn Generator>,
        parser: Option<OutputParser>,
    ) -> Self {
        Self {
            handle,
            generator,
            parser,
            formed: false,
            calls: 0,
            numbers: 0,
            calls_max: usize::MAX,
            forced_calls: Vec::new(),
            is_repeated: false,
            open_call: None,
            is_cut_off: false,
            stop: Vec::new(),
            stops_in_answer: false,
            has_answered: false,
            forced: None,
            begun: false,
            think_budget: None,
            closing: false,
            told_endless: false,
            checks: None,
            dropped_messages: 0,
            cut_tokens: 0,
            last: String::new(),
            repeats: 0,
            enough: false,
            thought: 0,
            told: false,
            progress: Instant::now(),
        }
    }

    /// Remembers that the answer must be a call, and how that begins.
    pub(super) fn with_forced(mut self, beginning: Option<String>) -> Self {
        self.forced = beginning;
        self
    }

    /// Remembers behind how many calls the answer ends.
    pub(super) fn with_calls_max(mut self, most: usize) -> Self {
        self.calls_max = most;
        self
    }

    /// Whether all calls have come: nothing behind them is told.
    fn has_called(&self) -> bool {
        self.is_repeated || self.calls >= self.calls_max
    }

    /// Whether the start of a call is held back until the call is complete, since it may be one that the answer already has.
    fn holds_calls(&self) -> bool {
        self.forced.is_some() && self.calls > 0
    }

    /// Whether a forced answer already has this call. A model that is made to call goes on to do so, as long as it may.
    fn repeats_call(&mut self, call: &FunctionCall) -> bool {
        if self.forced.is_none() {
            return false;
        }
        let is_same = |earlier: &FunctionCall| {
            earlier.name == call.name && earlier.arguments == call.arguments
        };
        self.is_repeated = self.forced_calls.iter().any(is_same);
        if !self.is_repeated {
            self.forced_calls.push(call.clone());
        }
        self.is_repeated
    }

    /// Remembers how many tokens thoughts may have.
    pub(super) fn with_think_budget(mut self, budget: Option<u64>) -> Self {
        self.think_budget = budget;
        self
    }

    /// Remembers what is checked of the finished answer.
    pub(super) fn with_checks(mut self, checks: Option<AnswerChecks>) -> Self {
        self.checks = checks;
        self
    }

    /// Remembers what was left out of the prompt.
    pub(super) fn with_dropped(mut self, messages: usize, tokens: usize) -> Self {
        self.dropped_messages = messages as u64;
        self.cut_tokens = tokens as u64;
        self
    }

    /// Remembers whether the answer has a form.
    pub(super) fn with_form(mut self, formed: bool) -> Self {
        self.formed = formed;
        self
    }

    /// Remembers the stop strings of the job, in its order, and whether they are the request's own.
    pub(super) fn with_stop(mut self, stop: &[String], is_of_request: bool) -> Self {
        (self.stop, self.stops_in_answer) = (stop.to_vec(), is_of_request);
        self
    }

    fn piece(&mut self, piece: EnginePiece) -> bool {
        if self.has_called() {
            return !self.handle.state.is_cancelled();
        }
        let logprobs =
            piece.logprobs.map(|l| vec![self.logprob(piece.token, &l)]).unwrap_or_default();
        self.enough = !self.begun && self.repeats_itself(&piece.text);
        self.pieces(piece.text, logprobs)
    }

    /// Sends a text as thoughts, answer and calls.
    fn pieces(&mut self, text: String, logprobs: Vec<Logprob>) -> bool {
        let verbatim = self.is_verbatim();
        let parts = match &mut self.parser {
            Some(parser) if !verbatim => {
                let before = parser.is_thinking();
                let parts = parser.push(&text);
                self.thought += u64::from(before || parser.is_thinking());
                parts
            }
            _ => vec![OutputPart::Content(text)],
        };
        self.send_parts(parts, logprobs)
    }

    fn is_thinking(&self) -> bool {
        self.parser.as_ref().is_some_and(OutputParser::is_thinking)
    }

    /// Whether the answer is what its grammar allows, and nothing in it is a tag.
    fn is_verbatim(&self) -> bool {
        self.begun && self.forced.is_none()
    }

    /// Sends what a text was taken for. The log-probabilities of its token go with the first part that is text, or
    /// without any.
    fn send_parts(&mut self, parts: Vec<OutputPart>, mut logprobs: Vec<Logprob>) -> bool {
        let mut texts: Vec<(bool, String)> = Vec::new();
        let mut listened = !self.handle.state.is_cancelled();
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
                listened = self.handle.send(Event::CallEnd { index, outcome });
            }
            let (is_thought, text) = match part {
                OutputPart::Thinking(text) => (true, text),
                OutputPart::Content(text) => (false, text),
                OutputPart::CallStart(_) if self.holds_calls() => continue,
                OutputPart::CallStart(name) => {
                    listened = self.send_texts(&mut texts, &mut logprobs);
                    listened &= self.begin_call(name);
                    continue;
                }
                OutputPart::CallArguments(text) => {
                    if let Some(index) = self.open_call {
                        listened &= self.handle.send(Event::CallArguments { index, text });
                    }
                    continue;
                }
                OutputPart::Call(call) if self.repeats_call(&call) => continue,
                OutputPart::Call(call)
                    if (open.is_some() || self.numbers < CALLS_MAX) && is_shallow(&call) =>
                {
                    self.calls += 1;
                    listened = self.send_texts(&mut texts, &mut logprobs);
                    let name = call.name;
                    if open.is_none() {
                        listened &= self.begin_call(name.clone());
                    }
                    let index = open.or_else(|| self.open_call.take()).unwrap_or_default();
                    if let Some(checks) = &mut self.checks {
                        checks.push_call(&name, &call.arguments);
                    }
                    let outcome = CallOutcome::Complete(call.arguments);
                    listened &= self.handle.send(Event::CallEnd { index, outcome });
                    continue;
                }
                OutputPart::Call(_) if open.is_some() => {
                    let (index, outcome) = (open.unwrap_or_default(), CallOutcome::Invalid(None));
                    listened &= self.handle.send(Event::CallEnd { index, outcome });
                    continue;
                }
                OutputPart::Call(call) => {
                    (false, json!({"name": call.name, "arguments": call.arguments}).to_string())
                }
                // The client has the start of the call and gets nothing of it twice, or a call was held back.
                OutputPart::Malformed { error, .. } if open.is_some() || self.holds_calls() => {
                    tracing::warn!(task = self.handle.id, %error, "a tool call has ended before it was complete");
                    continue;
                }
                OutputPart::Malformed { text, error } => {
                    tracing::warn!(task = self.handle.id, %error, "a tool call cannot be read; its text is passed on");
                    // An answer that has a form begins with nothing else: what came before it was thought. One that had to
                    // be a call has that form.
                    (self.formed && self.forced.is_none(), text)
                }
            };
            match texts.last_mut() {
                Some((same, last)) if *same == is_thought => last.push_str(&text),
                _ => texts.push((is_thought, text)),
            }
        }
        if texts.is_empty() && !logprobs.is_empty() {
            texts.push((self.is_thinking(), String::new()));
        }
        if texts.is_empty() { listened } else { self.send_texts(&mut texts, &mut logprobs) }
    }

    /// Sends the beginning of a call, unless there are too many.
    fn begin_call(&mut self, name: String) -> bool {
        if self.numbers >= CALLS_MAX {
            return true;
        }
        let index = self.numbers;
        self.numbers += 1;
        self.open_call = Some(index);
        self.handle.send(Event::CallStart { index, id: random_ids::tool_call(), name })
    }

    fn send_texts(&mut self, texts: &mut Vec<(bool, String)>, logprobs: &mut Vec<Logprob>) -> bool {
        let mut listened = !self.handle.state.is_cancelled();
        for (is_thought, text) in texts.drain(..) {
            if text.is_empty() && logprobs.is_empty() {
                continue;
            }
            self.has_answered |= !is_thought && !text.trim().is_empty();
            if let Some(checks) = self.checks.as_mut().filter(|_| !is_thought) {
                checks.push_text(&text);
            }
            let piece = Piece { text, logprobs: std::mem::take(logprobs) };
            listened = self.handle.send(if is_thought {
                Event::Thinking(piece)
            } else {
                Event::Content(piece)
            });
        }
        listened
    }

    /// Sends what was held back because a tag might have begun.
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

    fn repeats_itself(&mut self, text: &str) -> bool {
        let text = text.trim();
        self.repeats = if text == self.last { self.repeats + 1 } else { 0 };
        if self.repeats == 0 {
            text.clone_into(&mut self.last);
        }
        self.repeats > REPEATS
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

    fn prompt_logprob(&self, of: &PromptToken) -> PromptLogprob {
        let text = |token| String::from_utf8_lossy(&self.generator.token_bytes(token)).into_owned();
        let top = of.logprobs.iter().flat_map(|logprobs| &logprobs.top);
        let top = top.map(|&(id, logprob)| PromptTopLogprob { token: text(id), id, logprob });
        PromptLogprob {
            token: text(of.token),
            id: of.token,
            logprob: of.logprobs.as_ref().map(|logprobs| logprobs.logprob),
            rank: of.rank,
            bytes: self.generator.token_bytes(of.token),
            top_logprobs: top.collect(),
        }
    }

    /// Logs where the part of the prompt that was found in the cache ended, for those who look for what changes at the head of
    /// their prompts. Prompts are private: only the debug log has their text.
    fn log_cache_miss(&self, summary: &Summary) {
        let (at, prompt) = (summary.cached_tokens, summary.prompt_tokens);
        let is_known = summary.shifted_tokens == 0 && at < prompt && prompt <= summary.tokens.len();
        if !is_known || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let before =
            self.generator.decode(&summary.tokens[at.saturating_sub(CACHE_MISS_TOKENS)..at]);
        let behind = self.generator.decode(&summary.tokens[at..prompt.min(at + CACHE_MISS_TOKENS)]);
        let task = self.handle.id;
        tracing::debug!(task, cache_miss_at = at, prompt, %before, %behind, "the cached prefix of a prompt ended");
    }

    /// Sends the end of the answer. A check may take as long as some steps of the engine, so that it has a thread of its own.
    fn end(&mut self, mut done: GenerationSummary) -> bool {
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
            let message =
                format!("the answer could not be checked: there is no thread for it: {error}");
            return self.handle.send(Event::Error(ApiError::internal(message)));
        }
        !self.handle.state.is_cancelled()
    }

    fn done(&self, summary: Summary) -> GenerationSummary {
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
            thought_tokens: self.thought,
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

/// Whether a forced tool call, which begins like this, ends the thought before it by itself.
pub(super) fn begins_with_end(beginning: &str, thought_end: &str) -> bool {
    let end = thought_end.trim();
    !end.is_empty() && beginning.trim_start().starts_with(end)
}

/// Whether a call's arguments can be sent on: what holds them may be nested no deeper than a request's.
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

/// The figures of an answer to this prompt of which nothing was wanted.
pub(super) fn no_tokens(answer: &Answer, prompt: Vec<u32>) -> GenerationSummary {
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

impl Sink for Answer {
    fn ready(&self) -> bool {
        // A piece may come to two events.
        self.handle.state.may_send(2)
    }

    fn room(&self) -> usize {
        self.handle.state.room() / 2
    }

    /// A token that ends the thought and goes on with the answer in one is passed over, and so is one that shows that what
    /// was held back was no tag: what was drawn freely cannot be part of the answer.
    fn stage(&self, text: &str) -> Stage {
        let Some(parser) = &self.parser else { return Stage::Answer };
        if !text.is_empty() && parser.keeps_thinking(text) {
            return Stage::Before;
        }
        if let (Some(beginning), false) = (&self.forced, text.is_empty()) {
            let solid = text.trim();
            return match parser.peek_stage(text) == Place::Answer && !solid.is_empty() {
                false => Stage::Before,
                true if !parser.is_thinking() => Stage::Answer,
                // A call that ends the thought by itself would come twice.
                true if beginning.trim_start().starts_with(solid) => Stage::Mixed,
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

    /// The end of the answer behind the only call, or that of a thought that has had its tokens, once; where that does not
    /// end it, it goes on.
    fn forced(&mut self) -> Vec<u32> {
        if self.has_called() {
            let ends = self.generator.facts().ends.iter();
            return ends.filter_map(|end| self.generator.control_token(end)).take(1).collect();
        }
        let spent = self.think_budget.is_some_and(|budget| self.thought >= budget);
        if !spent || !self.is_thinking() {
            self.closing = false;
            return Vec::new();
        }
        if self.closing {
            return Vec::new();
        }
        // Between two messages, for instance, it may be known only later how.
        let end = self.end_thought();
        self.closing = !end.is_empty();
        end
    }

    fn end_thought(&mut self) -> Vec<u32> {
        let Some(end) = self.parser.as_ref().and_then(OutputParser::reasoning_end) else {
            if !std::mem::replace(&mut self.told_endless, true) {
                let task = self.handle.id;
                tracing::warn!(
                    task,
                    "it is not known how this model ends its thought here; it goes on"
                );
            }
            return Vec::new();
        };
        self.generator.encode_parts(&[(&end, true)])
    }

    /// In a thought, and in the blanks behind it, which are no part of the answer.
    fn ignores_stops(&self, text: &str) -> bool {
        let is_behind_thought = self.thought > 0 && !self.has_answered && text.trim().is_empty();
        self.stops_in_answer && (self.is_thinking() || is_behind_thought)
    }

    fn answer_ends_thought(&self) -> bool {
        let end = self.parser.as_ref().and_then(OutputParser::reasoning_end);
        let (Some(beginning), Some(end)) = (&self.forced, end) else { return false };
        begins_with_end(beginning, &end)
    }

    fn begin_answer(&mut self) {
        self.begun = true;
    }

    fn has_enough(&self) -> bool {
        self.enough
    }

    fn send(&mut self, event: EngineEvent) -> bool {
        match event {
            EngineEvent::Prefill { done, total } => {
                // A diffusion model reads the prompt in every step.
                if self.told || self.progress.elapsed() < PROGRESS || !self.ready() {
                    return !self.handle.state.is_cancelled();
                }
                self.progress = Instant::now();
                self.handle.send(Event::Progress { done: done as u64, total: total as u64 })
            }
            EngineEvent::Prompt(tokens) => {
                let tokens = tokens.iter().map(|token| self.prompt_logprob(token)).collect();
                self.handle.send(Event::Prompt(tokens))
            }
            EngineEvent::Piece(piece) => {
                self.told = true;
                self.piece(piece)
            }
            EngineEvent::Done(summary) => {
                self.flush(&summary.finish);
                self.log_cache_miss(&summary);
                let done = self.done(summary);
                self.end(done)
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
