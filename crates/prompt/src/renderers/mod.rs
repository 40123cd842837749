//! Built-in prompt formats of model families, by their name in a Modelfile's `RENDERER`.
//!
//! Each format is a function of [`RenderInput`] in the file of its family, which appends the prompt
//! to a text, and an entry in [`RENDERERS`]. Common preparations come first: tools are reduced to
//! the schema that Ollama decodes ([`tools`]), objects within call arguments are sorted by key, and
//! image tags are inserted ([`images`]).
//!
//! The prompts equal Ollama's byte for byte, as recorded in `tests/data/cases/renderers.jsonl` and
//! compared on tens of thousands of random conversations. Known errors of Ollama are written as in
//! the models' own templates:
//!
//! * Whole numbers are written in digits (Ollama: `1e+06` for a million), and a null in an `enum`
//!   is not `<nil>`.
//! * Parameter descriptions do not contain `\u003c` if other texts of the same prompt are not
//!   escaped.
//! * Images are numbered over the conversation, in every message.
//! * With Gemma, there is no comma before a missing type, and a turn starts behind a late system
//!   message.

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
use images::ImageTags;
use tools::Tool;

/// A built-in prompt format.
#[derive(Debug, Clone, Copy)]
pub struct Renderer(&'static RendererEntry);

/// The renderers for [`Renderer::by_name`].
const RENDERERS: &[RendererEntry] = &[
    entry("cogito", cogito::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    entry("cohere", cohere::render)
        .bos("<BOS_TOKEN>")
        .tools()
        .thinks("<|START_THINKING|>", "<|END_THINKING|>"),
    entry("deepseek3", deepseek31::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    entry("deepseek3.1", deepseek31::render)
        .bos("<｜begin▁of▁sentence｜>")
        .tools()
        .thinks("<think>", "</think>"),
    entry("functiongemma", functiongemma::render).bos("<bos>").tools(),
    // `Renderer::resolve` replaces this name by one of the two formats.
    gemma4("gemma4", gemma4::small),
    gemma4("gemma4-large", gemma4::large),
    gemma4("gemma4-small", gemma4::small),
    entry("glimmer", glimmer::render)
        .bos("<|begin_of_text|>")
        .tools()
        .images(ImageTags::Inline)
        .thinks(" to=self<|message|>", "<|eom|>"),
    entry("glm-4.7", glm::glm47).tools().thinks("<think>", "</think>"),
    entry("glm-ocr", glm::ocr).tools().images(ImageTags::Inline),
    entry("laguna", laguna::laguna).bos("〈|EOS|〉").tools().thinks("<think>", "</think>"),
    entry("lfm2", lfm2::lfm2).bos("<|startoftext|>").tools().images(ImageTags::Inline),
    entry("lfm2-thinking", lfm2::thinking)
        .bos("<|startoftext|>")
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
    entry("nemotron-3-nano", nemotron::v3)
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
    entry("nemotron-3.5-nano", nemotron::v35)
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
    entry("olmo3", olmo3::olmo3).tools(),
    entry("olmo3-32b-think", olmo3::think_32b).thinks("<think>", "</think>"),
    entry("olmo3-think", olmo3::think).thinks("<think>", "</think>"),
    entry("olmo3.1", olmo3::olmo31).tools(),
    entry("ornith", qwen35::ornith).tools().images(ImageTags::Inline).thinks("<think>", "</think>"),
    entry("poolside-v1", laguna::poolside).bos("〈|EOS|〉").tools().thinks("<think>", "</think>"),
    entry("qwen3-coder", qwen3_coder::render).tools(),
    entry("qwen3-vl-instruct", qwen3_vl::instruct).tools().images(ImageTags::Inline),
    entry("qwen3-vl-thinking", qwen3_vl::thinking)
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
    entry("qwen3.5", qwen35::qwen35)
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
    entry("qwen3.8", qwen35::qwen38)
        .tools()
        .images(ImageTags::Inline)
        .thinks("<think>", "</think>"),
];

/// A function that appends the prompt to a text.
type Render = fn(&RenderInput<'_>, &mut String) -> Result<(), PromptError>;

#[derive(Debug)]
struct RendererEntry {
    name: &'static str,
    render: Render,
    bos: &'static str,
    tools: bool,
    images: ImageTags,
    think_tags: Option<(&'static str, &'static str)>,
}

const fn entry(name: &'static str, render: Render) -> RendererEntry {
    RendererEntry {
        name,
        render,
        bos: "",
        tools: false,
        images: ImageTags::Unsupported,
        think_tags: None,
    }
}

const fn gemma4(name: &'static str, render: Render) -> RendererEntry {
    entry(name, render)
        .bos("<bos>")
        .tools()
        .images(ImageTags::InlineTrimmed)
        .thinks("<|channel>thought\n", "<channel|>")
}

impl RendererEntry {
    const fn bos(self, bos: &'static str) -> Self {
        RendererEntry { bos, ..self }
    }

    const fn tools(self) -> Self {
        RendererEntry { tools: true, ..self }
    }

    const fn images(self, images: ImageTags) -> Self {
        RendererEntry { images, ..self }
    }

    const fn thinks(self, open: &'static str, close: &'static str) -> Self {
        RendererEntry { think_tags: Some((open, close)), ..self }
    }
}

/// Deepest nesting of call arguments and tool schemas, in levels. JSON text deeper than 127 levels
/// is not parsed.
const MAX_DEPTH: usize = 150;

impl Renderer {
    /// Finds a renderer by name.
    pub fn by_name(name: &str) -> Result<Renderer, PromptError> {
        let found = RENDERERS.iter().find(|entry| entry.name == name);
        found
            .map(Renderer)
            .ok_or_else(|| PromptError::UnknownRenderer(name.chars().take(100).collect()))
    }

    /// All names, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RENDERERS.iter().map(|entry| entry.name)
    }

    /// Resolves the renderer name of a model. `gemma4` has two formats, which are distinguished by
    /// the model's name, or else by its size (`7.5B`). Any other name is returned unchanged.
    pub fn resolve<'n>(name: &'n str, model: &str, size: &str) -> &'n str {
        if name != "gemma4" {
            return name;
        }
        let model = model.to_lowercase();
        let named = |sizes: &[&str]| sizes.iter().any(|size| model.contains(size));
        let is_large = !named(&["e2b", "e4b"])
            && (named(&["12b", "26b", "31b"])
                || parse_parameter_count(size).is_some_and(|count| count >= 12e9));
        if is_large { "gemma4-large" } else { "gemma4-small" }
    }

    /// The name of the renderer.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Text of the beginning-of-sequence token with which every prompt starts, if the format has
    /// one. A tokenizer must not add this token again.
    pub fn leading_bos(&self) -> &'static str {
        self.0.bos
    }

    /// Features of a model with this format.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let RendererEntry { tools, think_tags, .. } = *self.0;
        Capabilities {
            tools,
            insert: false,
            thinking: think_tags.is_some(),
            tool_round_trip: tools,
        }
    }

    /// The tags around reasoning in the model's output.
    pub(crate) fn think_tags(&self) -> Option<ThinkTags> {
        let (open, close) = self.0.think_tags?;
        Some(ThinkTags { open: open.into(), close: close.into() })
    }

    /// Renders `messages` with the settings of `chat`.
    pub(crate) fn render(
        &self,
        chat: &Chat<'_>,
        messages: &[Message],
    ) -> Result<String, PromptError> {
        let arguments =
            messages.iter().flat_map(|m| &m.tool_calls).flat_map(|c| c.function.arguments.values());
        if arguments.chain(chat.tools).any(|value| nests_deeper(value, MAX_DEPTH)) {
            return Err(PromptError::Refused(format!(
                "tools or calls nest deeper than {MAX_DEPTH} levels"
            )));
        }
        let messages = images::insert_tags(sort_argument_objects(messages), self.0.images);
        let messages: Vec<&Message> = messages.iter().collect();
        let tools: Vec<Tool> = chat.tools.iter().map(Tool::new).collect();
        let input = RenderInput {
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

/// Input of a prompt format.
struct RenderInput<'a> {
    messages: &'a [&'a Message],
    tools: &'a [Tool],
    think: Option<&'a Think>,
    now: jiff::civil::DateTime,
}

