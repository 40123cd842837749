//! Built-in renderers and parsers: their names in a model's config, and their capabilities. The
//! code is in the crate `prompt`, on which this crate does not depend. A test of the server
//! compares the two tables.

use crate::manifest::Config;

/// A built-in renderer or parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltInFormat {
    /// The name in a model's config.
    pub name: &'static str,
    /// Whether it supports tools.
    pub tools: bool,
    /// Whether it separates reasoning from the answer.
    pub thinking: bool,
}

/// Makes a row of a table.
const fn of(name: &'static str, tools: bool, thinking: bool) -> BuiltInFormat {
    BuiltInFormat { name, tools, thinking }
}

/// Renderers, sorted by name; `deepseek3` stands for `deepseek3.1`.
pub const RENDERERS: &[BuiltInFormat] = &[
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
pub const PARSERS: &[BuiltInFormat] = &[
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

/// The format of a model: its parser, or else its renderer.
pub(crate) fn of_config(config: &Config) -> Option<&'static BuiltInFormat> {
    let find = |all: &'static [BuiltInFormat], name: &str| all.iter().find(|one| one.name == name);
    find(PARSERS, &config.parser).or_else(|| find(RENDERERS, &config.renderer))
}

/// The default renderer and parser of an architecture (one name for both), and a default stop
/// string.
pub(crate) fn of_architecture(architecture: &str) -> Option<(&'static str, Option<&'static str>)> {
    match architecture {
        "gemma4" => Some(("gemma4", Some("<turn|>"))),
        "laguna" => Some(("laguna", None)),
        "nemotron_h" | "nemotron_h_moe" | "nemotron_h_omni" => Some(("nemotron-3-nano", None)),
        _ => None,
    }
}
