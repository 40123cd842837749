//! OLMo 3 as published by Ollama: an architecture of its own, which is that of OLMo 2 with sliding windows.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const OLMO3: Form = Form {
    name: "olmo3 as published by Ollama",
    architecture: "olmo3",
    markers: &[Always],
    rules: &[Architecture("olmo2"), KeyPrefix("olmo3", "olmo2")],
};
