//! A model whose tokens are those of a script: prompts, cache and counts are the engine's.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_engine::{EngineError, Event, Request, Sink, Speculation, Stage, Summary};
use puna_sampler::{Constraint, Grammar};

use super::generator::{EmbedDone, Facts, Generator, LoadError, Loader, RankDone};
use super::local::LocalLoader;
use super::protocol::{LoadSpec, MemoryParts, Pulse};
use crate::canonical::Tokenize;
use crate::script::{Answer, Conversation, ScriptError, ScriptFile, ScriptPlayer, Step};

/// What begins and ends a thought of the scripted model.
const THOUGHT: (&str, &str) = ("<think>\n", "\n</think>\n\n");

/// What begins and ends a tool call of the scripted model.
const CALL: (&str, &str) = ("<tool_call>\n", "\n</tool_call>");

/// The number of a job that was refused, which the engine never gives.
const REFUSED: u64 = u64::MAX;

/// Loads models that say what a script tells them.
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

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError> {
        let model = LocalLoader.load(spec)?;
        Ok(Box::new(ScriptedModel { model, script: self.script.clone() }))
    }
}

/// A model that generates the tokens of a script.
struct ScriptedModel {
    model: Box<dyn Generator>,
    script: Arc<ScriptFile>,
}

impl ScriptedModel {
    /// The items of an answer to a prompt that may have begun a thought.
    fn items(&self, answer: &Answer, prompt: &str) -> VecDeque<Item> {
        let mut writer = Writer::new(prompt.ends_with(THOUGHT.0));
        for step in &answer.steps {
            writer.write(step);
        }
        let mut items = VecDeque::new();
        for written in writer.written {
            match written {
                Written::Text(parts) => {
                    let parts: Vec<(&str, bool)> =
                        parts.iter().map(|(text, special)| (text.as_str(), *special)).collect();
                    let tokens = self.model.encode_parts(&parts);
                    items.extend(self.characters(&tokens).into_iter().map(Item::Tokens));
                }
                Written::Item(item) => items.push_back(item),
            }
        }
        if !is_cut_off(answer) {
            items.extend(self.end().map(|end| Item::Tokens(vec![end])));
        }
        items
    }

    /// Tokens in groups that are whole characters: the engine asks for none within a character.
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

    fn end(&self) -> Option<u32> {
        let facts = self.model.facts();
        [&facts.eos].into_iter().chain(&facts.ends).find_map(|end| self.model.control_token(end))
    }
}

/// Whether an answer ends as if a limit had cut it off.
fn is_cut_off(answer: &Answer) -> bool {
    answer.finish.as_deref() == Some("length")
}

/// What an answer comes to.
#[derive(Debug, PartialEq)]
enum Item {
    /// Tokens of one or more whole characters.
    Tokens(Vec<u32>),
    Wait(Duration),
    Fail(String),
    Crash,
}

/// What was written of an answer so far.
enum Written {
    /// Texts, and whether special tokens in them are read as such.
    Text(Vec<(String, bool)>),
    Item(Item),
}

/// Writes steps in the scripted model's syntax.
struct Writer {
    written: Vec<Written>,
    thinks: bool,
    /// Something of the answer is written that a call stands below of.
    has_line: bool,
}

impl Writer {
    fn new(thinks: bool) -> Self {
        Self { written: Vec::new(), thinks, has_line: false }
    }

    fn push(&mut self, text: impl Into<String>, special: bool) {
        let part = (text.into(), special);
        match self.written.last_mut() {
            Some(Written::Text(parts)) => parts.push(part),
            _ => self.written.push(Written::Text(vec![part])),
        }
    }

    fn think(&mut self, thinks: bool) {
        if std::mem::replace(&mut self.thinks, thinks) != thinks {
            self.push(if thinks { THOUGHT.0 } else { THOUGHT.1 }, true);
        }
    }

    fn write(&mut self, step: &Step) {
        match step {
            Step::Thinking(text) => {
                self.think(true);
                self.push(text, false);
            }
            Step::Text(text) => {
                self.think(false);
                self.push(text, false);
                self.has_line = true;
            }
            Step::Call(call) => self.call(call),
            Step::Calls(calls) => calls.iter().for_each(|call| self.call(call)),
            Step::Raw(text) => self.push(text, true),
            Step::Wait(time) => {
                self.written.push(Written::Item(Item::Wait(Duration::from_millis(*time))))
            }
            Step::Fail(reason) => self.written.push(Written::Item(Item::Fail(reason.clone()))),
            Step::Crash => self.written.push(Written::Item(Item::Crash)),
            // Refused when the script is read.
            Step::Delta(_) => {}
        }
    }

