//! Nemotron-H: each layer is a state, attention, or a feed-forward network, with or without experts.

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::rules::{Rule, one};
use super::state::{AROUND, MIXER_2, rates};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

const LAYER: [Rule; 15] = [
    one("norm", "attn_norm"),
    one("mixer.q_proj", "attn_q"),
    one("mixer.k_proj", "attn_k"),
    one("mixer.v_proj", "attn_v"),
    one("mixer.o_proj", "attn_output"),
    one("mixer.up_proj", "ffn_up"),
    one("mixer.down_proj", "ffn_down"),
    one("mixer.gate", "ffn_gate_inp"),
    one("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
    one("mixer.experts.{}.up_proj", "ffn_up_exps"),
    one("mixer.experts.{}.down_proj", "ffn_down_exps"),
    one("mixer.shared_experts.up_proj", "ffn_up_shexp"),
    one("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    one("mixer.fc1_latent_proj", "ffn_latent_down"),
    one("mixer.fc2_latent_proj", "ffn_latent_up"),
];

/// No network has so many layers.
const LAYERS_LIMIT: usize = 1 << 16;

/// What a layer is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    State,
    Attention,
    Network,
}

/// The kinds of all layers, by letters or by words.
fn kinds(config: &Json) -> Result<Vec<Kind>, ImportError> {
    let letters = config.text("hybrid_override_pattern");
    let letters = letters.map(|text| text.chars().take(LAYERS_LIMIT).map(String::from).collect());
    let words: Option<Vec<String>> = letters.or_else(|| config.strings("layers_block_type"));
    let kind = |word: &String| match word.as_str() {
        "M" | "mamba" | "linear_attention" => Some(Kind::State),
        "*" | "attention" | "full_attention" => Some(Kind::Attention),
        "-" | "E" | "mlp" | "moe" => Some(Kind::Network),
        _ => None,
    };
    let kinds: Option<Vec<Kind>> = words.and_then(|words| words.iter().map(kind).collect());
    let kinds = kinds.filter(|kinds| !kinds.is_empty() && kinds.len() < LAYERS_LIMIT);
    kinds.ok_or_else(|| {
        config.wrong("hybrid_override_pattern", "a letter of M, *, - or E for each layer")
    })
}

pub(super) const NEMOTRON_H: Family = Family {
    architecture: "nemotron_h",
    classes: &["NemotronHForCausalLM"],
    root: "backbone.",
    whole: &[&AROUND],
    layer: &[&LAYER, &MIXER_2],
    alike: Alike::Nothing,
    pairs: true,
    change: rates,
    fits: |config| config.value("num_experts_per_tok").is_none(),
    odd: Some(|_, weights, _| {
        // Networks that guess further tokens.
        weights.leave(|name| name.starts_with("mtp."));
        Ok(())
    }),
    shape: |config| {
        let layers = kinds(config)?.len() as u32;
        let mut shape = Shape::of_layers(config, layers)?;
        shape.sizes.groups = config.first_count(&["n_groups", "mamba_n_groups"])?.unwrap_or(1);
        shape.sizes.head = config.one_of(&["head_dim", "attention_head_dim"])?;
        Ok(shape)
    },
    keys: |keys| nemotron_h(keys, "intermediate_size"),
    ..PLAIN
};

pub(super) const NEMOTRON_H_MOE: Family = Family {
    architecture: "nemotron_h_moe",
    fits: |config| config.value("num_experts_per_tok").is_some(),
    keys: |keys| {
        keys.experts()?;
        nemotron_h(keys, "moe_intermediate_size")?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.count("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
        keys.count("expert_shared_count", &["n_shared_experts"])?;
        keys.flag_if("expert_weights_norm", "norm_topk_prob");
        keys.count_if("moe_latent_size", &["moe_latent_size"])?;
        keys.float_if("expert_weights_scale", &["routed_scaling_factor"])
    },
    ..NEMOTRON_H
};

fn nemotron_h(keys: &mut Keys<'_>, inner: &str) -> Result<(), StoreError> {
    let config = keys.config;
    let (kinds, inner, kv_heads) =
        (kinds(config)?, config.count(inner)?, keys.shape.sizes.kv_heads);
    let is = |layer: u32, kind| kinds.get(layer as usize) == Some(&kind);
    keys.set("block_count", keys.shape.sizes.layers);
    keys.set("context_length", 1u32 << 20);
    keys.set("embedding_length", keys.shape.width);
    keys.by_layer("feed_forward_length", |layer| if is(layer, Kind::Network) { inner } else { 0 });
    keys.set("attention.head_count", keys.shape.sizes.heads);
    keys.by_layer(
        "attention.head_count_kv",
        |layer| if is(layer, Kind::Attention) { kv_heads } else { 0 },
    );
    keys.head_sizes();
    keys.norms()?;
    keys.float_if("rope.freq_base", &["rope_theta"])?;
    keys.set_rows();
    keys.set("rope.dimension_count", keys.head());
    let heads = config.one_of(&["mamba_num_heads", "mamba_n_heads"])?;
    let head = config.one_of(&["mamba_head_dim", "mamba_d_head"])?;
    keys.second_state(heads.saturating_mul(head), heads)?;
    keys.set("rope.scaling.finetuned", false);
    Ok(())
}
