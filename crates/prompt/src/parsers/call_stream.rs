//! Streams tool calls while their arguments are still being generated.
//!
//! A call with JSON arguments starts as soon as its tool and the start of its arguments are
//! certain. Then the arguments are sent as they arrive, while they are a prefix of JSON.
//!
//! When the call is complete, the regular parser reads it, and its result is compared with what was
//! sent. If it differs, for example because of a second `"name"`, the call is reported as malformed
//! and the streamed call stays unfinished. Calls of a JSON list are sent one by one when their
//! object is complete. They stay valid if the rest of the list is not.

use serde_json::Value as Json;

use super::body::{NameJson, object_call};
use super::json_prefix::JsonPrefix;
use super::pending::BracketMatcher;
use super::tools::Tools;
use crate::message::FunctionCall;

/// Longest text before the arguments, in bytes. A call with more is sent when it is complete.
const MAX_HEAD_BYTES: usize = 1024;

/// Format of the call being streamed.
#[derive(Debug, Clone, Copy)]
pub(super) enum StreamedFormat<'a> {
    /// `{"name": "f", "arguments": {…}}`, or a list of these objects.
    Object,
    /// Function name, separator, arguments.
    NameJson(&'a NameJson),
    /// Only the arguments; the tool is known.
    Arguments(&'a str),
}

/// News about a call, for the client.
#[derive(Debug, PartialEq)]
pub(super) enum CallUpdate {
    /// A call of this tool has started.
    Started(String),
    /// More text of the arguments.
    Arguments(String),
    /// A call of a list is complete; more calls may follow.
    Complete(FunctionCall),
}

/// Streams one call, or the calls of one list.
#[derive(Debug, Clone, Default)]
pub(super) struct CallStream {
    state: StreamState,
    /// Offset of the current call in the text.
    from: usize,
    /// The calls are in a list.
    is_list: bool,
    /// Complete calls of the list.
    completed: Vec<FunctionCall>,
}

#[derive(Debug, Clone, Default)]
enum StreamState {
    /// Waiting for the start of the arguments.
    #[default]
    Head,
    /// Nothing is sent before the call is complete.
    Suppressed,
    /// Arguments are being sent.
    Arguments(OpenCall),
}

#[derive(Debug, Clone)]
struct OpenCall {
    name: String,
    /// Arguments sent so far.
    sent: String,
    /// Offset of the next arguments in the text.
    position: usize,
    /// Brackets of the arguments; when these are complete, brackets of the surrounding object.
    brackets: BracketMatcher,
    complete: bool,
    /// State of the sent arguments as a prefix of JSON.
    json: JsonPrefix,
    /// The arguments are invalid JSON: nothing more is sent.
    suppressed: bool,
}

impl OpenCall {
    /// Returns true if the sent arguments equal the arguments of `call`.
    fn is_for(&self, call: &FunctionCall) -> bool {
        let arguments: Option<Json> = serde_json::from_str(&self.sent).ok();
        let same = |arguments| matches!(arguments, Json::Object(given) if given == call.arguments);
        self.name == call.name && arguments.is_some_and(same)
    }
}

impl CallStream {
    /// Processes the text of a call so far. It must start with the text of the previous call of
    /// this method.
    pub(super) fn advance(
        &mut self,
        format: StreamedFormat<'_>,
        text: &str,
        tools: &Tools,
    ) -> Vec<CallUpdate> {
        let mut updates = Vec::new();
        while match std::mem::take(&mut self.state) {
            StreamState::Head => self.match_head(format, text, tools, &mut updates),
            StreamState::Arguments(open) => self.advance_arguments(open, text, tools, &mut updates),
            StreamState::Suppressed => {
                self.state = StreamState::Suppressed;
                false
            }
        } {}
        updates
    }

    /// Looks for the start of the arguments. Returns true if it was found.
    fn match_head(
        &mut self,
        format: StreamedFormat<'_>,
        text: &str,
        tools: &Tools,
        updates: &mut Vec<CallUpdate>,
    ) -> bool {
        let head = match format {
            StreamedFormat::Object => self
                .list_item(text)
                .map_or(HeadMatch::Incomplete, |at| match_object_head(text, at, tools)),
            _ => match_call_head(format, text, tools),
        };
        match head {
            HeadMatch::Incomplete if text.len() < self.from + MAX_HEAD_BYTES => false,
            HeadMatch::Incomplete | HeadMatch::Other => {
                self.state = StreamState::Suppressed;
                false
            }
            HeadMatch::Call { name, at } => {
                updates.push(CallUpdate::Started(name.clone()));
                let (sent, brackets) = (String::new(), BracketMatcher::default());
                self.state = StreamState::Arguments(OpenCall {
                    name,
                    sent,
                    position: at,
                    brackets,
                    complete: false,
                    json: JsonPrefix::default(),
                    suppressed: false,
                });
                true
            }
        }
    }

    /// Offset at which the next object must start, or `None` if more text is needed.
    fn list_item(&mut self, text: &str) -> Option<usize> {
        let mut at = skip_blank(text, self.from)?;
        let opens = self.from == 0 && text[at..].starts_with('[');
        if opens || (self.is_list && text[at..].starts_with(',')) {
            self.is_list = true;
            at = skip_blank(text, at + 1)?;
            self.from = at;
        }
        Some(at)
    }

    /// Sends more arguments. Returns true if another call may follow.
    fn advance_arguments(
        &mut self,
        mut open: OpenCall,
        text: &str,
        tools: &Tools,
        updates: &mut Vec<CallUpdate>,
    ) -> bool {
        let more = text.get(open.position..).unwrap_or_default();
        let end = open.brackets.find_end(more);
        let length = end.unwrap_or(more.len());
        open.position += length;
        if !open.complete {
            let good = if open.suppressed { 0 } else { open.json.push(&more[..length]) };
            open.suppressed |= good < length;
            let arguments = more[..good].to_owned();
            open.sent.push_str(&arguments);
            updates.extend((!arguments.is_empty()).then_some(CallUpdate::Arguments(arguments)));
            open.complete = end.is_some();
            open.brackets =
                if open.complete { BracketMatcher::inside_bracket() } else { open.brackets };
            let (again, state) = (open.complete && self.is_list, StreamState::Arguments(open));
            self.state = state;
            return again;
        }
        let item = text.get(self.from..open.position).filter(|_| end.is_some() && self.is_list);
        let Some(item) = item else {
            self.state = StreamState::Arguments(open);
            return false;
        };
        let call = serde_json::from_str(item).ok().and_then(|value| object_call(value, tools).ok());
        match call.filter(|call| open.is_for(call)) {
            Some(call) => {
                self.completed.push(call.clone());
                self.from = open.position;
                updates.push(CallUpdate::Complete(call));
                true
            }
            // The regular parser will report the error.
            None => {
                self.is_list = false;
                self.state = StreamState::Arguments(open);
                false
            }
        }
    }

    /// Returns true if a call was started and is not complete.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, StreamState::Arguments(_))
    }

    /// Number of complete calls.
    pub(super) fn completed(&self) -> usize {
        self.completed.len()
    }

    /// Length of the complete calls in the text, in bytes.
    pub(super) fn completed_bytes(&self) -> usize {
        if self.completed.is_empty() { 0 } else { self.from }
    }

    /// Returns true if the calls sent so far are a prefix of `calls`.
    pub(super) fn matches(&self, calls: &[FunctionCall]) -> bool {
        let same = |(a, b): (&FunctionCall, &FunctionCall)| {
            (&a.name, &a.arguments) == (&b.name, &b.arguments)
        };
        let Some((complete, rest)) = calls.split_at_checked(self.completed.len()) else {
            return false;
        };
        let next = match &self.state {
            StreamState::Arguments(open) => rest.first().is_some_and(|call| open.is_for(call)),
            _ => true,
        };
        next && complete.iter().zip(&self.completed).all(same)
    }
}