    fn call(&mut self, call: &crate::script::Call) {
        self.think(false);
        if std::mem::replace(&mut self.has_line, true) {
            self.push("\n", false);
        }
        self.push(CALL.0, true);
        let (name, arguments) =
            (serde_json::Value::from(call.name.as_str()), call.arguments_text());
        self.push(format!("{{\"name\": {name}, \"arguments\": {arguments}}}"), false);
        self.push(CALL.1, true);
    }
}

/// Hands a script's tokens to the engine, and its events to the request.
struct ScriptedSink {
    request: Box<dyn Sink>,
    items: VecDeque<Item>,
    pace: Duration,
    /// Nothing comes before.
    resume: Option<Instant>,
}

impl ScriptedSink {
    fn new(request: Box<dyn Sink>, items: VecDeque<Item>, pace: Duration) -> Self {
        let mut sink = Self { request, items, pace, resume: None };
        sink.wait();
        sink
    }

    /// Takes the pauses that are due.
    fn wait(&mut self) {
        while let Some(Item::Wait(time)) = self.items.front() {
            let from = self.resume.unwrap_or_else(Instant::now);
            self.resume = Some(from + *time);
            self.items.pop_front();
        }
    }

    /// Does what stands before the next tokens; `false` ends the answer.
    fn go_on(&mut self) -> bool {
        self.wait();
        match self.items.front() {
            Some(Item::Fail(reason)) => {
                self.request.send(Event::Failed(reason.clone()));
                false
            }
            Some(Item::Crash) => {
                tracing::error!("the script ends this process");
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

    fn answer_ends_thought(&self) -> bool {
        self.request.answer_ends_thought()
    }

    fn room(&self) -> usize {
        self.request.room()
    }

    fn stage(&self, text: &str) -> Stage {
        self.request.stage(text)
    }

    /// What the request wants, such as the end behind its only call, comes before the script.
    fn forced(&mut self) -> Vec<u32> {
        let wanted = self.request.forced();
        if !wanted.is_empty() {
            return wanted;
        }
        match self.items.pop_front_if(|item| matches!(item, Item::Tokens(_))) {
            Some(Item::Tokens(tokens)) => tokens,
            _ => Vec::new(),
        }
    }

    fn end_thought(&mut self) -> Vec<u32> {
        self.request.end_thought()
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
        if let Event::Done(Summary { prompt_tokens, cached_tokens, generated_tokens, .. }) = &event
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
        !(is_piece || is_read) || self.go_on()
    }
}

impl Generator for ScriptedModel {
    fn submit(&self, mut job: Request, mut sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        let prompt = self.model.decode(&job.prompt);
        let conversation = Conversation::of_prompt(prompt);
        let answer = match self.script.answer(&conversation) {
            Ok(answer) => answer,
            Err(error) => {
                self.model.check_request(&job)?;
                sink.send(Event::Failed(error.to_string()));
                return Ok(REFUSED);
            }
        };
        let items = self.items(&answer, &conversation.prompt);
        if is_cut_off(&answer) {
            let count =
                |item: &Item| if let Item::Tokens(tokens) = item { tokens.len() } else { 0 };
            let tokens = items.iter().map(count).sum();
            job.max_tokens = Some(job.max_tokens.map_or(tokens, |most| most.min(tokens)));
        }
        // The script has the word: whatever a grammar allows is not asked for.
        job.grammar = None;
        job.speculation = Some(Speculation::OFF);
        let pace = Duration::from_millis(answer.pace);
        self.model.submit(job, Box::new(ScriptedSink::new(sink, items, pace)))
    }

    fn facts(&self) -> &Facts {
        self.model.facts()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.model.encode(text)
    }

    fn tokenize(&self, text: &Tokenize) -> Vec<u32> {
        self.model.tokenize(text)
    }

    fn encode_parts(&self, parts: &[(&str, bool)]) -> Vec<u32> {
        self.model.encode_parts(parts)
    }

    fn encode_prompt(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32> {
        self.model.encode_prompt(parts, leading_bos)
    }

    fn controls_in(&self, text: &str) -> Vec<Range<usize>> {
        self.model.controls_in(text)
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

    fn grammar(&self, form: &Constraint, whole: bool) -> Result<Grammar, String> {
        self.model.grammar(form, whole)
    }

    fn check_request(&self, job: &Request) -> Result<(), EngineError> {
        self.model.check_request(job)
    }

    fn cancel(&self, job: u64) {
        self.model.cancel(job);
    }

    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, EngineError> {
        self.model.embed(inputs, done)
    }

    fn rank(&self, pairs: Vec<Vec<u32>>, done: RankDone) -> Result<u64, EngineError> {
        self.model.rank(pairs, done)
    }

    fn pulse(&self) -> Pulse {
        self.model.pulse()
    }
}
