//! Qwen 3 Next and Qwen 3.5 as published by Ollama: per-layer lists of heads, another name of a
//! bias, and for Qwen 3.5 an image encoder and multi-token prediction blocks in the same file.

use crate::view::rules::{Condition::*, PublishedLayout, Rule::*};

pub(super) const QWEN3_NEXT: PublishedLayout = PublishedLayout {
    name: "qwen3next as published by Ollama",
    architecture: "qwen3next",
    markers: &[TensorEnd(".ssm_dt")],
    rules: &[
        ReduceToMax("qwen3next.attention.head_count_kv", None),
        ReplaceEnd(".ssm_dt", ".ssm_dt.bias"),
    ],
};

macro_rules! qwen35 {
    ($name:literal, $($marker:expr),*) => {
        PublishedLayout {
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
                ReduceToMax(concat!($name, ".attention.head_count_kv"), Some(2)),
                PadSections(concat!($name, ".rope.dimension_sections")),
                ReplaceEnd(".ssm_dt", ".ssm_dt.bias"),
                RenameMtpBlocks,
                Hide("v."),
                Hide("mm."),
                Hide("mtp."),
            ],
        }
    };
}

pub(super) const QWEN35: PublishedLayout = qwen35!("qwen35",);
pub(super) const QWEN35_MOE: PublishedLayout =
    qwen35!("qwen35moe", Key("qwen35moe.feed_forward_length"));
