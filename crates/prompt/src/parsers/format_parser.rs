//! The trait of output formats, and the properties of a request that formats depend on.

use serde_json::Value as Json;

use super::part_sink::PartSink;
use super::pending::PendingText;
use super::value_style::ValueStyle;
use crate::message::{Message, Think};

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
    pub(super) fn thinks(&self) -> bool {
        self.think.is_some_and(Think::is_on)
    }

    /// Returns true unless the request turns reasoning off.
    pub(super) fn thinks_by_default(&self) -> bool {
        self.think.is_none_or(Think::is_on)
    }

    /// Returns true if the last message is an assistant message.
    pub(super) fn is_prefilled(&self) -> bool {
        self.last.is_some_and(|last| last.role == "assistant")
    }

    /// Returns true if the model continues a non-empty answer.
    pub(super) fn continues(&self) -> bool {
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
pub(super) trait FormatParser: std::fmt::Debug + Send {
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
pub(super) fn closing(tag: &str) -> String {
    if tag.to_lowercase().contains("think") { format!("\n{tag}\n\n") } else { tag.to_owned() }
}

/// Returns true if a text contains the first character of none of the tags.
pub(super) fn is_free_of<'t>(text: &str, mut tags: impl Iterator<Item = &'t str>) -> bool {
    tags.all(|tag| tag.chars().next().is_none_or(|first| !text.contains(first)))
}