impl<'a> RenderInput<'a> {
    /// Returns true if reasoning is on; `unset` is the default.
    fn thinks(&self, unset: bool) -> bool {
        self.think.map_or(unset, Think::is_on)
    }

    /// The text of a leading system message, and the messages behind it.
    fn split_system(&self) -> (Option<&'a str>, &'a [&'a Message]) {
        match self.messages.split_first() {
            Some((first, rest)) if first.role == "system" => (Some(&first.content), rest),
            _ => (None, self.messages),
        }
    }
}

/// Returns true for the first of neighbouring tool results.
fn is_first_result(messages: &[&Message], at: usize) -> bool {
    at == 0 || messages[at - 1].role != "tool"
}

/// Returns true for the last of neighbouring tool results.
fn is_last_result(messages: &[&Message], at: usize) -> bool {
    messages.get(at + 1).is_none_or(|next| next.role != "tool")
}

/// Sorts objects within call arguments by key. The arguments themselves keep their order.
fn sort_argument_objects(messages: &[Message]) -> Cow<'_, [Message]> {
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

/// Returns true if a value nests more than `levels` deep.
fn nests_deeper(value: &Json, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return true };
    match value {
        Json::Array(items) => items.iter().any(|item| nests_deeper(item, below)),
        Json::Object(map) => map.values().any(|item| nests_deeper(item, below)),
        _ => false,
    }
}

/// Parses a parameter count such as `7.5B` or `270M`.
fn parse_parameter_count(size: &str) -> Option<f64> {
    let (last, _) = size.char_indices().next_back()?;
    let unit = match &size[last..] {
        "B" | "b" => 1e9,
        "M" | "m" => 1e6,
        "K" | "k" => 1e3,
        _ => return None,
    };
    Some(size[..last].parse::<f64>().ok()? * unit)
}
