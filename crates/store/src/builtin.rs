//! The renderers and parsers that are built into the program: names that a model's config may give, and what models
//! with them can do. What they do is in the crate `prompt`, which this one does not know; a test of the server, which
//! knows both, compares.

use crate::manifest::Config;

/// A built-in renderer or parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// Whether tools can be offered.
    pub tools: bool,
    /// Whether thoughts are told from the answer.
    pub thinking: bool,
}

/// One of the tables: name, tools, thinking.
const fn of(name: &'static str, tools: bool, thinking: bool) -> BuiltIn {
    BuiltIn { name, tools, thinking }
}

/// Renderers, sorted by name; `deepseek3` stands for `deepseek3.1`.
pub const RENDERERS: &[BuiltIn] = &[
    of("cogito", true, true),
    of("cohere", true, true),
    of("deepseek3", true, true),
    of("deepseek3.1", true, true),
    of("functiongemma", true, false),
    of("gemma4", true, true),
    of("gemma4-large", true, true),
    of("gemma4-small", true, true),
    of("glimmer", true, true),
    of("glm-4.7", true, true),
    of("glm-ocr", true, false),
    of("laguna", true, true),
    of("lfm2", true, false),
    of("lfm2-thinking", true, true),
    of("nemotron-3-nano", true, true),
    of("nemotron-3.5-nano", true, true),
    of("olmo3", true, false),
    of("olmo3-32b-think", false, true),
    of("olmo3-think", false, true),
    of("olmo3.1", true, false),
    of("ornith", true, true),
    of("poolside-v1", true, true),
    of("qwen3-coder", true, false),
    of("qwen3-vl-instruct", true, false),
    of("qwen3-vl-thinking", true, true),
    of("qwen3.5", true, true),
    of("qwen3.8", true, true),
];

/// Parsers, sorted by name.
pub const PARSERS: &[BuiltIn] = &[
    of("cogito", true, true),
    of("cohere", true, true),
    of("deepseek3", true, true),
    of("functiongemma", true, false),
    of("gemma4", true, true),
    of("gemma4-no-thinking", true, false),
    of("glimmer", true, true),
    of("glm-4.7", true, true),
    of("glm-ocr", true, false),
    of("harmony", true, true),
    of("laguna", true, true),
    of("lfm2", true, false),
    of("lfm2-thinking", true, true),
    of("ministral", true, false),
    of("nemotron-3-nano", true, true),
    of("nemotron-3.5-nano", true, true),
    of("olmo3", true, false),
    of("olmo3-think", false, true),
    of("ornith", true, true),
    of("passthrough", false, false),
    of("poolside-v1", true, true),
    of("qwen3", true, false),
    of("qwen3-coder", true, false),
    of("qwen3-thinking", true, true),
    of("qwen3-vl-instruct", true, false),
    of("qwen3-vl-thinking", true, true),
    of("qwen3.5", true, true),
];

/// What a model's parser tells of it, or else its renderer.
pub(crate) fn of_config(config: &Config) -> Option<&'static BuiltIn> {
    let find = |all: &'static [BuiltIn], name: &str| all.iter().find(|one| one.name == name);
    find(PARSERS, &config.parser).or_else(|| find(RENDERERS, &config.renderer))
}

/// What a model of an architecture gets where nothing else is said: one name for both, and a text that ends answers.
pub(crate) fn of_architecture(architecture: &str) -> Option<(&'static str, Option<&'static str>)> {
    match architecture {
        "gemma4" => Some(("gemma4", Some("<turn|>"))),
        "laguna" => Some(("laguna", None)),
        "nemotron_h" | "nemotron_h_moe" | "nemotron_h_omni" => Some(("nemotron-3-nano", None)),
        _ => None,
    }
}
