//! Snowflake's Arctic Embed 2 as published by Ollama: the tokenizer's map of characters as a list of letters of base64.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const SNOWFLAKE: Form = Form {
    name: "bert with a spelled map of characters",
    architecture: "bert",
    markers: &[All(&[TextIs("tokenizer.ggml.model", "t5"), Base64(MAP)])],
    rules: &[Decode(MAP)],
};

const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
