//! The known forms, one table a family. The first one whose markers hold counts.

mod gemma3;
mod gemma4;
mod glm_ocr;
mod gpt_oss;
mod llama3;
mod llama4;
mod mistral3;
mod olmo3;

use super::rules::{Draft, Form};

const FORMS: [&Form; 9] = [
    &gemma3::EMBEDDING,
    &gemma3::CHAT,
    &gemma4::GEMMA4,
    &gpt_oss::GPT_OSS,
    &llama3::LLAMA3,
    &glm_ocr::GLM_OCR,
    &llama4::LLAMA4,
    &mistral3::MISTRAL3,
    &olmo3::OLMO3,
];

/// The form the file is in, unless that is llama.cpp's own.
pub(super) fn recognise(draft: &Draft<'_>) -> Option<&'static Form> {
    FORMS.into_iter().find(|form| draft.is(form))
}
