//! Llama 3.2 Vision as published by Ollama: a Llama 3.1 between whose layers stand others that attend to an image. A text without one
//! passes them unchanged, so that the language model is the Llama; the table has rows for images beyond what it can say.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const MLLAMA: Form = Form {
    name: "mllama as published by Ollama",
    architecture: "mllama",
    markers: &[Always],
    rules: &[
        Architecture("llama"),
        KeyPrefix("mllama", "llama"),
        SkipBlocks("llama.attention.cross_attention_layers"),
        CutRows("token_embd.weight", OUTPUT),
        CutVocabulary(OUTPUT),
        Hide("v."),
        Hide("mm."),
    ],
};

const OUTPUT: &str = "output.weight";
