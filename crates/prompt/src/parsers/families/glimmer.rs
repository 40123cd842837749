//! Glimmer: messages to a recipient, ` to=user<|message|>…<|eot|>`. A message to a tool is an XML
//! call.

use super::super::body::{Xml, call};
use super::super::format_parser::{FormatParser, OutputStage, ParserInput, is_free_of};
use super::super::output_part::CallError;
use super::super::part_sink::PartSink;
use super::super::pending::{PendingText, TagMatch, first_tag};
use super::super::tools::Tools;
use crate::message::FunctionCall;

const START: &str = "<|start|>";
const HEADER: &str = "<|start|>assistant";
const MESSAGE: &str = "<|message|>";
/// Header of an answer. The prompt ends with [`HEADER`].
const TO_USER: &str = " to=user<|message|>";
const ENDS: [&str; 3] = ["<|eom|>", "<|eot|>", HEADER];
const OPEN: &str = "<atem:function_calls>";
const CLOSE: &str = "</atem:function_calls>";

const XML: Xml = Xml {
    call: std::borrow::Cow::Borrowed("<atem:invoke"),
    argument: std::borrow::Cow::Borrowed("<atem:parameter"),
    head_end: std::borrow::Cow::Borrowed(">"),
    end: std::borrow::Cow::Borrowed("</atem:parameter>"),
    bare: false,
    python: false,
};

#[derive(Debug, Clone, PartialEq)]
enum GlimmerState {
    Header,
    Thinking,
    Content,
    /// A message to the user that may consist of a call only.
    MayCall,
    /// A message to this tool.
    Call(String),
}

/// The parser of Glimmer.
#[derive(Debug, Clone)]
pub(in super::super) struct Glimmer {
    state: GlimmerState,
    tools: Tools,
    shows_reasoning: bool,
    answers: bool,
    /// The closing tag of the current call has arrived.
    closed: bool,
    /// Text that would start an answer instead of the next header; empty once a header has started.
    answer: String,
}

