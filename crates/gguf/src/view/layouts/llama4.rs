//! Llama 4 as published by Ollama: an image encoder in the same file.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const LLAMA4: PublishedLayout = PublishedLayout {
    name: "llama4 as published by Ollama",
    architecture: "llama4",
    markers: &[TensorPrefix("v."), TensorPrefix("mm.")],
    rules: &[Hide("v."), Hide("mm.")],
};