enum HeadMatch {
    /// More text is needed.
    Incomplete,
    /// A call that cannot be streamed.
    Other,
    /// The call of a tool, with arguments that start at `at`.
    Call { name: String, at: usize },
}

fn match_call_head(format: StreamedFormat<'_>, text: &str, tools: &Tools) -> HeadMatch {
    let arguments = |name: &str, from: usize| match skip_blank(text, from) {
        None => HeadMatch::Incomplete,
        Some(at) if text[at..].starts_with('{') && tools.has(name) => {
            HeadMatch::Call { name: name.to_owned(), at }
        }
        Some(_) => HeadMatch::Other,
    };
    match format {
        StreamedFormat::Object => match_object_head(text, 0, tools),
        StreamedFormat::Arguments(name) => arguments(name, 0),
        StreamedFormat::NameJson(format) => match format.head(text) {
            Some((name, from)) => arguments(name, from),
            None => HeadMatch::Incomplete,
        },
    }
}

/// Matches the start of a JSON object at `at`.
fn match_object_head(text: &str, at: usize, tools: &Tools) -> HeadMatch {
    try_match_object_head(text, at, tools).unwrap_or(HeadMatch::Incomplete)
}

/// Matches the start of an object with a name and arguments, in this order. `None` if the text is
/// incomplete.
fn try_match_object_head(text: &str, at: usize, tools: &Tools) -> Option<HeadMatch> {
    if !text[at..].starts_with('{') {
        return Some(HeadMatch::Other);
    }
    let (mut name, mut at) = (None, at + 1);
    loop {
        at = skip_blank(text, at)?;
        if !text[at..].starts_with('"') {
            return Some(HeadMatch::Other);
        }
        let key = read_string(text, &mut at)?;
        at = skip_blank(text, at)?;
        if !text[at..].starts_with(':') {
            return Some(HeadMatch::Other);
        }
        at = skip_blank(text, at + 1)?;
        match (key.as_deref(), text[at..].chars().next()) {
            (Some("arguments" | "parameters"), Some('{')) => {
                return Some(match name.filter(|name: &String| tools.has(name)) {
                    Some(name) => HeadMatch::Call { name, at },
                    None => HeadMatch::Other,
                });
            }
            (Some("name"), Some('"')) => {
                name = Some(read_string(text, &mut at)?.unwrap_or_default())
            }
            (Some("id" | "type"), Some('"')) => drop(read_string(text, &mut at)?),
            _ => return Some(HeadMatch::Other),
        }
        at = skip_blank(text, at)?;
        if !text[at..].starts_with(',') {
            return Some(HeadMatch::Other);
        }
        at += 1;
    }
}

/// Offset of the first byte that is not JSON white space. It is a character boundary.
fn skip_blank(text: &str, from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let blank = rest.bytes().take_while(u8::is_ascii_whitespace).count();
    Some(from + blank).filter(|at| *at < text.len())
}

/// Reads the JSON string that starts at a quote. The inner `None` is an invalid string, the outer
/// one an incomplete string.
fn read_string(text: &str, start: &mut usize) -> Option<Option<String>> {
    let mut escaped = false;
    let inside = text.bytes().enumerate().skip(*start + 1);
    let end = inside.into_iter().find(|&(_, byte)| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let whole = &text[*start..=end.0];
    *start = end.0 + 1;
    Some(serde_json::from_str(whole).ok())
}
