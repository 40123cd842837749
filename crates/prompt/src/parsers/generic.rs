//! Parsers for models that name none: thoughts between the template's tags, and the tool calls that it writes.

use serde_json::{Map, Value as Json};

use super::body::{arguments, call};
use super::call::{CallError, Out};
use super::early::Form;
use super::pending::{Found, Pending, first_tag};
use super::tools::Tools;
use super::{Grammar, ParserInput, Stage, closing, is_free_of, shapes};
use crate::{Template, ThinkTags};

pub(super) fn for_template(
    template: &Template,
    tags: Option<ThinkTags>,
    input: &ParserInput<'_>,
) -> Box<dyn Grammar> {
    if let Some(family) = shapes::family(template, input) {
        return family;
    }
    let is_jinja = matches!(template, Template::Jinja(_));
    // Some models put their answers between tags, too.
    if input.tools.is_empty() && !shapes::has_answer_tags(template) {
        return Box::new(Generic {
            lone_close: is_jinja,
            ..Generic::new(tags, input.prompt, None)
        });
    }
    let tools = Tools::new(input.tools);
    let tag = match template {
        Template::Go(go) => go.tool_tag(),
        Template::Jinja(_) | Template::BuiltIn(_) => {
            match shapes::grammar(template, tags.as_ref(), input) {
                Ok(grammar) => return grammar,
                Err(tag) => tag,
            }
        }
    };
    let scan = Some(Scan::new(tag, tools)).filter(|scan| !(input.formed && scan.is_bracket()));
    Box::new(Generic { lone_close: is_jinja, ..Generic::new(tags, input.prompt, scan) })
}

/// Bytes of an object that is read as a call without arguments.
const NAME_OBJECT_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before anything but white space.
    Start,
    Thinking,
    Answer,
}

/// Thoughts first, then an answer that may have calls in it. A thought must be the first thing in the output, or have
/// been opened by the prompt; later tags are part of the answer. White space after either tag is dropped.
#[derive(Debug, Clone)]
pub(super) struct Generic {
    tags: Option<ThinkTags>,
    state: State,
    /// White space is dropped until something else comes.
    trim: bool,
    /// A closing tag that comes first ends a thought that was none.
    lone_close: bool,
    scan: Option<Scan>,
}

impl Generic {
    pub(super) fn new(tags: Option<ThinkTags>, prompt: &str, scan: Option<Scan>) -> Self {
        let (state, trim) = match &tags {
            None => (State::Answer, false),
            Some(tags) if prompt.trim().ends_with(&tags.open) => (State::Thinking, true),
            Some(_) => (State::Start, false),
        };
        Self { tags, state, trim, lone_close: false, scan }
    }

    fn start(&mut self, text: &mut Pending, end: bool, tags: &ThinkTags) -> bool {
        let rest = match text.first_solid() {
            Some(at) => &text.rest()[at..],
            None if end => "",
            None => return false,
        };
        if rest.starts_with(&tags.open) {
            let length = text.seen() + tags.open.len();
            text.take(length);
            (self.state, self.trim) = (State::Thinking, true);
            return true;
        }
        let lone = self.lone_close.then_some(tags.close.as_str());
        if let Some(close) = lone.filter(|close| rest.starts_with(*close)) {
            let length = text.seen() + close.len();
            text.take(length);
            (self.state, self.trim) = (State::Answer, true);
            return true;
        }
        if !end && std::iter::once(tags.open.as_str()).chain(lone).any(|tag| tag.starts_with(rest))
        {
            return false;
        }
        text.set_seen(0);
        self.state = State::Answer;
        true
    }

    fn answer(&mut self, text: &mut Pending, end: bool, out: &mut Out) {
        let piece = text.take_all();
        match &mut self.scan {
            Some(scan) => scan.push(&piece, end, out),
            None => out.content(&piece),
        }
    }
}

impl Grammar for Generic {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool {
        if !text.trimmed(&mut self.trim) {
            return false;
        }
        let tags = match &self.tags {
            Some(tags) if self.state != State::Answer => tags.clone(),
            _ => {
                self.answer(text, end, out);
                return false;
            }
        };
        if self.state == State::Start {
            return self.start(text, end, &tags);
        }
        let flow = text.flow_blank(&[&tags.close]);
        out.thinking(&flow.text);
        if flow.tag.is_some() {
            (self.state, self.trim) = (State::Answer, true);
        } else if end {
            out.thinking(&text.take_all());
        }
        flow.tag.is_some()
    }

