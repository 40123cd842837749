//! Language models of Qwen 2.5 VL and Qwen 3 VL as published by Ollama: an image encoder in the
//! same file, RoPE sections under another key or missing.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const QWEN25_VL: PublishedLayout = PublishedLayout {
    name: "qwen25vl as published by Ollama",
    architecture: "qwen25vl",
    markers: &[Always],
    rules: &[
        Architecture("qwen2vl"),
        KeyPrefix("qwen25vl", "qwen2vl"),
        CopySections("qwen2vl.rope.mrope_section", "qwen2vl.rope.dimension_sections"),
        Hide("v."),
        Hide("mm."),
    ],
};

pub(super) const QWEN3_VL: PublishedLayout = PublishedLayout {
    name: "qwen3vl as published by Ollama",
    architecture: "qwen3vl",
    markers: &[NoKey("qwen3vl.rope.dimension_sections")],
    rules: &[
        Set("qwen3vl.rope.dimension_sections", I32s(SECTIONS)),
        DefaultListLen("qwen3vl.n_deepstack_layers", "qwen3vl.vision.deepstack_visual_indexes"),
        Hide("v."),
        Hide("mm."),
    ],
};

pub(super) const QWEN3_VL_MOE: PublishedLayout = PublishedLayout {
    name: "qwen3vlmoe as published by Ollama",
    architecture: "qwen3vlmoe",
    markers: &[NoKey("qwen3vlmoe.rope.dimension_sections")],
    rules: &[
        Set("qwen3vlmoe.rope.dimension_sections", I32s(SECTIONS)),
        DefaultListLen(
            "qwen3vlmoe.n_deepstack_layers",
            "qwen3vlmoe.vision.deepstack_visual_indexes",
        ),
        Hide("v."),
        Hide("mm."),
    ],
};

const SECTIONS: &[i32] = &[24, 20, 20, 0];
