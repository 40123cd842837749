//! LFM2 as published by Ollama: another name of the last norm, and a wrong feed-forward width.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const LFM2: PublishedLayout = PublishedLayout {
    name: "lfm2 as published by Ollama",
    architecture: "lfm2",
    markers: &[All(&[Tensor("output_norm.weight"), NoTensor("token_embd_norm.weight")])],
    rules: &[
        Rename("output_norm.weight", "token_embd_norm.weight"),
        Set("tokenizer.ggml.pre", Str("lfm2")),
        SetDim("lfm2.feed_forward_length", "blk.0.ffn_gate.weight", 1),
    ],
};