    fn stage(&self) -> Stage {
        match self.state {
            State::Start => Stage::Start,
            State::Thinking => Stage::Thinking,
            State::Answer => Stage::Answer,
        }
    }

    fn thought_end(&self) -> Option<String> {
        let thinks = self.state == State::Thinking;
        self.tags.as_ref().filter(|_| thinks).map(|tags| closing(&tags.close))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        let close = self.tags.iter().map(|tags| tags.close.as_str());
        self.state == State::Thinking && is_free_of(piece, close)
    }

    fn boxed(&self) -> Box<dyn Grammar> {
        Box::new(self.clone())
    }

    fn preserved(&self) -> Vec<String> {
        let think = self.tags.iter().flat_map(|tags| [tags.open.clone(), tags.close.clone()]);
        think.chain(self.scan.iter().map(|scan| scan.tag.clone())).collect()
    }
}

/// Looks for calls behind a tag: the name of a tool and a JSON object, in whatever form.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    tag: String,
    tools: Tools,
    text: Pending,
    state: Search,
    /// Nothing but white space has come.
    blank: bool,
    calls: usize,
    /// The tool named last before an object, and how far names were searched.
    named: Option<String>,
    names_seen: usize,
    /// The object or list that is being read.
    object: Option<usize>,
    braces: Braces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// For the tag.
    Tag,
    /// For calls.
    Calls,
    /// All is part of the answer.
    Over,
    /// All calls are there, and what follows is nothing.
    Done,
}

impl Scan {
    /// Calls follow `tag`, which is not empty.
    pub(super) fn new(tag: String, tools: Tools) -> Self {
        let braces = Braces::default();
        Self {
            tag,
            tools,
            text: Pending::default(),
            state: Search::Tag,
            blank: true,
            calls: 0,
            named: None,
            names_seen: 0,
            object: None,
            braces,
        }
    }

    /// The tag that closes what the opening one opened.
    fn closing(&self) -> Option<String> {
        let name = self.tag.strip_prefix('<')?;
        Some(format!("</{name}")).filter(|tag| tag.ends_with('>'))
    }

    /// A bracket begins calls only where an answer begins, and ends them.
    fn is_bracket(&self) -> bool {
        self.tag == "{" || self.tag == "["
    }

    fn push(&mut self, piece: &str, end: bool, out: &mut Out) {
        self.text.push(piece);
        while match self.state {
            Search::Tag => self.search(end, out),
            Search::Calls => self.read(end, out),
            Search::Over => {
                out.content(&self.text.take_all());
                false
            }
            Search::Done => {
                self.text.take_all();
                false
            }
        } {}
    }

    /// Looks for the tag; true if it is there, or will not come.
    fn search(&mut self, end: bool, out: &mut Out) -> bool {
        let found = self.text.find(&[&self.tag]);
        let length = match found {
            Found::Tag { at, .. } | Found::Perhaps(at)
                if !end || matches!(found, Found::Tag { .. }) =>
            {
                at
            }
            _ => self.text.rest().len(),
        };
        let before = self.text.take(length);
        self.blank &= before.trim().is_empty();
        out.content(before);
        if !self.blank && self.is_bracket() {
            self.state = Search::Over;
            return true;
        }
        if matches!(found, Found::Tag { .. }) {
            // The bracket belongs to the object.
            self.state = Search::Calls;
            if !self.is_bracket() {
                self.text.set_seen(self.tag.len());
                self.names_seen = self.tag.len();
            }
        }
        self.state == Search::Calls
    }

