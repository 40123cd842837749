//! One grammar for most families: thoughts between tags, and calls between tags, in an answer of plain text.

use super::body::{Body, Text};
use super::call::{CallError, Out};
use super::early::Form;
use super::pending::{Brackets, Found, Pending, first_tag};
use super::tools::Tools;
use super::{Grammar, Stage, Style, closing, is_free_of};

/// What a family's output looks like.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) think: Option<Thought>,
    pub(super) calls: Option<Calls>,
    /// Tags that are left out of the answer.
    pub(super) dropped: &'static [&'static str],
    /// Text between these is left out, too.
    pub(super) swallowed: Option<(&'static str, &'static str)>,
    /// Whether white space and half a tag at the end of the text belong to the answer.
    pub(super) keep_tail: bool,
    /// Other special tokens of the family.
    pub(super) preserved: &'static [&'static str],
}

impl Rules {
    /// Nothing but text.
    pub(super) const PLAIN: Rules = Rules {
        think: None,
        calls: None,
        dropped: &[],
        swallowed: None,
        keep_tail: false,
        preserved: &[],
    };
}

/// Thoughts.
#[derive(Debug, Clone)]
pub(super) struct Thought {
    pub(super) open: Text,
    pub(super) close: Text,
    pub(super) start: Start,
    /// A call may come inside of a thought, and ends it.
    pub(super) call_ends: bool,
    /// The opening tag counts wherever it comes.
    pub(super) anywhere: bool,
    /// Thoughts are left out.
    pub(super) discard: bool,
    /// A closing tag that comes first ends a thought that was none.
    pub(super) lone_close: bool,
}

impl Thought {
    /// `<think>…</think>`.
    pub(super) fn tags(open: impl Into<Text>, close: impl Into<Text>, start: Start) -> Self {
        let (open, close) = (open.into(), close.into());
        Self {
            open,
            close,
            start,
            call_ends: false,
            anywhere: false,
            discard: false,
            lone_close: false,
        }
    }

    fn say(&self, text: &str, out: &mut Out) {
        if !self.discard {
            out.thinking(text);
        }
    }
}

/// How an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// With the answer proper: no thought comes.
    Answer,
    /// In a thought that the prompt has opened.
    Thought,
    /// As [`Start::Thought`], but the model may open it once more.
    MayReopen,
    /// With a thought if the opening tag comes first.
    MayOpen,
}

/// Calls.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    /// Tags around all calls, where there are any.
    pub(super) section: Option<(Text, Text)>,
    /// Before a call.
    pub(super) open: Text,
    /// After it.
    pub(super) end: End,
    pub(super) body: Body,
    /// What stands before a call keeps its white space.
    pub(super) keep_blank: bool,
    /// What to do with a call that the text ends in.
    pub(super) unclosed: Unclosed,
    /// Calls must be of tools that were offered.
    pub(super) declared: bool,
    /// The opening tag is part of what the call is read from.
    pub(super) whole: bool,
    /// A call that cannot be read may go on behind its closing tag, as that may stand in a string.
    pub(super) patient: bool,
    /// A closing tag in a value is part of the value.
    pub(super) in_values: bool,
}

impl Calls {
    /// Calls of the usual kind.
    pub(super) fn new(open: impl Into<Text>, end: End, body: Body) -> Self {
        Self {
            section: None,
            open: open.into(),
            end,
            body,
            keep_blank: false,
            unclosed: Unclosed::Malformed,
            declared: false,
            whole: false,
            patient: false,
            in_values: false,
        }
    }

    /// Calls between tags.
    pub(super) fn between(open: impl Into<Text>, close: impl Into<Text>, body: Body) -> Self {
        Self::new(open, End::Tag(close.into()), body)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// A tag.
    Tag(Text),
    /// The end of the JSON value in it, or of that behind a separator.
    Json(Option<Text>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclosed {
    /// It is malformed.
    Malformed,
    /// It counts if the model ended there, its tool was offered and every required argument is there.
    IfComplete,
}

/// What a closing tag is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It ends the call.
    Ends,
    /// It is part of a value, as far as can be told.
    Inside,
    /// Part of no value, nor was the first one, which ended the call.
    First,
}

/// How many closing tags of a call are looked at.
const ATTEMPTS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Thought,
    Answer,
    /// Between calls of a section.
    Section,
    Call,
    Swallowed,
}

/// The machine for [`Rules`].
#[derive(Debug, Clone)]
pub(super) struct Tagged {
    rules: Rules,
    tools: Tools,
    state: State,
    /// White space is dropped until something else comes.
    trim: bool,
    /// White space before a call, which is part of the text if the call is none.
    blank: String,
    brackets: Brackets,
    /// The separator before the JSON of the current call has come.
    in_json: bool,
    /// Closing tags of the current call that did not end it.
    attempts: usize,
    /// Where the first of them stands.
    first_close: Option<usize>,
}

impl Tagged {
    pub(super) fn new(rules: Rules, tools: Tools) -> Self {
        let (state, trim) = match rules.think.as_ref().map(|think| think.start) {
            None | Some(Start::Answer) => (State::Answer, false),
            Some(Start::Thought) => (State::Thought, true),
            Some(Start::MayReopen | Start::MayOpen) => (State::Start, false),
        };
        Self {
            rules,
            tools,
            state,
            trim,
            blank: String::new(),
            brackets: Brackets::default(),
            in_json: false,
            attempts: 0,
            first_close: None,
        }
    }

