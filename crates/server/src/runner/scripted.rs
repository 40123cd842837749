//! A model that generates the tokens of a script. The engine still computes the prompts, the cache
//! and the counts.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use puna_engine::{AnswerStage, EngineError, Event, GenerationStats, Request, Sink, Speculation};
use puna_sampler::{Constraint, Grammar};

use super::local::LocalLoader;
use super::protocol::{Heartbeat, LoadSpec, MemoryParts};
use super::runner_model::{
    EmbedCallback, EncodeCancelled, EncodeResult, LoadError, Loader, NOT_CANCELLED, RerankCallback,
    RunnerModel, RunnerModelInfo,
};
use crate::canonical::TokenizeTask;
use crate::script::{Conversation, ScriptAnswer, ScriptError, ScriptFile, ScriptPlayer, Step};

/// Tags around the scripted model's reasoning.
const THINK_TAGS: (&str, &str) = ("<think>\n", "\n</think>\n\n");

/// Tags around a scripted tool call.
const CALL_TAGS: (&str, &str) = ("<tool_call>\n", "\n</tool_call>");

/// Request number of a rejected request, which the engine never assigns.
const REJECTED_REQUEST: u64 = u64::MAX;

/// Loads models that generate the tokens of a script.
pub(super) struct ScriptLoader {
    script: Arc<ScriptFile>,
}

impl ScriptLoader {
    pub(super) fn open(path: PathBuf) -> Result<Self, ScriptError> {
        let (script, _) = ScriptFile::open(path, ScriptPlayer::Model)?;
        Ok(Self { script: Arc::new(script) })
    }
}

impl Loader for ScriptLoader {
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        LocalLoader.plan(spec)
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn RunnerModel>, LoadError> {
        let model = LocalLoader.load(spec)?;
        Ok(Box::new(ScriptedModel { model, script: self.script.clone() }))
    }
}

/// Model that generates the tokens of a script.
struct ScriptedModel {
    model: Box<dyn RunnerModel>,
    script: Arc<ScriptFile>,
}

impl ScriptedModel {
    /// Returns the items of an answer. The prompt may end inside reasoning.
    fn items(&self, answer: &ScriptAnswer, prompt: &str) -> VecDeque<ScriptItem> {
        let mut writer = StepWriter::new(prompt.ends_with(THINK_TAGS.0));
        for step in &answer.steps {
            writer.write(step);
        }
        let mut items = VecDeque::new();
        for written in writer.written {
            match written {
                WrittenPart::Text(parts) => {
                    let parts: Vec<(&str, bool)> =
                        parts.iter().map(|(text, special)| (text.as_str(), *special)).collect();
                    let tokens =
                        self.model.encode_parts(&parts, &NOT_CANCELLED).unwrap_or_default();
                    items.extend(self.characters(&tokens).into_iter().map(ScriptItem::Tokens));
                }
                WrittenPart::Item(item) => items.push_back(item),
            }
        }
        if !is_cut_off(answer) {
            items.extend(self.end_token().map(|end| ScriptItem::Tokens(vec![end])));
        }
        items
    }

    /// Groups tokens into complete characters, because the engine asks for no forced tokens inside
    /// a character.
    fn characters(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let (mut groups, mut open, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for &token in tokens {
            open.push(token);
            bytes.extend(self.model.token_bytes(token));
            if std::str::from_utf8(&bytes).is_ok() {
                groups.push(std::mem::take(&mut open));
                bytes.clear();
            }
        }
        groups.extend(Some(open).filter(|open| !open.is_empty()));
        groups
    }

    /// Returns the token that ends an answer.
    fn end_token(&self) -> Option<u32> {
        let model_info = self.model.model_info();
        [&model_info.eos]
            .into_iter()
            .chain(&model_info.end_texts)
            .find_map(|end| self.model.control_token(end))
    }
}

/// Whether the answer ends as if a token limit had cut it.
fn is_cut_off(answer: &ScriptAnswer) -> bool {
    answer.finish.as_deref() == Some("length")
}

/// Item of an answer: tokens or an action.
#[derive(Debug, PartialEq)]
enum ScriptItem {
    /// Tokens of one or more complete characters.
    Tokens(Vec<u32>),
    Wait(Duration),
    Fail(String),
    Crash,
}

/// Part of a written answer.
enum WrittenPart {
    /// Texts, each with a flag that says whether control tokens in it are parsed.
    Text(Vec<(String, bool)>),
    Item(ScriptItem),
}

/// Writes the steps of a script in the scripted model's syntax.
struct StepWriter {
    written: Vec<WrittenPart>,
    is_thinking: bool,
    /// Whether the answer has text, so that a call starts on a new line.
    has_line: bool,
}

impl StepWriter {
    fn new(is_thinking: bool) -> Self {
        Self { written: Vec::new(), is_thinking, has_line: false }
    }

