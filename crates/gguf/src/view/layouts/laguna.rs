//! Laguna as published by Ollama: other names for the keys of sliding-window RoPE and for the
//! attention gate.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const LAGUNA: PublishedLayout = PublishedLayout {
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
