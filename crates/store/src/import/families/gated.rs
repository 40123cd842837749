//! Families with windows of their own kind, most of them with a gate behind attention.

use super::super::ImportError;
use super::super::config::Json;
use super::super::keys::{Keys, Shape};
use super::super::pieces::Cutter;
use super::super::plan::{Change, Order, Output, Step};
use super::super::rope::llama3;
use super::super::rules::{Cut, Rule, one, pieces};
use super::super::weights::Weights;
use super::names::{ATTENTION, BEFORE, BEHIND, EXPERTS, GATED};
use super::{Alike, Family, PLAIN, from_one};
use crate::error::StoreError;

const SPARK_PARTS: [Rule; 2] = [
    pieces("self_attn.q_k_v_proj", Cut::Qkv, &["attn_q", "attn_k", "attn_v"]),
    one("self_attn.g_proj", "attn_gate"),
];

/// A gate a head.
pub(super) const SPARK2_5: Family = Family {
    architecture: "spark2_5",
    classes: &["Spark2_5ForCausalLM"],
    layer: &[&SPARK_PARTS, &ATTENTION, &GATED, &BEFORE],
    keys: |keys| {
        let config = keys.config;
        for (key, want) in [("gate_attn_act_mode", "sigmoid"), ("hidden_act", "gelu")] {
            if let Some(found) = config.text(key).filter(|found| *found != want) {
                let found =
                    format!("{}, and in a GGUF file it is {want}", crate::name::shown(found));
                return Err(config.wrong_value(key, found).into());
            }
        }
        keys.usual()?;
        window(keys)?;
        let turning = keys.turning(1.0)?;
        keys.set("rope.dimension_count", turning);
        if let Some(local) = config.rope().section_if("sliding_attention") {
            let share = local.float("partial_rotary_factor", 1.0)?;
            keys.set("rope.dimension_count_swa", (share * keys.head() as f32) as u32);
        }
        Ok(())
    },
    ..PLAIN
};

/// Experts whose gates are bounded.
pub(super) const MAPLE: Family = Family {
    architecture: "maple",
    classes: &["MapleForCausalLM"],
    layer: &[&ATTENTION, &BEFORE, &EXPERTS],
    shape: |config| {
        let inner =
            config.first_count(&["intermediate_size", "moe_intermediate_size"])?.unwrap_or(0);
        Shape::of(config, config.count("max_position_embeddings")?, inner)
    },
    keys: |keys| {
        keys.usual()?;
        window(keys)?;
        keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        let turning = keys.turning(1.0)?;
        keys.set("rope.dimension_count", turning);
        keys.set("swiglu_clamp_exp", vec![7.0f32; keys.shape.sizes.layers as usize]);
        Ok(())
    },
    ..PLAIN
};

const MUSE_PARTS: [Rule; 2] =
    [one("self_attn.gate_proj", "attn_gate"), one("pre_feedforward_layernorm", "ffn_norm")];

/// Norms around both parts, and those of queries and keys, which have one number for all that becomes their weights.
pub(super) const MUSE_GLIMMER: Family = Family {
    architecture: "muse-glimmer",
    classes: &["MuseGlimmerForConditionalGeneration"],
    layer: &[&MUSE_PARTS, &BEHIND, &ATTENTION, &GATED],
    pairs: true,
    ends: &[("eot", "<|eot|>")],
    // All but the last norm are stored as what differs from one.
    change: |_, name| {
        let is_norm = name.ends_with("norm.weight") && name != "output_norm.weight";
        Ok(if is_norm { Change::Add(1.0) } else { Change::None })
    },
    keys: |keys| {
        keys.usual()?;
        window(keys)?;
        keys.float_if("final_logit_softcapping", &["final_logit_softcapping"])?;
        keys.float_if("logit_scale", &["output_multiplier"])?;
        let (scale, head) = (keys.config.float("qk_scale_factor", 1.0)?, keys.head() as usize);
        for layer in 0..keys.shape.sizes.layers {
            keys.give(&format!("blk.{layer}.attn_q_norm.weight"), vec![scale; head]);
            keys.give(&format!("blk.{layer}.attn_k_norm.weight"), vec![1.0; head]);
        }
        Ok(())
    },
    ..PLAIN
};

/// Values are narrower than keys, and layers with a window have other heads of keys.
pub(super) const MIMO2: Family = Family {
    architecture: "mimo2",
    classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
    layer: &[
        &[one("self_attn.attention_sink_bias", "attn_sinks")],
        &ATTENTION,
        &GATED,
        &BEFORE,
        &EXPERTS,
    ],
    alike: Alike::Kinds,
    odd: Some(fused),
    keys: mimo2,
    ..PLAIN
};

