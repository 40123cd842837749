//! Snowflake's Arctic Embed 2 as published by Ollama: the tokenizer's character map as a list of
//! base64 letters.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const SNOWFLAKE: PublishedLayout = PublishedLayout {
    name: "bert with a spelled map of characters",
    architecture: "bert",
    markers: &[All(&[TextIs("tokenizer.ggml.model", "t5"), IsBase64(MAP)])],
    rules: &[DecodeBase64(MAP)],
};

const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