    /// Reads calls; true if they are over before the text is. What cannot be one comes out at the end.
    fn read(&mut self, end: bool, out: &mut Out) -> bool {
        'calls: loop {
            let closing = self.closing();
            let seen = self.text.seen();
            let mut ended = None;
            let rest = self.text.rest();
            for (at, byte) in rest.bytes().enumerate().skip(seen) {
                if let Some(closing) =
                    closing.as_deref().filter(|_| byte == b'<' && !self.braces.in_string)
                {
                    if rest[at..].starts_with(closing) {
                        let name = self.call_of_name(&rest[..at]);
                        match name {
                            Some(name) => {
                                out.calls(Ok(vec![call(name, Map::new())]), |_| String::new());
                                self.skip_call(at + closing.len());
                                continue 'calls;
                            }
                            None if self.calls == 0 => {
                                self.refuse(at + closing.len(), out);
                                return true;
                            }
                            None => {}
                        }
                    }
                    if closing.starts_with(&rest[at..]) && !end {
                        self.text.set_seen(at);
                        return false;
                    }
                }
                match self.braces.next(byte) {
                    Brace::Opens => self.object = Some(at),
                    Brace::Closes => {
                        ended = Some(at + 1);
                        break;
                    }
                    Brace::Other => {}
                }
                if self.tag == "[" && self.braces.list == Some(0) {
                    self.finish_bracket(at + 1, out);
                    return true;
                }
            }
            let Some(to) = ended else {
                let length = self.text.rest().len();
                self.text.set_seen(length);
                self.follow(length, out);
                break;
            };
            self.text.set_seen(to);
            self.follow(to, out);
            self.object(to, out);
            if self.tag == "{" {
                self.finish_bracket(0, out);
                return true;
            }
        }
        if end {
            self.rest(out);
        }
        false
    }

    /// Tells of the call that the present object may be, if it comes right behind the tag: others may be parts of something
    /// else.
    fn follow(&self, to: usize, out: &mut Out) {
        let Some(from) = self.object else { return };
        let text = self.text.rest();
        // At the end all text is gone.
        let (Some(before), Some(inside)) = (text.get(..from), text.get(from..to)) else { return };
        let mut before = before.trim_start();
        if let Some(closing) = self.closing().filter(|_| self.calls > 0) {
            before = before.strip_prefix(closing.as_str()).unwrap_or(before).trim_start();
        }
        let before = before.strip_prefix(&self.tag).unwrap_or(before).trim();
        // Those of a list come one by one.
        let in_list =
            self.braces.list.is_some() && before == if self.calls > 0 { "," } else { "[" };
        if before.is_empty() || in_list {
            out.follow(Form::Object, inside, &self.tools);
        }
    }

    /// The tag has been closed, and no call was in it: it is searched anew behind.
    fn refuse(&mut self, length: usize, out: &mut Out) {
        let text = self.text.take(length).to_owned();
        out.malformed(text, CallError::Form("a tool's name and a JSON object"));
        (self.state, self.braces, self.object) = (Search::Tag, Braces::default(), None);
        (self.named, self.names_seen) = (None, 0);
    }

    /// The tool of the object at the end of a text, where it has the tool's name and no arguments.
    fn call_of_name(&self, text: &str) -> Option<String> {
        let text = text.trim_end();
        let tail = text.floor_char_boundary(text.len().saturating_sub(NAME_OBJECT_MAX));
        let from = tail + text[tail..].rfind('{')?;
        let object: Map<String, Json> = serde_json::from_str(&text[from..]).ok()?;
        let is_absent = |key: &str| object.get(key).is_none_or(Json::is_null);
        let name = object.get("name")?.as_str()?;
        (self.tools.has(name) && is_absent("arguments") && is_absent("parameters"))
            .then(|| name.to_owned())
    }

    /// Brackets balance, of which so many bytes are left: with calls in them the rest is nothing, without they were the answer.
    fn finish_bracket(&mut self, left: usize, out: &mut Out) {
        if self.calls > 0 {
            self.state = Search::Done;
            let left = self.text.take(left).to_owned();
            Self::left_over(&left, out);
            self.text.take_all();
        } else {
            self.state = Search::Over;
            out.content(&self.text.take_all());
        }
    }

    /// An object ends at `to`.
    fn object(&mut self, to: usize, out: &mut Out) {
        let from = self.object.take().unwrap_or(0);
        self.find_name(to);
        let value = serde_json::from_str::<Json>(&self.text.rest()[from..to]).ok();
        let Some((name, given)) = value.and_then(|value| self.call_in(value)) else {
            if out.forget() {
                self.skip_call(to);
            }
            return;
        };
        // Objects before it that were none.
        if let Some(at) = self.text.rest()[..from].find('{') {
            let text = self.text.rest()[at..from].trim_end().to_owned();
            out.malformed(text, CallError::Form("a tool's name and a JSON object"));
        }
        out.calls(Ok(vec![call(name, given)]), |_| String::new());
        self.skip_call(to);
    }

    /// Goes on behind a call that ends at `to`, of which nothing may be said again.
    fn skip_call(&mut self, to: usize) {
        self.calls += 1;
        let bracket = self.tag == "[";
        self.text.take(to);
        self.named = None;
        self.names_seen = 0;
        if !bracket {
            self.braces = Braces::default();
        }
    }

    /// Remembers the first tool that is named in the text up to `to`; of those at one place the longest.
    fn find_name(&mut self, to: usize) {
        if self.named.is_some() {
            return;
        }
        let text = &self.text.rest()[..to];
        let names: Vec<&str> = self.tools.names().filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return;
        }
        match first_tag(text, self.names_seen, &names) {
            Found::Tag { at, .. } => {
                let here = names.iter().filter(|name| text[at..].starts_with(**name));
                self.named = here.max_by_key(|name| name.len()).map(|name| (*name).to_owned());
            }
            Found::Perhaps(at) => self.names_seen = at,
            Found::None => self.names_seen = to,
        }
    }

    /// The call that an object is, or has in it: with a `name` and arguments, with a tool's name as its key, or just
    /// arguments behind a tool's name.
    fn call_in(&self, value: Json) -> Option<(String, Map<String, Json>)> {
        match self.search_object(&value) {
            Hit::Call(name, given) => Some((name, given)),
            Hit::Refused => None,
            Hit::Nothing => match value {
                Json::Object(given) => Some((self.named.clone()?, given)),
                _ => None,
            },
        }
    }

    fn search_object(&self, value: &Json) -> Hit {
        let object = match value {
            Json::Object(object) => object,
            Json::Array(list) => {
                let hits = list.iter().map(|one| self.search_object(one));
                return hits
                    .into_iter()
                    .find(|hit| !matches!(hit, Hit::Nothing))
                    .unwrap_or(Hit::Nothing);
            }
            _ => return Hit::Nothing,
        };
        let given = |value: &Json| match value {
            Json::Object(_) | Json::String(_) => arguments(value.clone()).ok(),
            _ => None,
        };
        if let Some(name) = object.get("name") {
            let declared = name.as_str().filter(|name| self.tools.has(name));
            let keys = ["arguments", "parameters"];
            let given = keys.iter().find_map(|key| given(object.get(*key)?));
            return match (declared, given) {
                (Some(name), Some(given)) => Hit::Call(name.to_owned(), given),
                _ => Hit::Refused,
            };
        }
        let keyed = object
            .iter()
            .find_map(|(key, value)| Some((key, value)).filter(|_| self.tools.has(key)));
        if let Some((name, Some(given))) = keyed.map(|(name, value)| (name, given(value))) {
            return Hit::Call(name.clone(), given);
        }
        let hits = object.values().map(|value| self.search_object(value));
        hits.into_iter().find(|hit| !matches!(hit, Hit::Nothing)).unwrap_or(Hit::Nothing)
    }

    /// Of what follows calls only an object may have been meant as one.
    fn left_over(rest: &str, out: &mut Out) {
        if let Some(at) = rest.find('{') {
            out.malformed(
                rest[at..].to_owned(),
                CallError::Form("a tool's name and a JSON object"),
            );
        }
    }

    /// The text has ended among calls.
    fn rest(&mut self, out: &mut Out) {
        let rest = self.text.take_all();
        if self.is_bracket() && self.calls > 0 {
            Self::left_over(&rest, out);
        } else if self.is_bracket() {
            out.content(&rest);
        } else if self.calls == 0 {
            out.malformed(rest, CallError::Form("a tool's name and a JSON object"));
        } else if let Some(at) = rest.find(&self.tag).into_iter().chain(rest.find('{')).min() {
            out.malformed(
                rest[at..].to_owned(),
                CallError::Form("a tool's name and a JSON object"),
            );
        }
    }
}

enum Hit {
    Call(String, Map<String, Json>),
    /// A call of no tool, or without arguments.
    Refused,
    Nothing,
}

/// Follows objects, and the list around them, through a text.
#[derive(Debug, Clone, Default)]
struct Braces {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Open brackets outside of objects, once there were any.
    list: Option<usize>,
}

enum Brace {
    Opens,
    Closes,
    Other,
}

impl Braces {
    fn next(&mut self, byte: u8) -> Brace {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' => {
                self.depth += 1;
                if self.depth == 1 {
                    return Brace::Opens;
                }
            }
            b'}' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Brace::Closes;
                }
            }
            b'[' if self.depth == 0 => *self.list.get_or_insert(0) += 1,
            b']' if self.depth == 0 => self.list = self.list.map(|open| open.saturating_sub(1)),
            _ => {}
        }
        Brace::Other
    }
}