impl Glimmer {
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let (tools, shows_reasoning) = (Tools::new(input.tools), input.thinks_by_default());
        Self {
            state: GlimmerState::Header,
            tools,
            shows_reasoning,
            answers: false,
            closed: false,
            answer: TO_USER.into(),
        }
    }

    fn header(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        match text.take_through(MESSAGE) {
            Some(header) => {
                let header = header.strip_prefix(HEADER).unwrap_or(&header).trim();
                let recipient = header.strip_prefix("to=").unwrap_or(header).trim();
                self.state = match self.declared(recipient) {
                    _ if recipient == "self" => GlimmerState::Thinking,
                    Some(tool) => GlimmerState::Call(tool),
                    None if self.tools.is_empty() => GlimmerState::Content,
                    None => GlimmerState::MayCall,
                };
                self.answers |= self.state != GlimmerState::Thinking;
                self.answer = format!("{}{HEADER}{TO_USER}", ENDS[0]);
                true
            }
            None if end => {
                self.answers = true;
                let rest = text.take_all();
                out.content(rest.strip_prefix(HEADER).unwrap_or(&rest));
                false
            }
            None => {
                self.answer.clear();
                false
            }
        }
    }

    /// The declared tool of a name, which may be written as `namespace.name`.
    fn declared(&self, name: &str) -> Option<String> {
        if self.tools.has(name) {
            return Some(name.to_owned());
        }
        let (namespace, name) = name.split_once('.')?;
        let own = name.split_once('.').map_or(name, |(own, _)| own);
        (self.tools.has(name) && namespace == own).then(|| name.to_owned())
    }

    fn body(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let released = text.release_with_blanks(&ENDS);
        let body = released.text
            + &if end && released.tag.is_none() { text.take_all() } else { String::new() };
        match self.state {
            GlimmerState::Thinking if self.shows_reasoning => out.thinking(&body),
            GlimmerState::Thinking => {}
            _ => out.content(&body),
        }
        if let Some(tag) = released.tag {
            self.state = GlimmerState::Header;
            self.answer =
                if ENDS[tag] == HEADER { TO_USER.into() } else { format!("{HEADER}{TO_USER}") };
        }
        released.tag.is_some()
    }

    /// Checks at its start whether a message to the user is a call.
    fn may_call(&mut self, text: &mut PendingText, end: bool) -> bool {
        let start = text.first_non_blank();
        let rest = start.map_or("", |at| &text.rest()[at..]);
        if rest.starts_with(OPEN) {
            text.set_search_position(0);
            self.state = GlimmerState::Call(String::new());
            return true;
        }
        if OPEN.starts_with(rest) && !end {
            return false;
        }
        text.set_search_position(0);
        self.state = GlimmerState::Content;
        true
    }

    fn call(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        // Values may contain any text, also message tags.
        if !self.closed {
            match text.find(&[CLOSE]) {
                TagMatch::Tag { at, .. } => {
                    text.set_search_position(at + CLOSE.len());
                    self.closed = true;
                }
                _ if end => {}
                _ => return false,
            }
        }
        let from = if self.closed { text.search_position() } else { 0 };
        let (length, tag) = match first_tag(text.rest(), from, &ENDS) {
            TagMatch::Tag { at, tag } => (at, ENDS[tag].len()),
            _ if end => (text.rest().len(), 0),
            _ => {
                let back = HEADER.len().min(text.rest().len() - from);
                let mut searched = text.rest().len() - back;
                while !text.rest().is_char_boundary(searched) {
                    searched -= 1;
                }
                text.set_search_position(searched.max(from));
                return false;
            }
        };
        let GlimmerState::Call(recipient) =
            std::mem::replace(&mut self.state, GlimmerState::Header)
        else {
            return true;
        };
        self.closed = false;
        let body = text.take(length).to_owned();
        text.take(tag);
        match self.read(&recipient, body.trim()) {
            // The message was an answer, not a call.
            Err(_) if recipient.is_empty() => out.content(&body),
            read => out.calls(read, |_| format!("to={recipient}{MESSAGE}{body}")),
        }
        true
    }

    fn read(&self, recipient: &str, body: &str) -> Result<Vec<FunctionCall>, CallError> {
        let format = CallError::Syntax("<atem:function_calls>…</atem:function_calls>");
        let inside =
            body.strip_prefix(OPEN).and_then(|body| body.strip_suffix(CLOSE)).ok_or(format)?;
        // Frequent errors of the model: a message tag instead of, or before, the end of the opening
        // tag.
        let inside = inside.replace(&format!("{MESSAGE}\">"), "\">").replace(MESSAGE, "\">");
        let mut calls = Vec::new();
        for one in XML.read(&inside, &self.tools)? {
            let name =
                self.declared(&one.name).ok_or_else(|| CallError::Undeclared(one.name.clone()))?;
            if !recipient.is_empty() && name != recipient {
                return Err(CallError::Recipient {
                    recipient: recipient.to_owned(),
                    name: one.name,
                });
            }
            calls.push(call(name, one.arguments));
        }
        Ok(calls)
    }
}

impl FormatParser for Glimmer {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if text.is_empty() {
            return false;
        }
        match self.state {
            GlimmerState::Header => self.header(text, end, out),
            GlimmerState::Thinking | GlimmerState::Content => self.body(text, end, out),
            GlimmerState::MayCall => self.may_call(text, end),
            GlimmerState::Call(_) => self.call(text, end, out),
        }
    }

    fn stage(&self) -> OutputStage {
        if self.answers { OutputStage::Answer } else { OutputStage::Thinking }
    }

    fn reasoning_end(&self) -> Option<String> {
        let between = matches!(self.state, GlimmerState::Header | GlimmerState::Thinking)
            && !self.answer.is_empty();
        Some(self.answer.clone()).filter(|_| between && !self.answers)
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        self.state == GlimmerState::Thinking && is_free_of(piece, ENDS.into_iter())
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        [START, MESSAGE, ENDS[0], ENDS[1]].map(str::to_owned).to_vec()
    }
}
