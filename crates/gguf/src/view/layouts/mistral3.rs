//! Ministral 3 and Mistral Small as published by Ollama: other names for the keys of YaRN and of
//! the attention temperature, an image encoder in the same file, no pre-tokenizer.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const MISTRAL3: PublishedLayout = PublishedLayout {
    name: "mistral3 as published by Ollama",
    architecture: "mistral3",
    markers: &[
        TensorPrefix("v."),
        TensorPrefix("mm."),
        Key("mistral3.rope.scaling.beta_fast"),
        Key("mistral3.rope.scaling.mscale_all_dim"),
        Key("mistral3.rope.scaling_beta"),
    ],
    rules: &[
        CopyKey("mistral3.rope.scaling.beta_fast", "mistral3.rope.scaling.yarn_beta_fast"),
        CopyKey("mistral3.rope.scaling.beta_slow", "mistral3.rope.scaling.yarn_beta_slow"),
        CopyKey(
            "mistral3.rope.scaling.mscale_all_dim",
            "mistral3.rope.scaling.yarn_log_multiplier",
        ),
        CopyKey("mistral3.rope.scaling_beta", "mistral3.attention.temperature_scale"),
        If(NoText(PRE), &[Set(PRE, Str("tekken"))]),
        Hide("v."),
        Hide("mm."),
    ],
};

const PRE: &str = "tokenizer.ggml.pre";
