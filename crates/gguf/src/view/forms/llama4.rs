//! Llama 4 as published by Ollama: the image encoder in the same file.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const LLAMA4: Form = Form {
    name: "llama4 as published by Ollama",
    architecture: "llama4",
    markers: &[TensorPrefix("v."), TensorPrefix("mm.")],
    rules: &[Hide("v."), Hide("mm.")],
};
