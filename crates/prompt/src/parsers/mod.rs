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
mod families;
mod format_detection;
mod generic;
mod json_prefix;
mod output_part;
mod pending;
mod tagged;
mod tools;

use serde_json::Value as Json;

pub use argument_list::{ArgumentListFormat, ValueFrame, ValueKind, ValueStyle};
pub use call_format::{ArgumentsFormat, CallFormat};
pub(crate) use format_detection::DetectedCalls;
pub use json_prefix::JsonPrefix;
use output_part::PartSink;
pub use output_part::{CallError, OutputPart};
use pending::PendingText;
use tools::Tools;

use crate::message::{FunctionCall, Message, Think};
use crate::{Template, ThinkTags};

/// Properties of the request that a parser needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ParserInput<'a> {
    /// The declared tools, as the client sent them.
    pub tools: &'a [Json],
    /// Reasoning switch; `None` selects the model's default.
    pub think: Option<&'a Think>,
    /// The last message of the conversation. The model continues it if it is an assistant message.
    pub last: Option<&'a Message>,
    /// The rendered prompt.
    pub prompt: &'a str,
    /// The answer follows a constraint. JSON in it is only a call if it stands between tags.
    pub constrained: bool,
}

impl ParserInput<'_> {
    /// Returns true if the request turns reasoning on.
    fn thinks(&self) -> bool {
        self.think.is_some_and(Think::is_on)
    }

    /// Returns true unless the request turns reasoning off.
    fn thinks_by_default(&self) -> bool {
        self.think.is_none_or(Think::is_on)
    }

    /// Returns true if the last message is an assistant message.
    fn is_prefilled(&self) -> bool {
        self.last.is_some_and(|last| last.role == "assistant")
    }

    /// Returns true if the model continues a non-empty answer.
    fn continues(&self) -> bool {
        self.last.is_some_and(|last| last.role == "assistant" && !last.content.is_empty())
    }
}

/// Part of the output that a model generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStage {
    /// The model may start reasoning.
    Start,
    /// The model is reasoning.
    Thinking,
    /// The model writes its answer or calls tools.
    Answer,
}

/// Parser of one output format. `step` consumes as much text as it can classify, and returns true
/// to be called again. With `end`, it must have consumed all text when it returns false.
trait FormatParser: std::fmt::Debug + Send {
    /// Consumes text. See [`FormatParser`].
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool;

    /// The part of the output that the model is writing.
    fn stage(&self) -> OutputStage;

    /// While the model is reasoning: the text that ends the reasoning and starts the answer.
    fn reasoning_end(&self) -> Option<String> {
        None
    }

    /// Returns true if the model is reasoning and `piece` contains no start of a text that may end
    /// the reasoning. The caller makes sure that no undecided text precedes it.
    fn keeps_thinking(&self, _piece: &str) -> bool {
        false
    }

    /// Texts of special tokens that the detokenizer must not remove.
    fn preserved_tokens(&self) -> Vec<String>;

    /// How calls write argument values that are not part of a JSON object, and texts that a value
    /// must not contain.
    fn value_style(&self) -> Option<(ValueStyle, Vec<String>)> {
        None
    }

    /// Copies the parser, for peeking.
    fn clone_box(&self) -> Box<dyn FormatParser>;
}

/// Text that closes reasoning with a tag. Think tags stand on their own lines, as templates write
/// them.
fn closing(tag: &str) -> String {
    if tag.to_lowercase().contains("think") { format!("\n{tag}\n\n") } else { tag.to_owned() }
}

/// Returns true if a text contains the first character of none of the tags.
fn is_free_of<'t>(text: &str, mut tags: impl Iterator<Item = &'t str>) -> bool {
    tags.all(|tag| tag.chars().next().is_none_or(|first| !text.contains(first)))
}

/// Splits the streamed output of a model into reasoning, answer and tool calls.
#[derive(Debug)]
pub struct OutputParser {
    parser: Box<dyn FormatParser>,
    text: PendingText,
    out: PartSink,
    tools: Tools,
}

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

    fn new(parser: Box<dyn FormatParser>, tools: &[Json]) -> Self {
        Self {
            parser,
            text: PendingText::default(),
            out: PartSink::default(),
            tools: Tools::new(tools),
        }
    }

    /// Streams calls with JSON arguments while the arguments arrive ([`OutputPart::CallStart`]).
    pub fn with_call_streaming(mut self) -> Self {
        self.out.enable_call_streaming();
        self
    }

    /// Parses the next piece of output.
    pub fn push(&mut self, piece: &str) -> Vec<OutputPart> {
        self.text.push(piece);
        self.run(false)
    }

    /// Ends a stream that the model ended. Returns the parts that were held back.
    pub fn finish(&mut self) -> Vec<OutputPart> {
        self.run(true)
    }

    /// Ends a stream that was cut by a length limit or a stop string. A call without its end is
    /// malformed then, also in families that are otherwise lenient. With call streaming, a call
    /// whose tool is known counts as started.
    pub fn finish_truncated(&mut self) -> Vec<OutputPart> {
        self.text.set_truncated();
        let mut parts = self.run(true);
        if self.out.last_malformed_was_not_streamed() {
            start_truncated_call(&mut parts, &self.tools, self.out.has_calls());
        }
        parts
    }

    /// Runs the parser until it needs more text.
    fn run(&mut self, end: bool) -> Vec<OutputPart> {
        while self.parser.step(&mut self.text, end, &mut self.out) {}
        self.out.take_parts()
    }

    /// Copies the parser, for peeking.
    fn snapshot(&self) -> Self {
        let (parser, tools) = (self.parser.clone_box(), self.tools.clone());
        Self { parser, text: self.text.clone(), out: self.out.clone(), tools }
    }

    /// Parses `piece` as the next one without changing the parser.
    pub fn peek(&self, piece: &str) -> Vec<OutputPart> {
        self.snapshot().push(piece)
    }

    /// The stage of the output after `piece`.
    pub fn peek_stage(&self, piece: &str) -> OutputStage {
        let mut other = self.snapshot();
        other.push(piece);
        other.stage()
    }

    /// The stage of the output so far.
    pub fn stage(&self) -> OutputStage {
        self.parser.stage()
    }

    /// Returns true if the model is reasoning.
    pub fn is_thinking(&self) -> bool {
        self.stage() == OutputStage::Thinking
    }

    /// While the model is reasoning: the text that ends the reasoning and starts the answer; `None`
    /// if it is unknown.
    pub fn reasoning_end(&self) -> Option<String> {
        self.parser.reasoning_end()
    }

    /// Returns true if the model certainly still reasons after `piece`. Much cheaper than
    /// [`peek_stage`](Self::peek_stage).
    pub fn keeps_thinking(&self, piece: &str) -> bool {
        self.text.rest().trim_start().is_empty() && self.parser.keeps_thinking(piece)
    }

    /// Texts of special tokens that the detokenizer must keep, because they separate calls and
    /// reasoning from the answer.
    pub fn preserved_tokens(&self) -> Vec<String> {
        self.parser.preserved_tokens()
    }
}

/// Turns a truncated call at the end into a started call if its tool's name is complete. Behind
/// other calls, a truncated call without name is dropped.
fn start_truncated_call(parts: &mut Vec<OutputPart>, tools: &Tools, has_calls: bool) {
    let Some(OutputPart::Malformed { text, .. }) = parts.last_mut() else { return };
    if let Some(name) = tools.find_tool_name(text) {
        text.clear();
        parts.insert(parts.len() - 1, OutputPart::CallStart(name));
    } else if has_calls {
        text.clear();
    }
}

#[cfg(test)]
mod tests;
