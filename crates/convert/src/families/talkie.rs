//! Talkie: gains of heads and of block outputs, and rotary embedding in the opposite direction.

use super::default_family::DEFAULT;
use crate::family::Family;
use crate::output::ValueTransform;
use crate::rules::{SourceLayout, TensorRule, rename};

const GLOBAL: [TensorRule; 2] = [rename("embed", "token_embd"), rename("lm_head", "output")];
const LAYER: [TensorRule; 11] = [
    rename("attn.attn_query", "attn_q"),
    rename("attn.attn_key", "attn_k"),
    rename("attn.attn_value", "attn_v"),
    rename("attn.attn_resid", "attn_output"),
    rename("attn.head_gain.head_g", "attn_q_norm").with_layout(SourceLayout::ColumnVector),
    rename("attn_gain.a_g", "attn_output.scale"),
    rename("mlp.mlp_gate", "ffn_gate"),
    rename("mlp.mlp_linear", "ffn_up"),
    rename("mlp.mlp_resid", "ffn_down"),
    rename("mlp_gain.a_g", "ffn_down.scale"),
    rename("embed_skip.a_g", "layer_output_scale"),
];

pub(super) const TALKIE: Family = Family {
    architecture: "talkie",
    classes: &["TalkieForCausalLM"],
    layer_prefix: "blocks.",
    global_rules: &[&GLOBAL],
    layer_rules: &[&LAYER],
    global_scalars: &[("lm_head_gain.w_g", "logit_scale")],
    // An adapter's update would need the same change of signs.
    supports_adapters: false,
    value_transform: |config, name| {
        Ok(match name {
            "attn_q.weight" | "attn_k.weight" => {
                ValueTransform::NegateSecondHalves { head_dim: config.count("head_dim")?.into() }
            }
            _ => ValueTransform::None,
        })
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        // PyTorch's default epsilon.
        metadata.set("attention.layer_norm_rms_epsilon", f32::EPSILON);
        Ok(())
    },
    ..DEFAULT
};
