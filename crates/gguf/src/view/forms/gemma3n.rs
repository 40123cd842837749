//! Gemma 3n as published by Ollama: tokens for images and sounds beyond the table of what tokens say to layers.

use crate::view::rules::{Constant::*, Form, Rule::*, When::*};

pub(super) const GEMMA3N: Form = Form {
    name: "gemma3n as published by Ollama",
    architecture: "gemma3n",
    markers: &[RowsDiffer(TABLE, TABLE_OF_LAYERS)],
    rules: &[
        Set("tokenizer.ggml.model", Str("llama")),
        CutRows(TABLE, TABLE_OF_LAYERS),
        CutVocabulary(TABLE_OF_LAYERS),
        TokenTypes,
        Include("tokenizer.ggml.eos_token_ids", END_OF_TURN, END_OF_TEXT),
    ],
};

const TABLE: &str = "token_embd.weight";
const TABLE_OF_LAYERS: &str = "per_layer_token_embd.weight";
const END_OF_TEXT: i32 = 1;
const END_OF_TURN: i32 = 106;
