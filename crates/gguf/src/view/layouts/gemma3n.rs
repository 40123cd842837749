//! Gemma 3n as published by Ollama: image and audio tokens beyond the per-layer embedding table.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const GEMMA3N: PublishedLayout = PublishedLayout {
    name: "gemma3n as published by Ollama",
    architecture: "gemma3n",
    markers: &[RowsDiffer(TABLE, TABLE_OF_LAYERS)],
    rules: &[
        Set("tokenizer.ggml.model", Str("llama")),
        TruncateRows(TABLE, TABLE_OF_LAYERS),
        TruncateVocabulary(TABLE_OF_LAYERS),
        FixTokenTypes,
        AppendToList("tokenizer.ggml.eos_token_ids", END_OF_TURN, END_OF_TEXT),
    ],
};

const TABLE: &str = "token_embd.weight";
const TABLE_OF_LAYERS: &str = "per_layer_token_embd.weight";
const END_OF_TEXT: i32 = 1;
const END_OF_TURN: i32 = 106;
