//! Laguna as published by Ollama: keys of the sliding layers' rotation and attention's gate under other names.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const LAGUNA: Form = Form {
    name: "laguna as published by Ollama",
    architecture: "laguna",
    markers: &[
        Key("laguna.rope.swa.dimension_count"),
        Key("laguna.rope.swa.freq_base"),
        Tensor("blk.0.attn_g.weight"),
    ],
    rules: &[
        CopyKey("laguna.rope.swa.dimension_count", "laguna.rope.dimension_count_swa"),
        CopyKey("laguna.rope.swa.freq_base", "laguna.rope.freq_base_swa"),
        ReplaceEnd(".attn_g.weight", ".attn_gate.weight"),
    ],
};
