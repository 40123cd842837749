//! Laguna and Poolside: GLM's calls, or JSON, in `<tool_call>`; with tools also calls without that tag.

use super::super::body::{Pairs, arguments, call, object_call, read_pairs};
use super::super::call::{CallError, Out};
use super::super::pending::{Brackets, Found, Pending};
use super::super::tools::Tools;
use super::super::{FunctionCall, Grammar, ParserInput, Stage, Style};

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";
const USER: &str = "<user>";
const END_USER: &str = "</user>";
const PAIRS: [&str; 4] = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

/// Names that the model takes for others.
const ALIASES: [(&str, &str); 4] = [
    ("read_file", "read"),
    ("write_file", "write"),
    ("edit_file", "edit"),
    ("web_fetch", "webfetch"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a thought that the model may open once more.
    Start,
    Thinking,
    /// An answer begins: the end of a thought that was none is left out.
    Opening,
    Content,
    Call,
    /// Behind `<user>`, which stands for a call now and then.
    User,
    /// Behind a brace, before its first key.
    Brace,
    /// In an object that may be a call.
    Object,
}

/// The parser of Laguna models.
#[derive(Debug, Clone)]
pub(super) struct Laguna {
    state: State,
    tools: Tools,
    shows: bool,
    /// Calls may come without their tag.
    untagged: bool,
    /// White space is dropped until something else comes.
    trim: bool,
    /// White space that belongs to the answer if what follows does.
    blank: String,
    brackets: Brackets,
}

impl Laguna {
    pub(super) fn new(input: &ParserInput<'_>, prefilled: bool) -> Self {
        let shows = input.thinks();
        let state = if shows && !prefilled { State::Start } else { State::Opening };
        Self {
            state,
            tools: Tools::new(input.tools),
            shows,
            untagged: !input.tools.is_empty() && !input.formed,
            trim: true,
            blank: String::new(),
            brackets: Brackets::default(),
        }
    }

    fn go(&mut self, state: State, trim: bool) -> bool {
        (self.state, self.trim, self.brackets) = (state, trim, Brackets::default());
        true
    }

    fn opening(&mut self, text: &mut Pending, end: bool, tag: &str, then: (State, State)) -> bool {
        match Self::leading(text, end, tag) {
            Some(true) => self.go(then.0, true),
            Some(false) => self.go(then.1, false),
            None => false,
        }
    }

    /// Goes on behind `tag` if the text begins with it; `None` if that cannot be told yet.
    fn leading(text: &mut Pending, end: bool, tag: &str) -> Option<bool> {
        if text.rest().starts_with(tag) {
            text.take(tag.len());
            return Some(true);
        }
        (end || !tag.starts_with(text.rest())).then_some(false)
    }

    fn thinking(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let flow = text.flow(&[END_THINK, CALL]);
        let tail = if end && flow.tag.is_none() { text.take_all() } else { String::new() };
        let thought = flow.text + &tail;
        if self.shows {
            out.thinking(if end || flow.tag.is_some() { thought.trim_end() } else { &thought });
        }
        match flow.tag {
            Some(0) => self.go(State::Opening, true),
            Some(_) => self.go(State::Call, true),
            None => false,
        }
    }

    fn content(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let tags: &[&str] = if !self.untagged { &[THINK, CALL] } else { &[THINK, CALL, USER, "{"] };
        let flow = text.flow(tags);
        match flow.tag.map(|tag| tags[tag]) {
            None => {
                out.content(&flow.text);
                if end {
                    out.content(text.take_all().trim_end());
                }
                false
            }
            Some(THINK) => {
                out.content(&flow.text);
                self.go(State::Thinking, true)
            }
            Some(CALL) => {
                out.content(flow.text.trim_end());
                self.go(State::Call, true)
            }
            // What these turn out to be decides about the white space before them.
            Some(tag) => {
                let solid = flow.text.trim_end().len();
                out.content(&flow.text[..solid]);
                flow.text[solid..].clone_into(&mut self.blank);
                self.go(if tag == USER { State::User } else { State::Brace }, false)
            }
        }
    }

    fn user(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let Some(inside) = text.take_through(END_USER) else {
            if end {
                let rest = text.take_all();
                out.content(&format!(
                    "{}{USER}{}",
                    std::mem::take(&mut self.blank),
                    rest.trim_end()
                ));
                self.go(State::Content, false);
            }
            return false;
        };
        match self.read(&inside).ok().filter(|call| self.tools.has(&call.name)) {
            Some(call) => {
                out.calls(Ok(vec![call]), |_| String::new());
                self.blank.clear();
                self.go(State::Opening, true)
            }
            None => {
                out.content(&format!(
                    "{}{USER}{inside}{END_USER}",
                    std::mem::take(&mut self.blank)
                ));
                self.go(State::Content, false)
            }
        }
    }

    /// Code has braces, too: what is to become a call begins with a key.
    fn brace(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        match text.first_solid().map(|at| text.rest()[at..].starts_with('"')) {
            Some(true) => {
                text.set_seen(0);
                self.go(State::Object, false);
                self.brackets.end("{").is_none()
            }
            None if !end => false,
            _ => self.no_call(text, 0, out),
        }
    }

    /// An object counts as a call if it names a tool; the brace itself has been taken.
    fn object(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let seen = text.seen();
        let Some(length) = self.brackets.end(&text.rest()[seen..]).map(|length| seen + length)
        else {
            let length = text.rest().len();
            text.set_seen(length);
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
                self.go(State::Opening, true)
            }
            None => self.no_call(text, length, out),
        }
    }

    fn no_call(&mut self, text: &mut Pending, length: usize, out: &mut Out) -> bool {
        out.content(&format!("{}{{", std::mem::take(&mut self.blank)));
        out.content(text.take(length));
        self.go(State::Content, false)
    }

    fn call(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        let (inside, close) = match text.find(&[END_CALL]) {
            Found::Tag { at, .. } => {
                let inside = text.take(at).to_owned();
                text.take(END_CALL.len());
                (inside, END_CALL)
            }
            _ if end => (text.take_all(), ""),
            _ => return false,
        };
        let read = match close.is_empty() && text.is_cut() {
            true => Err(CallError::Unclosed),
            false => self.read(&inside).map(|call| vec![call]),
        };
        out.calls(read, |_| format!("{CALL}{inside}{close}"));
        self.go(State::Opening, true)
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
        // The types are those of the tool that is meant.
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

impl Grammar for Laguna {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        // A call that was cut right behind its tag is text, too.
        let is_bare_tag = end && text.is_cut() && self.state == State::Call;
        if !text.trimmed(&mut self.trim) && !is_bare_tag {
            return false;
        }
        match self.state {
            State::Start => self.opening(text, end, THINK, (State::Thinking, State::Thinking)),
            State::Thinking => self.thinking(text, end, out),
            State::Opening => self.opening(text, end, END_THINK, (State::Opening, State::Content)),
            State::Content => self.content(text, end, out),
            State::Call => self.call(text, end, out),
            State::User => self.user(text, end, out),
            State::Brace => self.brace(text, end, out),
            State::Object => self.object(text, end, out),
        }
    }

    fn stage(&self) -> Stage {
        match self.state {
            State::Start | State::Thinking => Stage::Thinking,
            _ => Stage::Answer,
        }
    }

    fn thought_end(&self) -> Option<String> {
        (self.stage() == Stage::Thinking).then(|| format!("\n{END_THINK}\n\n"))
    }

    fn values(&self) -> Option<(Style, Vec<String>)> {
        Some((Style::Bare, PAIRS.iter().chain(&[END_CALL]).map(|tag| (*tag).to_owned()).collect()))
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        let tags = [THINK, END_THINK, CALL, END_CALL, USER, END_USER];
        tags.iter().chain(&PAIRS).map(|tag| (*tag).to_owned()).collect()
    }
}
