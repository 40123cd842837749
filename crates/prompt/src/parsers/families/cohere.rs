//! Cohere: tagged blocks of text, of reasoning, and of calls as a JSON list.

use super::super::body::{CallBody, object_call};
use super::super::format_parser::{FormatParser, OutputStage, ParserInput};
use super::super::output_part::CallError;
use super::super::part_sink::PartSink;
use super::super::pending::{BracketMatcher, PendingText};
use super::super::tools::Tools;

const END_THINKING: &str = "<|END_THINKING|>";
const START_ACTION: &str = "<|START_ACTION|>";
const END_ACTION: &str = "<|END_ACTION|>";
const END_OF_TURN: &str = "<|END_OF_TURN_TOKEN|>";
const OPENING: [&str; 4] = ["<|START_TEXT|>", "<|START_RESPONSE|>", START_ACTION, END_OF_TURN];
const CLOSING: [&str; 3] = ["<|END_TEXT|>", "<|END_RESPONSE|>", END_OF_TURN];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CohereState {
    Thinking,
    /// Between blocks.
    Between,
    Content,
    Action,
}

/// The parser of Command models.
#[derive(Debug, Clone)]
pub(super) struct Cohere {
    state: CohereState,
    tools: Tools,
}

impl Cohere {
    pub(super) fn new(input: &ParserInput<'_>) -> Self {
        let state = match input.thinks_by_default() {
            _ if input.continues() => CohereState::Content,
            true => CohereState::Thinking,
            false => CohereState::Between,
        };
        Self { state, tools: Tools::new(input.tools) }
    }

    fn thinking(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let released = text.release(&[END_THINKING]);
        if released.tag.is_some() {
            out.thinking(released.text.trim_end());
            self.state = CohereState::Between;
            return true;
        }
        out.thinking(&released.text);
        if end {
            out.thinking(text.take_all().trim_end());
        }
        false
    }

    /// Text before a block is dropped. If no block follows, this text is the answer.
    fn between(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        use super::super::pending::TagMatch;
        match text.find(&OPENING) {
            TagMatch::Tag { at, tag } => {
                let before = text.take(at).trim().to_owned();
                text.take(OPENING[tag].len());
                match OPENING[tag] {
                    START_ACTION => self.state = CohereState::Action,
                    END_OF_TURN => out.content(&before),
                    _ => self.state = CohereState::Content,
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

    fn content(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let released = text.release_with_blanks(&CLOSING);
        out.content(&released.text);
        if released.tag.is_some() {
            self.state = CohereState::Between;
        } else if end {
            out.content(&text.take_all());
        }
        released.tag.is_some()
    }

    fn action(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let list = match text.take_through(END_ACTION) {
            Some(list) => list,
            None if end => text.take_all(),
            None => return false,
        };
        self.state = CohereState::Between;
        match CallBody::Json.read(&list, &self.tools) {
            Ok(calls) => out.calls(Ok(calls), |_| String::new()),
            Err(error) => self.read_calls_separately(&list, error, out),
        }
        true
    }

    /// Reads the calls of an invalid list one by one, so that valid calls are kept.
    fn read_calls_separately(&self, list: &str, error: CallError, out: &mut PartSink) {
        let mut rest = list;
        let mut found = false;
        while let Some(at) = rest.find('{') {
            let length = BracketMatcher::default().find_end(&rest[at..]).unwrap_or(rest.len() - at);
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

impl FormatParser for Cohere {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if text.is_empty() {
            return false;
        }
        match self.state {
            CohereState::Thinking => self.thinking(text, end, out),
            CohereState::Between => self.between(text, end, out),
            CohereState::Content => self.content(text, end, out),
            CohereState::Action => self.action(text, end, out),
        }
    }

    fn stage(&self) -> OutputStage {
        if self.state == CohereState::Thinking {
            OutputStage::Thinking
        } else {
            OutputStage::Answer
        }
    }

    fn reasoning_end(&self) -> Option<String> {
        (self.state == CohereState::Thinking).then(|| END_THINKING.to_owned())
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        let all = ["<|START_THINKING|>", END_THINKING, END_ACTION];
        all.iter().chain(&OPENING[..3]).chain(&CLOSING[..2]).map(|tag| (*tag).to_owned()).collect()
    }
}
