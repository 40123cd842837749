//! Built-in prompt formats of model families, by the names that a Modelfile's `RENDERER` may give.
//!
//! A format is a function of [`Input`] that appends the prompt to a text, in a file of its family, and a row in
//! [`TABLE`]. What is common to all is done before it is called: tools are cut down to the schema that Ollama decodes
//! ([`tools`]), objects within call arguments are sorted by key, and images have their tags ([`images`]).
//!
//! The formats are Ollama's, byte for byte, as recorded in `tests/data/cases/renderers.jsonl` and compared on tens of
//! thousands of random conversations. What Ollama writes by accident is written as the models' own templates do:
//!
//! * whole numbers in digits, where it makes `1e+06` of a million; a null in an `enum` is no `<nil>`;
//! * descriptions of parameters without `\u003c`, where it does not escape other texts of the same prompt either;
//! * an image's number is its place in the conversation, whichever message it is in;
//! * no comma before a type that is not there, and a turn for who speaks after a late system message (Gemma).

mod cogito;
mod cohere;
mod deepseek31;
mod functiongemma;
mod gemma4;
mod gemma4_schema;
mod glimmer;
mod glm;
mod images;
mod json;
mod laguna;
mod lfm2;
mod nemotron;
mod olmo3;
mod qwen35;
mod qwen3_coder;
mod qwen3_vl;
mod tools;
mod xml;

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::chat::Chat;
use crate::message::{Message, Think};
use crate::thinking::ThinkTags;
use crate::{Capabilities, PromptError};
use images::Images;
use tools::Tool;

/// A built-in prompt format.
#[derive(Debug, Clone, Copy)]
pub struct Renderer(&'static Row);

/// What [`Renderer::by_name`] knows.
const TABLE: &[Row] = &[
    row("cogito", cogito::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    row("cohere", cohere::render)
        .bos("<BOS_TOKEN>")
        .tools()
        .thinks("<|START_THINKING|>", "<|END_THINKING|>"),
    row("deepseek3", deepseek31::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    row("deepseek3.1", deepseek31::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    row("functiongemma", functiongemma::render).bos("<bos>").tools(),
    // Which of the two it is, the model's name or size tells: see `Renderer::resolve`.
    gemma4("gemma4", gemma4::small),
    gemma4("gemma4-large", gemma4::large),
    gemma4("gemma4-small", gemma4::small),
    row("glimmer", glimmer::render)
        .bos("<|begin_of_text|>")
        .tools()
        .images(Images::Tagged)
        .thinks(" to=self<|message|>", "<|eom|>"),
    row("glm-4.7", glm::glm47).tools().thinks("<think>", "</think>"),
    row("glm-ocr", glm::ocr).tools().images(Images::Tagged),
    row("laguna", laguna::laguna).bos("〈|EOS|〉").tools().thinks("<think>", "</think>"),
    row("lfm2", lfm2::lfm2).bos("<|startoftext|>").tools().images(Images::Tagged),
    row("lfm2-thinking", lfm2::thinking)
        .bos("<|startoftext|>")
        .tools()
        .images(Images::Tagged)
        .thinks("<think>", "</think>"),
    row("nemotron-3-nano", nemotron::v3)
        .tools()
        .images(Images::Tagged)
        .thinks("<think>", "</think>"),
    row("nemotron-3.5-nano", nemotron::v35)
        .tools()
        .images(Images::Tagged)
        .thinks("<think>", "</think>"),
    row("olmo3", olmo3::olmo3).tools(),
    row("olmo3-32b-think", olmo3::think_32b).thinks("<think>", "</think>"),
    row("olmo3-think", olmo3::think).thinks("<think>", "</think>"),
    row("olmo3.1", olmo3::olmo31).tools(),
    row("ornith", qwen35::ornith).tools().images(Images::Tagged).thinks("<think>", "</think>"),
    row("poolside-v1", laguna::poolside).bos("〈|EOS|〉").tools().thinks("<think>", "</think>"),
    row("qwen3-coder", qwen3_coder::render).tools(),
    row("qwen3-vl-instruct", qwen3_vl::instruct).tools().images(Images::Tagged),
    row("qwen3-vl-thinking", qwen3_vl::thinking)
        .tools()
        .images(Images::Tagged)
        .thinks("<think>", "</think>"),
    row("qwen3.5", qwen35::qwen35).tools().images(Images::Tagged).thinks("<think>", "</think>"),
    row("qwen3.8", qwen35::qwen38).tools().images(Images::Tagged).thinks("<think>", "</think>"),
];

/// How a prompt is written: appends it to the text.
type Render = fn(&Input<'_>, &mut String) -> Result<(), PromptError>;

#[derive(Debug)]
struct Row {
    name: &'static str,
    render: Render,
    bos: &'static str,
    tools: bool,
    images: Images,
    think_tags: Option<(&'static str, &'static str)>,
}

const fn row(name: &'static str, render: Render) -> Row {
    Row { name, render, bos: "", tools: false, images: Images::Ignored, think_tags: None }
}

const fn gemma4(name: &'static str, render: Render) -> Row {
    row(name, render)
        .bos("<bos>")
        .tools()
        .images(Images::TaggedAfterTrim)
        .thinks("<|channel>thought\n", "<channel|>")
}

impl Row {
    const fn bos(self, bos: &'static str) -> Self {
        Row { bos, ..self }
    }

    const fn tools(self) -> Self {
        Row { tools: true, ..self }
    }

    const fn images(self, images: Images) -> Self {
        Row { images, ..self }
    }

    const fn thinks(self, open: &'static str, close: &'static str) -> Self {
        Row { think_tags: Some((open, close)), ..self }
    }
}

/// Deepest nesting of a call's arguments and of a tool's schema; JSON text deeper than 127 levels is not even read.
const DEPTH_MAX: usize = 150;

impl Renderer {
    /// The renderer of a name.
    pub fn by_name(name: &str) -> Result<Renderer, PromptError> {
        let found = TABLE.iter().find(|row| row.name == name);
        found
            .map(Renderer)
            .ok_or_else(|| PromptError::UnknownRenderer(name.chars().take(100).collect()))
    }

    /// All names, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.name)
    }

    /// The renderer that a model's renderer `name` stands for: `gemma4` is one of two formats, which the model's name
    /// tells, else its size (`7.5B`); any other name stands for itself.
    pub fn resolve<'n>(name: &'n str, model: &str, size: &str) -> &'n str {
        if name != "gemma4" {
            return name;
        }
        let model = model.to_lowercase();
        let named = |sizes: &[&str]| sizes.iter().any(|size| model.contains(size));
        let is_large = !named(&["e2b", "e4b"])
            && (named(&["12b", "26b", "31b"])
                || parameters(size).is_some_and(|count| count >= 12e9));
        if is_large { "gemma4-large" } else { "gemma4-small" }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The text of the first token of every prompt, where the format has one. A tokenizer that puts that token in
    /// front by itself must not meet the text too.
    pub fn leading_bos(&self) -> &'static str {
        self.0.bos
    }

    /// What a model with this format can be asked for.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let Row { tools, think_tags, .. } = *self.0;
        Capabilities {
            tools,
            insert: false,
            thinking: think_tags.is_some(),
            tool_round_trip: tools,
        }
    }

    /// The tags around thoughts in the model's output.
    pub(crate) fn think_tags(&self) -> Option<ThinkTags> {
        let (open, close) = self.0.think_tags?;
        Some(ThinkTags { open: open.into(), close: close.into() })
    }

    /// Renders other messages with the settings of `chat`.
    pub(crate) fn render(
        &self,
        chat: &Chat<'_>,
        messages: &[Message],
    ) -> Result<String, PromptError> {
        let arguments =
            messages.iter().flat_map(|m| &m.tool_calls).flat_map(|c| c.function.arguments.values());
        if arguments.chain(chat.tools).any(|value| is_deeper(value, DEPTH_MAX)) {
            return Err(PromptError::Refused(format!(
                "tools or calls nest deeper than {DEPTH_MAX} levels"
            )));
        }
        let messages = images::tagged(sorted(messages), self.0.images);
        let messages: Vec<&Message> = messages.iter().collect();
        let tools: Vec<Tool> = chat.tools.iter().map(Tool::new).collect();
        let input = Input {
            messages: &messages,
            tools: &tools,
            think: chat.think.as_ref(),
            now: chat.now(),
        };
        let mut out = String::new();
        (self.0.render)(&input, &mut out)?;
        Ok(out)
    }
}

/// What a format is given.
struct Input<'a> {
    messages: &'a [&'a Message],
    tools: &'a [Tool],
    think: Option<&'a Think>,
    now: jiff::civil::DateTime,
}

