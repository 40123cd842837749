//! Mixtures of experts.

use super::super::ImportError;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::Output;
use super::super::rules::{Cut, Form, Rule, aside, one, pieces};
use super::super::weights::Weights;
use super::llama::turning;
use super::names::{ATTENTION, BEFORE, EXPERTS, GATED, MIXTRAL, SHARED, WHOLE};
use super::{Alike, Family, PLAIN};
use crate::error::StoreError;

const BASE: Family = Family {
    layer: &[&ATTENTION, &GATED, &BEFORE, &EXPERTS, &SHARED],
    // The first ones have no experts.
    alike: Alike::Kinds,
    ..PLAIN
};

pub(super) const DEEPSEEK: Family = Family {
    architecture: "deepseek",
    classes: &["DeepseekForCausalLM"],
    pairs: true,
    keys: |keys| {
        turning(keys)?;
        keys.routed()?;
        keys.set("expert_weights_scale", 1.0f32);
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
    ..BASE
};

/// Texts of a model that reads pictures: nothing in pairs.
pub(super) const DEEPSEEK_OCR: Family = Family {
    architecture: "deepseek2-ocr",
    classes: &["DeepseekOCRForCausalLM"],
    whole: &[&WHOLE, &PICTURES],
    shape: |config| {
        let mut shape = Shape::usual(config)?;
        // What is said of heads is about another attention.
        shape.sizes.head = shape.width / shape.sizes.heads;
        Ok(shape)
    },
    keys: |keys| {
        keys.sizes();
        keys.experts()?;
        keys.routed()?;
        keys.set("attention.layer_norm_rms_epsilon", keys.config.float("rms_norm_eps", 1e-6)?);
        keys.rope_of(Some(10_000.0))
    },
    ..BASE
};

/// Rows between those of pictures.
const PICTURES: [Rule; 2] = [aside("view_seperator"), aside("image_newline")];

/// Smaller experts, of which some of the others have one together.
const ADJUGATES: [Rule; 4] = [
    one("mlp.chunk_experts.{}.gate_proj", "ffn_gate_chexps"),
    one("mlp.chunk_experts.{}.up_proj", "ffn_up_chexps"),
    one("mlp.chunk_experts.{}.down_proj", "ffn_down_chexps"),
    aside("mlp.expert_bias"),
];

/// What its configuration does not say is the same in all of its models.
pub(super) const GROVEMOE: Family = Family {
    architecture: "grovemoe",
    classes: &["GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &EXPERTS, &ADJUGATES],
    odd: Some(whole_adjugates),
    keys: |keys| {
        keys.usual()?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        keys.set(
            "expert_chunk_feed_forward_length",
            keys.config.opt_count("head_dim")?.unwrap_or(128),
        );
        keys.set("experts_per_group", 2u32);
        keys.set("expert_group_scale", 0.05f32);
        Ok(())
    },
    ..BASE
};

/// Every layer has all smaller experts that any of them has, and each is of as many of the others.
fn whole_adjugates<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let number = |name: &String| -> Option<u32> {
        name.split_once(".mlp.chunk_experts.")?.1.split('.').next()?.parse().ok()
    };
    let last = weights.names().filter_map(number).max().unwrap_or(0);
    let name_of = |layer: u32, number: u64, part: &str| {
        format!("{}{layer}.mlp.chunk_experts.{number}.{part}_proj.weight", cutter.family.layers)
    };
    let missing = |name: String| {
        Err(ImportError::TensorMissing { name: format!("{}{name}", cutter.family.root) }.into())
    };
    let count = u64::from(last) + 1;
    for layer in 0..cutter.sizes.layers {
        // Whatever number a name claims, the first that is missing ends it.
        let mut all = (0..count)
            .flat_map(|number| ["gate", "up", "down"].map(|part| name_of(layer, number, part)));
        if let Some(name) = all.find(|name| weights.get(name).is_none()) {
            return missing(name);
        }
    }
    match u64::from(cutter.sizes.experts).is_multiple_of(count) {
        true => Ok(()),
        false => missing(name_of(0, count, "gate")),
    }
}

pub(super) const DOTS1: Family = Family {
    architecture: "dots1",
    classes: &["Dots1ForCausalLM"],
    keys: |keys| {
        keys.usual()?;
        keys.routed()
    },
    ..BASE
};

const STATICS: [Rule; 1] = [one("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias")];

pub(super) const ERNIE4_5_MOE: Family = Family {
    architecture: "ernie4_5-moe",
    classes: &["Ernie4_5_MoeForCausalLM"],
    layer: &[&ATTENTION, &GATED, &BEFORE, &STATICS, &EXPERTS, &SHARED],
    keys: |keys| {
        keys.usual()?;
        keys.routed()?;
        keys.count("interleave_moe_layer_step", &["moe_layer_interval"])?;
        let shared = keys.config.first_number(&["moe_num_shared_experts"])?.unwrap_or(0);
        let hidden = keys.config.count("moe_intermediate_size")?;
        if shared > 0 {
            keys.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared));
        }
        Ok(())
    },
    ..BASE
};

