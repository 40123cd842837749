//! Glimmer: messages to a recipient, ` to=user<|message|>…<|eot|>`; a message to a tool is a call in XML.

use super::super::body::{Xml, call};
use super::super::call::{CallError, Out};
use super::super::pending::{Found, Pending, first_tag};
use super::super::tools::Tools;
use super::super::{FunctionCall, Grammar, ParserInput, Stage, is_free_of};

const START: &str = "<|start|>";
const HEADER: &str = "<|start|>assistant";
const MESSAGE: &str = "<|message|>";
/// What begins an answer behind the prompt, which ends with [`HEADER`].
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
enum State {
    Header,
    Thinking,
    Content,
    /// A message to the user that may be nothing but a call.
    MayCall,
    /// A message to this tool.
    Call(String),
}

/// The parser of Glimmer.
#[derive(Debug, Clone)]
pub(in super::super) struct Glimmer {
    state: State,
    tools: Tools,
    shows: bool,
    answers: bool,
    /// The call of the current message has been closed.
    closed: bool,
    /// What would begin an answer in place of the next header; empty once that has begun.
    answer: String,
}

impl Glimmer {
    pub(in super::super) fn new(input: &ParserInput<'_>) -> Self {
        let (tools, shows) = (Tools::new(input.tools), input.thinks_unless_told());
        Self {
            state: State::Header,
            tools,
            shows,
            answers: false,
            closed: false,
            answer: TO_USER.into(),
        }
    }

    fn header(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        match text.take_through(MESSAGE) {
            Some(header) => {
                let header = header.strip_prefix(HEADER).unwrap_or(&header).trim();
                let recipient = header.strip_prefix("to=").unwrap_or(header).trim();
                self.state = match self.declared(recipient) {
                    _ if recipient == "self" => State::Thinking,
                    Some(tool) => State::Call(tool),
                    None if self.tools.is_empty() => State::Content,
                    None => State::MayCall,
                };
                self.answers |= self.state != State::Thinking;
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

    fn body(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let flow = text.flow_blank(&ENDS);
        let body =
            flow.text + &if end && flow.tag.is_none() { text.take_all() } else { String::new() };
        match self.state {
            State::Thinking if self.shows => out.thinking(&body),
            State::Thinking => {}
            _ => out.content(&body),
        }
        if let Some(tag) = flow.tag {
            self.state = State::Header;
            self.answer =
                if ENDS[tag] == HEADER { TO_USER.into() } else { format!("{HEADER}{TO_USER}") };
        }
        flow.tag.is_some()
    }

    /// Whether a message to the user is a call shows at its beginning.
    fn may_call(&mut self, text: &mut Pending, end: bool) -> bool {
        let start = text.first_solid();
        let rest = start.map_or("", |at| &text.rest()[at..]);
        if rest.starts_with(OPEN) {
            text.set_seen(0);
            self.state = State::Call(String::new());
            return true;
        }
        if OPEN.starts_with(rest) && !end {
            return false;
        }
        text.set_seen(0);
        self.state = State::Content;
        true
    }

    fn call(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        // Values may hold anything, the tags of messages too.
        if !self.closed {
            match text.find(&[CLOSE]) {
                Found::Tag { at, .. } => {
                    text.set_seen(at + CLOSE.len());
                    self.closed = true;
                }
                _ if end => {}
                _ => return false,
            }
        }
        let from = if self.closed { text.seen() } else { 0 };
        let (length, tag) = match first_tag(text.rest(), from, &ENDS) {
            Found::Tag { at, tag } => (at, ENDS[tag].len()),
            _ if end => (text.rest().len(), 0),
            _ => {
                let back = HEADER.len().min(text.rest().len() - from);
                let mut seen = text.rest().len() - back;
                while !text.rest().is_char_boundary(seen) {
                    seen -= 1;
                }
                text.set_seen(seen.max(from));
                return false;
            }
        };
        let State::Call(recipient) = std::mem::replace(&mut self.state, State::Header) else {
            return true;
        };
        self.closed = false;
        let body = text.take(length).to_owned();
        text.take(tag);
        match self.read(&recipient, body.trim()) {
            // It was an answer after all.
            Err(_) if recipient.is_empty() => out.content(&body),
            read => out.calls(read, |_| format!("to={recipient}{MESSAGE}{body}")),
        }
        true
    }

    fn read(&self, recipient: &str, body: &str) -> Result<Vec<FunctionCall>, CallError> {
        let form = CallError::Form("<atem:function_calls>…</atem:function_calls>");
        let inside =
            body.strip_prefix(OPEN).and_then(|body| body.strip_suffix(CLOSE)).ok_or(form)?;
        // The model's slips: the tag of a message instead of, or before, the end of the opening tag.
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

impl Grammar for Glimmer {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if text.is_empty() {
            return false;
        }
        match self.state {
            State::Header => self.header(text, end, out),
            State::Thinking | State::Content => self.body(text, end, out),
            State::MayCall => self.may_call(text, end),
            State::Call(_) => self.call(text, end, out),
        }
    }

    fn stage(&self) -> Stage {
        if self.answers { Stage::Answer } else { Stage::Thinking }
    }

    fn thought_end(&self) -> Option<String> {
        let between =
            matches!(self.state, State::Header | State::Thinking) && !self.answer.is_empty();
        Some(self.answer.clone()).filter(|_| between && !self.answers)
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        self.state == State::Thinking && is_free_of(piece, ENDS.into_iter())
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        [START, MESSAGE, ENDS[0], ENDS[1]].map(str::to_owned).to_vec()
    }
}
