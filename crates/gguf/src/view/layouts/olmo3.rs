//! OLMo 3 as published by Ollama: its own architecture name for OLMo 2 with sliding windows.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const OLMO3: PublishedLayout = PublishedLayout {
    name: "olmo3 as published by Ollama",
    architecture: "olmo3",
    markers: &[Always],
    rules: &[Architecture("olmo2"), KeyPrefix("olmo3", "olmo2")],
};