/// Queries, keys and values as one matrix of 8 bits, which is one of each device that it was trained on behind the other.
fn fused<'a>(
    cutter: &Cutter<'_>,
    weights: &mut Weights<'a>,
    outputs: &mut Vec<Output<'a>>,
) -> Result<(), StoreError> {
    let (config, sizes) = (cutter.config, cutter.sizes);
    let head = u64::from(sizes.head);
    let value = u64::from(config.opt_count("v_head_dim")?.unwrap_or(sizes.head));
    let slides = slides(config)?;
    for layer in 0..sizes.layers {
        let name = format!("layers.{layer}.self_attn.qkv_proj.weight");
        let Some(tensor) = weights.take_if(&name, |tensor| tensor.parts() > 1) else { continue };
        let parts = tensor.parts();
        let local = slides.get(layer as usize) == Some(&true);
        let kv_heads = config
            .opt_count("swa_num_key_value_heads")?
            .filter(|_| local)
            .unwrap_or(sizes.kv_heads);
        let kv_heads = u64::from(kv_heads);
        let rows = [u64::from(sizes.heads) * head, kv_heads * head, kv_heads * value];
        let (all, columns) = (rows.iter().sum::<u64>(), tensor.columns());
        if tensor.entry.shape != [all, columns]
            || rows.iter().any(|rows| !rows.is_multiple_of(parts))
        {
            let (name, found) = (tensor.entry.name.clone(), tensor.entry.shape.clone());
            return Err(ImportError::TensorShape { name, found, want: vec![all, columns] }.into());
        }
        let mut from = 0;
        for (part, rows) in
            ["attn_q.weight", "attn_k.weight", "attn_v.weight"].into_iter().zip(rows)
        {
            let order = Order::of(Step::Window { each: all / parts, from, take: rows / parts });
            outputs.push(cutter.gathered(layer, part, &tensor, &[(rows, order)])?);
            from += rows / parts;
        }
    }
    Ok(())
}

/// Which layers have a window.
fn slides(config: &Json) -> Result<Vec<bool>, StoreError> {
    Ok(config.numbers("hybrid_layer_pattern")?.iter().map(|&kind| kind == 1).collect())
}

fn mimo2(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.usual()?;
    let config: &Json = keys.config;
    for (window, all) in
        [("swa_head_dim", "head_dim"), ("swa_num_attention_heads", "num_attention_heads")]
    {
        if config
            .opt_count(window)?
            .is_some_and(|count| config.opt_count(all).ok().flatten() != Some(count))
        {
            return Err(config.wrong(window, "the same as without a window").into());
        }
    }
    let slides = slides(config)?;
    if slides.len() != keys.shape.sizes.layers as usize {
        return Err(config
            .wrong("hybrid_layer_pattern", "a list with a number for each layer")
            .into());
    }
    let all = keys.shape.sizes.kv_heads;
    let local = config.opt_count("swa_num_key_value_heads")?.unwrap_or(all);
    let kv_heads: Vec<u32> =
        slides.iter().map(|&slides| if slides { local } else { all }).collect();
    keys.set("attention.head_count_kv", kv_heads);
    keys.set("attention.sliding_window_pattern", slides);
    keys.count("attention.sliding_window", &["sliding_window"])?;
    keys.count_if("attention.value_length", &["v_head_dim"])?;
    keys.float_if("attention.value_scale", &["attention_value_scale"])?;
    keys.set("attention.layer_norm_rms_epsilon", config.float("layernorm_epsilon", 1e-5)?);
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.flag_if("expert_weights_norm", "norm_topk_prob");
    keys.float_if("expert_weights_scale", &["routed_scaling_factor"])?;
    let turning = keys.turning(1.0)?;
    keys.set("rope.dimension_count", turning);
    Ok(())
}

const STEP_PARTS: [Rule; 9] = [
    one("self_attn.g_proj", "attn_gate"),
    one("moe.gate", "ffn_gate_inp"),
    one("moe.router_bias", "exp_probs_b.bias"),
    one("moe.gate_proj", "ffn_gate_exps"),
    one("moe.up_proj", "ffn_up_exps"),
    one("moe.down_proj", "ffn_down_exps"),
    one("share_expert.gate_proj", "ffn_gate_shexp"),
    one("share_expert.up_proj", "ffn_up_shexp"),
    one("share_expert.down_proj", "ffn_down_shexp"),
];

/// Layers with a window have heads of their own; norms are stored as what differs from one.
pub(super) const STEP35: Family = Family {
    architecture: "step35",
    classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
    layer: &[&STEP_PARTS, &ATTENTION, &GATED, &BEFORE],
    alike: Alike::Kinds,
    change: from_one,
    keys: step35,
    ..PLAIN
};