impl<'a> Input<'a> {
    /// Does the model think, with `unset` where nothing is said?
    fn thinks(&self, unset: bool) -> bool {
        self.think.map_or(unset, Think::is_on)
    }

    /// The text of a system message at the head, and the messages behind it.
    fn split_system(&self) -> (Option<&'a str>, &'a [&'a Message]) {
        match self.messages.split_first() {
            Some((first, rest)) if first.role == "system" => (Some(&first.content), rest),
            _ => (None, self.messages),
        }
    }
}

/// Is this the first of neighbouring tool results?
fn opens_results(messages: &[&Message], at: usize) -> bool {
    at == 0 || messages[at - 1].role != "tool"
}

/// Is this the last of neighbouring tool results?
fn closes_results(messages: &[&Message], at: usize) -> bool {
    messages.get(at + 1).is_none_or(|next| next.role != "tool")
}

/// Messages with the objects within call arguments sorted by key; the arguments themselves keep their order.
fn sorted(messages: &[Message]) -> Cow<'_, [Message]> {
    let has_objects = |value: &Json| value.is_object() || value.is_array();
    let mut calls = messages.iter().flat_map(|m| &m.tool_calls);
    if !calls.any(|call| call.function.arguments.values().any(has_objects)) {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    for call in messages.iter_mut().flat_map(|m| &mut m.tool_calls) {
        call.function.arguments.values_mut().for_each(Json::sort_all_objects);
    }
    Cow::Owned(messages)
}

/// Does a value nest more than `levels` deep?
fn is_deeper(value: &Json, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Json::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Json::Object(map) => map.values().any(|item| is_deeper(item, below)),
        _ => false,
    }
}

/// The number that a text such as `7.5B` or `270M` stands for.
fn parameters(size: &str) -> Option<f64> {
    let (last, _) = size.char_indices().next_back()?;
    let unit = match &size[last..] {
        "B" | "b" => 1e9,
        "M" | "m" => 1e6,
        "K" | "k" => 1e3,
        _ => return None,
    };
    Some(size[..last].parse::<f64>().ok()? * unit)
}
