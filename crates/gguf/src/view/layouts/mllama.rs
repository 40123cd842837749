//! Llama 3.2 Vision as published by Ollama: Llama 3.1 with additional cross-attention layers for
//! images. Without an image these layers change nothing, so the language model is the plain Llama.
//! The embedding table has additional rows for images.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const MLLAMA: PublishedLayout = PublishedLayout {
    name: "mllama as published by Ollama",
    architecture: "mllama",
    markers: &[Always],
    rules: &[
        Architecture("llama"),
        KeyPrefix("mllama", "llama"),
        SkipBlocks("llama.attention.cross_attention_layers"),
        TruncateRows("token_embd.weight", OUTPUT),
        TruncateVocabulary(OUTPUT),
        Hide("v."),
        Hide("mm."),
    ],
};

const OUTPUT: &str = "output.weight";