fn step35(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.sizes();
    keys.head_sizes();
    keys.norms()?;
    keys.experts()?;
    keys.count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.count("expert_shared_feed_forward_length", &["share_expert_dim"])?;
    keys.float_if("expert_weights_scale", &["moe_router_scaling_factor"])?;
    keys.flag_if("expert_weights_norm", "norm_expert_weight");
    let (config, layers) = (keys.config, keys.shape.sizes.layers as usize);
    // Lists go on with layers that are not imported.
    let kinds = config.strings("layer_types").filter(|kinds| kinds.len() >= layers);
    let kinds =
        kinds.ok_or_else(|| config.wrong("layer_types", "a list with a word for each layer"))?;
    let slides: Vec<bool> =
        kinds[..layers].iter().map(|kind| kind == "sliding_attention").collect();
    let other = config.section("attention_other_setting");
    for (there, here, all) in [
        ("num_attention_heads", "attention.head_count", keys.shape.sizes.heads),
        ("num_attention_groups", "attention.head_count_kv", keys.shape.sizes.kv_heads),
    ] {
        let local = other.opt_count(there)?.unwrap_or(all);
        let counts = slides.iter().map(|&slides| if slides { local } else { all });
        keys.set(here, counts.collect::<Vec<u32>>());
    }
    keys.set("attention.sliding_window_pattern", slides);
    keys.count("attention.sliding_window", &["sliding_window"])?;
    for (there, here) in
        [("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")]
    {
        let limits = config.value(there).and_then(|list| list.as_array());
        let number = |limit: &serde_json::Value| limit.as_f64().unwrap_or(0.0) as f32;
        let Some(limits) =
            limits.map(|list| list.iter().map(number).take(layers).collect::<Vec<f32>>())
        else {
            continue;
        };
        keys.set(here, limits);
    }
    step35_rope(keys)
}

/// One base for layers that see everything, of whose heads half turns, and one for the others.
fn step35_rope(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    let config = keys.config;
    let bases = match config.value("rope_theta").is_some_and(|value| value.is_array()) {
        true => config.floats("rope_theta")?,
        false => vec![config.float("rope_theta", 10_000.0)?],
    };
    let base = bases.first().copied();
    for (base, key) in bases.iter().zip(["rope.freq_base", "rope.freq_base_swa"]) {
        keys.set(key, *base);
    }
    keys.set("rope.dimension_count", keys.head());
    let rope = config.rope();
    if rope.text("rope_type").or(rope.text("type")) == Some("llama3") {
        let mut factors = llama3(&rope, keys.head() / 2, base, rope.float("factor", 8.0)?)?;
        // Those that turn as a whole have as many, and none is changed.
        factors.resize(keys.head() as usize / 2, 1.0);
        keys.give("rope_freqs.weight", factors);
    }
    Ok(())
}

pub(super) const PLAMO3_PARTS: [Rule; 10] = [
    one("pre_mixer_norm", "attn_norm"),
    one("mixer.qkv_proj", "attn_qkv"),
    one("mixer.q_norm", "attn_q_norm"),
    one("mixer.k_norm", "attn_k_norm"),
    one("mixer.o_proj", "attn_output"),
    one("post_mixer_norm", "post_attention_norm."),
    one("pre_mlp_norm", "ffn_norm"),
    one("mlp.gate_up_proj", "ffn_up"),
    one("mlp.down_proj", "ffn_down"),
    one("post_mlp_norm", "post_ffw_norm."),
];

/// Norms around both parts, stored as what differs from a number of each place.
pub(super) const PLAMO3: Family = Family {
    architecture: "plamo3",
    classes: &["Plamo3ForCausalLM", "PLaMo3ForCausalLM"],
    layers: "layers.layers.",
    layer: &[&PLAMO3_PARTS],
    ends: &[("eot", "<|plamo:op|>")],
    change: |_, name| {
        Ok(match name {
            "post_attention_norm" => Change::Add(0.2),
            "post_ffw_norm" => Change::Add(0.089_442_72),
            name if name.ends_with("norm.weight") => Change::Add(1.0),
            _ => Change::None,
        })
    },
    keys: |keys| {
        keys.usual()?;
        if let Some(window) = keys.config.first_count(&["window_size", "sliding_window"])? {
            keys.set("attention.sliding_window", window);
            keys.count("attention.sliding_window_pattern", &["sliding_window_pattern"])?;
        }
        Ok(())
    },
    ..PLAIN
};

/// The window and the layers that have it.
fn window(keys: &mut Keys<'_>) -> Result<(), StoreError> {
    keys.count("attention.sliding_window", &["sliding_window"])?;
    let slides = keys.sliding_layers(4)?;
    keys.set("attention.sliding_window_pattern", slides);
    Ok(())
}