pub(super) const BAILING_WHOLE: [Rule; 3] =
    [one("word_embeddings", "token_embd"), one("norm", "output_norm"), one("lm_head", "output")];

const BAILING_PARTS: [Rule; 5] = [
    one("input_layernorm", "attn_norm"),
    pieces("attention.query_key_value", Cut::Qkv, &["attn_q", "attn_k", "attn_v"]),
    one("attention.dense", "attn_output"),
    one("attention.query_layernorm", "attn_q_norm"),
    one("attention.key_layernorm", "attn_k_norm"),
];

pub(super) const BAILINGMOE: Family = Family {
    architecture: "bailingmoe",
    classes: &["BailingMoeForCausalLM"],
    whole: &[&BAILING_WHOLE],
    layer: &[&BAILING_PARTS, &GATED, &BEFORE, &EXPERTS, &SHARED],
    pairs: true,
    keys: |keys| {
        if keys.config.flag("norm_head") == Some(true) {
            let found =
                "true: the output would have to be normalised, which a GGUF file of it is not";
            return Err(keys.config.wrong_value("norm_head", found.to_owned()).into());
        }
        turning(keys)?;
        keys.routed()?;
        keys.set("expert_weights_scale", 1.0f32);
        Ok(())
    },
    ..BASE
};

/// Queries, keys and values stay in one.
const BAILING2_QKV: [Rule; 1] = [one("attention.query_key_value", "attn_qkv")];

pub(super) const BAILINGMOE2: Family = Family {
    architecture: "bailingmoe2",
    classes: &["BailingMoeV2ForCausalLM"],
    whole: &[&BAILING_WHOLE],
    layer: &[&BAILING2_QKV, &BAILING_PARTS, &GATED, &BEFORE, &EXPERTS, &SHARED],
    keys: |keys| {
        keys.usual()?;
        keys.routed()?;
        let (shared, hidden) = (
            keys.config.first_number(&["num_shared_experts"])?,
            keys.config.count("moe_intermediate_size")?,
        );
        let beside = keys.config.opt_count("moe_shared_expert_intermediate_size")?;
        let beside = beside.unwrap_or(hidden.saturating_mul(shared.unwrap_or(1)));
        keys.set("expert_shared_feed_forward_length", beside);
        let turning = keys.turning(0.5)?;
        keys.set("rope.dimension_count", turning);
        Ok(())
    },
    ..BASE
};

const SMALL: [Rule; 4] = [
    one("block_sparse_moe.primary_router", "ffn_gate_inp"),
    one("block_sparse_moe.experts.{}.gate", "ffn_gate_exps"),
    one("block_sparse_moe.experts.{}.up", "ffn_up_exps"),
    one("block_sparse_moe.experts.{}.down", "ffn_down_exps"),
];

