//! DeepSeek-OCR as published by Ollama: two image encoders in the same file, and expert sizes that
//! only the tensors show.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

pub(super) const DEEPSEEK_OCR: PublishedLayout = PublishedLayout {
    name: "deepseekocr as published by Ollama",
    architecture: "deepseekocr",
    markers: &[Always],
    rules: &[
        Architecture("deepseek2-ocr"),
        KeyPrefix("deepseekocr", "deepseek2-ocr"),
        Default("deepseek2-ocr.attention.layer_norm_rms_epsilon", F32(1e-6)),
        DefaultDim(WIDTH, "blk.1.ffn_down_exps.weight", 0),
        DefaultQuotient(
            "deepseek2-ocr.expert_shared_count",
            "blk.1.ffn_down_shexp.weight",
            0,
            WIDTH,
        ),
        Hide("s."),
        Hide("v."),
        Hide("mm."),
    ],
};

const WIDTH: &str = "deepseek2-ocr.expert_feed_forward_length";
