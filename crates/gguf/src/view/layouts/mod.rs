//! Known layouts, one module per family. The first layout with a matching marker applies.

mod deepseek_ocr;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4moelite;
mod glm_ocr;
mod gpt_oss;
mod laguna;
mod lfm2;
mod llama3;
mod llama4;
mod mistral3;
mod mllama;
mod nemotron_h;
mod olmo3;
mod qwen3next;
mod qwen_vl;
mod snowflake;

use super::rules::{PublishedLayout, ViewBuilder};

const LAYOUTS: [&PublishedLayout; 25] = [
    &gemma3::EMBEDDING,
    &gemma3::CHAT,
    &gemma3n::GEMMA3N,
    &gemma4::GEMMA4,
    &gpt_oss::GPT_OSS,
    &llama3::LLAMA3,
    &glm_ocr::GLM_OCR,
    &glm4moelite::GLM4_MOE_LITE,
    &llama4::LLAMA4,
    &mistral3::MISTRAL3,
    &mllama::MLLAMA,
    &olmo3::OLMO3,
    &deepseek_ocr::DEEPSEEK_OCR,
    &laguna::LAGUNA,
    &lfm2::LFM2,
    &nemotron_h::NEMOTRON_H_MOE,
    &nemotron_h::NEMOTRON_H_OMNI_MOE,
    &nemotron_h::NEMOTRON_H_OMNI,
    &qwen3next::QWEN3_NEXT,
    &qwen3next::QWEN35,
    &qwen3next::QWEN35_MOE,
    &qwen_vl::QWEN25_VL,
    &qwen_vl::QWEN3_VL,
    &qwen_vl::QWEN3_VL_MOE,
    &snowflake::SNOWFLAKE,
];

/// Whether files of an architecture may have a known layout.
pub(super) fn has_architecture(name: &str) -> bool {
    LAYOUTS.iter().any(|layout| layout.architecture == name)
}

/// Detects the layout of a file. `None` for the standard layout.
pub(super) fn detect(builder: &ViewBuilder<'_>) -> Option<&'static PublishedLayout> {
    LAYOUTS.into_iter().find(|layout| builder.matches(layout))
}
