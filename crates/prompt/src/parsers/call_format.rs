//! Detects how a template writes a tool call. Forced tool calls are generated in this format.

use serde_json::{Map, Value as Json};

use super::argument_list::{self, ArgumentListFormat, CallWriter};
use super::format_detection::{has_headers, parses_call, parses_probe_call};
use super::format_parser::{FormatParser, ParserInput};
use super::probe_call::{
    PROBE_RESULT, PROBE_TOOL, answer_of, probe_answers, probe_answers_with, probe_arguments,
    probe_tools,
};
use super::{families, generic};
use crate::{Template, ThinkTags};

/// Format of a tool call: `before`, the function's name, and the arguments with the end of the
/// call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFormat {
    /// Text before the function's name.
    pub before: String,
    /// Text behind the function's name, up to the end of the turn.
    pub arguments: ArgumentsFormat,
}

/// Format of the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentsFormat {
    /// A JSON object between `between` and `after`.
    Object {
        /// Between the function's name and the object.
        between: String,
        /// Behind the object.
        after: String,
    },
    /// Each argument separately.
    List(Box<ArgumentListFormat>),
}

struct TemplateCallWriter<'a> {
    template: &'a Template,
    parser: Option<&'a str>,
    tags: Option<&'a ThinkTags>,
    ends: &'a [String],
    /// Text before the function's name.
    before: String,
}

impl CallFormat {
    /// Detects the call format of a template. `tags` surround reasoning, `ends` are texts that end
    /// a turn.
    ///
    /// Returns `None` in these cases: the template writes no calls; `parser`, or else the parser of
    /// the template, does not read them; the syntax of the arguments is unknown; or messages have
    /// headers, so that reasoning and call need one each.
    pub fn probe(
        template: &Template,
        parser: Option<&str>,
        tags: Option<&ThinkTags>,
        ends: &[String],
    ) -> Option<Self> {
        if has_headers(template) {
            return None;
        }
        let (written, header) = probe_answers(template)?;
        let writer = TemplateCallWriter { template, parser, tags, ends, before: String::new() };
        written.iter().find_map(|written| writer.call_format(answer_of(written, &header)?))
    }

    /// The format for a prompt behind which no reasoning has to be closed.
    pub fn without_reasoning_end(mut self, tags: Option<&ThinkTags>) -> Self {
        let close = tags.map(|tags| tags.close.as_str()).filter(|close| !close.is_empty());
        if let Some(rest) = close.and_then(|close| self.before.trim_start().strip_prefix(close)) {
            self.before = rest.trim_start().to_owned();
        }
        self
    }
}

impl TemplateCallWriter<'_> {
    /// Splits the call at the start of an answer at the function's name: text before and behind the
    /// name.
    fn split_at_name<'t>(&self, mut call: &'t str) -> Option<(&'t str, &'t str)> {
        if let Some(tags) = self.tags
            && let Some(thought) = call.trim_start().strip_prefix(&tags.open)
            && let Some((_, rest)) = thought.split_once(&tags.close)
        {
            call = rest.trim_start();
        }
        let name = call.find(PROBE_TOOL)?;
        let ends = self.ends.iter().filter(|end| !end.is_empty());
        let end = ends.filter_map(|end| call[name..].find(end.as_str())).min();
        if end.is_none() && call.contains(PROBE_RESULT) {
            return None;
        }
        let call = call[..end.map_or(call.len(), |end| name + end)].trim_end();
        Some((&call[..name], &call[name + PROBE_TOOL.len()..]))
    }

    fn call_format(&self, answer: &str) -> Option<CallFormat> {
        let (before, rest) = self.split_at_name(answer)?;
        if !parses_probe_call(
            self.parser_for(&probe_tools()),
            &format!("{before}{PROBE_TOOL}{rest}"),
        ) {
            return None;
        }
        let arguments = match object_in(rest, &Json::Object(probe_arguments())) {
            Some((at, length)) => {
                let (between, after) = (rest[..at].to_owned(), rest[at + length..].to_owned());
                ArgumentsFormat::Object { between, after }
            }
            None => {
                let (style, forbidden) = self.parser_for(&probe_tools()).value_style()?;
                let writer = TemplateCallWriter { before: before.to_owned(), ..*self };
                ArgumentsFormat::List(Box::new(ArgumentListFormat::probe(
                    style, forbidden, &writer,
                )?))
            }
        };
        Some(CallFormat { before: before.to_owned(), arguments })
    }

    fn parser_for(&self, tools: &[Json]) -> Box<dyn FormatParser> {
        let input = ParserInput { tools, ..ParserInput::default() };
        let named = self.parser.and_then(|name| families::by_name(name, &input));
        named.unwrap_or_else(|| generic::for_template(self.template, self.tags.cloned(), &input))
    }
}

impl CallWriter for TemplateCallWriter<'_> {
    fn text_after_name(&self, arguments: &Map<String, Json>) -> Option<String> {
        let (written, header) =
            probe_answers_with(self.template, &[argument_list::probe_tool()], arguments)?;
        let is_same =
            |(before, rest): (&str, &str)| (before == self.before).then(|| rest.to_owned());
        written
            .iter()
            .find_map(|written| self.split_at_name(answer_of(written, &header)?).and_then(is_same))
    }

    fn parses_as(&self, text: &str, arguments: &Json) -> bool {
        let text = format!("{}{PROBE_TOOL}{text}", self.before);
        let Json::Object(arguments) = arguments else { return false };
        parses_call(self.parser_for(&[argument_list::probe_tool()]), &text, arguments)
    }
}

/// Byte offset and length of a JSON object in a text.
fn object_in(text: &str, expected: &Json) -> Option<(usize, usize)> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        let found = values.next()?.ok()?;
        (found == *expected).then(|| (at, values.byte_offset()))
    })
}
