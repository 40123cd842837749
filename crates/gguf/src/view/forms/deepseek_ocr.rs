//! DeepSeek-OCR as published by Ollama: two image encoders in the same file, sizes of experts to be seen in their tensors.

use crate::view::rules::{Constant::*, Form, Rule::*, When::*};

pub(super) const DEEPSEEK_OCR: Form = Form {
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
