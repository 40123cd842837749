//! Output parsers: from the model's text, as it streams, to thoughts, answer and tool calls.
//!
//! * [`OutputParser::by_name`]: the parser that a model names (`PARSER` in a Modelfile).
//! * [`OutputParser::for_template`]: the parser that fits a template, for models that name none.
//!
//! A parser is a function of the whole text: how the stream was cut changes nothing. It needs time and memory in
//! proportion to the text and never fails; a call that cannot be read comes out as [`Part::Malformed`].

mod body;
mod call;
mod early;
mod families;
mod forced;
mod generic;
mod pending;
mod prefix;
mod shapes;
mod tagged;
mod tools;
mod written;

use serde_json::Value as Json;

use call::Out;
pub use call::{CallError, Part};
pub use forced::{Arguments, CallForm};
use pending::Pending;
pub use prefix::JsonPrefix;
pub(crate) use shapes::Found;
use tools::Tools;
pub use written::{Frame, Style, ValueKind, Written};

use crate::message::{FunctionCall, Message, Think};
use crate::{Template, ThinkTags};

/// What a parser has to know about the request.
#[derive(Debug, Clone, Copy, Default)]
pub struct ParserInput<'a> {
    /// The tools offered, as the client sent them.
    pub tools: &'a [Json],
    /// The thinking switch; `None` is the model's own habit.
    pub think: Option<&'a Think>,
    /// The last message of the conversation: the model goes on with it if it is an assistant's.
    pub last: Option<&'a Message>,
    /// The rendered prompt.
    pub prompt: &'a str,
    /// The answer has a form that was asked for: JSON in it is no call unless tags say so.
    pub formed: bool,
}

impl ParserInput<'_> {
    fn thinks(&self) -> bool {
        self.think.is_some_and(Think::is_on)
    }

    fn thinks_unless_told(&self) -> bool {
        self.think.is_none_or(Think::is_on)
    }

    /// Is the last message an assistant's?
    fn is_prefilled(&self) -> bool {
        self.last.is_some_and(|last| last.role == "assistant")
    }

    /// Is an answer gone on with?
    fn continues(&self) -> bool {
        self.last.is_some_and(|last| last.role == "assistant" && !last.content.is_empty())
    }
}

/// Where in its answer a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It may still begin to think.
    Start,
    /// It thinks.
    Thinking,
    /// It answers, or calls tools.
    Answer,
}

/// One format of output. `step` decides as much of the text as it can and returns whether to call it again; at the end
/// it must have taken everything when it returns false.
trait Grammar: std::fmt::Debug + Send {
    fn step(&mut self, text: &mut Pending, end: bool, out: &mut Out) -> bool;

    fn stage(&self) -> Stage;

    /// The text that ends the thought and lets the answer begin, while the model thinks.
    fn thought_end(&self) -> Option<String> {
        None
    }

    /// Whether the model thinks, and nothing that may end its thought stands or begins in `piece`, with nothing undecided
    /// before it.
    fn keeps_thinking(&self, _piece: &str) -> bool {
        false
    }

    /// Texts of special tokens that must be left in the output for this parser.
    fn preserved(&self) -> Vec<String>;

    /// How calls write the values of their arguments where these are no JSON object, and what no value can hold.
    fn values(&self) -> Option<(Style, Vec<String>)> {
        None
    }

    fn boxed(&self) -> Box<dyn Grammar>;
}

/// The text that ends a thought with a tag: names of thoughts stand on lines of their own, as templates write them.
fn closing(tag: &str) -> String {
    if tag.to_lowercase().contains("think") { format!("\n{tag}\n\n") } else { tag.to_owned() }
}

/// Whether none of some tags begins in a text.
fn is_free_of<'t>(text: &str, mut tags: impl Iterator<Item = &'t str>) -> bool {
    tags.all(|tag| tag.chars().next().is_none_or(|first| !text.contains(first)))
}

/// Turns a model's text, as it streams, into thoughts, answer and tool calls.
#[derive(Debug)]
pub struct OutputParser {
    grammar: Box<dyn Grammar>,
    text: Pending,
    out: Out,
    tools: Tools,
}

