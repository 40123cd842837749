//! GLM-4.7-Flash as published by Ollama: DeepSeek 2 under its own name, with head sizes in the keys
//! of the latent cache's sizes.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const GLM4_MOE_LITE: PublishedLayout = PublishedLayout {
    name: "glm4moelite as published by Ollama",
    architecture: "glm4moelite",
    markers: &[Always],
    rules: &[
        Architecture("deepseek2"),
        KeyPrefix("glm4moelite", "deepseek2"),
        Set("deepseek2.attention.head_count_kv", U32(1)),
        SetSum(
            "deepseek2.attention.key_length",
            ["deepseek2.attention.kv_lora_rank", "deepseek2.rope.dimension_count"],
        ),
        SetKey("deepseek2.attention.kv_lora_rank", "deepseek2.attention.value_length"),
        SetKey("glm4moelite.attention.key_length", "deepseek2.attention.key_length_mla"),
        SetKey("glm4moelite.attention.key_length", "deepseek2.attention.value_length_mla"),
        Default("deepseek2.expert_group_count", U32(1)),
        Default("deepseek2.expert_group_used_count", U32(1)),
        Set("tokenizer.ggml.pre", Str("glm4")),
        DefaultListItem("tokenizer.ggml.eot_token_id", ENDS, 1),
        DefaultListItem("tokenizer.ggml.eom_token_id", ENDS, 2),
    ],
};

const ENDS: &str = "tokenizer.ggml.eos_token_ids";
