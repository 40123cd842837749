//! Parsers for models that name none: reasoning between the template's think tags, and calls in the
//! template's format.

use serde_json::{Map, Value as Json};

use super::body::{arguments, call};
use super::call_stream::StreamedFormat;
use super::format_detection;
use super::format_parser::{FormatParser, OutputStage, ParserInput, closing, is_free_of};
use super::output_part::CallError;
use super::part_sink::PartSink;
use super::pending::{PendingText, TagMatch, first_tag};
use super::tools::Tools;
use crate::{Template, ThinkTags};

/// The parser for a model that names none.
pub(super) fn for_template(
    template: &Template,
    tags: Option<ThinkTags>,
    input: &ParserInput<'_>,
) -> Box<dyn FormatParser> {
    if let Some(family) = format_detection::parser_by_markers(template, input) {
        return family;
    }
    let is_jinja = matches!(template, Template::Jinja(_));
    // Some models write their answers between tags.
    if input.tools.is_empty() && !format_detection::has_answer_tags(template) {
        return Box::new(GenericParser {
            allows_missing_open_tag: is_jinja,
            ..GenericParser::new(tags, input.prompt, None)
        });
    }
    let tools = Tools::new(input.tools);
    let tag = match template {
        Template::Go(go) => go.tool_tag(),
        Template::Jinja(_) | Template::BuiltIn(_) => {
            match format_detection::parser_by_probe_call(template, tags.as_ref(), input) {
                Ok(parser) => return parser,
                Err(tag) => tag,
            }
        }
    };
    let scan =
        Some(CallScanner::new(tag, tools)).filter(|scan| !(input.constrained && scan.is_bracket()));
    Box::new(GenericParser {
        allows_missing_open_tag: is_jinja,
        ..GenericParser::new(tags, input.prompt, scan)
    })
}

/// Longest object that is read as a call without arguments, in bytes.
const MAX_NAME_OBJECT: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GenericState {
    /// Only white space so far.
    Start,
    Thinking,
    Answer,
}

/// Parses reasoning, then an answer that may contain calls. Reasoning must come first in the output
/// or be opened by the prompt; later think tags are part of the answer. White space behind both
/// tags is dropped.
#[derive(Debug, Clone)]
pub(super) struct GenericParser {
    tags: Option<ThinkTags>,
    state: GenericState,
    /// White space is dropped until other text arrives.
    trim: bool,
    /// A leading closing tag ends empty reasoning.
    allows_missing_open_tag: bool,
    scan: Option<CallScanner>,
}

impl GenericParser {
    pub(super) fn new(tags: Option<ThinkTags>, prompt: &str, scan: Option<CallScanner>) -> Self {
        let (state, trim) = match &tags {
            None => (GenericState::Answer, false),
            Some(tags) if prompt.trim().ends_with(&tags.open) => (GenericState::Thinking, true),
            Some(_) => (GenericState::Start, false),
        };
        Self { tags, state, trim, allows_missing_open_tag: false, scan }
    }

    /// Checks whether the output starts with a think tag.
    fn start(&mut self, text: &mut PendingText, end: bool, tags: &ThinkTags) -> bool {
        let rest = match text.first_non_blank() {
            Some(at) => &text.rest()[at..],
            None if end => "",
            None => return false,
        };
        if rest.starts_with(&tags.open) {
            let length = text.search_position() + tags.open.len();
            text.take(length);
            (self.state, self.trim) = (GenericState::Thinking, true);
            return true;
        }
        let lone = self.allows_missing_open_tag.then_some(tags.close.as_str());
        if let Some(close) = lone.filter(|close| rest.starts_with(*close)) {
            let length = text.search_position() + close.len();
            text.take(length);
            (self.state, self.trim) = (GenericState::Answer, true);
            return true;
        }
        if !end && std::iter::once(tags.open.as_str()).chain(lone).any(|tag| tag.starts_with(rest))
        {
            return false;
        }
        text.set_search_position(0);
        self.state = GenericState::Answer;
        true
    }

    /// Passes the answer to the call scanner.
    fn answer(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) {
        let piece = text.take_all();
        match &mut self.scan {
            Some(scan) => scan.push(&piece, end, out),
            None => out.content(&piece),
        }
    }
}