pub(super) const SMALLTHINKER: Family = Family {
    architecture: "smallthinker",
    classes: &["SmallThinkerForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &SMALL],
    shape: |config| {
        let (context, inner) =
            (config.count("max_position_embeddings")?, config.count("moe_ffn_hidden_size")?);
        let mut shape = Shape::of(config, context, inner)?;
        shape.sizes.experts = config.count("moe_num_primary_experts")?;
        Ok(shape)
    },
    keys: smallthinker,
    ..BASE
};

fn smallthinker(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes();
    keys.head_sizes();
    keys.norms()?;
    keys.rope()?;
    keys.set("expert_count", keys.shape.sizes.experts);
    keys.count("expert_used_count", &["moe_num_active_primary_experts"])?;
    keys.count("expert_feed_forward_length", &["moe_ffn_hidden_size"])?;
    match keys.config.flag("moe_primary_router_apply_softmax") {
        Some(true) => keys.set("expert_gating_func", 1u32),
        _ => keys.sigmoid(),
    }
    let layout = keys.config.value("sliding_window_layout").and_then(|list| list.as_array());
    if layout.is_some_and(|list| list.iter().any(|kind| kind.as_u64() != Some(0))) {
        keys.count("attention.sliding_window", &["sliding_window_size"])?;
    }
    Ok(())
}

const AFMOE_PARTS: [Rule; 6] = [
    one("self_attn.gate_proj", "attn_gate"),
    one("post_attention_layernorm", "post_attention_norm"),
    one("pre_mlp_layernorm", "ffn_norm"),
    one("post_mlp_layernorm", "post_ffw_norm"),
    one("mlp.router.gate", "ffn_gate_inp"),
    one("mlp.expert_bias", "exp_probs_b.bias"),
];

pub(super) const AFMOE: Family = Family {
    architecture: "afmoe",
    classes: &["AfmoeForCausalLM"],
    layer: &[&AFMOE_PARTS, &ATTENTION, &GATED, &EXPERTS, &SHARED],
    keys: |keys| {
        turning(keys)?;
        keys.routed()?;
        keys.count_if("attention.sliding_window", &["sliding_window"])
    },
    ..BASE
};

pub(super) const MELLUM: Family = Family {
    architecture: "mellum",
    classes: &["MellumForCausalLM"],
    keys: |keys| {
        keys.usual()?;
        keys.routed()?;
        let window = keys.config.opt_count("sliding_window")?;
        if let Some(window) =
            window.filter(|_| keys.config.flag("use_sliding_window") != Some(false))
        {
            keys.set("attention.sliding_window", window);
            let slides = keys.sliding_layers(4)?;
            keys.set("attention.sliding_window_pattern", slides);
        }
        Ok(())
    },
    ..BASE
};

pub(super) const EXAONE_MOE: Family = Family {
    architecture: "exaone-moe",
    classes: &["ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"],
    keys: |keys| {
        keys.sigmoid();
        keys.usual()?;
        keys.routed()?;
        let (shared, hidden) = (
            keys.config.first_number(&["num_shared_experts"])?,
            keys.config.count("moe_intermediate_size")?,
        );
        keys.set("expert_shared_feed_forward_length", hidden.saturating_mul(shared.unwrap_or(1)));
        keys.set("rope.scaling.type", "none");
        if let Some(window) = keys.config.opt_count("sliding_window")? {
            keys.set("attention.sliding_window", window);
            let slides = keys.sliding_layers(4)?;
            keys.set("attention.sliding_window_pattern", slides);
        }
        Ok(())
    },
    ..BASE
};

const DBRX_WHOLE: [Rule; 3] =
    [one("wte", "token_embd"), one("norm_f", "output_norm"), one("lm_head", "output")];

const DBRX_PARTS: [Rule; 8] = [
    one("norm_attn_norm.norm_1", "attn_norm"),
    one("norm_attn_norm.attn.Wqkv", "attn_qkv"),
    one("norm_attn_norm.attn.out_proj", "attn_output"),
    one("norm_attn_norm.norm_2", "attn_output_norm"),
    one("ffn.router.layer", "ffn_gate_inp"),
    one("ffn.experts.mlp.w1", "ffn_gate_exps").form(Form::Stacked),
    one("ffn.experts.mlp.v1", "ffn_up_exps").form(Form::Stacked),
    one("ffn.experts.mlp.w2", "ffn_down_exps").form(Form::StackedTurned),
];

/// The matrices of all experts lie in one, row behind row.
pub(super) const DBRX: Family = Family {
    architecture: "dbrx",
    classes: &["DbrxForCausalLM"],
    root: "transformer.",
    layers: "blocks.",
    whole: &[&DBRX_WHOLE],
    layer: &[&DBRX_PARTS],
    shape: |config| {
        let (attention, network) = (config.section("attn_config"), config.section("ffn_config"));
        let mut shape =
            Shape::of(config, config.count("max_seq_len")?, network.count("ffn_hidden_size")?)?;
        shape.sizes.kv_heads = attention.opt_count("kv_n_heads")?.unwrap_or(shape.sizes.heads);
        shape.sizes.experts = network.count("moe_num_experts")?;
        Ok(shape)
    },
    keys: |keys| {
        let (attention, network) =
            (keys.config.section("attn_config"), keys.config.section("ffn_config"));
        keys.sizes();
        keys.set("rope.freq_base", attention.float("rope_theta", 10_000.0)?);
        if let Some(most) = attention.opt_float("clip_qkv")? {
            keys.set("attention.clamp_kqv", most);
        }
        keys.set("expert_count", keys.shape.sizes.experts);
        keys.set("expert_used_count", network.count("moe_top_k")?);
        keys.set("attention.layer_norm_epsilon", 1e-5f32);
        Ok(())
    },
    ..PLAIN
};

/// A network for all tokens, and experts that read what attention read.
const ARCTIC_PARTS: [Rule; 5] = [
    one("residual_layernorm", "ffn_norm"),
    one("post_attention_layernorm", "ffn_norm_exps"),
    one("residual_mlp.w1", "ffn_gate"),
    one("residual_mlp.w3", "ffn_up"),
    one("residual_mlp.w2", "ffn_down"),
];

pub(super) const ARCTIC: Family = Family {
    architecture: "arctic",
    classes: &["ArcticForCausalLM"],
    layer: &[&ARCTIC_PARTS, &ATTENTION, &MIXTRAL],
    pairs: true,
    keys: turning,
    ..BASE
};

const GROK_PARTS: [Rule; 4] = [
    one("pre_attn_norm", "attn_norm"),
    one("post_attn_norm", "attn_output_norm"),
    one("pre_moe_norm", "ffn_norm"),
    one("post_moe_norm", "post_ffw_norm"),
];

/// A network for all tokens beside the experts; scores and logits are bounded.
pub(super) const GROK: Family = Family {
    architecture: "grok",
    classes: &["Grok1ForCausalLM", "GrokForCausalLM"],
    layer: &[&GROK_PARTS, &ATTENTION, &GATED, &MIXTRAL],
    odd: Some(whole_experts),
    keys: grok,
    ..PLAIN
};

/// Experts are as wide as the configuration says: put together of what several devices have, they are narrower without the last one's.
fn whole_experts<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    _: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let width = u64::from(cutter.config.one_of(&["moe_intermediate_size", "intermediate_size"])?);
    for (name, tensor) in
        weights.iter().filter(|(name, _)| name.contains(".block_sparse_moe.experts."))
    {
        let along = usize::from(name.ends_with(".w2.weight"));
        let found = tensor.entry.shape.clone();
        if found.get(along).is_some_and(|&found| found != width) {
            let (name, mut want) = (tensor.entry.name.clone(), found.clone());
            want[along] = width;
            return Err(ImportError::TensorShape { name, found, want }.into());
        }
    }
    Ok(())
}

