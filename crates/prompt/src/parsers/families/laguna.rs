//! Laguna and Poolside: calls as with GLM, or JSON, in `<tool_call>`. With tools, calls without
//! this tag are recognized.

use super::super::body::{Pairs, arguments, call, object_call, read_pairs};
use super::super::format_parser::{FormatParser, OutputStage, ParserInput};
use super::super::output_part::CallError;
use super::super::part_sink::PartSink;
use super::super::pending::{BracketMatcher, PendingText, TagMatch};
use super::super::tools::Tools;
use super::super::value_style::ValueStyle;
use crate::message::FunctionCall;

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";
const USER: &str = "<user>";
const END_USER: &str = "</user>";
const PAIRS: [&str; 4] = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

/// Names that the model uses for other tools.
const ALIASES: [(&str, &str); 4] = [
    ("read_file", "read"),
    ("write_file", "write"),
    ("edit_file", "edit"),
    ("web_fetch", "webfetch"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LagunaState {
    /// In reasoning; the model may repeat the opening tag.
    Start,
    Thinking,
    /// At the start of an answer; a closing think tag is dropped.
    Opening,
    Content,
    Call,
    /// Behind `<user>`, which the model sometimes writes instead of a call tag.
    User,
    /// Behind a brace, before the first key.
    Brace,
    /// In an object that may be a call.
    Object,
}

/// The parser of Laguna models.
#[derive(Debug, Clone)]
pub(super) struct Laguna {
    state: LagunaState,
    tools: Tools,
    shows_reasoning: bool,
    /// Calls may come without their tag.
    untagged: bool,
    /// White space is dropped until other text arrives.
    trim: bool,
    /// White space that belongs to the answer if the text behind it does.
    blank: String,
    brackets: BracketMatcher,
}

impl Laguna {
    pub(super) fn new(input: &ParserInput<'_>, prefilled: bool) -> Self {
        let shows_reasoning = input.thinks();
        let state =
            if shows_reasoning && !prefilled { LagunaState::Start } else { LagunaState::Opening };
        Self {
            state,
            tools: Tools::new(input.tools),
            shows_reasoning,
            untagged: !input.tools.is_empty() && !input.constrained,
            trim: true,
            blank: String::new(),
            brackets: BracketMatcher::default(),
        }
    }

    fn go(&mut self, state: LagunaState, trim: bool) -> bool {
        (self.state, self.trim, self.brackets) = (state, trim, BracketMatcher::default());
        true
    }

    fn opening(
        &mut self,
        text: &mut PendingText,
        end: bool,
        tag: &str,
        then: (LagunaState, LagunaState),
    ) -> bool {
        match Self::leading(text, end, tag) {
            Some(true) => self.go(then.0, true),
            Some(false) => self.go(then.1, false),
            None => false,
        }
    }

    /// Consumes `tag` at the start of the text. `None` if more text is needed.
    fn leading(text: &mut PendingText, end: bool, tag: &str) -> Option<bool> {
        if text.rest().starts_with(tag) {
            text.take(tag.len());
            return Some(true);
        }
        (end || !tag.starts_with(text.rest())).then_some(false)
    }

    fn thinking(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let released = text.release(&[END_THINK, CALL]);
        let tail = if end && released.tag.is_none() { text.take_all() } else { String::new() };
        let thought = released.text + &tail;
        if self.shows_reasoning {
            out.thinking(if end || released.tag.is_some() { thought.trim_end() } else { &thought });
        }
        match released.tag {
            Some(0) => self.go(LagunaState::Opening, true),
            Some(_) => self.go(LagunaState::Call, true),
            None => false,
        }
    }

    fn content(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let tags: &[&str] = if !self.untagged { &[THINK, CALL] } else { &[THINK, CALL, USER, "{"] };
        let released = text.release(tags);
        match released.tag.map(|tag| tags[tag]) {
            None => {
                out.content(&released.text);
                if end {
                    out.content(text.take_all().trim_end());
                }
                false
            }
            Some(THINK) => {
                out.content(&released.text);
                self.go(LagunaState::Thinking, true)
            }
            Some(CALL) => {
                out.content(released.text.trim_end());
                self.go(LagunaState::Call, true)
            }
            // The white space before these tags belongs to the answer if no call follows.
            Some(tag) => {
                let content_end = released.text.trim_end().len();
                out.content(&released.text[..content_end]);
                released.text[content_end..].clone_into(&mut self.blank);
                self.go(if tag == USER { LagunaState::User } else { LagunaState::Brace }, false)
            }
        }
    }

    fn user(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let Some(inside) = text.take_through(END_USER) else {
            if end {
                let rest = text.take_all();
                out.content(&format!(
                    "{}{USER}{}",
                    std::mem::take(&mut self.blank),
                    rest.trim_end()
                ));
                self.go(LagunaState::Content, false);
            }
            return false;
        };
        match self.read(&inside).ok().filter(|call| self.tools.has(&call.name)) {
            Some(call) => {
                out.calls(Ok(vec![call]), |_| String::new());
                self.blank.clear();
                self.go(LagunaState::Opening, true)
            }
            None => {
                out.content(&format!(
                    "{}{USER}{inside}{END_USER}",
                    std::mem::take(&mut self.blank)
                ));
                self.go(LagunaState::Content, false)
            }
        }
    }

    /// Code also contains braces: the object of a call starts with a key.
    fn brace(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        match text.first_non_blank().map(|at| text.rest()[at..].starts_with('"')) {
            Some(true) => {
                text.set_search_position(0);
                self.go(LagunaState::Object, false);
                self.brackets.find_end("{").is_none()
            }
            None if !end => false,
            _ => self.no_call(text, 0, out),
        }
    }

    /// An object is a call if it names a tool. The opening brace was already consumed.
    fn object(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let searched = text.search_position();
        let Some(length) =
            self.brackets.find_end(&text.rest()[searched..]).map(|length| searched + length)
        else {
            let length = text.rest().len();
            text.set_search_position(length);
            return end && self.no_call(text, length, out);
        };
        let json = format!("{{{}", &text.rest()[..length]);
        let call =
            serde_json::from_str(&json).ok().and_then(|value| object_call(value, &self.tools).ok());
        match call.map(|call| self.named(call)).filter(|call| self.tools.has(&call.name)) {
            Some(call) => {
                out.calls(Ok(vec![call]), |_| String::new());
                self.blank.clear();
                text.take(length);
                self.go(LagunaState::Opening, true)
            }
            None => self.no_call(text, length, out),
        }
    }

    fn no_call(&mut self, text: &mut PendingText, length: usize, out: &mut PartSink) -> bool {
        out.content(&format!("{}{{", std::mem::take(&mut self.blank)));
        out.content(text.take(length));
        self.go(LagunaState::Content, false)
    }

    fn call(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let (inside, close) = match text.find(&[END_CALL]) {
            TagMatch::Tag { at, .. } => {
                let inside = text.take(at).to_owned();
                text.take(END_CALL.len());
                (inside, END_CALL)
            }
            _ if end => (text.take_all(), ""),
            _ => return false,
        };
        let read = match close.is_empty() && text.is_truncated() {
            true => Err(CallError::Unclosed),
            false => self.read(&inside).map(|call| vec![call]),
        };
        out.calls(read, |_| format!("{CALL}{inside}{close}"));
        self.go(LagunaState::Opening, true)
    }

    /// `f<arg_key>…`, `f{…}` or `{"name": "f", …}`.
    fn read(&self, inside: &str) -> Result<FunctionCall, CallError> {
        let mut text = inside.trim();
        while let Some(rest) = text.strip_prefix(CALL) {
            text = rest.trim();
        }
        let json =
            |text: &str| serde_json::from_str(text).map_err(|e| CallError::Json(e.to_string()));
        if text.starts_with('{') {
            return object_call(json(text)?, &self.tools).map(|call| self.named(call));
        }
        let key = text.find("<arg_key>").unwrap_or(text.len());
        if let Some((name, _)) = text[..key].split_once('{') {
            let given = json(text[name.len()..].trim())?;
            return Ok(self.named(call(name.trim(), arguments(given)?)));
        }
        let named = |name: &str| self.named(call(name, serde_json::Map::new())).name;
        let pairs = Pairs { strict: true, ..Pairs::default() };
        let name = text[..key].trim();
        if name.is_empty() {
            return Err(CallError::NoName);
        }
        // Argument types come from the tool behind the alias.
        read_pairs(&pairs, &format!("{}{}", named(name), &text[key..]), &self.tools)
    }

    fn named(&self, mut call: FunctionCall) -> FunctionCall {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == call.name).map(|(_, name)| *name);
        if let Some(name) = alias.filter(|name| !self.tools.has(&call.name) && self.tools.has(name))
        {
            name.clone_into(&mut call.name);
        }
        call
    }
}

impl FormatParser for Laguna {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        // A call that was cut directly behind its tag is reported as malformed text.
        let is_bare_tag = end && text.is_truncated() && self.state == LagunaState::Call;
        if !text.trim_start_if(&mut self.trim) && !is_bare_tag {
            return false;
        }
        match self.state {
            LagunaState::Start => {
                self.opening(text, end, THINK, (LagunaState::Thinking, LagunaState::Thinking))
            }
            LagunaState::Thinking => self.thinking(text, end, out),
            LagunaState::Opening => {
                self.opening(text, end, END_THINK, (LagunaState::Opening, LagunaState::Content))
            }
            LagunaState::Content => self.content(text, end, out),
            LagunaState::Call => self.call(text, end, out),
            LagunaState::User => self.user(text, end, out),
            LagunaState::Brace => self.brace(text, end, out),
            LagunaState::Object => self.object(text, end, out),
        }
    }

    fn stage(&self) -> OutputStage {
        match self.state {
            LagunaState::Start | LagunaState::Thinking => OutputStage::Thinking,
            _ => OutputStage::Answer,
        }
    }

    fn reasoning_end(&self) -> Option<String> {
        (self.stage() == OutputStage::Thinking).then(|| format!("\n{END_THINK}\n\n"))
    }

    fn value_style(&self) -> Option<(ValueStyle, Vec<String>)> {
        Some((
            ValueStyle::Bare,
            PAIRS.iter().chain(&[END_CALL]).map(|tag| (*tag).to_owned()).collect(),
        ))
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        let tags = [THINK, END_THINK, CALL, END_CALL, USER, END_USER];
        tags.iter().chain(&PAIRS).map(|tag| (*tag).to_owned()).collect()
    }
}
