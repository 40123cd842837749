//! Talkie: factors of their own for heads and for what goes back to the stream, and positions that turn the other way.

use super::super::plan::Change;
use super::super::rules::{Form, Rule, one};
use super::{Family, PLAIN};

const WHOLE: [Rule; 2] = [one("embed", "token_embd"), one("lm_head", "output")];
const LAYER: [Rule; 11] = [
    one("attn.attn_query", "attn_q"),
    one("attn.attn_key", "attn_k"),
    one("attn.attn_value", "attn_v"),
    one("attn.attn_resid", "attn_output"),
    one("attn.head_gain.head_g", "attn_q_norm").form(Form::Column),
    one("attn_gain.a_g", "attn_output.scale"),
    one("mlp.mlp_gate", "ffn_gate"),
    one("mlp.mlp_linear", "ffn_up"),
    one("mlp.mlp_resid", "ffn_down"),
    one("mlp_gain.a_g", "ffn_down.scale"),
    one("embed_skip.a_g", "layer_output_scale"),
];

pub(super) const TALKIE: Family = Family {
    architecture: "talkie",
    classes: &["TalkieForCausalLM"],
    layers: "blocks.",
    whole: &[&WHOLE],
    layer: &[&LAYER],
    numbers: &[("lm_head_gain.w_g", "logit_scale")],
    // What is added to weights would have to change its signs as they do.
    takes_adapters: false,
    change: |config, name| {
        Ok(match name {
            "attn_q.weight" | "attn_k.weight" => {
                Change::Opposed { head: config.count("head_dim")?.into() }
            }
            _ => Change::None,
        })
    },
    keys: |keys| {
        keys.usual()?;
        // Its norms say nothing else.
        keys.set("attention.layer_norm_rms_epsilon", f32::EPSILON);
        Ok(())
    },
    ..PLAIN
};