    fn push(&mut self, text: impl Into<String>, special: bool) {
        let part = (text.into(), special);
        match self.written.last_mut() {
            Some(WrittenPart::Text(parts)) => parts.push(part),
            _ => self.written.push(WrittenPart::Text(vec![part])),
        }
    }

    /// Writes the tag that starts or ends reasoning, if the state changes.
    fn set_thinking(&mut self, is_thinking: bool) {
        if std::mem::replace(&mut self.is_thinking, is_thinking) != is_thinking {
            self.push(if is_thinking { THINK_TAGS.0 } else { THINK_TAGS.1 }, true);
        }
    }

    fn write(&mut self, step: &Step) {
        match step {
            Step::Thinking(text) => {
                self.set_thinking(true);
                self.push(text, false);
            }
            Step::Text(text) => {
                self.set_thinking(false);
                self.push(text, false);
                self.has_line = true;
            }
            Step::Call(call) => self.write_call(call),
            Step::Calls(calls) => calls.iter().for_each(|call| self.write_call(call)),
            Step::Raw(text) => self.push(text, true),
            Step::Wait(time) => {
                self.written.push(WrittenPart::Item(ScriptItem::Wait(Duration::from_millis(*time))))
            }
            Step::Fail(reason) => {
                self.written.push(WrittenPart::Item(ScriptItem::Fail(reason.clone())))
            }
            Step::Crash => self.written.push(WrittenPart::Item(ScriptItem::Crash)),
            // Reading the script rejects this step.
            Step::Delta(_) => {}
        }
    }

    fn write_call(&mut self, call: &crate::script::Call) {
        self.set_thinking(false);
        if std::mem::replace(&mut self.has_line, true) {
            self.push("\n", false);
        }
        self.push(CALL_TAGS.0, true);
        let (name, arguments) =
            (serde_json::Value::from(call.name.as_str()), call.arguments_text());
        self.push(format!("{{\"name\": {name}, \"arguments\": {arguments}}}"), false);
        self.push(CALL_TAGS.1, true);
    }
}

/// Passes a script's tokens to the engine, and the engine's events to the request.
struct ScriptedSink {
    request: Box<dyn Sink>,
    items: VecDeque<ScriptItem>,
    pace: Duration,
    /// Time before which nothing is generated.
    resume: Option<Instant>,
}

impl ScriptedSink {
    fn new(request: Box<dyn Sink>, items: VecDeque<ScriptItem>, pace: Duration) -> Self {
        let mut sink = Self { request, items, pace, resume: None };
        sink.take_pauses();
        sink
    }

    /// Moves the pauses at the front into `resume`.
    fn take_pauses(&mut self) {
        while let Some(ScriptItem::Wait(time)) = self.items.front() {
            let from = self.resume.unwrap_or_else(Instant::now);
            self.resume = Some(from + *time);
            self.items.pop_front();
        }
    }

    /// Runs the actions before the next tokens; returns `false` if they end the answer.
    fn run_next_step(&mut self) -> bool {
        self.take_pauses();
        match self.items.front() {
            Some(ScriptItem::Fail(reason)) => {
                self.request.send(Event::Failed(reason.clone()));
                false
            }
            Some(ScriptItem::Crash) => {
                tracing::error!("the script crashes this process");
                std::process::abort()
            }
            _ => true,
        }
    }
}

impl Sink for ScriptedSink {
    fn ready(&self) -> bool {
        self.resume.is_none_or(|time| Instant::now() >= time) && self.request.ready()
    }

    fn answer_ends_reasoning(&self) -> bool {
        self.request.answer_ends_reasoning()
    }

    fn piece_capacity(&self) -> usize {
        self.request.piece_capacity()
    }

    fn stage(&self, text: &str) -> AnswerStage {
        self.request.stage(text)
    }

    /// Tokens that the request forces, such as the end after its only call, come before the
    /// script's tokens.
    fn forced(&mut self) -> Vec<u32> {
        let wanted = self.request.forced();
        if !wanted.is_empty() {
            return wanted;
        }
        match self.items.pop_front_if(|item| matches!(item, ScriptItem::Tokens(_))) {
            Some(ScriptItem::Tokens(tokens)) => tokens,
            _ => Vec::new(),
        }
    }

