//! Parsers by name, with one file for each model family.

mod cohere;
pub(super) mod deepseek;
mod functionary;
pub(super) mod gemma;
mod glimmer;
mod glm;
mod harmony;
mod laguna;
mod lfm2;
mod mistral;
mod olmo3;
mod qwen;

pub(super) use functionary::Functionary;
pub(super) use glimmer::Glimmer;
pub(super) use harmony::Harmony;

use super::format_parser::{FormatParser, ParserInput};
use super::tagged::{TaggedFormat, TaggedParser};
use super::tools::Tools;

type ParserConstructor = fn(&ParserInput<'_>) -> Box<dyn FormatParser>;

/// Parsers by their name in a Modelfile's `PARSER`.
const PARSERS: [(&str, ParserConstructor); 27] = [
    ("cogito", |input| tagged(deepseek::cogito(input), input)),
    ("cohere", |input| Box::new(cohere::Cohere::new(input))),
    ("deepseek3", |input| tagged(deepseek::deepseek3(input), input)),
    ("functiongemma", |input| tagged(gemma::functiongemma(), input)),
    ("gemma4", |input| tagged(gemma::gemma4(input, true), input)),
    ("gemma4-no-thinking", |input| tagged(gemma::gemma4(input, false), input)),
    ("glimmer", |input| Box::new(Glimmer::new(input))),
    ("glm-4.7", |input| tagged(glm::glm(input.thinks_by_default()), input)),
    ("glm-ocr", |input| tagged(glm::glm(false), input)),
    ("harmony", |input| Box::new(Harmony::new(input))),
    ("laguna", |input| Box::new(laguna::Laguna::new(input, input.is_prefilled()))),
    ("lfm2", |input| tagged(lfm2::lfm2(false), input)),
    ("lfm2-thinking", |input| tagged(lfm2::lfm2(input.thinks() && !input.continues()), input)),
    ("ministral", |input| tagged(mistral::ministral(), input)),
    ("nemotron-3-nano", |input| tagged(qwen::qwen35(input), input)),
    ("nemotron-3.5-nano", |input| tagged(qwen::qwen35(input), input)),
    ("olmo3", |input| tagged(olmo3::olmo3(), input)),
    ("olmo3-think", |input| tagged(olmo3::think(input), input)),
    ("ornith", |input| tagged(qwen::qwen35(input), input)),
    ("passthrough", |input| tagged(TaggedFormat { keep_tail: true, ..TaggedFormat::PLAIN }, input)),
    ("poolside-v1", |input| Box::new(laguna::Laguna::new(input, false))),
    ("qwen3", |input| tagged(qwen::qwen3(), input)),
    ("qwen3-coder", |input| tagged(qwen::coder(), input)),
    ("qwen3-thinking", |input| tagged(qwen::thinking(input), input)),
    ("qwen3-vl-instruct", |input| tagged(qwen::qwen3(), input)),
    ("qwen3-vl-thinking", |input| tagged(qwen::vl_thinking(input), input)),
    ("qwen3.5", |input| tagged(qwen::qwen35(input), input)),
];

fn tagged(rules: TaggedFormat, input: &ParserInput<'_>) -> Box<dyn FormatParser> {
    Box::new(TaggedParser::new(rules, Tools::new(input.tools)))
}

pub(super) fn by_name(name: &str, input: &ParserInput<'_>) -> Option<Box<dyn FormatParser>> {
    PARSERS.iter().find(|(known, _)| *known == name).map(|(_, make)| make(input))
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PARSERS.iter().map(|(name, _)| *name)
}
