//! Gemma 4 as published by Ollama: image and audio encoders in the same file, separate gate and up
//! projections of experts, another tokenizer name (with merges and pre-tokenizer).

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const GEMMA4: PublishedLayout = PublishedLayout {
    name: "gemma4 as published by Ollama",
    architecture: "gemma4",
    markers: &[
        TensorPrefix("a."),
        TensorPrefix("v."),
        TensorPrefix("mm."),
        TensorPrefix("model.vision_tower."),
        TextIs(TOKENIZER, "llama"),
    ],
    rules: &[
        If(TextIs(TOKENIZER, "llama"), &[Set(TOKENIZER, Str("gemma4"))]),
        EachBlock(&[
            // Scales apply to one of the two tensors, so tensors with scales stay separate.
            If(
                All(&[
                    NoTensor("blk.{b}.ffn_gate_exps.scale"),
                    NoTensor("blk.{b}.ffn_gate_exps.input_scale"),
                    NoTensor("blk.{b}.ffn_up_exps.scale"),
                    NoTensor("blk.{b}.ffn_up_exps.input_scale"),
                ]),
                &[Interleave(
                    "blk.{b}.ffn_gate_up_exps.weight",
                    ["blk.{b}.ffn_gate_exps.weight", "blk.{b}.ffn_up_exps.weight"],
                )],
            ),
            Rename("blk.{b}.ffn_gate_inp.per_expert_scale", "blk.{b}.ffn_down_exps.scale"),
        ]),
        Hide("a."),
        Hide("v."),
        Hide("mm."),
        Hide("model.vision_tower."),
    ],
};

const TOKENIZER: &str = "tokenizer.ggml.model";
