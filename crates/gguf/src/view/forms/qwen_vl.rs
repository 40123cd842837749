//! Language models of Qwen 2.5 VL and Qwen 3 VL as published by Ollama: the image encoder in the same file, sections of the rotation
//! under another key or none.

use crate::view::rules::{Constant::*, Form, Rule::*, When::*};

pub(super) const QWEN25_VL: Form = Form {
    name: "qwen25vl as published by Ollama",
    architecture: "qwen25vl",
    markers: &[Always],
    rules: &[
        Architecture("qwen2vl"),
        KeyPrefix("qwen25vl", "qwen2vl"),
        Sections("qwen2vl.rope.mrope_section", "qwen2vl.rope.dimension_sections"),
        Hide("v."),
        Hide("mm."),
    ],
};

pub(super) const QWEN3_VL: Form = Form {
    name: "qwen3vl as published by Ollama",
    architecture: "qwen3vl",
    markers: &[NoKey("qwen3vl.rope.dimension_sections")],
    rules: &[
        Set("qwen3vl.rope.dimension_sections", I32s(SECTIONS)),
        DefaultLen("qwen3vl.n_deepstack_layers", "qwen3vl.vision.deepstack_visual_indexes"),
        Hide("v."),
        Hide("mm."),
    ],
};

pub(super) const QWEN3_VL_MOE: Form = Form {
    name: "qwen3vlmoe as published by Ollama",
    architecture: "qwen3vlmoe",
    markers: &[NoKey("qwen3vlmoe.rope.dimension_sections")],
    rules: &[
        Set("qwen3vlmoe.rope.dimension_sections", I32s(SECTIONS)),
        DefaultLen("qwen3vlmoe.n_deepstack_layers", "qwen3vlmoe.vision.deepstack_visual_indexes"),
        Hide("v."),
        Hide("mm."),
    ],
};

const SECTIONS: &[i32] = &[24, 20, 20, 0];
