//! Output parsers: split the streamed output of a model into reasoning, answer and tool calls.
//!
//! * [`OutputParser::by_name`]: the parser that a model names (`PARSER` in a Modelfile).
//! * [`OutputParser::for_template`]: the parser that fits a template, for models that name none.
//!
//! The result depends only on the whole text, not on how the stream was split into pieces. Time and
//! memory are linear in the length of the text. A parser never fails: a call that cannot be read
//! becomes [`OutputPart::Malformed`].

mod argument_list;
mod body;
mod call_format;
mod call_stream;
mod detected_calls;
mod families;
mod format_detection;
mod format_parser;
mod generic;
mod json_prefix;
mod output_parser;
mod output_parser_constructors;
mod output_part;
mod part_sink;
mod pending;
mod probe_call;
mod python_literal;
mod tagged;
mod tools;
mod value_style;

pub use argument_list::{ArgumentListFormat, ValueFrame, ValueKind};
pub use call_format::{ArgumentsFormat, CallFormat};
pub(crate) use detected_calls::DetectedCalls;
pub use format_parser::{OutputStage, ParserInput};
pub use json_prefix::JsonPrefix;
pub use output_parser::OutputParser;
pub use output_part::{CallError, OutputPart};
pub use value_style::ValueStyle;

#[cfg(test)]
mod tests;