impl FormatParser for GenericParser {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if !text.trim_start_if(&mut self.trim) {
            return false;
        }
        let tags = match &self.tags {
            Some(tags) if self.state != GenericState::Answer => tags.clone(),
            _ => {
                self.answer(text, end, out);
                return false;
            }
        };
        if self.state == GenericState::Start {
            return self.start(text, end, &tags);
        }
        let released = text.release_with_blanks(&[&tags.close]);
        out.thinking(&released.text);
        if released.tag.is_some() {
            (self.state, self.trim) = (GenericState::Answer, true);
        } else if end {
            out.thinking(&text.take_all());
        }
        released.tag.is_some()
    }

    fn stage(&self) -> OutputStage {
        match self.state {
            GenericState::Start => OutputStage::Start,
            GenericState::Thinking => OutputStage::Thinking,
            GenericState::Answer => OutputStage::Answer,
        }
    }

    fn reasoning_end(&self) -> Option<String> {
        let thinks = self.state == GenericState::Thinking;
        self.tags.as_ref().filter(|_| thinks).map(|tags| closing(&tags.close))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        let close = self.tags.iter().map(|tags| tags.close.as_str());
        self.state == GenericState::Thinking && is_free_of(piece, close)
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        let think = self.tags.iter().flat_map(|tags| [tags.open.clone(), tags.close.clone()]);
        think.chain(self.scan.iter().map(|scan| scan.tag.clone())).collect()
    }
}

/// Searches for calls behind a tag: the name of a tool and a JSON object, in any arrangement.
#[derive(Debug, Clone)]
pub(super) struct CallScanner {
    tag: String,
    tools: Tools,
    text: PendingText,
    state: ScanState,
    /// Only white space has arrived so far.
    only_blank: bool,
    calls: usize,
    /// The tool named last before an object, and the offset up to which names were searched.
    last_tool_name: Option<String>,
    names_searched: usize,
    /// Start of the current object or list.
    object: Option<usize>,
    brace_tracker: BraceTracker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// Searching for the tag.
    Tag,
    /// Searching for calls.
    Calls,
    /// All text is part of the answer.
    Disabled,
    /// All calls were read; the rest is dropped.
    Done,
}

impl CallScanner {
    /// Searches for calls behind `tag`, which must not be empty.
    pub(super) fn new(tag: String, tools: Tools) -> Self {
        let brace_tracker = BraceTracker::default();
        Self {
            tag,
            tools,
            text: PendingText::default(),
            state: ScanState::Tag,
            only_blank: true,
            calls: 0,
            last_tool_name: None,
            names_searched: 0,
            object: None,
            brace_tracker,
        }
    }

    /// The closing tag of an opening tag such as `<tool_call>`.
    fn closing(&self) -> Option<String> {
        let name = self.tag.strip_prefix('<')?;
        Some(format!("</{name}")).filter(|tag| tag.ends_with('>'))
    }

    /// Returns true if the tag is a bracket. Then calls must start the answer, and their closing
    /// bracket ends it.
    fn is_bracket(&self) -> bool {
        self.tag == "{" || self.tag == "["
    }

    /// Parses the next piece of the answer.
    fn push(&mut self, piece: &str, end: bool, out: &mut PartSink) {
        self.text.push(piece);
        while match self.state {
            ScanState::Tag => self.search_tag(end, out),
            ScanState::Calls => self.read_calls(end, out),
            ScanState::Disabled => {
                out.content(&self.text.take_all());
                false
            }
            ScanState::Done => {
                self.text.take_all();
                false
            }
        } {}
    }

    /// Searches for the tag. Returns true if it was found or can no longer come.
    fn search_tag(&mut self, end: bool, out: &mut PartSink) -> bool {
        let found = self.text.find(&[&self.tag]);
        let length = match found {
            TagMatch::Tag { at, .. } | TagMatch::Partial(at)
                if !end || matches!(found, TagMatch::Tag { .. }) =>
            {
                at
            }
            _ => self.text.rest().len(),
        };
        let before = self.text.take(length);
        self.only_blank &= before.trim().is_empty();
        out.content(before);
        if !self.only_blank && self.is_bracket() {
            self.state = ScanState::Disabled;
            return true;
        }
        if matches!(found, TagMatch::Tag { .. }) {
            // A bracket belongs to the object behind it.
            self.state = ScanState::Calls;
            if !self.is_bracket() {
                self.text.set_search_position(self.tag.len());
                self.names_searched = self.tag.len();
            }
        }
        self.state == ScanState::Calls
    }

