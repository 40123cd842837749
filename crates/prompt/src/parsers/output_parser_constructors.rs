//! Chooses the output parser of a model.

use super::format_parser::ParserInput;
use super::output_parser::OutputParser;
use super::{families, generic};
use crate::{Template, ThinkTags};

impl OutputParser {
    /// Finds a parser by name.
    pub fn by_name(name: &str, input: &ParserInput<'_>) -> Option<Self> {
        families::by_name(name, input).map(|parser| Self::new(parser, input.tools))
    }

    /// The names for [`by_name`](Self::by_name).
    pub fn names() -> impl Iterator<Item = &'static str> {
        families::names()
    }

    /// The parser for a model that names none. It parses reasoning between `tags`, if reasoning is
    /// on, and the tool calls that the template writes, if the request declares tools.
    pub fn for_template(
        template: &Template,
        tags: Option<ThinkTags>,
        input: &ParserInput<'_>,
    ) -> Self {
        Self::new(generic::for_template(template, tags, input), input.tools)
    }

    /// A parser for reasoning only. It reads reasoning between `tags` at the start of the output,
    /// or from the start if `prompt` ends with the opening tag.
    pub fn thinking(tags: ThinkTags, prompt: &str) -> Self {
        Self::new(Box::new(generic::GenericParser::new(Some(tags), prompt, None)), &[])
    }
}
