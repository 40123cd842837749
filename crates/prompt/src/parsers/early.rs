//! Calls that are told of while their arguments still come.
//!
//! A call whose arguments are JSON begins as soon as it is certain which tool it is of and where its arguments begin; from
//! there on they pass as they are written. What was told is checked when the call is complete: the parser's own reading
//! decides. Where it finds another call or none, such as behind a second `"name"`, the call is malformed, and what was told
//! of it stays an unfinished one.

use serde_json::Value as Json;

use super::body::NameJson;
use super::pending::Brackets;
use super::tools::Tools;
use crate::message::FunctionCall;

/// How far into a call its arguments begin at most; one that has more before them is told of when it is complete.
const HEAD_MAX: usize = 1024;

/// The form of a call that comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form<'a> {
    /// `{"name": "f", "arguments": {…}}`, perhaps the first of a list.
    Object,
    /// A name, a separator, and the arguments.
    NameJson(&'a NameJson),
    /// Nothing but the arguments, of a tool that is known.
    Arguments(&'a str),
}

/// News of a call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct News {
    /// It has begun, and is of this tool.
    pub(super) begun: Option<String>,
    /// More of its arguments.
    pub(super) arguments: String,
}

/// Follows one call through the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Early {
    state: State,
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
    brackets: Brackets,
    complete: bool,
}

impl Early {
    /// Looks at a call's text as far as it has come: the same text as before, and more.
    pub(super) fn follow(&mut self, form: Form<'_>, text: &str, tools: &Tools) -> News {
        let mut news = News::default();
        if matches!(self.state, State::Head) {
            match head(form, text, tools) {
                Head::Waits if text.len() < HEAD_MAX => return news,
                Head::Waits | Head::Other => self.state = State::Silent,
                Head::Begins { name, at } => {
                    news.begun = Some(name.clone());
                    let (told, brackets) = (String::new(), Brackets::default());
                    self.state = State::Open(Open { name, told, at, brackets, complete: false });
                }
            }
        }
        let State::Open(open) = &mut self.state else { return news };
        let Some(more) = text.get(open.at..).filter(|_| !open.complete) else { return news };
        let end = open.brackets.end(more);
        open.complete = end.is_some();
        news.arguments = more[..end.unwrap_or(more.len())].to_owned();
        open.at += news.arguments.len();
        open.told.push_str(&news.arguments);
        news
    }

    /// Whether anything was told.
    pub(super) fn has_told(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether what was told is this call; true if nothing was.
    pub(super) fn is_told_of(&self, call: &FunctionCall) -> bool {
        let State::Open(open) = &self.state else { return true };
        let arguments: Option<Json> = serde_json::from_str(&open.told).ok();
        let same = |arguments| matches!(arguments, Json::Object(given) if given == call.arguments);
        open.name == call.name && arguments.is_some_and(same)
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
        Form::Object => object(text, tools).unwrap_or(Head::Waits),
        Form::Arguments(name) => arguments(name, 0),
        Form::NameJson(form) => match form.head(text) {
            Some((name, from)) => arguments(name, from),
            None => Head::Waits,
        },
    }
}

/// The beginning of an object with a name and arguments, in this order; `None` where it breaks off.
fn object(text: &str, tools: &Tools) -> Option<Head> {
    let mut at = solid(text, 0)?;
    if text[at..].starts_with('[') {
        at = solid(text, at + 1)?;
    }
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
