//! Diffusion language models: decoders of other families with bidirectional attention and a mask
//! token.

use super::common_rules::{ATTENTION, EXPERTS, PRE_FFN_NORM};
use super::default_family::DEFAULT;
use super::qwen;
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, rename};
use crate::source::Config;

/// Mask token of LLaDA-MoE, which its folder does not define.
const LLADA_MOE_MASK: u32 = 156_895;

pub(super) const DREAM: Family = Family {
    architecture: "dream",
    classes: &["DreamModel"],
    write_metadata: |metadata| {
        metadata.write_common()?;
        set_bidirectional(metadata);
        Ok(())
    },
    ..DEFAULT
};

pub(super) const RND1: Family = Family {
    architecture: "rnd1",
    classes: &["RND1"],
    write_metadata: |metadata| {
        (qwen::QWEN3MOE.write_metadata)(metadata)?;
        set_bidirectional(metadata);
        Ok(())
    },
    ..qwen::QWEN3MOE
};

const LLADA_GLOBAL: [TensorRule; 3] =
    [rename("wte", "token_embd"), rename("ln_f", "output_norm"), rename("ff_out", "output")];
const LLADA_LAYER: [TensorRule; 9] = [
    rename("attn_norm", "attn_norm"),
    rename("q_proj", "attn_q"),
    rename("k_proj", "attn_k"),
    rename("v_proj", "attn_v"),
    rename("attn_out", "attn_output"),
    rename("ff_norm", "ffn_norm"),
    rename("ff_proj", "ffn_gate"),
    rename("up_proj", "ffn_up"),
    rename("ff_out", "ffn_down"),
];

/// Llama with the tensor names of the first OLMo code.
pub(super) const LLADA: Family = Family {
    architecture: "llada",
    classes: &["LLaDAModelLM"],
    root_prefix: "model.transformer.",
    layer_prefix: "blocks.",
    global_rules: &[&LLADA_GLOBAL],
    layer_rules: &[&LLADA_LAYER],
    interleaves_rope_pairs: true,
    hyper_parameters: |config| {
        parameters_with_keys(config, "mlp_hidden_size", "max_sequence_length")
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_full_rope_dim();
        metadata.set_global("tokenizer.ggml.add_bos_token", true);
        set_unshifted_logits(metadata);
        Ok(())
    },
    ..DEFAULT
};

/// Experts have Qwen 3's names.
pub(super) const LLADA_MOE: Family = Family {
    architecture: "llada-moe",
    classes: &["LLaDAMoEModel", "LLaDAMoEModelLM"],
    layer_rules: &[&ATTENTION, &PRE_FFN_NORM, &EXPERTS],
    layer_uniformity: LayerUniformity::SeveralKinds,
    hyper_parameters: |config| {
        parameters_with_keys(config, "dense_intermediate_size", "max_position_embeddings")
    },
    write_metadata: |metadata| {
        metadata.write_common()?;
        metadata.set_opt_count("expert_feed_forward_length", &["expert_intermediate_size"])?;
        set_unshifted_logits(metadata);
        if metadata.config.opt_count("mask_token_id")?.is_none() {
            metadata.set_global("tokenizer.ggml.mask_token_id", LLADA_MOE_MASK);
        }
        Ok(())
    },
    ..DEFAULT
};

/// Hyperparameters with these configuration keys for feed-forward length and context length.
fn parameters_with_keys(
    config: &Config,
    inner: &'static str,
    context: &'static str,
) -> Result<HyperParameters, ConvertError> {
    HyperParameters::with_sizes(
        config,
        config.first_required_count(&[context])?,
        config.first_required_count(&[inner])?,
    )
}

fn set_bidirectional(metadata: &mut MetadataWriter<'_>) {
    metadata.set("attention.causal", false);
}

/// The logits of a position predict its own token instead of the next.
fn set_unshifted_logits(metadata: &mut MetadataWriter<'_>) {
    set_bidirectional(metadata);
    metadata.set_global("diffusion.shift_logits", false);
}
