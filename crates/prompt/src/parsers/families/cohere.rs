//! Cohere: blocks of text, of thoughts, and of calls as a JSON list, each between its tags.

use super::super::body::{Body, object_call};
use super::super::call::{CallError, Out};
use super::super::pending::{Brackets, Pending};
use super::super::tools::Tools;
use super::super::{Grammar, ParserInput, Stage};

const END_THINKING: &str = "<|END_THINKING|>";
const START_ACTION: &str = "<|START_ACTION|>";
const END_ACTION: &str = "<|END_ACTION|>";
const END_OF_TURN: &str = "<|END_OF_TURN_TOKEN|>";
const OPENING: [&str; 4] = ["<|START_TEXT|>", "<|START_RESPONSE|>", START_ACTION, END_OF_TURN];
const CLOSING: [&str; 3] = ["<|END_TEXT|>", "<|END_RESPONSE|>", END_OF_TURN];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Thinking,
    /// Between blocks.
    Between,
    Content,
    Action,
}

/// The parser of Command models.
#[derive(Debug, Clone)]
pub(super) struct Cohere {
    state: State,
    tools: Tools,
}

impl Cohere {
    pub(super) fn new(input: &ParserInput<'_>) -> Self {
        let state = match input.thinks_unless_told() {
            _ if input.continues() => State::Content,
            true => State::Thinking,
            false => State::Between,
        };
        Self { state, tools: Tools::new(input.tools) }
    }

    fn thinking(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let flow = text.flow(&[END_THINKING]);
        if flow.tag.is_some() {
            out.thinking(flow.text.trim_end());
            self.state = State::Between;
            return true;
        }
        out.thinking(&flow.text);
        if end {
            out.thinking(text.take_all().trim_end());
        }
        false
    }

    /// Text before a block is none of the answer, but if no block comes it is all there is.
    fn between(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        use super::super::pending::Found;
        match text.find(&OPENING) {
            Found::Tag { at, tag } => {
                let before = text.take(at).trim().to_owned();
                text.take(OPENING[tag].len());
                match OPENING[tag] {
                    START_ACTION => self.state = State::Action,
                    END_OF_TURN => out.content(&before),
                    _ => self.state = State::Content,
                }
                true
            }
            _ => {
                if end {
                    out.content(text.take_all().trim_start());
                }
                false
            }
        }
    }

    fn content(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let flow = text.flow_blank(&CLOSING);
        out.content(&flow.text);
        if flow.tag.is_some() {
            self.state = State::Between;
        } else if end {
            out.content(&text.take_all());
        }
        flow.tag.is_some()
    }

    fn action(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let list = match text.take_through(END_ACTION) {
            Some(list) => list,
            None if end => text.take_all(),
            None => return false,
        };
        self.state = State::Between;
        match Body::Json.read(&list, &self.tools) {
            Ok(calls) => out.calls(Ok(calls), |_| String::new()),
            Err(error) => self.rescue(&list, error, out),
        }
        true
    }

    /// One bad call does not spoil the others of a list.
    fn rescue(&self, list: &str, error: CallError, out: &mut Out) {
        let mut rest = list;
        let mut found = false;
        while let Some(at) = rest.find('{') {
            let length = Brackets::default().end(&rest[at..]).unwrap_or(rest.len() - at);
            let object = &rest[at..at + length];
            let value = serde_json::from_str(object).map_err(|e| CallError::Json(e.to_string()));
            let read =
                value.and_then(|value| object_call(value, &self.tools)).map(|call| vec![call]);
            out.calls(read, |_| object.to_owned());
            rest = &rest[at + length..];
            found = true;
        }
        if !found {
            out.malformed(format!("{START_ACTION}{list}"), error);
        }
    }
}

impl Grammar for Cohere {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if text.is_empty() {
            return false;
        }
        match self.state {
            State::Thinking => self.thinking(text, end, out),
            State::Between => self.between(text, end, out),
            State::Content => self.content(text, end, out),
            State::Action => self.action(text, end, out),
        }
    }

    fn stage(&self) -> Stage {
        if self.state == State::Thinking { Stage::Thinking } else { Stage::Answer }
    }

    fn thought_end(&self) -> Option<String> {
        (self.state == State::Thinking).then(|| END_THINKING.to_owned())
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        let all = ["<|START_THINKING|>", END_THINKING, END_ACTION];
        all.iter().chain(&OPENING[..3]).chain(&CLOSING[..2]).map(|tag| (*tag).to_owned()).collect()
    }
}
