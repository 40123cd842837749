//! Qwen 3 Next and Qwen 3.5 as published by Ollama: heads listed for each layer, a bias under another name, and for the latter the
//! encoder of images and the blocks of multi-token prediction in the same file.

use crate::view::rules::{Form, Rule::*, When::*};

pub(super) const QWEN3_NEXT: Form = Form {
    name: "qwen3next as published by Ollama",
    architecture: "qwen3next",
    markers: &[TensorEnd(".ssm_dt")],
    rules: &[
        Largest("qwen3next.attention.head_count_kv", None),
        ReplaceEnd(".ssm_dt", ".ssm_dt.bias"),
    ],
};

macro_rules! qwen35 {
    ($name:literal, $($marker:expr),*) => {
        Form {
            name: concat!($name, " as published by Ollama"),
            architecture: $name,
            markers: &[
                Key(concat!($name, ".vision.block_count")),
                Key(concat!($name, ".image_token_id")),
                Key(concat!($name, ".ssm.v_head_reordered")),
                Key(concat!($name, ".rope.mrope_interleaved")),
                TensorPrefix("mtp."),
                TensorPrefix("v."),
                $($marker),*
            ],
            rules: &[
                Largest(concat!($name, ".attention.head_count_kv"), Some(2)),
                FourSections(concat!($name, ".rope.dimension_sections")),
                ReplaceEnd(".ssm_dt", ".ssm_dt.bias"),
                PredictionBlocks,
                Hide("v."),
                Hide("mm."),
                Hide("mtp."),
            ],
        }
    };
}

pub(super) const QWEN35: Form = qwen35!("qwen35",);
pub(super) const QWEN35_MOE: Form = qwen35!("qwen35moe", Key("qwen35moe.feed_forward_length"));