fn grok(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    keys.routed()?;
    let config = keys.config;
    for key in ["attn_logit_softcapping", "router_logit_softcapping"] {
        keys.set(key, config.float(key, 30.0)?);
    }
    keys.float_if("final_logit_softcapping", &["final_logit_softcapping"])?;
    let head = (keys.head() as f32).sqrt();
    keys.set("attention.output_scale", config.float("attn_output_multiplier", 1.0 / head)?);
    keys.float_if("embedding_scale", &["embedding_multiplier_scale"])?;
    keys.float_if("logit_scale", &["output_multiplier_scale"])?;
    keys.count_if("attention.temperature_length", &["attn_temperature_len"])?;
    if let Some("yarn" | "original") = config.text("rope_type") {
        keys.set("rope.scaling.type", "yarn");
        keys.float_if("rope.scaling.factor", &["scaling_factor"])?;
        keys.count_if(
            "rope.scaling.original_context_length",
            &["original_max_position_embeddings"],
        )?;
        for (there, here) in [
            ("extrapolation_factor", "rope.scaling.yarn_ext_factor"),
            ("attn_factor", "rope.scaling.yarn_attn_factor"),
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
        ] {
            keys.float_if(here, &[there])?;
        }
    }
    Ok(())
}

const LAGUNA_PARTS: [Rule; 5] = [
    one("self_attn.g_proj", "attn_gate"),
    one("mlp.experts.e_score_correction_bias", "exp_probs_b.bias"),
    one("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    one("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    one("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

/// Heads differ from layer to layer, and so do positions.
pub(super) const LAGUNA: Family = Family {
    architecture: "laguna",
    classes: &["LagunaForCausalLM"],
    layer: &[&LAGUNA_PARTS, &ATTENTION, &GATED, &BEFORE, &EXPERTS, &SHARED],
    keys: laguna,
    ..BASE
};

fn laguna(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sigmoid();
    keys.usual()?;
    keys.routed()?;
    let config = keys.config;
    if config.value("num_attention_heads_per_layer").is_some_and(|list| list.is_array()) {
        keys.list("attention.head_count", config.numbers("num_attention_heads_per_layer")?)?;
    }
    keys.count_if("attention.sliding_window", &["sliding_window"])?;
    keys.count_if("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
    keys.set("expert_weights_norm", true);
    let kinds = config.strings("mlp_layer_types").unwrap_or_default();
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    keys.set("leading_dense_block_count", u32::try_from(dense).unwrap_or(0));
    let turning = keys.turning(1.0)?;
    keys.set("rope.dimension_count", turning);
    if let Some(local) = config.rope().section_if("sliding_attention") {
        let share = local.float("partial_rotary_factor", 1.0)?;
        keys.set("rope.dimension_count_swa", (share * keys.head() as f32) as u32);
    }
    Ok(())
}
