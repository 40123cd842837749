//! The parser of a stream: pending text, a format, and the parts found.

use serde_json::Value as Json;

use super::format_parser::{FormatParser, OutputStage};
use super::output_part::OutputPart;
use super::part_sink::PartSink;
use super::pending::PendingText;
use super::tools::Tools;

/// Splits the streamed output of a model into reasoning, answer and tool calls.
#[derive(Debug)]
pub struct OutputParser {
    parser: Box<dyn FormatParser>,
    text: PendingText,
    out: PartSink,
    tools: Tools,
}

impl OutputParser {
    pub(super) fn new(parser: Box<dyn FormatParser>, tools: &[Json]) -> Self {
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
    /// malformed then, also in families that are otherwise lenient. With call streaming, a call of
    /// a known tool counts as started.
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
    pub(super) fn snapshot(&self) -> Self {
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
