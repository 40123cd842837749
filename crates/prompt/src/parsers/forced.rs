//! How a template writes a call, so that an answer can be bound to be one.

use serde_json::Value as Json;

use super::shapes::{RESULT, TOOL, answer_of, arguments, has_headers, reads, tools, written_answers};
use super::{Grammar, ParserInput, families, generic};
use crate::{Template, ThinkTags};

/// The text of a call: `before`, the function's name, `between`, its arguments, and `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallForm {
    /// In front of the name.
    pub before: String,
    /// Between name and arguments; where these are no JSON object, only what cannot be a part of the name.
    pub between: String,
    /// Behind the arguments, up to the end of the turn; `None` where these are no JSON object, and the rest of the call is
    /// whatever the model has learned.
    pub after: Option<String>,
}

impl CallForm {
    /// The form of calls that a template writes; `tags` stand around thoughts, `ends` end a turn. `None` for templates that
    /// write no calls, or calls that `parser`, or else the parser for the template, does not read; and for those whose
    /// messages have headers, of which a thought and a call have one each.
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
        let form = |written| Self::in_text(answer_of(written, &header)?, template, parser, tags, ends);
        written.iter().find_map(|written| form(written))
    }

    /// The form of the call that an answer begins with.
    fn in_text(
        mut call: &str,
        template: &Template,
        parser: Option<&str>,
        tags: Option<&ThinkTags>,
        ends: &[String],
    ) -> Option<Self> {
        if let Some(tags) = tags
            && let Some(thought) = call.trim_start().strip_prefix(&tags.open)
            && let Some((_, rest)) = thought.split_once(&tags.close)
        {
            call = rest.trim_start();
        }
        let name = call.find(TOOL)?;
        let end =
            ends.iter().filter(|end| !end.is_empty()).filter_map(|end| call[name..].find(end.as_str())).min();
        if end.is_none() && call.contains(RESULT) {
            return None;
        }
        let call = call[..end.map_or(call.len(), |end| name + end)].trim_end();
        let (before, rest) = (&call[..name], &call[name + TOOL.len()..]);
        let (between, after) = match object_in(rest, &Json::Object(arguments())) {
            Some((at, length)) => (&rest[..at], Some(rest[at + length..].to_owned())),
            None => (rest.split(char::is_alphanumeric).next().unwrap_or_default(), None),
        };
        let is_read = reads(grammar(template, parser, tags), call);
        is_read.then(|| Self { before: before.to_owned(), between: between.to_owned(), after })
    }
}

fn grammar(template: &Template, parser: Option<&str>, tags: Option<&ThinkTags>) -> Box<dyn Grammar> {
    let tools = tools();
    let input = ParserInput { tools: &tools, ..ParserInput::default() };
    let named = parser.and_then(|name| families::by_name(name, &input));
    named.unwrap_or_else(|| generic::for_template(template, tags.cloned(), &input))
}

/// Where a JSON object stands in a text, and its length.
fn object_in(text: &str, wanted: &Json) -> Option<(usize, usize)> {
    text.match_indices('{').find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Json>();
        let found = values.next()?.ok()?;
        (found == *wanted).then(|| (at, values.byte_offset()))
    })
}
