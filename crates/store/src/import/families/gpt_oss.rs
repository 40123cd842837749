//! gpt-oss: experts come all in one, gate and up in turns, inputs before outputs; or packed in blocks of four bits, outputs
//! before inputs.

use super::super::rules::{Cut, Form, Rule, one, pieces};
use super::names::ATTENTION;
use super::{Family, PLAIN};

const EXPERTS: [Rule; 6] = [
    one("post_attention_layernorm", "post_attention_norm"),
    one("mlp.router", "ffn_gate_inp"),
    pieces("mlp.experts.gate_up_proj", Cut::Turns, &["ffn_gate_exps", "ffn_up_exps"])
        .form(Form::Turned),
    pieces(
        "mlp.experts.gate_up_proj_bias",
        Cut::Turns,
        &["ffn_gate_exps.bias", "ffn_up_exps.bias"],
    ),
    one("mlp.experts.down_proj", "ffn_down_exps").form(Form::Turned),
    one("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
];

pub(super) const GPT_OSS: Family = Family {
    architecture: "gpt-oss",
    classes: &["GptOssForCausalLM"],
    layer: &[&ATTENTION, &EXPERTS],
    keys: |keys| {
        keys.usual()?;
        keys.count("expert_feed_forward_length", &["intermediate_size"])?;
        keys.count("attention.sliding_window", &["sliding_window"])
    },
    ..PLAIN
};