    fn go(&mut self, state: State, trim: bool) -> bool {
        (self.state, self.trim) = (state, trim);
        (self.brackets, self.in_json) = (Brackets::default(), false);
        (self.attempts, self.first_close) = (0, None);
        true
    }

    /// The tag that ends plain text: that of a section, or of a call.
    fn call_tag(&self) -> Option<&str> {
        let calls = self.rules.calls.as_ref()?;
        Some(calls.section.as_ref().map_or(&calls.open, |(open, _)| open))
    }

    fn enter_calls(&mut self) -> bool {
        let has_section = self.rules.calls.as_ref().is_some_and(|calls| calls.section.is_some());
        self.go(if has_section { State::Section } else { State::Call }, false)
    }

    /// Does the text begin with the opening tag of a thought?
    fn start(&mut self, text: &mut Pending, end: bool) -> bool {
        let Some(think) = &self.rules.think else { return self.go(State::Answer, false) };
        let reopened = think.start == Start::MayReopen;
        let rest = match text.first_solid() {
            Some(at) => &text.rest()[at..],
            None if end => "",
            None => return false,
        };
        if rest.starts_with(think.open.as_ref()) {
            let length = text.seen() + think.open.len();
            text.take(length);
            return self.go(State::Thought, true);
        }
        let lone = think.lone_close.then_some(think.close.as_ref());
        if let Some(close) = lone.filter(|close| rest.starts_with(*close)) {
            let length = text.seen() + close.len();
            text.take(length);
            return self.go(State::Answer, true);
        }
        if !end && std::iter::once(think.open.as_ref()).chain(lone).any(|tag| tag.starts_with(rest))
        {
            return false;
        }
        text.set_seen(0);
        if reopened { self.go(State::Thought, true) } else { self.go(State::Answer, false) }
    }

    fn thought(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let Some(think) = &self.rules.think else { return self.go(State::Answer, false) };
        let call = self.call_tag().filter(|_| think.call_ends);
        let tags: Vec<&str> = std::iter::once(think.close.as_ref()).chain(call).collect();
        let flow = text.flow(&tags);
        match flow.tag {
            Some(tag) => {
                think.say(flow.text.trim_end(), out);
                if tag == 0 { self.go(State::Answer, true) } else { self.enter_calls() }
            }
            None => {
                think.say(&flow.text, out);
                if end {
                    let rest = text.take_all();
                    think.say(rest.trim_end(), out);
                }
                false
            }
        }
    }

    fn answer(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let swallowed = self.rules.swallowed.map(|(open, _)| open);
        let dropped = self.rules.dropped.iter().copied();
        let thought = self
            .rules
            .think
            .as_ref()
            .filter(|think| think.anywhere)
            .map(|think| think.open.as_ref());
        let tags: Vec<&str> =
            self.call_tag().into_iter().chain(thought).chain(swallowed).chain(dropped).collect();
        let keeps_blank = self.rules.calls.as_ref().is_some_and(|calls| calls.keep_blank);
        let flow = if keeps_blank { text.flow_blank(&tags) } else { text.flow(&tags) };
        let Some(tag) = flow.tag.map(|tag| tags[tag]) else {
            out.content(&flow.text);
            if end {
                self.end_answer(text, out);
            }
            return false;
        };
        if Some(tag) == self.call_tag() {
            let solid = if keeps_blank { flow.text.len() } else { flow.text.trim_end().len() };
            out.content(&flow.text[..solid]);
            flow.text[solid..].clone_into(&mut self.blank);
            self.enter_calls()
        } else if Some(tag) == thought {
            out.content(flow.text.trim_end());
            self.go(State::Thought, true)
        } else if Some(tag) == swallowed {
            out.content(flow.text.trim_end());
            self.go(State::Swallowed, false)
        } else {
            out.content(&flow.text);
            true
        }
    }

