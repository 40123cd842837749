//! GLM-OCR as published by Ollama: the language model is GLM 4 with separate gate and up
//! projections.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const GLM_OCR: PublishedLayout = PublishedLayout {
    name: "glmocr as published by Ollama",
    architecture: "glmocr",
    markers: &[Always],
    rules: &[
        Architecture("glm4"),
        KeyPrefix("glmocr", "glm4"),
        CopySections("glm4.rope.mrope_section", "glm4.rope.dimension_sections"),
        CopyKey("glm4.attention.key_length", "glm4.rope.dimension_count"),
        If(Key("tokenizer.ggml.pre"), &[Set("tokenizer.ggml.pre", Str("chatglm-bpe"))]),
        Replace(".attn_out.", ".attn_output."),
        Replace(".post_attn_norm.", ".post_attention_norm."),
        Replace(".post_ffn_norm.", ".post_ffw_norm."),
        EachBlock(&[Concat(
            "blk.{b}.ffn_up.weight",
            &["blk.{b}.ffn_gate.weight", "blk.{b}.ffn_up.weight"],
        )]),
        Hide("v."),
        Hide("mm."),
    ],
};
