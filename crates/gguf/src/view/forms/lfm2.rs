//! LFM2 as published by Ollama: the last norm under another name, and a width that is not the real one.

use crate::view::rules::{Constant::*, Form, Rule::*, When::*};

pub(super) const LFM2: Form = Form {
    name: "lfm2 as published by Ollama",
    architecture: "lfm2",
    markers: &[All(&[Tensor("output_norm.weight"), NoTensor("token_embd_norm.weight")])],
    rules: &[
        Rename("output_norm.weight", "token_embd_norm.weight"),
        Set("tokenizer.ggml.pre", Str("lfm2")),
        SetDim("lfm2.feed_forward_length", "blk.0.ffn_gate.weight", 1),
    ],
};