    fn end_answer(&mut self, text: &mut Pending, out: &mut Out) {
        let rest = text.take_all();
        if self.rules.keep_tail {
            out.content(&rest);
        } else if !rest.trim().is_empty() {
            out.malformed(rest, CallError::TagCutOff);
        }
    }

    fn section(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let Some(Calls { section: Some((_, close)), open, .. }) = &self.rules.calls else {
            return self.go(State::Answer, false);
        };
        let (junk, tag) = match text.take_through_any(&[open, close]) {
            Some((junk, tag)) => (junk, Some(tag)),
            None if end => (text.take_all(), None),
            None => return false,
        };
        if !junk.trim().is_empty() {
            out.malformed(junk, CallError::Form("tags with a call between them"));
        }
        match tag {
            Some(0) => self.go(State::Call, false),
            Some(_) => self.go(State::Answer, true),
            None => false,
        }
    }

    fn call(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let Some(calls) = &self.rules.calls else { return self.go(State::Answer, false) };
        let (length, closing) = match &calls.end {
            End::Tag(tag) => {
                let (length, known) = match text.find(&[tag]) {
                    Found::Tag { at, .. } => (Some(at), at),
                    Found::Perhaps(at) => (None, at),
                    Found::None => (None, text.rest().len()),
                };
                self.follow(calls, &text.rest()[..known], out);
                (length, if length.is_some() { tag.len() } else { 0 })
            }
            End::Json(separator) => {
                if let Some(separator) = separator.as_ref().filter(|_| !self.in_json) {
                    let Found::Tag { at, .. } = text.find(&[separator]) else {
                        return self.wait(text, end, out);
                    };
                    text.set_seen(at + separator.len());
                    self.in_json = true;
                }
                let seen = text.seen();
                let length = self.brackets.end(&text.rest()[seen..]).map(|length| seen + length);
                text.set_seen(text.rest().len());
                self.follow(calls, &text.rest()[..length.unwrap_or(text.rest().len())], out);
                (length, 0)
            }
        };
        let mut length = match length {
            Some(length) => length,
            // No value was open after all.
            None if end => match self.first_close {
                Some(first) => first,
                None => return self.wait(text, end, out),
            },
            None => return self.wait(text, end, out),
        };
        let closing = if let End::Tag(tag) = &calls.end { tag.len() } else { closing };
        match self.closing(calls, &text.rest()[..length]) {
            Closing::Inside if self.attempts < ATTEMPTS && self.first_close != Some(length) => {
                self.first_close.get_or_insert(length);
                self.attempts += 1;
                text.set_seen(length + closing);
                return true;
            }
            Closing::Ends => {}
            Closing::Inside | Closing::First => length = self.first_close.unwrap_or(length),
        }
        let inside = &text.rest()[..length];
        let read = self.read(calls, inside);
        if read.is_err() && calls.patient && self.attempts < ATTEMPTS {
            self.attempts += 1;
            text.set_seen(length + closing);
            return true;
        }
        let (in_section, trim) = (calls.section.is_some(), !calls.keep_blank && read.is_ok());
        let blank = std::mem::take(&mut self.blank);
        let whole = &text.rest()[..length + closing];
        out.calls(read, |given| match given {
            0 => format!("{blank}{}{whole}", calls.open),
            given => whole[given..].to_owned(),
        });
        text.take(length + closing);
        self.go(if in_section { State::Section } else { State::Answer }, trim)
    }

    /// What the closing tag behind `inside` is. In JSON one within a string is told by what reads at last; between tags
    /// the next tag must be the one that ends the value.
    fn closing(&self, calls: &Calls, inside: &str) -> Closing {
        let Some(first) = self.first_close.filter(|_| calls.in_values) else {
            return match calls.in_values && calls.body.ends_in_value(inside) {
                true => Closing::Inside,
                false => Closing::Ends,
            };
        };
        let Some((end, others)) = calls.body.value_tags() else {
            return if self.read(calls, inside).is_ok() { Closing::Ends } else { Closing::Inside };
        };
        let tags: Vec<&str> = [end, &calls.open].into_iter().chain(others).collect();
        match first_tag(inside, first, &tags) {
            Found::Tag { tag: 0, .. } if calls.body.ends_in_value(inside) => Closing::Inside,
            Found::Tag { tag: 0, .. } => Closing::Ends,
            Found::Tag { .. } => Closing::First,
            Found::Perhaps(_) | Found::None => Closing::Inside,
        }
    }

