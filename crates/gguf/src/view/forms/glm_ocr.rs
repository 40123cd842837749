//! GLM-OCR as published by Ollama: the language model is a GLM 4 with its gate and up projections apart.

use crate::view::rules::{Constant::*, Form, Rule::*, When::*};

pub(super) const GLM_OCR: Form = Form {
    name: "glmocr as published by Ollama",
    architecture: "glmocr",
    markers: &[Always],
    rules: &[
        Architecture("glm4"),
        KeyPrefix("glmocr", "glm4"),
        Sections("glm4.rope.mrope_section", "glm4.rope.dimension_sections"),
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