    fn reasoning_end_tokens(&mut self) -> Vec<u32> {
        self.request.reasoning_end_tokens()
    }

    fn begin_answer(&mut self) {
        self.request.begin_answer();
    }

    fn has_enough(&self) -> bool {
        self.request.has_enough()
    }

    fn ignores_stops(&self, text: &str) -> bool {
        self.request.ignores_stops(text)
    }

    fn send(&mut self, event: Event) -> bool {
        if let Event::Done(GenerationStats {
            prompt_tokens, cached_tokens, generated_tokens, ..
        }) = &event
        {
            tracing::info!(prompt_tokens, cached_tokens, generated_tokens, "scripted answer");
        }
        let is_piece = matches!(event, Event::Piece(_));
        let is_read = matches!(event, Event::Prefill { done, total } if done >= total);
        if !self.request.send(event) {
            return false;
        }
        if is_piece {
            self.resume =
                Some(self.pace).filter(|pace| !pace.is_zero()).map(|pace| Instant::now() + pace);
        }
        !(is_piece || is_read) || self.run_next_step()
    }
}

impl RunnerModel for ScriptedModel {
    fn submit(&self, mut request: Request, mut sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        let prompt = self.model.decode(&request.prompt);
        let conversation = Conversation::of_prompt(prompt);
        let answer = match self.script.answer(&conversation) {
            Ok(answer) => answer,
            Err(error) => {
                self.model.check_request(&request)?;
                sink.send(Event::Failed(error.to_string()));
                return Ok(REJECTED_REQUEST);
            }
        };
        let items = self.items(&answer, &conversation.prompt);
        if is_cut_off(&answer) {
            let count = |item: &ScriptItem| {
                if let ScriptItem::Tokens(tokens) = item { tokens.len() } else { 0 }
            };
            let tokens = items.iter().map(count).sum();
            request.max_tokens = Some(request.max_tokens.map_or(tokens, |max| max.min(tokens)));
        }
        // The script determines all tokens, so a grammar does not apply.
        request.grammar = None;
        request.speculation = Some(Speculation::OFF);
        let pace = Duration::from_millis(answer.pace);
        self.model.submit(request, Box::new(ScriptedSink::new(sink, items, pace)))
    }

    fn model_info(&self) -> &RunnerModelInfo {
        self.model.model_info()
    }

    fn encode(&self, text: &str, cancelled: &AtomicBool) -> EncodeResult {
        self.model.encode(text, cancelled)
    }

    fn tokenize(&self, text: &TokenizeTask, cancelled: &AtomicBool) -> EncodeResult {
        self.model.tokenize(text, cancelled)
    }

    fn encode_parts(&self, parts: &[(&str, bool)], cancelled: &AtomicBool) -> EncodeResult {
        self.model.encode_parts(parts, cancelled)
    }

    fn encode_prompt(
        &self,
        parts: &[(&str, bool)],
        leading_bos: &str,
        cancelled: &AtomicBool,
    ) -> EncodeResult {
        self.model.encode_prompt(parts, leading_bos, cancelled)
    }

    fn controls_in(
        &self,
        text: &str,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Range<usize>>, EncodeCancelled> {
        self.model.controls_in(text, cancelled)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.model.decode(tokens)
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.model.token_bytes(token)
    }

    fn control_token(&self, text: &str) -> Option<u32> {
        self.model.control_token(text)
    }

    fn is_bos(&self, token: u32) -> bool {
        self.model.is_bos(token)
    }

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn grammar(
        &self,
        constraint: &Constraint,
        whole: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, String> {
        self.model.grammar(constraint, whole, cancelled)
    }

    fn check_request(&self, request: &Request) -> Result<(), EngineError> {
        self.model.check_request(request)
    }

    fn cancel(&self, request: u64) {
        self.model.cancel(request);
    }

    fn embed(
        &self,
        client: u64,
        inputs: Vec<Vec<u32>>,
        done: EmbedCallback,
    ) -> Result<u64, EngineError> {
        self.model.embed(client, inputs, done)
    }

    fn rerank(
        &self,
        client: u64,
        pairs: Vec<Vec<u32>>,
        done: RerankCallback,
    ) -> Result<u64, EngineError> {
        self.model.rerank(client, pairs, done)
    }

    fn heartbeat(&self) -> Heartbeat {
        self.model.heartbeat()
    }
}