    /// Tells of a call as far as it has come.
    fn follow(&self, calls: &Calls, inside: &str, out: &mut Out) {
        let form = match &calls.body {
            Body::Json => Form::Object,
            Body::NameJson(form) => Form::NameJson(form),
            _ => return,
        };
        out.follow(form, inside, &self.tools);
    }

    fn wait(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if end {
            self.unclosed(text, out);
        }
        false
    }

    fn read(&self, calls: &Calls, inside: &str) -> Result<Vec<super::FunctionCall>, CallError> {
        let read = match calls.whole {
            true => calls.body.read(&format!("{}{inside}", calls.open), &self.tools)?,
            false => calls.body.read(inside, &self.tools)?,
        };
        match read.iter().find(|call| calls.declared && !self.tools.has(&call.name)) {
            Some(call) => Err(CallError::Undeclared(call.name.clone())),
            None => Ok(read),
        }
    }

    /// The text has ended inside of a call.
    fn unclosed(&mut self, text: &mut Pending, out: &mut Out) {
        let Some(calls) = &self.rules.calls else { return };
        // Without the beginning of its closing tag.
        let seen = text.seen();
        let all = text.take_all();
        let inside = if matches!(calls.end, End::Tag(_)) { &all[..seen] } else { &all };
        let read = match calls.unclosed {
            _ if text.is_cut() => Err(CallError::Unclosed),
            Unclosed::Malformed => Err(CallError::Unclosed),
            Unclosed::IfComplete => self.read(calls, inside).and_then(|read| {
                for call in &read {
                    if !self.tools.has(&call.name) {
                        return Err(CallError::Undeclared(call.name.clone()));
                    }
                    if let Some(argument) = self.tools.missing(&call.name, &call.arguments) {
                        return Err(CallError::Missing { tool: call.name.clone(), argument });
                    }
                }
                Ok(read)
            }),
        };
        let blank = std::mem::take(&mut self.blank);
        out.calls(read, |given| match given {
            0 => format!("{blank}{}{all}", calls.open),
            given => all[given..].to_owned(),
        });
        self.go(State::Answer, true);
    }

    fn swallow(&mut self, text: &mut Pending, end: bool) -> bool {
        let Some((_, close)) = self.rules.swallowed else { return self.go(State::Answer, false) };
        match text.take_through(close) {
            Some(_) => self.go(State::Answer, true),
            None => {
                if end {
                    text.take_all();
                }
                false
            }
        }
    }
}

impl Grammar for Tagged {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if !text.trimmed(&mut self.trim) {
            return false;
        }
        match self.state {
            State::Start => self.start(text, end),
            State::Thought => self.thought(text, end, out),
            State::Answer => self.answer(text, end, out),
            State::Section => self.section(text, end, out),
            State::Call => self.call(text, end, out),
            State::Swallowed => self.swallow(text, end),
        }
    }

    fn stage(&self) -> Stage {
        match self.state {
            State::Start
                if self.rules.think.as_ref().is_some_and(|think| think.start == Start::MayOpen) =>
            {
                Stage::Start
            }
            State::Start | State::Thought => Stage::Thinking,
            _ => Stage::Answer,
        }
    }

    fn thought_end(&self) -> Option<String> {
        let thinks = self.stage() == Stage::Thinking;
        self.rules.think.as_ref().filter(|_| thinks).map(|think| closing(&think.close))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        let Some(think) = self.rules.think.as_ref().filter(|_| self.state == State::Thought) else {
            return false;
        };
        let call = self.call_tag().filter(|_| think.call_ends);
        is_free_of(piece, call.into_iter().chain([think.close.as_ref()]))
    }

    fn values(&self) -> Option<(Style, Vec<String>)> {
        let calls = self.rules.calls.as_ref()?;
        let (style, mut barred) = calls.body.values()?;
        if let End::Tag(tag) = &calls.end {
            barred.push(tag.to_string());
        }
        Some((style, barred))
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        let mut all: Vec<&str> = self.rules.preserved.to_vec();
        if let Some(think) = &self.rules.think {
            all.extend([think.open.as_ref(), think.close.as_ref()]);
        }
        if let Some(calls) = &self.rules.calls {
            all.push(&calls.open);
            if let End::Tag(tag) = &calls.end {
                all.push(tag);
            }
            all.extend(
                calls.section.iter().flat_map(|(open, close)| [open.as_ref(), close.as_ref()]),
            );
            all.extend(calls.body.tags());
        }
        all.extend(self.rules.dropped);
        all.extend(self.rules.swallowed.iter().flat_map(|(open, close)| [*open, *close]));
        all.into_iter().map(str::to_owned).collect()
    }
}
