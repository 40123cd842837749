//! Calls that are told of while their arguments still come.
//!
//! A call whose arguments are JSON begins as soon as it is certain which tool it is of and where its arguments begin; from
//! there on they pass as they are written, as long as they may become JSON. What was told is checked when the call is complete: the parser's own reading
//! decides. Where it finds another call or none, such as behind a second `"name"`, the call is malformed, and what was told
//! of it stays an unfinished one. Of a JSON list each call is given as soon as its object is complete; should the list turn out
//! to be none, those that were given stay.

use serde_json::Value as Json;

use super::body::{NameJson, object_call};
use super::pending::Brackets;
use super::prefix::JsonPrefix;
use super::tools::Tools;
use crate::message::FunctionCall;

/// How far into a call its arguments begin at most; one that has more before them is told of when it is complete.
const HEAD_MAX: usize = 1024;

/// The form of a call that comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form<'a> {
    /// `{"name": "f", "arguments": {…}}`, or a list of such objects.
    Object,
    /// A name, a separator, and the arguments.
    NameJson(&'a NameJson),
    /// Nothing but the arguments, of a tool that is known.
    Arguments(&'a str),
}

/// News of a call.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// One has begun, and is of this tool.
    Begun(String),
    /// More of its arguments.
    Arguments(String),
    /// It is complete, and more of its list may come.
    Given(FunctionCall),
}

/// Follows one call, or the calls of one list, through the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Early {
    state: State,
    /// Where the text of the present call begins.
    from: usize,
    /// The calls are in a list.
    is_list: bool,
    /// The calls of the list that are complete.
    given: Vec<FunctionCall>,
}

#[derive(Debug, Clone, Default)]
enum State {
    /// It is not known yet what comes.
    #[default]
    Head,
    /// Nothing is told before the call is complete.
    Silent,
    /// Arguments come.
    Open(Open),
}

#[derive(Debug, Clone)]
struct Open {
    name: String,
    /// What was told of the arguments.
    told: String,
    /// Where the next of them stand.
    at: usize,
    /// Those of the arguments, then those of the object that holds them.
    brackets: Brackets,
    complete: bool,
    /// What was told is no more than the beginning of JSON.
    json: JsonPrefix,
    /// What comes now is not told.
    broken: bool,
}

impl Open {
    /// Whether what was told is this call.
    fn is(&self, call: &FunctionCall) -> bool {
        let arguments: Option<Json> = serde_json::from_str(&self.told).ok();
        let same = |arguments| matches!(arguments, Json::Object(given) if given == call.arguments);
        self.name == call.name && arguments.is_some_and(same)
    }
}

impl Early {
    /// Looks at a call's text as far as it has come: the same text as before, and more.
    pub(super) fn follow(&mut self, form: Form<'_>, text: &str, tools: &Tools) -> Vec<News> {
        let mut news = Vec::new();
        while match std::mem::take(&mut self.state) {
            State::Head => self.begin(form, text, tools, &mut news),
            State::Open(open) => self.go_on(open, text, tools, &mut news),
            State::Silent => {
                self.state = State::Silent;
                false
            }
        } {}
        news
    }

    /// Looks for the beginning of a call; true if it is there.
    fn begin(&mut self, form: Form<'_>, text: &str, tools: &Tools, news: &mut Vec<News>) -> bool {
        let head = match form {
            Form::Object => self.item(text).map_or(Head::Waits, |at| object(text, at, tools)),
            _ => head(form, text, tools),
        };
        match head {
            Head::Waits if text.len() < self.from + HEAD_MAX => false,
            Head::Waits | Head::Other => {
                self.state = State::Silent;
                false
            }
            Head::Begins { name, at } => {
                news.push(News::Begun(name.clone()));
                let (told, brackets) = (String::new(), Brackets::default());
                self.state = State::Open(Open {
                    name,
                    told,
                    at,
                    brackets,
                    complete: false,
                    json: JsonPrefix::default(),
                    broken: false,
                });
                true
            }
        }
    }

    /// Where the next object has to begin; `None` where that is not known yet.
    fn item(&mut self, text: &str) -> Option<usize> {
        let mut at = solid(text, self.from)?;
        let opens = self.from == 0 && text[at..].starts_with('[');
        if opens || (self.is_list && text[at..].starts_with(',')) {
            self.is_list = true;
            at = solid(text, at + 1)?;
            self.from = at;
        }
        Some(at)
    }

