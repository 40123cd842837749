//! Gemma 1 to 3: norms are stored as the difference from one, and the output is the token
//! embedding.

use super::common_rules::{ATTENTION, GATED_FFN, POST_NORMS, add_one_to_norms};
use super::default_family::DEFAULT;
use crate::error::ConvertError;
use crate::family::Family;
use crate::metadata::{Defaults, HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, rename};

/// The norm before the feed-forward network; [`POST_NORMS`] are behind both blocks.
pub(super) const NORMS: [TensorRule; 1] = [rename("pre_feedforward_layernorm", "ffn_norm")];

const BASE: Family = Family {
    layer_rules: &[&ATTENTION, &GATED_FFN, &NORMS, &POST_NORMS],
    ties_output: true,
    omits_space_prefix: true,
    value_transform: add_one_to_norms,
    write_metadata: |metadata| gemma(metadata, None),
    ..DEFAULT
};

pub(super) const GEMMA: Family = Family {
    architecture: "gemma",
    classes: &["GemmaForCausalLM"],
    layer_rules: DEFAULT.layer_rules,
    ..BASE
};

pub(super) const GEMMA2: Family = Family {
    architecture: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    write_metadata: |metadata| {
        gemma(metadata, None)?;
        metadata.set_count("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

pub(super) const GEMMA3: Family = Family {
    architecture: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    // Configurations omit parameters with default values.
    hyper_parameters: |config| {
        let inner = config.count("intermediate_size")?;
        let default = Defaults {
            heads: 8,
            kv_heads: 4,
            head_dim: 256,
            context_length: 131_072,
            feed_forward_length: inner,
        };
        HyperParameters::with_defaults(config, &default)
    },
    write_metadata: |metadata| {
        gemma(metadata, Some(1e6))?;
        if metadata.config.opt_count("sliding_window_pattern")? == Some(1) {
            return Ok(());
        }
        metadata.set_count("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

fn gemma(metadata: &mut MetadataWriter<'_>, base: Option<f32>) -> Result<(), ConvertError> {
    metadata.write_sizes();
    metadata.write_head_sizes();
    metadata.write_experts()?;
    metadata
        .set("attention.layer_norm_rms_epsilon", metadata.config.float_or("rms_norm_eps", 1e-6)?);
    metadata.set_opt_float("attn_logit_softcapping", &["attn_logit_softcapping"])?;
    metadata.set_opt_float("final_logit_softcapping", &["final_logit_softcapping"])?;
    metadata.write_rope_with_base(base)
}