    /// Reads calls. Returns true if the calls end before the text. Text that is not a call is
    /// reported at the end.
    fn read_calls(&mut self, end: bool, out: &mut PartSink) -> bool {
        'calls: loop {
            let closing = self.closing();
            let searched = self.text.search_position();
            let mut ended = None;
            let rest = self.text.rest();
            for (at, byte) in rest.bytes().enumerate().skip(searched) {
                if let Some(closing) =
                    closing.as_deref().filter(|_| byte == b'<' && !self.brace_tracker.in_string)
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
                                self.reject_section(at + closing.len(), out);
                                return true;
                            }
                            None => {}
                        }
                    }
                    if closing.starts_with(&rest[at..]) && !end {
                        self.text.set_search_position(at);
                        return false;
                    }
                }
                match self.brace_tracker.next(byte) {
                    BraceEvent::Opens => self.object = Some(at),
                    BraceEvent::Closes => {
                        ended = Some(at + 1);
                        break;
                    }
                    BraceEvent::Other => {}
                }
                if self.tag == "[" && self.brace_tracker.list == Some(0) {
                    self.finish_bracket(at + 1, out);
                    return true;
                }
            }
            let Some(to) = ended else {
                let length = self.text.rest().len();
                self.text.set_search_position(length);
                self.stream_call(length, out);
                break;
            };
            self.text.set_search_position(to);
            self.stream_call(to, out);
            self.object(to, out);
            if self.tag == "{" {
                self.finish_bracket(0, out);
                return true;
            }
        }
        if end {
            self.finish(out);
        }
        false
    }

    /// Streams the call that the current object may be. Only objects directly behind the tag are
    /// streamed, since others may be part of something else.
    fn stream_call(&self, to: usize, out: &mut PartSink) {
        let Some(from) = self.object else { return };
        let text = self.text.rest();
        // At the end, all text was taken.
        let (Some(before), Some(inside)) = (text.get(..from), text.get(from..to)) else { return };
        let mut before = before.trim_start();
        if let Some(closing) = self.closing().filter(|_| self.calls > 0) {
            before = before.strip_prefix(closing.as_str()).unwrap_or(before).trim_start();
        }
        let before = before.strip_prefix(&self.tag).unwrap_or(before).trim();
        // Calls of a list are streamed one by one.
        let in_list =
            self.brace_tracker.list.is_some() && before == if self.calls > 0 { "," } else { "[" };
        if before.is_empty() || in_list {
            out.stream_call(StreamedFormat::Object, inside, &self.tools);
        }
    }

    /// The closing tag came without a call before it: reports the section as malformed and searches
    /// for the next tag.
    fn reject_section(&mut self, length: usize, out: &mut PartSink) {
        let text = self.text.take(length).to_owned();
        out.malformed(text, CallError::Syntax("a tool's name and a JSON object"));
        (self.state, self.brace_tracker, self.object) =
            (ScanState::Tag, BraceTracker::default(), None);
        (self.last_tool_name, self.names_searched) = (None, 0);
    }

    /// The tool of an object at the end of a text that has only a tool's name and no arguments.
    fn call_of_name(&self, text: &str) -> Option<String> {
        let text = text.trim_end();
        let tail = text.floor_char_boundary(text.len().saturating_sub(MAX_NAME_OBJECT));
        let from = tail + text[tail..].rfind('{')?;
        let object: Map<String, Json> = serde_json::from_str(&text[from..]).ok()?;
        let is_absent = |key: &str| object.get(key).is_none_or(Json::is_null);
        let name = object.get("name")?.as_str()?;
        (self.tools.has(name) && is_absent("arguments") && is_absent("parameters"))
            .then(|| name.to_owned())
    }

    /// All brackets are closed, `left` bytes before the end of the text. With calls, the rest is
    /// dropped; without calls, all text was the answer.
    fn finish_bracket(&mut self, left: usize, out: &mut PartSink) {
        if self.calls > 0 {
            self.state = ScanState::Done;
            let left = self.text.take(left).to_owned();
            Self::report_leftover(&left, out);
            self.text.take_all();
        } else {
            self.state = ScanState::Disabled;
            out.content(&self.text.take_all());
        }
    }

    /// Processes the object that ends at `to`.
    fn object(&mut self, to: usize, out: &mut PartSink) {
        let from = self.object.take().unwrap_or(0);
        self.find_name(to);
        let value = serde_json::from_str::<Json>(&self.text.rest()[from..to]).ok();
        let Some((name, given)) = value.and_then(|value| self.call_of_value(value)) else {
            if out.abandon_call() {
                self.skip_call(to);
            }
            return;
        };
        // Earlier objects that were not calls.
        if let Some(at) = self.text.rest()[..from].find('{') {
            let text = self.text.rest()[at..from].trim_end().to_owned();
            out.malformed(text, CallError::Syntax("a tool's name and a JSON object"));
        }
        out.calls(Ok(vec![call(name, given)]), |_| String::new());
        self.skip_call(to);
    }

    /// Removes a call that ends at `to` and everything before it.
    fn skip_call(&mut self, to: usize) {
        self.calls += 1;
        let bracket = self.tag == "[";
        self.text.take(to);
        self.last_tool_name = None;
        self.names_searched = 0;
        if !bracket {
            self.brace_tracker = BraceTracker::default();
        }
    }

    /// Finds the first tool name in the text up to `to`; of several at the same offset, the
    /// longest.
    fn find_name(&mut self, to: usize) {
        if self.last_tool_name.is_some() {
            return;
        }
        let text = &self.text.rest()[..to];
        let names: Vec<&str> = self.tools.names().filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return;
        }
        match first_tag(text, self.names_searched, &names) {
            TagMatch::Tag { at, .. } => {
                let here = names.iter().filter(|name| text[at..].starts_with(**name));
                self.last_tool_name =
                    here.max_by_key(|name| name.len()).map(|name| (*name).to_owned());
            }
            TagMatch::Partial(at) => self.names_searched = at,
            TagMatch::None => self.names_searched = to,
        }
    }

    /// Finds the call in an object: with `name` and arguments, with a tool's name as key, or only
    /// arguments behind a tool's name.
    fn call_of_value(&self, value: Json) -> Option<(String, Map<String, Json>)> {
        match self.find_call(&value) {
            CallMatch::Call(name, given) => Some((name, given)),
            CallMatch::Invalid => None,
            CallMatch::None => match value {
                Json::Object(given) => Some((self.last_tool_name.clone()?, given)),
                _ => None,
            },
        }
    }

    /// Finds a call in a JSON value, also nested ones.
    fn find_call(&self, value: &Json) -> CallMatch {
        let object = match value {
            Json::Object(object) => object,
            Json::Array(list) => {
                let hits = list.iter().map(|one| self.find_call(one));
                return hits
                    .into_iter()
                    .find(|hit| !matches!(hit, CallMatch::None))
                    .unwrap_or(CallMatch::None);
            }
            _ => return CallMatch::None,
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
                (Some(name), Some(given)) => CallMatch::Call(name.to_owned(), given),
                _ => CallMatch::Invalid,
            };
        }
        let keyed = object
            .iter()
            .find_map(|(key, value)| Some((key, value)).filter(|_| self.tools.has(key)));
        if let Some((name, Some(given))) = keyed.map(|(name, value)| (name, given(value))) {
            return CallMatch::Call(name.clone(), given);
        }
        let hits = object.values().map(|value| self.find_call(value));
        hits.into_iter().find(|hit| !matches!(hit, CallMatch::None)).unwrap_or(CallMatch::None)
    }

    /// Reports an object behind the calls as malformed. Other text behind calls is dropped.
    fn report_leftover(rest: &str, out: &mut PartSink) {
        if let Some(at) = rest.find('{') {
            out.malformed(
                rest[at..].to_owned(),
                CallError::Syntax("a tool's name and a JSON object"),
            );
        }
    }

    /// Handles the text that is left when the output ends.
    fn finish(&mut self, out: &mut PartSink) {
        let rest = self.text.take_all();
        if self.is_bracket() && self.calls > 0 {
            Self::report_leftover(&rest, out);
        } else if self.is_bracket() {
            out.content(&rest);
        } else if self.calls == 0 {
            out.malformed(rest, CallError::Syntax("a tool's name and a JSON object"));
        } else if let Some(at) = rest.find(&self.tag).into_iter().chain(rest.find('{')).min() {
            out.malformed(
                rest[at..].to_owned(),
                CallError::Syntax("a tool's name and a JSON object"),
            );
        }
    }
}

/// Result of searching a JSON value for a call.
enum CallMatch {
    Call(String, Map<String, Json>),
    /// A call of an unknown tool, or without arguments.
    Invalid,
    None,
}

/// Tracks objects, and the list around them, through a text.
#[derive(Debug, Clone, Default)]
struct BraceTracker {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Open brackets outside of objects; `None` before the first one.
    list: Option<usize>,
}

/// Effect of a byte on the objects of a text.
enum BraceEvent {
    Opens,
    Closes,
    Other,
}

impl BraceTracker {
    fn next(&mut self, byte: u8) -> BraceEvent {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' => {
                self.depth += 1;
                if self.depth == 1 {
                    return BraceEvent::Opens;
                }
            }
            b'}' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return BraceEvent::Closes;
                }
            }
            b'[' if self.depth == 0 => *self.list.get_or_insert(0) += 1,
            b']' if self.depth == 0 => self.list = self.list.map(|open| open.saturating_sub(1)),
            _ => {}
        }
        BraceEvent::Other
    }
}
