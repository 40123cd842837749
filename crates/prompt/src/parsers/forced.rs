//! How a template writes a call, so that an answer can be bound to be one.

use serde_json::{Map, Value as Json};

use super::shapes::{
    RESULT, TOOL, answer_of, arguments, has_headers, reads, reads_with, tools, written_answers,
    written_with,
};
use super::written::{self, Written};
use super::{Grammar, ParserInput, families, generic};
use crate::{Template, ThinkTags};

/// The text of a call: `before`, the function's name, and its arguments with what ends the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallForm {
    /// In front of the name.
    pub before: String,
    /// Behind the name, up to the end of the turn.
    pub arguments: Arguments,
}

/// How arguments are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// `between`, a JSON object, and `after`.
    Object {
        /// Between name and object.
        between: String,
        /// Behind the object.
        after: String,
    },
    /// Each by itself.
    Written(Box<Written>),
}

/// A template that writes calls, and the parser of them.
pub(super) trait Writes {
    /// What it writes behind the name of the tool that is called.
    fn behind_name(&self, arguments: &Map<String, Json>) -> Option<String>;

    /// Whether a text behind the tool's name is read as its call with these arguments.
    fn is_read(&self, text: &str, arguments: &Json) -> bool;
}

struct Writer<'a> {
    template: &'a Template,
    parser: Option<&'a str>,
    tags: Option<&'a ThinkTags>,
    ends: &'a [String],
    /// In front of the name.
    before: String,
}

impl CallForm {
    /// The form of calls that a template writes; `tags` stand around thoughts, `ends` end a turn. `None` for templates that
    /// write no calls, or calls that `parser`, or else the parser for the template, does not read or of which it is not known
    /// how arguments are written; and for those whose messages have headers, of which a thought and a call have one each.
    pub fn of(
        template: &Template,
        parser: Option<&str>,
        tags: Option<&ThinkTags>,
        ends: &[String],
    ) -> Option<Self> {
        if has_headers(template) {
            return None;
        }
        let (written, header) = written_answers(template)?;
        let writer = Writer { template, parser, tags, ends, before: String::new() };
        written.iter().find_map(|written| writer.form(answer_of(written, &header)?))
    }

    /// The same where the prompt leaves no thought to be ended.
    pub fn without_thought_end(mut self, tags: Option<&ThinkTags>) -> Self {
        let close = tags.map(|tags| tags.close.as_str()).filter(|close| !close.is_empty());
        if let Some(rest) = close.and_then(|close| self.before.trim_start().strip_prefix(close)) {
            self.before = rest.trim_start().to_owned();
        }
        self
    }
}

impl Writer<'_> {
    /// The call that an answer begins with: what stands before the tool's name, and behind it.
    fn parts<'t>(&self, mut call: &'t str) -> Option<(&'t str, &'t str)> {
        if let Some(tags) = self.tags
            && let Some(thought) = call.trim_start().strip_prefix(&tags.open)
            && let Some((_, rest)) = thought.split_once(&tags.close)
        {
            call = rest.trim_start();
        }
        let name = call.find(TOOL)?;
        let ends = self.ends.iter().filter(|end| !end.is_empty());
        let end = ends.filter_map(|end| call[name..].find(end.as_str())).min();
        if end.is_none() && call.contains(RESULT) {
            return None;
        }
        let call = call[..end.map_or(call.len(), |end| name + end)].trim_end();
        Some((&call[..name], &call[name + TOOL.len()..]))
    }

    fn form(&self, answer: &str) -> Option<CallForm> {
        let (before, rest) = self.parts(answer)?;
        if !reads(self.grammar(&tools()), &format!("{before}{TOOL}{rest}")) {
            return None;
        }
        let arguments = match object_in(rest, &Json::Object(arguments())) {
            Some((at, length)) => {
                let (between, after) = (rest[..at].to_owned(), rest[at + length..].to_owned());
                Arguments::Object { between, after }
            }
            None => {
                let (style, barred) = self.grammar(&tools()).values()?;
                let writer = Writer { before: before.to_owned(), ..*self };
                Arguments::Written(Box::new(Written::of(style, barred, &writer)?))
            }
        };
        Some(CallForm { before: before.to_owned(), arguments })
    }

    fn grammar(&self, tools: &[Json]) -> Box<dyn Grammar> {
        let input = ParserInput { tools, ..ParserInput::default() };
        let named = self.parser.and_then(|name| families::by_name(name, &input));
        named.unwrap_or_else(|| generic::for_template(self.template, self.tags.cloned(), &input))
    }
}

impl Writes for Writer<'_> {
    fn behind_name(&self, arguments: &Map<String, Json>) -> Option<String> {
        let (written, header) = written_with(self.template, &[written::tool()], arguments)?;
        let is_same =
            |(before, rest): (&str, &str)| (before == self.before).then(|| rest.to_owned());
        written
            .iter()
            .find_map(|written| self.parts(answer_of(written, &header)?).and_then(is_same))
    }

    fn is_read(&self, text: &str, arguments: &Json) -> bool {
        let text = format!("{}{TOOL}{text}", self.before);
        let Json::Object(arguments) = arguments else { return false };
        reads_with(self.grammar(&[written::tool()]), &text, arguments)
    }
}

/// Where a JSON object stands in a text, and its length.
fn object_in(text: &str, wanted: &Json) -> Option<(usize, usize)> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        let found = values.next()?.ok()?;
        (found == *wanted).then(|| (at, values.byte_offset()))
    })
}
