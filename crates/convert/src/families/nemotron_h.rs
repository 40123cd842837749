//! Nemotron-H: each layer is a state-space layer, attention, or a feed-forward network with or
//! without experts.

use super::default_family::DEFAULT;
use super::mamba::{BACKBONE_GLOBAL, MAMBA2_MIXER, negate_exp_of_decay};
use crate::error::ConvertError;
use crate::family::{Family, LayerUniformity};
use crate::metadata::{HyperParameters, MetadataWriter};
use crate::rules::{TensorRule, rename};
use crate::source::Config;

const LAYER: [TensorRule; 15] = [
    rename("norm", "attn_norm"),
    rename("mixer.q_proj", "attn_q"),
    rename("mixer.k_proj", "attn_k"),
    rename("mixer.v_proj", "attn_v"),
    rename("mixer.o_proj", "attn_output"),
    rename("mixer.up_proj", "ffn_up"),
    rename("mixer.down_proj", "ffn_down"),
    rename("mixer.gate", "ffn_gate_inp"),
    rename("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
    rename("mixer.experts.{}.up_proj", "ffn_up_exps"),
    rename("mixer.experts.{}.down_proj", "ffn_down_exps"),
    rename("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    rename("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    rename("mixer.fc1_latent_proj", "ffn_latent_down"),
    rename("mixer.fc2_latent_proj", "ffn_latent_up"),
];

/// Largest number of layers.
const MAX_LAYERS: usize = 1 << 16;

/// Kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LayerKind {
    StateSpace,
    Attention,
    FeedForward,
}

/// Kinds of all layers, from letters or words of the configuration.
fn layer_kinds(config: &Config) -> Result<Vec<LayerKind>, ConvertError> {
    let letters = config.text("hybrid_override_pattern");
    let letters = letters.map(|text| text.chars().take(MAX_LAYERS).map(String::from).collect());
    let words: Option<Vec<String>> = letters.or_else(|| config.strings("layers_block_type"));
    let kind = |word: &String| match word.as_str() {
        "M" | "mamba" | "linear_attention" => Some(LayerKind::StateSpace),
        "*" | "attention" | "full_attention" => Some(LayerKind::Attention),
        "-" | "E" | "mlp" | "moe" => Some(LayerKind::FeedForward),
        _ => None,
    };
    let layer_kinds: Option<Vec<LayerKind>> =
        words.and_then(|words| words.iter().map(kind).collect());
    let layer_kinds =
        layer_kinds.filter(|layer_kinds| !layer_kinds.is_empty() && layer_kinds.len() < MAX_LAYERS);
    layer_kinds.ok_or_else(|| {
        config.invalid("hybrid_override_pattern", "a letter of M, *, - or E for each layer")
    })
}

pub(super) const NEMOTRON_H: Family = Family {
    architecture: "nemotron_h",
    classes: &["NemotronHForCausalLM"],
    root_prefix: "backbone.",
    global_rules: &[&BACKBONE_GLOBAL],
    layer_rules: &[&LAYER, &MAMBA2_MIXER],
    layer_uniformity: LayerUniformity::Arbitrary,
    interleaves_rope_pairs: true,
    value_transform: negate_exp_of_decay,
    matches: |config| config.value("num_experts_per_tok").is_none(),
    custom_tensors: Some(|_, weights, _| {
        // Multi-token prediction.
        weights.discard(|name| name.starts_with("mtp."));
        Ok(())
    }),
    hyper_parameters: |config| {
        let layers = layer_kinds(config)?.len() as u32;
        let mut params = HyperParameters::with_layer_count(config, layers)?;
        params.dims.groups = config.first_count(&["n_groups", "mamba_n_groups"])?.unwrap_or(1);
        params.dims.head_dim = config.first_required_count(&["head_dim", "attention_head_dim"])?;
        Ok(params)
    },
    write_metadata: |metadata| nemotron_h(metadata, "intermediate_size"),
    ..DEFAULT
};

pub(super) const NEMOTRON_H_MOE: Family = Family {
    architecture: "nemotron_h_moe",
    matches: |config| config.value("num_experts_per_tok").is_some(),
    write_metadata: |metadata| {
        metadata.write_experts()?;
        nemotron_h(metadata, "moe_intermediate_size")?;
        metadata.set_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        metadata.set_count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        metadata.set_count("expert_shared_count", &["n_shared_experts"])?;
        metadata.set_opt_flag("expert_weights_norm", "norm_topk_prob");
        metadata.set_opt_count("moe_latent_size", &["moe_latent_size"])?;
        metadata.set_opt_float("expert_weights_scale", &["routed_scaling_factor"])
    },
    ..NEMOTRON_H
};

fn nemotron_h(metadata: &mut MetadataWriter<'_>, inner: &str) -> Result<(), ConvertError> {
    let config = metadata.config;
    let (kinds, inner, kv_heads) =
        (layer_kinds(config)?, config.count(inner)?, metadata.params.dims.kv_heads);
    let is = |layer: u32, kind| kinds.get(layer as usize) == Some(&kind);
    metadata.set("block_count", metadata.params.dims.layers);
    metadata.set("context_length", 1u32 << 20);
    metadata.set("embedding_length", metadata.params.hidden_size);
    metadata.set_by_layer("feed_forward_length", |layer| {
        if is(layer, LayerKind::FeedForward) { inner } else { 0 }
    });
    metadata.set("attention.head_count", metadata.params.dims.heads);
    metadata.set_by_layer("attention.head_count_kv", |layer| {
        if is(layer, LayerKind::Attention) { kv_heads } else { 0 }
    });
    metadata.write_head_sizes();
    metadata.write_norm_epsilons()?;
    metadata.set_opt_float("rope.freq_base", &["rope_theta"])?;
    metadata.write_vocab_size();
    metadata.set("rope.dimension_count", metadata.head_dim());
    let heads = config.first_required_count(&["mamba_num_heads", "mamba_n_heads"])?;
    let head_dim = config.first_required_count(&["mamba_head_dim", "mamba_d_head"])?;
    metadata.write_grouped_ssm(heads.saturating_mul(head_dim), heads)?;
    metadata.set("rope.scaling.finetuned", false);
    Ok(())
}