    /// Goes on with a call; true if the next one may follow.
    fn go_on(&mut self, mut open: Open, text: &str, tools: &Tools, news: &mut Vec<News>) -> bool {
        let more = text.get(open.at..).unwrap_or_default();
        let end = open.brackets.end(more);
        let length = end.unwrap_or(more.len());
        open.at += length;
        if !open.complete {
            let good = if open.broken { 0 } else { open.json.push(&more[..length]) };
            open.broken |= good < length;
            let arguments = more[..good].to_owned();
            open.told.push_str(&arguments);
            news.extend((!arguments.is_empty()).then_some(News::Arguments(arguments)));
            open.complete = end.is_some();
            open.brackets = if open.complete { Brackets::inside() } else { open.brackets };
            let (again, state) = (open.complete && self.is_list, State::Open(open));
            self.state = state;
            return again;
        }
        let item = text.get(self.from..open.at).filter(|_| end.is_some() && self.is_list);
        let Some(item) = item else {
            self.state = State::Open(open);
            return false;
        };
        let call = serde_json::from_str(item).ok().and_then(|value| object_call(value, tools).ok());
        match call.filter(|call| open.is(call)) {
            Some(call) => {
                self.given.push(call.clone());
                self.from = open.at;
                news.push(News::Given(call));
                true
            }
            // The whole will say what is wrong with it.
            None => {
                self.is_list = false;
                self.state = State::Open(open);
                false
            }
        }
    }

    /// Whether a call was begun that is not complete.
    pub(super) fn has_told(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// How many calls were given.
    pub(super) fn given(&self) -> usize {
        self.given.len()
    }

    /// How much of the text is calls that were given.
    pub(super) fn given_bytes(&self) -> usize {
        if self.given.is_empty() { 0 } else { self.from }
    }

    /// Whether what was given and told is the beginning of these calls.
    pub(super) fn is_told_of(&self, calls: &[FunctionCall]) -> bool {
        let same = |(a, b): (&FunctionCall, &FunctionCall)| {
            (&a.name, &a.arguments) == (&b.name, &b.arguments)
        };
        let Some((known, rest)) = calls.split_at_checked(self.given.len()) else { return false };
        let next = match &self.state {
            State::Open(open) => rest.first().is_some_and(|call| open.is(call)),
            _ => true,
        };
        next && known.iter().zip(&self.given).all(same)
    }
}

enum Head {
    /// More text is needed.
    Waits,
    /// A call of another kind.
    Other,
    /// The call of a tool, with its arguments from `at` on.
    Begins { name: String, at: usize },
}

fn head(form: Form<'_>, text: &str, tools: &Tools) -> Head {
    let arguments = |name: &str, from: usize| match solid(text, from) {
        None => Head::Waits,
        Some(at) if text[at..].starts_with('{') && tools.has(name) => {
            Head::Begins { name: name.to_owned(), at }
        }
        Some(_) => Head::Other,
    };
    match form {
        Form::Object => object(text, 0, tools),
        Form::Arguments(name) => arguments(name, 0),
        Form::NameJson(form) => match form.head(text) {
            Some((name, from)) => arguments(name, from),
            None => Head::Waits,
        },
    }
}

/// The beginning of an object from `at` on.
fn object(text: &str, at: usize, tools: &Tools) -> Head {
    read_object(text, at, tools).unwrap_or(Head::Waits)
}

/// The beginning of an object with a name and arguments, in this order; `None` where it breaks off.
fn read_object(text: &str, at: usize, tools: &Tools) -> Option<Head> {
    if !text[at..].starts_with('{') {
        return Some(Head::Other);
    }
    let (mut name, mut at) = (None, at + 1);
    loop {
        at = solid(text, at)?;
        if !text[at..].starts_with('"') {
            return Some(Head::Other);
        }
        let key = string(text, &mut at)?;
        at = solid(text, at)?;
        if !text[at..].starts_with(':') {
            return Some(Head::Other);
        }
        at = solid(text, at + 1)?;
        match (key.as_deref(), text[at..].chars().next()) {
            (Some("arguments" | "parameters"), Some('{')) => {
                return Some(match name.filter(|name: &String| tools.has(name)) {
                    Some(name) => Head::Begins { name, at },
                    None => Head::Other,
                });
            }
            (Some("name"), Some('"')) => name = Some(string(text, &mut at)?.unwrap_or_default()),
            (Some("id" | "type"), Some('"')) => drop(string(text, &mut at)?),
            _ => return Some(Head::Other),
        }
        at = solid(text, at)?;
        if !text[at..].starts_with(',') {
            return Some(Head::Other);
        }
        at += 1;
    }
}

/// Where the first byte stands that is no white space of JSON. It begins a character.
fn solid(text: &str, from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let blank = rest.bytes().take_while(u8::is_ascii_whitespace).count();
    Some(from + blank).filter(|at| *at < text.len())
}

/// Reads the string that begins at a quote; its text is `None` where it is no JSON. `None` where it breaks off.
fn string(text: &str, at: &mut usize) -> Option<Option<String>> {
    let mut escaped = false;
    let inside = text.bytes().enumerate().skip(*at + 1);
    let end = inside.into_iter().find(|&(_, byte)| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let whole = &text[*at..=end.0];
    *at = end.0 + 1;
    Some(serde_json::from_str(whole).ok())
}