impl OutputParser {
    /// The parser of a name, `None` for an unknown one.
    pub fn by_name(name: &str, input: &ParserInput<'_>) -> Option<Self> {
        families::by_name(name, input).map(|grammar| Self::new(grammar, input.tools))
    }

    /// The names that [`by_name`](Self::by_name) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        families::names()
    }

    /// The parser for a model that names none: `tags` around thoughts, if it is to think, and the tool calls that the
    /// template writes, if tools are offered.
    pub fn for_template(
        template: &Template,
        tags: Option<ThinkTags>,
        input: &ParserInput<'_>,
    ) -> Self {
        Self::new(generic::for_template(template, tags, input), input.tools)
    }

    /// A parser that takes what stands between `tags` at the start for a thought, or from the start where `prompt` ends
    /// with the opening one.
    pub fn thinking(tags: ThinkTags, prompt: &str) -> Self {
        Self::new(Box::new(generic::Generic::new(Some(tags), prompt, None)), &[])
    }

    fn new(grammar: Box<dyn Grammar>, tools: &[Json]) -> Self {
        Self { grammar, text: Pending::default(), out: Out::default(), tools: Tools::new(tools) }
    }

    /// Tells of calls while their arguments come ([`Part::CallBegins`]), where these are JSON.
    pub fn telling_early(mut self) -> Self {
        self.out.tell_early();
        self
    }

    /// Takes the next piece of output.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.text.push(piece);
        self.run(false)
    }

    /// Ends the stream where the model ended it: what was held back comes out.
    pub fn finish(&mut self) -> Vec<Part> {
        self.run(true)
    }

    /// Ends the stream where the model would have gone on, by a limit or a stop string: also a family that is lenient with a
    /// call without its end takes it for text then. Where calls are told of early, a call of which the tool is known has begun.
    pub fn break_off(&mut self) -> Vec<Part> {
        self.text.cut();
        let mut parts = self.run(true);
        if self.out.has_not_told() {
            begin_cut_call(&mut parts, &self.tools, self.out.has_calls());
        }
        parts
    }

    fn run(&mut self, end: bool) -> Vec<Part> {
        while self.grammar.step(&mut self.text, end, &mut self.out) {}
        self.out.take()
    }

    fn copy(&self) -> Self {
        let (grammar, tools) = (self.grammar.boxed(), self.tools.clone());
        Self { grammar, text: self.text.clone(), out: self.out.clone(), tools }
    }

    /// What `piece` would be, were it the next one.
    pub fn peek(&self, piece: &str) -> Vec<Part> {
        self.copy().push(piece)
    }

    /// Where in its answer the model would be after `piece`.
    pub fn peek_stage(&self, piece: &str) -> Stage {
        let mut other = self.copy();
        other.push(piece);
        other.stage()
    }

    /// Where in its answer the model is after what was pushed.
    pub fn stage(&self) -> Stage {
        self.grammar.stage()
    }

    /// Does it think?
    pub fn is_thinking(&self) -> bool {
        self.stage() == Stage::Thinking
    }

    /// While the model thinks, the text by which it ends the thought and begins to answer; `None` where that is not known.
    pub fn thought_end(&self) -> Option<String> {
        self.grammar.thought_end()
    }

    /// Whether the model surely still thinks after `piece`; false where that is not certain. Costs next to nothing, unlike
    /// [`peek_stage`](Self::peek_stage).
    pub fn keeps_thinking(&self, piece: &str) -> bool {
        self.text.rest().trim_start().is_empty() && self.grammar.keeps_thinking(piece)
    }

    /// Texts of special tokens that must be left in the output: without them calls and thoughts cannot be told from the
    /// answer.
    pub fn preserved(&self) -> Vec<String> {
        self.grammar.preserved()
    }
}

/// Makes a call of a last part that broke off in one before it was told of, where the name of its tool is complete. Behind
/// other calls, nothing is left of one without a name.
fn begin_cut_call(parts: &mut Vec<Part>, tools: &Tools, has_calls: bool) {
    let Some(Part::Malformed { text, .. }) = parts.last_mut() else { return };
    if let Some(name) = tools.named_in(text) {
        text.clear();
        parts.insert(parts.len() - 1, Part::CallBegins(name));
    } else if has_calls {
        text.clear();
    }
}

#[cfg(test)]
mod tests;
