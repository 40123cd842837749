//! gpt-oss: stacked experts with rows of gate and up interleaved. Plain weights have dimensions
//! inputs, outputs; MXFP4 blocks have outputs, inputs.

use super::common_rules::ATTENTION;
use super::default_family::DEFAULT;
use crate::family::Family;
use crate::rules::{RowSplit, SourceLayout, TensorRule, rename, split};

const EXPERTS: [TensorRule; 6] = [
    rename("post_attention_layernorm", "post_attention_norm"),
    rename("mlp.router", "ffn_gate_inp"),
    split("mlp.experts.gate_up_proj", RowSplit::Interleaved, &["ffn_gate_exps", "ffn_up_exps"])
        .with_layout(SourceLayout::Transposed),
    split(
        "mlp.experts.gate_up_proj_bias",
        RowSplit::Interleaved,
        &["ffn_gate_exps.bias", "ffn_up_exps.bias"],
    ),
    rename("mlp.experts.down_proj", "ffn_down_exps").with_layout(SourceLayout::Transposed),
    rename("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
];

pub(super) const GPT_OSS: Family = Family {
    architecture: "gpt-oss",
    classes: &["GptOssForCausalLM"],
    layer_rules: &[&ATTENTION, &EXPERTS],
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_count("expert_feed_forward_length", &["intermediate_size"])?;
        metadata.set_count("attention.sliding_window", &["sliding_window"])
    },
    ..DEFAULT
};
