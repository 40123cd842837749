//! gpt-oss as published by Ollama: another architecture name, older tensor names.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const GPT_OSS: PublishedLayout = PublishedLayout {
    name: "gptoss as published by Ollama",
    architecture: "gptoss",
    markers: &[Always],
    rules: &[
        Architecture("gpt-oss"),
        KeyPrefix("gptoss", "gpt-oss"),
        DefaultDim("gpt-oss.expert_feed_forward_length", "blk.0.ffn_gate_exps.weight", 1),
        Default("gpt-oss.rope.scaling.type", Str("yarn")),
        Set("tokenizer.ggml.pre", Str("gpt-4o")),
        Replace(".attn_out", ".attn_output"),
        Replace(".attn_sinks", ".attn_sinks.weight"),
        Replace(".ffn_norm", ".post_attention_norm"),
    ],
};
